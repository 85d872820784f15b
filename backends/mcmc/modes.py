"""Likely answers that no chain drew: a search beside the chains, and what its answers should have been worth.

The ratio of the probabilities of two answers is known exactly: it follows from their scores.  Chains that have mixed
draw an answer found by a search as often as its score says, next to the best answer that they did draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Kernel
from energyml.inference.convergence import effective
from energyml.inference.trace import Trace

# The search: how often it starts anew, and what multiplies inverse temperatures, sweep after sweep.
RESTARTS, DESCENT = 4, (0.1, 0.3, 0.6, 1.0, 2.0, 5.0, 100.0, 100.0)
# An answer is missed that should be at least such a share of all draws, and at least twice so many times.  The best
# answer that was drawn must have been drawn so many times: of large models each answer is drawn once, by chance.
TIMES, SHARE = 10.0, 0.01


@dataclass(frozen=True, eq=False)
class Modes:
    """The result of a search.

    Attributes:
        labels: by variable: [B, n, *dims]; -1 where there is no cell.
        score: [B, n]: the model's.
    """

    labels: dict[str, Tensor]
    score: Tensor

    @staticmethod
    def found(kernel: Kernel, chains: int) -> Modes:
        """Answers that chains reach which cool down, from several starts.  Cost: `RESTARTS * len(DESCENT)` sweeps."""
        target = kernel.target
        generator = torch.Generator(target.device).manual_seed(0)
        stride, labels, scores = target.chains // chains, [], []
        for _ in range(RESTARTS):
            state = kernel.init(generator)
            usual = state.beta
            for factor in DESCENT:
                state, _ = kernel.step(replace(state, beta=factor * usual))
            own = {name: one[:, ::stride] for name, one in state.labels.items()}
            labels.append(target.outward(own))
            scores.append(state.score[:, ::stride] + target.auxiliary(own))
        return Modes({name: torch.cat([one[name] for one in labels], 1) for name in labels[0]}, torch.cat(scores, 1))

    def missed(self, trace: Trace) -> Tensor:
        """[B]: the largest probability of an answer that no draw is, beside what was drawn; 0 where none is missed.

        Cost: a comparison of all draws with the best one, and with each answer that should have been drawn.
        """
        flat = trace.score.flatten(0, 1)
        best, place = flat.max(0)
        row = torch.arange(flat.shape[1], device=flat.device)
        drawn = self._same(trace, {name: one.flatten(0, 1)[place, row] for name, one in trace.labels.items()})
        share = drawn.double().mean((0, 1))
        times = share * effective(drawn.double())
        missed = torch.zeros_like(share)
        for number in range(self.score.shape[1]):
            ratio = (self.score[:, number].double() - best).exp()
            wanted = best.isfinite() & (times >= TIMES) & (ratio * times >= 2 * TIMES) & (ratio * share >= SHARE)
            if bool(wanted.any()):
                other = {name: one[:, number] for name, one in self.labels.items()}
                wanted = wanted & ~self._same(trace, other).any(0).any(0)
                # With the answer that is missing the shares add up to more than one.
                missed = torch.where(wanted, missed.maximum(ratio * share / (1 + ratio * share)), missed)
        return torch.nan_to_num(missed, nan=1.0)

    def _same(self, trace: Trace, answer: dict[str, Tensor]) -> Tensor:
        """[S, C, B]: which draws are an answer [B, *dims]."""
        same = torch.ones(trace.score.shape, dtype=torch.bool, device=trace.score.device)
        for name, drawn in trace.labels.items():
            agrees = drawn == answer[name].to(drawn.dtype)
            same = same & agrees.reshape(*same.shape, -1).all(-1)
        return same


def told(missed: Tensor) -> str | None:
    """The words of a status about shares [B] that are missed; `None` where there are none."""
    if not bool((missed > 0).any()):
        return None
    return (
        "THE CHAINS MISS A MODE: a search found an answer that none of them drew, and its score says that its "
        f"probability is {float(missed.max()):.2g} of that of their answers and its own; do not use these draws as a "
        "sample; raise `chains`, `burn_in` and `sweeps`, or choose another sampler, such as `tempering`"
    )


__all__ = ["Modes", "told"]

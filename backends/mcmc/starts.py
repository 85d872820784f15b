"""Burn-in that spreads chains out: chains that come from distant answers show modes that they do not share.

Every other chain seeks a mode at a low temperature; half-way those of the second half go to the opposite of the mode
that a chain of the first half has found, and seek again from there.  Then all chains go on at their own temperatures.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Kernel, State

# The longest search for modes, in sweeps, and what multiplies inverse temperatures meanwhile.
COLD_SWEEPS, COLDEST = 10, 100.0


class BurnIn:
    """The burn-in of one run.  Cost: its sweeps.

    Args:
        kernel: moves the chains; kernels that are not valid samplers keep their temperatures.
        chains: how many chains, or ladders of temperatures, each example has.
        beta: [chains of the target]: their inverse temperatures.
        sweeps: how many sweeps are thrown away; a quarter of them, and at most `COLD_SWEEPS`, seek modes.
    """

    def __init__(self, kernel: Kernel, chains: int, beta: Tensor, sweeps: int) -> None:
        self.kernel, self.sweeps, self.usual = kernel, sweeps, beta
        self.cold_sweeps = min(COLD_SWEEPS, sweeps // 4) if kernel.valid and chains > 1 else 0
        stride = kernel.target.chains // chains
        places = torch.arange(kernel.target.chains, device=beta.device)
        half = chains // 2 * stride
        self.cold = places // stride % 2 == 1
        self.mirrored = self.cold & (places >= half) & (places < 2 * half)
        self.partner = torch.where(self.mirrored, places - half, places)
        self.frozen = torch.where(self.cold, COLDEST, 1.0) * beta

    def run(self, state: State) -> State:
        """All sweeps."""
        for first, last in ((0, self.cold_sweeps // 2), (self.cold_sweeps // 2, self.cold_sweeps)):
            if first < last:
                state, _ = self.kernel.run(self.ready(state, first), last - first)
        state, _ = self.kernel.run(self.ready(state, self.cold_sweeps), self.sweeps - self.cold_sweeps)
        return state

    def ready(self, state: State, sweep: int) -> State:
        """The chains before a sweep of the run: at the temperatures that it has."""
        if self.cold_sweeps and sweep == self.cold_sweeps // 2:
            state = self._mirror(state)
        return replace(state, beta=self.frozen if sweep < self.cold_sweeps else self.usual)

    def _mirror(self, state: State) -> State:
        """Chains go to the opposite of what their partner has found, where that is possible."""
        target = self.kernel.target
        with torch.no_grad():
            other = target.opposite({name: one[:, self.partner] for name, one in state.labels.items()})
            score = target.score(other)
        going = self.mirrored & ~score.isneginf()
        labels = {name: torch.where(going.unsqueeze(-1), one, state.labels[name]) for name, one in other.items()}
        return replace(state, labels=labels, score=torch.where(going, score, state.score), cache={})


__all__ = ["COLDEST", "COLD_SWEEPS", "BurnIn"]

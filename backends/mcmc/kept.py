"""The draws of a run as they come, and the trace that they make."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Kernel, State
from energyml.bind.problem import Problem
from energyml.inference.trace import Trace


class Kept:
    """Draws as they come: in the smallest type that holds a variable's labels."""

    def __init__(self, kernel: Kernel, chains: int) -> None:
        self.kernel = kernel
        self.stride = kernel.target.chains // chains
        self.labels: dict[str, list[Tensor]] = {name: [] for name in kernel.target.cells}
        self.scores: list[Tensor] = []
        self.totals: list[Tensor] = []

    def add(self, state: State, proposed: Tensor, accepted: Tensor, novel: Tensor) -> None:
        """Keep a state; of ladders, the rung at temperature 1."""
        own = {name: one[:, :: self.stride] for name, one in state.labels.items()}
        for name, one in self.kernel.target.outward(own).items():
            self.labels[name].append(one.to(_narrow(self.kernel.target.counts[name])).movedim(0, 1))
        self.scores.append((state.score[:, :: self.stride] + self.kernel.target.auxiliary(own)).T)
        counts = torch.stack([proposed, accepted, novel])[:, :, :: self.stride]
        self.totals = [counts if not self.totals else self.totals[0] + counts]

    def trace(self, problem: Problem, sampler: str, burn_in: int, apart: Tensor | None) -> Trace:
        """All that was kept, of chains that began `apart` [B]."""
        proposed, accepted, novel = self.totals[0].movedim(-1, 1)
        graph = problem.graph
        return Trace(
            labels={name: torch.stack(one) for name, one in self.labels.items()},
            score=torch.stack(self.scores),
            counts=self.kernel.target.counts,
            names=problem.label_names(),
            dims={v.name: v.dims for v in graph.discrete},
            acceptance=accepted / proposed.clamp(min=1),
            novel=novel / proposed.clamp(min=1),
            burn_in=burn_in,
            latent=frozenset(v.name for v in graph.discrete if v.kind == "latent"),
            sampler=sampler,
            warning=self.kernel.warning,
            valid=self.kernel.valid,
            apart=apart,
            impossible=self.kernel.target.impossible(),
        )


def _narrow(count: int) -> torch.dtype:
    return torch.int8 if count <= 127 else torch.int16 if count <= 32767 else torch.int32


__all__ = ["Kept"]

"""energyml: kernels on a factor graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.mcmc.cases import Case
from benchmarks.mcmc.contestants import Prepared
from energyml.backends.mcmc.factor_target import FactorTarget
from energyml.backends.mcmc.gibbs import FactorGibbs
from energyml.backends.mcmc.gibbs_native import NativeChains, NativeGibbs
from energyml.backends.mcmc.kernel import Kernel, State
from energyml.bind.problem import Problem
from energyml.grounded.factors import Grounder

BURN_IN = 20


class Ours:
    """A kernel: `energyml` stands for `gibbs(block: colour)`."""

    def __init__(
        self,
        name: str,
        make: Callable[[FactorTarget], Kernel],
        chains: dict[str, tuple[int, ...]],
        sweeps: dict[str, int],
    ) -> None:
        self.name, self.make, self.chains, self.sweeps = name, make, chains, sweeps

    def prepare(self, case: Case, chains: int) -> Prepared:
        """Ground, start and burn in."""
        kernel = self.make(_target(case.problem(), chains))
        held: list[State] = [kernel.init(torch.Generator().manual_seed(0))]
        (name,) = held[0].labels
        held[0], _ = kernel.run(held[0], BURN_IN)

        def sweep(count: int) -> None:
            held[0], _ = kernel.run(held[0], count)

        def draw(count: int) -> np.ndarray:
            made = torch.empty(count, 2, chains, dtype=torch.float64)
            for number in range(count):
                held[0], _ = kernel.step(held[0])
                made[number, 0] = held[0].score[0]
                made[number, 1] = held[0].labels[name][0].sum(-1) / case.cells
            return made.permute(2, 0, 1).numpy()

        def labels() -> Tensor:
            return held[0].labels[name][0]

        return Prepared(chains, sweep, draw, labels, case.cells)


def _target(problem: Problem, chains: int) -> FactorTarget:
    tables = problem.tables()
    return FactorTarget(problem, chains, Grounder(problem.graph, tables))


def ours() -> list[Ours]:
    """The contestant that is held to the bars first, and others of ours beside it."""
    many = {"ising": (128, 512), "chain": (128, 512)}
    few = {"ising": (128,), "chain": (128,)}
    return [
        Ours("energyml", lambda target: NativeGibbs(target, "coloured"), many, {"ising": 10, "chain": 10}),
        Ours("energyml, whole chains", NativeChains, {"chain": (128, 512)}, {"chain": 10}),
        Ours("energyml, torch", lambda target: FactorGibbs(target, "coloured"), few, {"ising": 4, "chain": 2}),
    ]


__all__ = ["Ours", "ours"]

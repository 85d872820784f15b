"""What is sampled: an Ising grid and a chain with many labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import energyml as em
from energyml.bind.problem import Problem

GRID = """
labels Spin = {down, up}
dim H, W
input bias : real[H, W, Spin]
output s : Spin[H, W]
param J : real = constant(1)
factor site [i in H, j in W] (s[i, j]) = bias[i, j]
factor below [i in H-1, j in W] (s[i, j], s[i+1, j]) = potts(J)
factor right [i in H, j in W-1] (s[i, j], s[i, j+1]) = potts(J)
"""
CHAIN = """
labels Tag from data
dim T
input u : real[T, Tag]
input w : real[from: Tag, to: Tag]
output y : Tag[T]
chain y { unary: u, pair: w }
"""


@dataclass(frozen=True)
class Ising:
    """Spins on a square grid with free ends: score = sum of bias, plus `coupling` for each pair of equal neighbours.

    The critical point of the infinite grid is at a coupling of log(1 + sqrt 2) = 0.881.
    """

    side: int = 64
    coupling: float = 0.6

    name = "ising"

    @property
    def cells(self) -> int:
        """Sites."""
        return self.side**2

    @property
    def title(self) -> str:
        """In words."""
        return f"Ising {self.side} x {self.side}, coupling {self.coupling}"

    @cached_property
    def bias(self) -> Tensor:
        """[side, side]: what spin up is worth more than spin down."""
        return 0.2 * torch.randn(self.side, self.side, generator=torch.Generator().manual_seed(0))

    def problem(self) -> Problem:
        """For energyml."""
        model = em.compile(GRID.replace("constant(1)", f"constant({self.coupling})"))
        scores = torch.stack([torch.zeros_like(self.bias), self.bias], -1)
        return model.problem(bias=scores.unsqueeze(0))

    def score(self, labels: Tensor) -> Tensor:
        """[n]: of labels [n, sites], for checking contestants."""
        spins = labels.reshape(-1, self.side, self.side)
        equal = (spins[:, 1:] == spins[:, :-1]).sum((1, 2)) + (spins[:, :, 1:] == spins[:, :, :-1]).sum((1, 2))
        return (spins * self.bias).sum((1, 2)) + self.coupling * equal


@dataclass(frozen=True)
class Chain:
    """A chain with normal scores, transitions half as strong."""

    labels: int = 400
    length: int = 50

    name = "chain"

    @property
    def cells(self) -> int:
        """Positions."""
        return self.length

    @property
    def title(self) -> str:
        """In words."""
        return f"chain of {self.length} cells, {self.labels} labels"

    @cached_property
    def unary(self) -> Tensor:
        """[length, labels]."""
        return torch.randn(self.length, self.labels, generator=torch.Generator().manual_seed(1))

    @cached_property
    def pair(self) -> Tensor:
        """[labels, labels]: from, to."""
        return torch.randn(self.labels, self.labels, generator=torch.Generator().manual_seed(2))

    def problem(self) -> Problem:
        """For energyml."""
        model = em.compile(CHAIN, labels={"Tag": [f"t{number}" for number in range(self.labels)]})
        return model.problem(u=self.unary.unsqueeze(0), w=self.pair.unsqueeze(0))

    def score(self, labels: Tensor) -> Tensor:
        """[n]: of labels [n, length], for checking contestants."""
        labels = labels.long()
        each = self.unary.gather(1, labels.T).sum(0)
        return each + self.pair[labels[:, :-1], labels[:, 1:]].sum(1)


Case = Ising | Chain

__all__ = ["Case", "Chain", "Ising"]

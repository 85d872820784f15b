"""Structures as short as they can be: what the derived layer is held to enumeration with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.inference.reductions import Reduce
from energyml.inference.structure import Axes, Structure, Weights

NINF = float("-inf")


class Chain:
    """Labels along a line, with scores of neighbours in the part `pair`."""

    latent: frozenset[str] = frozenset()

    def __init__(self, lengths: Tensor, size: int, labels: int) -> None:
        self.batch, self.size, self.lengths = len(lengths), size, lengths
        at = torch.arange(size)
        self.cells = {"y": Axes((size,), (labels,), at < lengths[:, None])}
        self.parts = {"pair": Axes((size - 1,), (labels, labels), at[1:] < lengths[:, None])}

    def total(self, weights: Weights, reduce: Reduce) -> Tensor:
        y, pair = weights.cells["y"], weights.parts["pair"]
        ahead = y[:, 0]
        for t in range(1, self.size):
            step = pair[:, t - 1 if pair.shape[1] > 1 else 0]
            onward = reduce(ahead.unsqueeze(-1) + step, 1) + y[:, t if y.shape[1] > 1 else 0]
            ahead = torch.where((t < self.lengths)[:, None], onward, ahead)
        return torch.where(self.lengths > 0, reduce(ahead, 1), 0)

    def covers(self, other: Structure) -> bool:
        return isinstance(other, Chain)

    def restricted(self, allowed: Mapping[str, Tensor]) -> Structure:
        return self

    def legal(self, b: int, labels: tuple[int, ...]) -> bool:
        return True


class Subset:
    """Exactly k [B] of the cells have the label 1."""

    latent: frozenset[str] = frozenset()

    def __init__(self, lengths: Tensor, size: int, k: Tensor) -> None:
        self.batch, self.size, self.lengths, self.k = len(lengths), size, lengths, k
        self.cells = {"y": Axes((size,), (2,), torch.arange(size) < lengths[:, None])}
        self.parts: dict[str, Axes] = {}

    def total(self, weights: Weights, reduce: Reduce) -> Tensor:
        y = weights.cells["y"].expand(self.batch, self.size, 2)
        first = torch.arange(self.size + 1) == 0
        counted = torch.where(first, 0.0, NINF).to(y.dtype).expand(self.batch, -1)  # by how many are 1 so far
        for t in range(self.size):
            off, on = counted + y[:, t, :1], (counted.roll(1, 1) + y[:, t, 1:]).masked_fill(first, NINF)
            counted = torch.where((t < self.lengths)[:, None], reduce(torch.stack([off, on], -1), -1), counted)
        found = counted.gather(1, self.k.clamp(max=self.size)[:, None])[:, 0]
        return found.masked_fill(self.k > self.size, NINF)

    def covers(self, other: Structure) -> bool:
        return isinstance(other, Subset) and torch.equal(self.k, other.k)

    def restricted(self, allowed: Mapping[str, Tensor]) -> Structure:
        return self

    def legal(self, b: int, labels: tuple[int, ...]) -> bool:
        return sum(labels) == int(self.k[b])


@dataclass(frozen=True)
class Listed:
    """All answers of each example with their scores, one by one.

    Attributes:
        structure: whose answers.
        answers: for each example the labels of existing cells, and the score.
    """

    structure: Chain | Subset
    answers: list[list[tuple[tuple[int, ...], float]]]

    @staticmethod
    def of(structure: Chain | Subset, weights: Weights) -> Listed:
        """List the answers and score them by scalars alone."""
        count = structure.cells["y"].labels[0]

        def every(b: int) -> Iterator[tuple[tuple[int, ...], float]]:
            for labels in itertools.product(range(count), repeat=int(structure.lengths[b])):
                if structure.legal(b, labels):
                    yield labels, scored(weights, b, labels)

        return Listed(structure, [list(every(b)) for b in range(structure.batch)])

    def log_z(self, holds: Callable[[int, tuple[int, ...]], bool] = lambda b, labels: True) -> list[float]:
        """The log of summed exp(score) of the answers for which something holds."""
        return [lse([s for labels, s in rows if holds(b, labels)]) for b, rows in enumerate(self.answers)]

    def shares(self, b: int) -> list[tuple[tuple[int, ...], float]]:
        """Answers with their probabilities."""
        total = lse([score for _, score in self.answers[b]])
        return [(labels, math.exp(score - total) if score > NINF else 0.0) for labels, score in self.answers[b]]

    def marginals(self) -> Tensor:
        axes = self.structure.cells["y"]
        found = torch.zeros(self.structure.batch, *axes.sizes, *axes.labels, dtype=torch.float64)
        for b in range(self.structure.batch):
            for labels, p in self.shares(b):
                for t, label in enumerate(labels):
                    found[b, t, label] += p
        return found

    def pairs(self) -> Tensor:
        axes = self.structure.parts["pair"]
        found = torch.zeros(self.structure.batch, *axes.sizes, *axes.labels, dtype=torch.float64)
        for b in range(self.structure.batch):
            for labels, p in self.shares(b):
                for t, pair in enumerate(itertools.pairwise(labels)):
                    found[(b, t, *pair)] += p
        return found

    def entropy(self) -> list[float]:
        return [-sum(p * math.log(p) for _, p in self.shares(b) if p > 0) for b in range(self.structure.batch)]

    def expected(self, values: Weights) -> list[float]:
        return [
            sum(p * scored(values, b, labels) for labels, p in self.shares(b) if p > 0)
            for b in range(self.structure.batch)
        ]

    def cross_entropy(self, other: Listed) -> list[float]:
        found = []
        for b, total in enumerate(other.log_z()):
            theirs = dict(other.answers[b])
            likely = [(p, theirs[labels]) for labels, p in self.shares(b) if p > 0]
            found.append(sum(p * (total - score) if score > NINF else math.inf for p, score in likely))
        return found

    def best(self) -> list[float]:
        return [max((score for _, score in rows), default=NINF) for rows in self.answers]


def scored(weights: Weights, b: int, labels: tuple[int, ...]) -> float:
    """The score of one answer, entry by entry."""
    total = sum(_entry(weights.cells["y"], b, t, label) for t, label in enumerate(labels))
    if "pair" in weights.parts:
        total += sum(_entry(weights.parts["pair"], b, t, *pair) for t, pair in enumerate(itertools.pairwise(labels)))
    return total


def _entry(table: Tensor, b: int, t: int, *labels: int) -> float:
    return float(table[(b if table.shape[0] > 1 else 0, t if table.shape[1] > 1 else 0, *labels)])


def lse(scores: list[float]) -> float:
    """The log of the sum of exp."""
    finite = [score for score in scores if score > NINF]
    if not finite:
        return NINF
    peak = max(finite)
    return peak + math.log(sum(math.exp(score - peak) for score in finite))

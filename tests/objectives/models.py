"""Small random models, and their losses written down again: every answer, one by one, with no backend's help."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel

CHAIN = """\
dim T
labels Tag = {O, B, I}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
chain y { unary: u, pair: w }
forbid y[0] = I
"""
TREE = """\
dim T, E
labels Tag = {O, B, I}
input u : real[T, Tag]
input link : edge(T, T)[E]
output y : Tag[T]
param w : real[a: Tag, b: Tag]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = w
forbid y[0] = I
"""
LOOP = """\
dim T
labels Tag = {O, B, I}
input u : real[T, Tag]
output y : Tag[T]
param w : real[a: Tag, b: Tag]
factor node [t in T] (y[t]) = u[t]
factor next [t in T-1] (a: y[t], b: y[t+1]) = w
factor skip [t in T-2] (a: y[t], b: y[t+2]) = w
forbid y[0] = I
"""
SPECS = {"chain": CHAIN, "tree": TREE, "loop": LOOP}
BATCH, SIZE, LABELS = 3, 4, 3
LENGTHS = (4, 3, 1)
# The label that no first cell may have.
FORBIDDEN = 2


def compiled(name: str, seed: int) -> EnergyModel:
    """A model in double precision with random pair scores."""
    model = em.compile(SPECS[name], seed=0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def inputs(name: str, seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """A batch of three examples of different lengths."""
    generator = torch.Generator().manual_seed(seed + 1)
    given = {"u": scale * torch.randn(BATCH, SIZE, LABELS, generator=generator, dtype=torch.float64)}
    if name == "tree":
        given["link"] = torch.tensor([[[0, 1], [1, 2], [1, 3]], [[2, 0], [0, 1], [-1, -1]], [[-1, -1]] * 3])
    given["lengths"] = torch.tensor(LENGTHS)
    return given


def gold_labels(seed: int, known: float = 1.0) -> Tensor:
    """Labels [B, T] that nothing forbids, -1 where a coin says so."""
    generator = torch.Generator().manual_seed(seed + 2)
    labels = torch.randint(0, LABELS, (BATCH, SIZE), generator=generator)
    labels[:, 0] = labels[:, 0].clamp(max=1)
    return labels.masked_fill(torch.rand(labels.shape, generator=generator) >= known, -1)


@dataclass(frozen=True)
class Listed:
    """All answers of one example with their scores, asked of `model.score` only."""

    model: EnergyModel
    given: Mapping[str, Tensor]
    example: int

    @property
    def length(self) -> int:
        return LENGTHS[self.example]

    @cached_property
    def answers(self) -> list[tuple[int, ...]]:
        return list(itertools.product(range(LABELS), repeat=self.length))

    @cached_property
    def scores(self) -> list[float]:
        count = len(self.answers)
        labels = torch.zeros(count, SIZE, dtype=torch.long)
        labels[:, : self.length] = torch.tensor(self.answers).reshape(count, self.length)
        here = {
            key: one[self.example : self.example + 1].expand(count, *one.shape[1:]) for key, one in self.given.items()
        }
        with torch.no_grad():
            found: list[float] = self.model.score(y=labels, **here).tolist()
        return found

    def agreeing(self, gold: Tensor) -> list[float]:
        """The scores of the answers that agree with labels [B, T]."""
        row = gold[self.example].tolist()
        return [
            score
            for answer, score in zip(self.answers, self.scores, strict=True)
            if all(label in (-1, one) for label, one in zip(row, answer, strict=False))
        ]

    def costs(self, gold: Tensor, cost: Callable[[int, int], float]) -> list[float]:
        """What each answer costs: the mean over labelled cells of cost(gold, predicted)."""
        row = gold[self.example, : self.length].tolist()
        known = max(1, sum(label >= 0 for label in row))
        return [
            sum(cost(label, one) for label, one in zip(row, answer, strict=True) if label >= 0) / known
            for answer in self.answers
        ]


def lse(values: list[float]) -> float:
    """The log of the sum of exp."""
    peak = max(values, default=-math.inf)
    return peak if math.isinf(peak) else peak + math.log(sum(math.exp(one - peak) for one in values))


def listed(model: EnergyModel, given: Mapping[str, Tensor]) -> list[Listed]:
    """The examples of a batch."""
    return [Listed(model, given, example) for example in range(BATCH)]


def wanted(
    objective: str, model: EnergyModel, given: Mapping[str, Tensor], gold: Tensor, cost: Callable[[int, int], float]
) -> Tensor:
    """[B]: the losses, by the definitions."""
    rows = []
    for one in listed(model, given):
        agreeing = one.agreeing(gold)
        raised = [score + added for score, added in zip(one.scores, one.costs(gold, cost), strict=True)]
        if objective == "nll":
            rows.append(lse(one.scores) - lse(agreeing))
        elif objective == "ssvm":
            rows.append(max(raised) - max(agreeing))
        elif objective == "softmax_margin":
            rows.append(lse(raised) - lse(agreeing))
        else:
            rows.append(-sum(_cell(one, gold, place) for place in range(one.length)))
    return torch.tensor(rows, dtype=torch.float64)


def _cell(one: Listed, gold: Tensor, place: int) -> float:
    """The log-probability of one cell's label."""
    label = int(gold[one.example, place])
    if label < 0:
        return 0.0
    pairs = zip(one.answers, one.scores, strict=True)
    return lse([score for answer, score in pairs if answer[place] == label]) - lse(one.scores)

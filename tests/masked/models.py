"""Masked models small enough to enumerate, and their scores written down again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel

MASKED = """\
labels Phone = {A, B, C}
dim N
output y : Phone[N]
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, energy: raw }
"""
LOCAL = MASKED.replace("energy: raw", "energy: local")
TRANSFORMER = MASKED.replace("masked_blstm(hidden: 4, embed: 3)", "masked_transformer(hidden: 4, heads: 2, layers: 1)")
GIVEN = """\
labels Phone = {A, B, C}
dim N
input x : real[N, 2]
output y : Phone[N]
net m = masked_blstm(hidden: 4, embed: 3)
masked y { conditionals: m, given: x, energy: local }
"""
# A masked network beside tables, one of which forbids.
JOINED = """\
labels Phone = {A, B, C}
dim N
output y : Phone[N]
net m = masked_blstm(hidden: 4, embed: 3)
param w : real[from: Phone, to: Phone]
masked y { conditionals: m, energy: raw }
factor next [n in N-1] (from: y[n], to: y[n+1]) = w
forbid y[0] = C
"""
LENGTHS = torch.tensor([3, 1, 2])
Y = torch.tensor([[0, 2, 1], [1, -1, -1], [1, 0, -1]])


def made(text: str, scale: float = 1.0, seed: int = 0) -> EnergyModel:
    """A model in double precision with large random parameters, so that conditionals differ."""
    model = em.compile(text, seed=seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def answers(length: int, labels: int = 3) -> Tensor:
    """All label sequences of a length, [labels ** length, length]."""
    return torch.tensor(list(itertools.product(range(labels), repeat=length)))


def log_partition(model: EnergyModel, length: int, **inputs: Tensor) -> Tensor:
    """Log Z of one example, by scoring every answer on its own."""
    every = answers(length)
    repeated = {name: one.expand(every.shape[0], *one.shape[1:]) for name, one in inputs.items()}
    return model.score(y=every, **repeated).logsumexp(0)


def true_conditionals(model: EnergyModel, y: Tensor, **inputs: Tensor) -> Tensor:
    """[N, labels]: log p(y[t] | the others) of one example, each label put in its place by hand."""
    rows = []
    for t in range(y.shape[0]):
        trial = y.repeat(3, 1)
        trial[:, t] = torch.arange(3)
        repeated = {name: one.expand(3, *one.shape[1:]) for name, one in inputs.items()}
        rows.append(model.score(y=trial, **repeated).log_softmax(0))
    return torch.stack(rows)


def free_conditionals(model: EnergyModel, y: Tensor, given: Sequence[Tensor] = ()) -> Tensor:
    """[N, labels]: the softmax of what the network says at each masked position of one example."""
    net = model._modules["m"]
    scores: Tensor = net.masked_scores(y.unsqueeze(0), tuple(given), {})[0]  # type: ignore[operator,union-attr]
    return scores.log_softmax(-1)

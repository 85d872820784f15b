"""A small chain and scores for it, for tests of how models are called."""

from __future__ import annotations

import torch
from torch import Tensor

import energyml as em
from energyml.energy_model import EnergyModel

CHAIN = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
net f = linear(out: Tag)
chain y { unary: f(u) + u, pair: w }
forbid y[0] = C
"""


def model() -> EnergyModel:
    return em.compile(CHAIN, seed=0)


def scores(batch: int = 2, size: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, size, 3, generator=torch.Generator().manual_seed(batch + size)).to(dtype)

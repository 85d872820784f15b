"""Small sequence models of every kind that steps serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import energyml as em

DECODERS = {
    "lstm": "lstm_decoder(hidden: 4, embed: 3, attention: bahdanau)",
    "gru": "lstm_decoder(hidden: 4, embed: 3, cell: gru, attention: dot)",
    "transformer": "transformer_decoder(hidden: 4, heads: 2, layers: 2)",
}
TAGGER = """
labels Tag = {{O, 'B-x', 'I-x'}}
dim T
input x : real[T, 3]
output y : Tag[T]
net encoder = lstm(hidden: 3)
net decoder = {decoder}
sequence y {{ step: decoder, given: encoder(x), normalize: {normalize} }}
{more}
infer beam
"""
MIXED = """
param pair : real[from: Tag, to: Tag]
param far : real[a: Tag, b: Tag, c: Tag]
param ends : real[a: Tag, b: Tag]
factor near [t in T-1] (from: y[t], to: y[t+1]) = pair
factor third [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = far
factor ring (a: y[0], b: y[-1]) = ends
scheme y bio
"""
TRANSLATION = """
labels Word = {{a, b, stop}}
dim S
dim T free <= 4
input x : real[S, 3]
output y : Word[T]
net decoder = {decoder}
sequence y {{ step: decoder, given: x, normalize: {normalize}, end: stop }}
{more}
infer beam
"""
FREE_TABLES = """
param pair : real[from: Word, to: Word]
param ends : real[a: Word, b: Word]
param alone : real[Word]
factor near [t in T-1] (from: y[t], to: y[t+1]) = pair
factor inner [t in T-1] (y[t]) = alone
factor ring (a: y[0], b: y[-1]) = ends
"""


@dataclass(frozen=True)
class Example:
    """A model and a batch for it."""

    model: Any
    arguments: dict[str, Any] = field(default_factory=dict)

    def infer(self, using: str, **more: Any) -> em.Posterior:
        """The posterior of one backend."""
        return self.model.infer(using=using, **{**self.arguments, **more})


def sharp(model: Any, factor: float = 3.0) -> Any:
    """Larger weights: answers that differ in more than rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def features(batch: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random inputs."""
    return torch.randn(batch, size, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def tagger(
    decoder: str = "lstm", normalize: str = "local", more: str = "", size: int = 4, kind: str = "ragged",
    dtype: torch.dtype = torch.float64,
) -> Example:  # fmt: skip
    """Three sentences, of different lengths or with gaps."""
    model = sharp(em.compile(TAGGER.format(decoder=DECODERS[decoder], normalize=normalize, more=more), seed=3))
    arguments: dict[str, Any] = {"x": features(3, size, dtype)}
    if kind == "ragged":
        arguments["lengths"] = torch.tensor([size, max(0, size - 2), 0])
    if kind == "gaps":
        mask = torch.ones(3, size, dtype=torch.bool)
        mask[0, 1], mask[1, 0], mask[2] = False, False, False
        arguments["mask"] = mask
    return Example(model.to(dtype), arguments)


def translation(
    decoder: str = "lstm", normalize: str = "local", more: str = "", dtype: torch.dtype = torch.float64
) -> Example:
    """Two sentences whose translations may have up to four words."""
    model = sharp(em.compile(TRANSLATION.format(decoder=DECODERS[decoder], normalize=normalize, more=more), seed=4))
    return Example(model.to(dtype), {"x": features(2, 3, dtype), "lengths": {"S": torch.tensor([3, 1])}})

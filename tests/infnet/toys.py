"""Small models for tests of inference networks, and a few steps of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import energyml as em
from energyml.energy_model import EnergyModel

TAGGER = """\
labels Word = {a, b, c, d, e, f}
labels Tag = {O, B, I}
dim T
input word : Word[T]
output y : Tag[T]
net scores = blstm(out: Tag, hidden: 4, embed: 3)
param W : real[from: Tag, to: Tag] = normal(1)
chain y { unary: scores(word), pair: W }
infer exact
"""
SPELLED = """\
labels Char = {k, l, m, n}
labels Word = {a, b, c, d, e, f}
labels Tag = {O, B, I}
labels Size = {small, large}
dim T
dim M[T]
input char : Char[T, M]
input word : Word[T]
input shape : real[T, 2]
input about : real[3]
output y : Tag[T]
output z : Size[T]
net scores = chars_words(out: Tag, chars: 2, words: 3, hidden: 3, char_body: cnn, body: linear)
param V : real[Size, 3]
param W : real[from: Tag, to: Tag] = normal(1)
param U : real[Tag, Size] = normal(1)
net sizes = mlp(out: Size, hidden: 3)
net whole = mlp(out: Size, hidden: 3)
chain y { unary: scores(char, word), pair: W }
factor size [t in T] (z[t]) = sizes(shape)[t]
factor bias [t in T] (z[t]) = whole(about)
factor both [t in T] (y[t], z[t]) = U
infer exact
"""
CHOICES = (
    "infnet(blstm(hidden: 4))",
    "infnet(blstm(hidden: 3, layers: 2), plus: true)",
    "infnet(cnn(hidden: 4))",
    "infnet(cnn(hidden: 3, width: 5), plus: true)",
    "infnet(seq2seq(hidden: 4, embed: 3))",
    "infnet(seq2seq(hidden: 3, embed: 2), plus: true)",
)


def with_options(choice: str, options: str) -> str:
    """A choice of `infnet` with one more option."""
    return f"{choice[:-1]}, {options})" if choice.endswith(")") else f"{choice}({options})"


def tagger(text: str = TAGGER, seed: int = 0) -> EnergyModel:
    """A model in double precision, in evaluation mode."""
    return em.compile(text, seed=seed).double().eval()


def words(batch: int = 5, length: int = 6, seed: int = 0) -> dict[str, Any]:
    """Sentences of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    return {"word": torch.randint(6, (batch, length), generator=generator), "lengths": lengths}


def gold(given: dict[str, Any], seed: int = 1) -> Tensor:
    """Labels that follow the words, with mistakes."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(3, given["word"].shape, generator=generator)
    return torch.where(torch.rand(noise.shape, generator=generator) < 0.8, given["word"] % 3, noise)


def trained(parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], steps: int, lr: float = 0.03) -> None:
    """Some steps of Adam."""
    optimizer = torch.optim.Adam(list(parameters), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def check_slope(parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], seed: int = 0) -> float:
    """The gradient along a random direction, after comparing it with a difference quotient."""
    moving = list(parameters)
    generator = torch.Generator().manual_seed(seed)
    along = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in moving]
    found = torch.autograd.grad(loss(), moving, allow_unused=True)
    slope = sum(float((one * way).sum()) for one, way in zip(found, along, strict=True) if one is not None)
    values = []
    with torch.no_grad():
        for step in (1e-5, -2e-5, 1e-5):
            for one, way in zip(moving, along, strict=True):
                one += step * way
            values.append(float(loss()))
    assert math.isclose(slope, (values[0] - values[1]) / 2e-5, rel_tol=1e-4, abs_tol=1e-6)
    return slope

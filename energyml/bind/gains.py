"""Factors that balance puts on terms: plain numbers, or numbers that undo the magnitude of a group of terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from energyml.bind.bound import BoundTerm
    from energyml.bind.tensors import Environment

_SMALL = 1e-8


@dataclass(frozen=True)
class Normalised:
    """The factor alpha / |U|, with |U| the mean magnitude of a group's potentials in each example.

    Shevchenko & Osokin 2019, eq. 20.  Differentiated through; an epsilon keeps it finite where all potentials are 0.
    """

    alpha: float
    group: tuple[str, ...]

    def of(self, env: Environment) -> Tensor:
        """[B]: the factor of each example."""
        return self.alpha / (magnitude(self.group, env) + _SMALL)


Gain: TypeAlias = float | Normalised


def magnitude(group: Iterable[str], env: Environment) -> Tensor:
    """[B]: the mean magnitude of the potentials of a group of terms, before any gain; valid finite entries count."""
    names = set(group)
    terms = [term for term in cast("Iterable[BoundTerm]", env.module.terms) if term.term.name in names]
    total = torch.zeros(env.batch.size, device=env.batch.device, dtype=env.batch.dtype)
    count = torch.zeros_like(total)
    for term in terms:
        added, counted = term.weight(env)
        total, count = total + added, count + counted
    return total / count.clamp(min=1)


__all__ = ["Gain", "Normalised", "magnitude"]

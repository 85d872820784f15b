"""Contract cases with scores of every magnitude that a floating-point type holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tests.contract.cases import Case

NINF = float("-inf")
Maker = Callable[[tuple[int, ...], torch.dtype, torch.Generator], Tensor]


def _normal(scale: float) -> Maker:
    return lambda shape, dtype, generator: torch.randn(shape, generator=generator, dtype=torch.float64) * scale


def _ties(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randint(-1, 2, shape, generator=generator).double()


def _largest(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Up to the type's largest number; float64 leaves room for sums, which the reference adds up in it."""
    most = torch.finfo(dtype).max / (1 if dtype == torch.float32 else 1024)
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * most


def _any_magnitude(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Half moderate numbers, half of either sign and of a magnitude between 1e-30 and the type's largest."""
    most = 38 if dtype == torch.float32 else 300
    exponents = torch.rand(shape, generator=generator, dtype=torch.float64) * (most + 30) - 30
    huge = torch.randn(shape, generator=generator, dtype=torch.float64).sign() * 10**exponents
    moderate = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, moderate, huge)


def _masks(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Moderate numbers, two in five replaced by one large negative number, as users write masks."""
    written = [-1e4, -1e9, -1e12, -1e30, torch.finfo(torch.float32).min, torch.finfo(dtype).min / 1024]
    mask = written[int(torch.randint(0, len(written), (), generator=generator))]
    moderate = torch.randn(shape, generator=generator, dtype=torch.float64)
    return moderate.masked_fill(torch.rand(shape, generator=generator) < 0.4, mask)


SPECTRA: dict[str, Maker] = {
    "ordinary": _normal(1.0),
    "ties": _ties,
    "tiny": _normal(1e-30),
    "1e4": _normal(1e4),
    "1e7": _normal(1e7),
    "1e13": _normal(1e13),
    "masks": _masks,
    "any magnitude": _any_magnitude,
    "largest": _largest,
}
_COMPUTED = re.compile(r"^(?:let|score|net)\b|=.* [-+*/] ")


def computed(case: Case) -> set[str]:
    """The words of the lines of a spec in which scores are computed."""
    return {word for line in case.text.splitlines() if _COMPUTED.search(line) for word in re.findall(r"\w+", line)}


def respread(case: Case, spectrum: str, seed: int, holes: bool) -> Case:
    """A case whose score tables, given and learned, hold numbers of a spectrum, and -inf here and there.

    Tables that take part in arithmetic hold moderate numbers: its rounding is the model's own.  So do the tensors that
    networks read.
    """
    generator = torch.Generator().manual_seed(seed)
    names = computed(case)

    def drawn(like: Tensor, name: str) -> Tensor:
        moderate = name in names
        made = SPECTRA["ordinary" if moderate else spectrum](tuple(like.shape), case.dtype, generator)
        if holes and not moderate:
            made = made.masked_fill(torch.rand(tuple(like.shape), generator=generator) < 0.2, NINF)
        return made.to(case.dtype)

    inputs = {
        name: torch.where(one.isnan(), one, drawn(one, name)) if re.fullmatch(r"u\d+", name) else one
        for name, one in case.inputs.items()
    }
    weights = {name: drawn(one, name) for name, one in case.model._parameters.items() if one is not None}
    return replace(case, inputs=inputs, weights=weights, magnitude=1.0)


def constraints(case: Case) -> list[str]:
    """The kinds of constraints that a case has."""
    holes = any(bool((one == NINF).any()) for one in (*case.inputs.values(), *case.weights.values()))
    found = {
        "-inf": holes,
        "rules": "forbid" in case.text or "scheme" in case.text,
        "gaps": bool(case.masks),
        "lengths": bool(case.lengths),
        "labels known": any(one.dtype != torch.bool for one in case.evidence.values()),
        "labels allowed": any(one.dtype == torch.bool for one in case.evidence.values()),
    }
    return [name for name, holds in found.items() if holds] or ["none"]

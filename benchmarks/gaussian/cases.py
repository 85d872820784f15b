"""Random fields of the kinds that are measured: embeddings as a network makes them, and grids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import energyml as em
from energyml.bind.quadratic import QuadraticForm

LABELS = 2
LOW_RANK = """\
labels Seg = {{off, on}}
dim H, W
input u : real[Seg, H, W]
input e : real[{rank}, H, W]
field s : real[Seg, H, W]
gaussian s {{ unary: u, pair: potts(e), ridge: {ridge} }}
"""
GRID = """\
dim H, W
input u : real[{channels}, H, W]
{declared}
field s : real[{channels}, H, W]
gaussian s {{ unary: u, pair: smooth({weight}), ridge: {ridge} }}
"""


@dataclass(frozen=True)
class Case:
    """A field to be solved, and what comes back from the loss.

    Attributes:
        spec: its text, but for the line that names the backend.
        inputs: what the spec reads, float32.
        upstream: [B, M, H, W], the gradient of the loss in the solution.
        form: the precision matrix, bounded already: what peers are given.
    """

    spec: str
    inputs: dict[str, Tensor]
    upstream: Tensor
    form: QuadraticForm

    @property
    def batch(self) -> int:
        return self.upstream.shape[0]

    @property
    def rhs(self) -> Tensor:
        """[B, M, N]: the linear part."""
        return self.inputs["u"].reshape(self.form.sizes)

    @property
    def back(self) -> Tensor:
        """[B, M, N]: the gradient that comes back."""
        return self.upstream.reshape(self.form.sizes)

    def model(self, backend: str) -> em.EnergyModel:
        return em.compile(f"{self.spec}infer {backend}\n")


def _case(spec: str, inputs: dict[str, Tensor], generator: torch.Generator) -> Case:
    upstream = torch.randn(inputs["u"].shape, generator=generator)
    problem = em.compile(f"{spec}infer exact\n").problem(**inputs)
    (term,) = problem.quadratic().values()
    with torch.no_grad():
        return Case(spec, inputs, upstream, term.form(problem.env))


def smooth_fields(sizes: tuple[int, ...], width: float, generator: torch.Generator) -> Tensor:
    """Noise [..., H, W] without its high frequencies, of variance 1: neighbours within `width` cells look alike."""
    noise = torch.randn(sizes, generator=generator)
    rows, columns = (torch.fft.fftfreq(size).square() for size in sizes[-2:])
    kept = torch.exp(-2 * (torch.pi * width) ** 2 * (rows[:, None] + columns[None, :]))
    low: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) * kept).real
    return low / low.std((-2, -1), keepdim=True)


def low_rank(side: int, rank: int, batch: int, flat: bool = False, strength: float = 1.0, ridge: float = 1.0) -> Case:
    """Embeddings [B, K, side, side] for two labels.

    Those of a network are correlated: smooth over the image, around a mean, a few dims much larger than the rest.
    Their products are far above the ridge, so that the bounded form is at work.  `flat` ones are white noise instead.
    """
    generator = torch.Generator().manual_seed(side + rank + batch)
    if flat:
        embeddings = torch.randn(batch, rank, side, side, generator=generator)
    else:
        scales = torch.arange(1, rank + 1).float().rsqrt()[:, None, None]
        embeddings = smooth_fields((batch, rank, side, side), side / 32, generator) * scales
        embeddings += 0.5 * torch.randn(batch, rank, 1, 1, generator=generator) * scales
    unary = torch.randn(batch, LABELS, side, side, generator=generator)
    spec = LOW_RANK.format(rank=rank, ridge=ridge)
    return _case(spec, {"u": unary, "e": embeddings * strength}, generator)


def grid(side: int, channels: int, batch: int, ridge: float, constant: bool = False) -> Case:
    """A grid whose edges have weights between 0 and 2, or 1 all alike."""
    generator = torch.Generator().manual_seed(side + channels + batch)
    inputs = {"u": torch.randn(batch, channels, side, side, generator=generator)}
    if not constant:
        inputs["w"] = 2 * torch.rand(batch, 2, side, side, generator=generator)
    spec = GRID.format(
        channels=channels, ridge=ridge, weight="1.0" if constant else "w",
        declared="" if constant else "input w : real[2, H, W]",
    )  # fmt: skip
    return _case(spec, inputs, generator)

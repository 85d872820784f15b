"""A field given observed cells: the system of the free ones (Rue & Held 2005, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from energyml.backends.gaussian.dense import written_out
from energyml.bind.quadratic import QuadraticForm, Sizes
from energyml.caching import ValueCache, cached_property, empty_cache
from energyml.diagnostics import QueryRefused
from energyml.execution import is_host_readable

# Evidence about single channels of a position mixes with their couplings; it is served by writing the matrix out.
LARGEST_MIXED = 4096


@dataclass
class Conditioned:
    """score = constant + rhsᵀ s - 1/2 sᵀ Q s over the free cells s.

    Attributes:
        form: Q, with rows of the identity where a position is observed or does not exist.
        rhs: [B, M, N], zero there.
        shape: the sizes of the field; those of the form may be others.
        observed: [B, M, N], the observed values, zero elsewhere; `None` where nothing is.
        of_observed: [B], the score of what is observed; 0 when `None`.
        kept: what was computed from it.
    """

    form: QuadraticForm
    rhs: Tensor
    shape: Sizes
    observed: Tensor | None = None
    of_observed: Tensor | None = None
    kept: ValueCache = field(default_factory=empty_cache, repr=False)

    @property
    def constant(self) -> Tensor:
        """[B]: the score of what is observed."""
        return self.rhs.new_zeros(self.form.sizes.batch) if self.of_observed is None else self.of_observed

    @cached_property
    def count(self) -> Tensor:
        """[B]: how many cells are free."""
        sizes, present = self.form.sizes, self.form.present
        if present is None:
            return self.rhs.new_full((sizes.batch,), sizes.positions * sizes.channels)
        return present.sum(1).to(self.rhs.dtype) * sizes.channels

    @property
    def has_free(self) -> bool:
        """Whether any cell is free; where one cannot look, whether any could be."""
        return not is_host_readable(self.rhs) or bool((self.count > 0).any())

    def inside(self, cells: Tensor) -> Tensor:
        """Values [..., B, M, N], zero where a cell is not free."""
        return cells if self.form.present is None else torch.where(self.form.present.unsqueeze(1), cells, 0)


def condition(form: QuadraticForm, linear: Tensor, observed: Tensor | None) -> Conditioned:
    """The system of the cells that are not observed; costs one product with the matrix where some are.

    Args:
        form: the precision matrix of all cells.
        linear: [B, M, N].
        observed: [B, M, N] with NaN for free cells; nothing is observed when `None`.
    """
    if observed is None:
        return Conditioned(form, linear, form.sizes)
    free = observed.isnan()
    # Looking at evidence waits for the device; without it channels could not be told apart.
    if form.sizes.channels > 1 and not observed.is_meta and bool((free != free[:, :1]).any()):
        form, linear, observed, free = _by_cell(form, linear, observed, free)
    values = torch.where(free, 0, observed)
    if form.present is not None:
        values = torch.where(form.present.unsqueeze(1), values, 0)
    product = form.multiply(values)
    constant = (values * (linear - 0.5 * product)).sum((1, 2))
    inner = form.given(free[:, 0])
    rhs = torch.where(inner.present.unsqueeze(1), linear - product, 0)  # type: ignore[union-attr]
    return Conditioned(inner, rhs, form.sizes, values, constant)


def _by_cell(
    form: QuadraticForm, linear: Tensor, observed: Tensor, free: Tensor
) -> tuple[QuadraticForm, Tensor, Tensor, Tensor]:
    """The same field with one channel and a position for each cell."""
    cells = form.sizes.channels * form.sizes.positions
    if cells > LARGEST_MIXED:
        raise QueryRefused(
            f"evidence about some channels of a position needs the matrix of all {cells} cells, and "
            f"{LARGEST_MIXED} is the most; observe all channels of a position, or none"
        )
    sizes = Sizes(form.sizes.batch, 1, cells)
    ridge = form.ridge.expand(form.sizes.batch)
    dense = written_out(form) - torch.diag_embed(ridge.unsqueeze(1).expand(-1, cells))
    present = None
    if form.present is not None:
        present = form.present.unsqueeze(1).expand(-1, form.sizes.channels, -1).flatten(1)
        dense = torch.where(present.unsqueeze(1) & present.unsqueeze(2), dense, 0)
    made = QuadraticForm(sizes, ridge, present, dense=dense)
    return made, linear.reshape(sizes), observed.reshape(sizes), free.reshape(sizes)


__all__ = ["Conditioned", "condition"]

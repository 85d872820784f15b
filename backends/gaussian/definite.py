"""Bounds on precision matrices at the cost of reading their parts: of the smallest eigenvalue, and of rounding."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from energyml.bind.lowrank import largest
from energyml.bind.quadratic import QuadraticForm


def lower_bound(form: QuadraticForm) -> Tensor:
    """[B]: no eigenvalue of the cells that exist is smaller; inf where there are none.

    Rows of edges and of a dense matrix count by Gershgorin's theorem: an edge of weight w takes min(2w, 0) from the
    diagonal of either end.  A low-rank coupling takes away its largest eigenvalue where it is negative between
    channels.  O(N) for each direction, O(E) for edges, O(N K²) for vectors, O((M N)²) for a dense matrix.
    """
    sizes = form.sizes
    rows = form.own()
    if form.stencil is not None:
        rows = rows + 2 * form.stencil.negative().diagonal().unsqueeze(1)
    if form.links is not None:
        rows = rows + 2 * form.links.negative().diagonal(sizes.positions).unsqueeze(1)
    if form.dense is not None:
        own = form.dense.diagonal(dim1=1, dim2=2)
        beside = form.dense.abs().sum(2) - own.abs()
        rows = rows + (own - beside).reshape(-1, *sizes[1:])
    rows = rows.expand(sizes)
    if form.present is not None:
        rows = rows.masked_fill(~form.present.unsqueeze(1), float("inf"))
    bound = rows.flatten(1).amin(1) if rows[0:1].numel() else rows.new_full((sizes.batch,), float("inf"))
    for part in form.vectors:
        factor = min(part.within - part.across, part.within + (sizes.channels - 1) * part.across)
        if sizes.channels == 1:
            factor = part.within
        if factor < 0:
            bound = bound + factor * part.strength * largest(part.products_of_all())
    return bound


def rounded(form: QuadraticForm) -> Tensor:
    """[B or 1, M or 1, N or 1]: the magnitudes of the parts of the diagonal, which may cancel, added up.

    A product with the matrix is rounded by some units in the last place of these.
    """
    total = form.own().abs()
    for part in form.vectors:
        factor = abs(part.within) + form.sizes.channels * abs(part.across)
        squares = part.values.square().sum(1)
        total = total + (factor * part.strength.abs()[:, None] * squares).unsqueeze(1)
    if form.stencil is not None:
        total = total + replace(form.stencil, weights=form.stencil.weights.abs()).diagonal().unsqueeze(1)
    if form.links is not None:
        links = replace(form.links, weights=form.links.weights.abs())
        total = total + links.diagonal(form.sizes.positions).unsqueeze(1)
    if form.dense is not None:
        total = total + form.dense.diagonal(dim1=1, dim2=2).abs().reshape(-1, *form.sizes[1:])
    return total


__all__ = ["lower_bound", "rounded"]

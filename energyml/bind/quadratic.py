"""Precision matrices of Gaussian fields, as sums of parts that are never written out.

The cells of a field are [B, M, N]: M channels (its labels and numbers) at each of N positions.  A form Q is

    ridge I  +  diagonal  +  Σ strength · (S ⊗ A Aᵀ)  +  Σ over edges w (sᵢ - sⱼ)²  +  a dense matrix

where S couples channels (`potts` couples different ones, `lowrank` each with itself).  Every part multiplies a field
and gives the gradient of vᵀQx in its own tensors; both are plain torch operations, so they can be differentiated again
(Shevchenko & Osokin 2019, eq. 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from energyml.bind.lowrank import Vectors, times
from energyml.caching import cached_property
from energyml.execution import under_transform


@dataclass(frozen=True)
class Stencil:
    """Edges between neighbours of a grid: Σ w (sᵢ - sⱼ)², for every channel.

    Attributes:
        shape: the sizes of the grid; N is their product.
        offsets: the directions; edge (d, i) joins the cell i with the cell at i + offset d.
        weights: [B or 1, D, N], or [B or 1, D, 1] where they are constant; edges that leave the grid are unused.
    """

    shape: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    weights: Tensor

    @property
    def is_constant(self) -> bool:
        """Whether each direction has one weight."""
        return self.weights.shape[2] == 1

    def multiply(self, x: Tensor) -> Tensor:
        """The coupling times a field; O(M N D)."""
        grid = self._on_grid(x)
        total = torch.zeros_like(grid)
        if under_transform() and self.ends:  # `vmap` writes into what it maps over, and that may be the weights alone
            total = torch.zeros_like(grid + self.weights[:, :1, :1].unflatten(2, [1] * len(self.shape)))
        for number, (first, second) in enumerate(self.ends):
            flow = (grid[first] - grid[second]) * self.weight(number, first)
            total[first] += flow
            total[second] -= flow
        return total.reshape(x.shape)

    def diagonal(self) -> Tensor:
        """[B or 1, N]: the sum of the weights of each cell's edges."""
        total = self.weights.new_zeros(self.weights.shape[0], 1, *self.shape)
        for number, (first, second) in enumerate(self.ends):
            weight = self.weight(number, first)
            total[first] += weight
            total[second] += weight
        return total.flatten(1)

    def negative(self) -> Stencil:
        """The edges of negative weight alone."""
        return replace(self, weights=self.weights.clamp(max=0))

    def gradient(self, v: Tensor, x: Tensor) -> tuple[Tensor]:
        """The gradient of vᵀWx in the weights."""
        left, right = self._on_grid(v), self._on_grid(x)
        parts = []
        for first, second in self.ends:
            flow = ((left[first] - left[second]) * (right[first] - right[second])).sum(1)
            if self.is_constant:
                parts.append(flow.flatten(1).sum(1, keepdim=True))
            else:
                whole = flow.new_zeros(v.shape[0], *self.shape)
                whole[first[:1] + first[2:]] = flow
                parts.append(whole.flatten(1))
        return (torch.stack(parts, 1).sum_to_size(self.weights.shape),)

    def edges(self, device: torch.device) -> Tensor:
        """[D, N, 2]: the cells that each edge joins, -1 for edges that leave the grid."""
        cells = torch.arange(_count(self.shape), device=device).reshape(1, 1, *self.shape)
        found = torch.full((len(self.offsets), 1, 1, *self.shape, 2), -1, device=device)
        for number, (first, second) in enumerate(self.ends):
            found[number][first] = torch.stack([cells[first], cells[second]], -1)
        return found.reshape(len(self.offsets), _count(self.shape), 2)

    def between(self, mask: Tensor) -> Tensor:
        """[B, D, N]: whether both ends of each edge are inside the grid and in a mask [B, N]."""
        grid = mask.reshape(mask.shape[0], 1, *self.shape)
        parts = []
        for first, second in self.ends:
            whole = torch.zeros_like(grid)
            whole[first] = grid[first] & grid[second]
            parts.append(whole.reshape(mask.shape))
        return torch.stack(parts, 1)

    @cached_property
    def ends(self) -> tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...]:
        """For each direction: the first and the second cells of its edges, as slices of [B, M, *shape]."""
        every = (slice(None), slice(None))
        return tuple(
            (
                (*every, *(_from(step, size) for step, size in zip(offset, self.shape, strict=True))),
                (*every, *(_from(-step, size) for step, size in zip(offset, self.shape, strict=True))),
            )
            for offset in self.offsets
        )

    def _on_grid(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], *self.shape)

    def weight(self, number: int, first: tuple[slice, ...]) -> Tensor:
        """[B or 1, 1, ...]: the weights of one direction, where its edges start."""
        own = self.weights[:, number]
        if self.is_constant:
            return own.reshape(own.shape[0], 1, *([1] * len(self.shape)))
        return own.reshape(own.shape[0], 1, *self.shape)[first]


def _from(step: int, size: int) -> slice:
    """The cells along one axis from which a step stays inside."""
    return slice(max(0, -step), max(0, size - max(0, step)))


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


@dataclass(frozen=True)
class Links:
    """Edges of a list: Σ w (sᵢ - sⱼ)², for every channel.

    Attributes:
        ends: [B, E, 2], positions.
        weights: [B, E]; zero where there is no edge.
    """

    ends: Tensor
    weights: Tensor

    def multiply(self, x: Tensor) -> Tensor:
        """The coupling times a field; O(M E)."""
        first, second = self._indices(x)
        flow = (x.gather(2, first) - x.gather(2, second)) * self.weights.unsqueeze(1)
        return torch.zeros_like(x).scatter_add(2, first, flow).scatter_add(2, second, -flow)

    def diagonal(self, count: int) -> Tensor:
        """[B, N]: the sum of the weights of each cell's edges; a loop counts nothing."""
        weights = self.weights.masked_fill(self.ends[..., 0] == self.ends[..., 1], 0)
        total = weights.new_zeros(weights.shape[0], count)
        return total.scatter_add(1, self.ends[..., 0], weights).scatter_add(1, self.ends[..., 1], weights)

    def negative(self) -> Links:
        """The edges of negative weight alone."""
        return replace(self, weights=self.weights.clamp(max=0))

    def gradient(self, v: Tensor, x: Tensor) -> tuple[Tensor]:
        """The gradient of vᵀWx in the weights."""
        first, second = self._indices(x)
        left, right = v.gather(2, first) - v.gather(2, second), x.gather(2, first) - x.gather(2, second)
        return ((left * right).sum(1),)

    def _indices(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ends = self.ends.unsqueeze(1).expand(*x.shape[:2], -1, -1)
        return ends[..., 0], ends[..., 1]


class Sizes(NamedTuple):
    """The sizes of a field: examples, channels, positions."""

    batch: int
    channels: int
    positions: int


@dataclass(frozen=True)
class QuadraticForm:
    """A precision matrix Q over the cells [B, M, N] of a field; see the module.

    Attributes:
        sizes: B, M and N.
        ridge: [B or 1].
        present: [B, N], which positions exist; the others are not coupled, and Q is 1 there.
        diagonal: [B or 1, N], what is added to the ridge.
        vectors: low-rank couplings.
        stencil: neighbours of a grid.
        links: edges of a list.
        dense: [B or 1, M N, M N], symmetric.
    """

    sizes: Sizes
    ridge: Tensor
    present: Tensor | None = None
    diagonal: Tensor | None = None
    vectors: tuple[Vectors, ...] = ()
    stencil: Stencil | None = None
    links: Links | None = None
    dense: Tensor | None = None

    @property
    def is_diagonal(self) -> bool:
        """Whether nothing is coupled."""
        return not self.vectors and self.stencil is None and self.links is None and self.dense is None

    def own(self) -> Tensor:
        """[B or 1, 1, N or 1]: ridge and diagonal."""
        total = self.ridge.unsqueeze(1)
        if self.diagonal is not None:
            total = total + self.diagonal
        if self.present is not None:
            total = torch.where(self.present, total, 1)
        return total.unsqueeze(1)

    def multiply(self, x: Tensor) -> Tensor:
        """Q x for fields [B, M, N]; the cost of its parts."""
        total = self.own() * x
        for part in self.vectors:
            total = total + part.multiply(x)
        if self.stencil is not None:
            total = total + self.stencil.multiply(x)
        if self.links is not None:
            total = total + self.links.multiply(x)
        if self.dense is not None:
            total = total + times(x.flatten(1).unsqueeze(1), self.dense).reshape(x.shape)
        return total

    def diagonal_of_all(self) -> Tensor:
        """[B or 1, M or 1, N or 1]: the diagonal of Q."""
        total = self.own()
        for part in self.vectors:
            total = total + part.diagonal().unsqueeze(1)
        if self.stencil is not None:
            total = total + self.stencil.diagonal().unsqueeze(1)
        if self.links is not None:
            total = total + self.links.diagonal(self.sizes.positions).unsqueeze(1)
        if self.dense is not None:
            own = self.dense.diagonal(dim1=1, dim2=2)
            total = total + own.reshape(own.shape[0], *self.sizes[1:])
        return total

    # ------------------------------------------------------------------------------------------------------- tensors

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that Q depends on, in the order of `gradient`."""
        found = [self.ridge]
        if self.diagonal is not None:
            found.append(self.diagonal)
        for part in self.vectors:
            found += [part.values, part.strength]
        found += [part.weights for part in (self.stencil, self.links) if part is not None]
        return tuple(found) if self.dense is None else (*found, self.dense)

    def with_tensors(self, tensors: Sequence[Tensor]) -> QuadraticForm:
        """The same form of other tensors."""
        given = iter(tensors)
        ridge = next(given)
        diagonal = None if self.diagonal is None else next(given)
        vectors = tuple(Vectors(next(given), next(given), part.within, part.across) for part in self.vectors)
        stencil = None if self.stencil is None else replace(self.stencil, weights=next(given))
        links = None if self.links is None else replace(self.links, weights=next(given))
        dense = None if self.dense is None else next(given)
        return replace(self, ridge=ridge, diagonal=diagonal, vectors=vectors, stencil=stencil, links=links, dense=dense)

    def detached(self) -> QuadraticForm:
        """The same form without gradients."""
        if not any(one.requires_grad for one in self.tensors()):
            return self
        made = self.with_tensors([one.detach() for one in self.tensors()])
        known = [None if part.gram is None else part.gram.detach() for part in self.vectors]
        pairs = zip(made.vectors, known, strict=True)
        return replace(made, vectors=tuple(replace(part, known=gram) for part, gram in pairs))

    def gradient(self, v: Tensor, x: Tensor, needed: Sequence[bool] | None = None) -> tuple[Tensor | None, ...]:
        """The gradients of vᵀQx in `tensors()`: the second half of eq. 15, in memory linear in the tensors.

        Parts whose tensors are not needed get `None`; all are when `needed` is left out.
        """
        asked = iter([True] * len(self.tensors()) if needed is None else needed)
        found: list[Tensor | None] = []
        product: Tensor | None = None
        for own, axes in ((self.ridge, (1, 2)), (self.diagonal, (1,))):
            if own is None:
                continue
            if not next(asked):
                found.append(None)
                continue
            if product is None:
                product = v * x if self.present is None else torch.where(self.present.unsqueeze(1), v * x, 0)
            found.append(product.sum(axes).sum_to_size(own.shape))
        for part in self.vectors:
            wanted = [next(asked), next(asked)]
            found += part.gradient(v, x) if any(wanted) else (None, None)
        for one in (self.stencil, self.links):
            if one is not None:
                found += one.gradient(v, x) if next(asked) else (None,)
        if self.dense is not None:
            outer = v.flatten(1).unsqueeze(2) * x.flatten(1).unsqueeze(1) if next(asked) else None
            found.append(None if outer is None else outer.sum_to_size(self.dense.shape))
        return tuple(found)

    # ---------------------------------------------------------------------------------------------------- conditioning

    def given(self, free: Tensor) -> QuadraticForm:
        """The form of the free positions [B, N] when the others are observed: their rows are those of the identity."""
        vectors = tuple(
            Vectors(part.values * free.unsqueeze(1), part.strength, part.within, part.across) for part in self.vectors
        )
        total = self.diagonal
        stencil, links = self.stencil, self.links
        if stencil is not None:
            inside = replace(stencil, weights=torch.where(stencil.between(free), stencil.weights, 0))
            total = _plus(total, stencil.diagonal() - inside.diagonal())
            stencil = inside
        if links is not None:
            both = free.gather(1, links.ends[..., 0]) & free.gather(1, links.ends[..., 1])
            within = replace(links, weights=torch.where(both, links.weights, 0))
            total = _plus(total, links.diagonal(self.sizes.positions) - within.diagonal(self.sizes.positions))
            links = within
        dense = self.dense
        if dense is not None:
            cells = free.unsqueeze(1).expand(-1, self.sizes.channels, -1).flatten(1)
            dense = dense * (cells.unsqueeze(1) & cells.unsqueeze(2))
        present = free if self.present is None else free & self.present
        return replace(
            self, present=present, diagonal=total, vectors=vectors, stencil=stencil, links=links, dense=dense
        )

    def example(self, number: int) -> QuadraticForm:
        """The form of one example."""
        here = slice(number, number + 1)

        def one(tensor: Tensor) -> Tensor:
            return tensor if tensor.shape[0] == 1 else tensor[here]

        links = None if self.links is None else replace(self.links, ends=one(self.links.ends))
        present = None if self.present is None else one(self.present)
        alone = replace(self, sizes=self.sizes._replace(batch=1), present=present, links=links)
        return alone.with_tensors([one(tensor) for tensor in self.tensors()])


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


__all__ = ["Links", "QuadraticForm", "Sizes", "Stencil"]

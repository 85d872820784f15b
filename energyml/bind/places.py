"""Where indices stand: positions of the caller's tensors for every element of a term's index set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from energyml.bind.batch import Along, Batch
from energyml.ir.graph import Affine, Binding, Edges, Graph, Term
from energyml.model.expression import At, Expression
from energyml.model.types import Extent

Frame: TypeAlias = Mapping[str, Along]


def counted_dims(term: Term, graph: Graph) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each dim that is the only dim of variables in the scope: those variables, whose cells indices count."""
    found: dict[str, list[str]] = {}
    for name in term.variables:
        dims = graph.variables[name].dims
        if len(dims) == 1:
            found.setdefault(dims[0], []).append(name)
    return tuple((dim, tuple(names)) for dim, names in found.items())


def owner_of(affine: Affine, domain: tuple[Binding, ...]) -> int | None:
    """Which binding of the domain an index comes from; `None` for a constant."""
    for number, binding in enumerate(domain):
        if affine.index == binding.index or (isinstance(binding, Edges) and affine.index in binding.ends):
            return number
    return None


def positions(batch: Batch, frame: Frame, affine: Affine, extent: Extent, domain: tuple[Binding, ...]) -> Tensor:
    """[B or 1, *domain]: the positions that an index stands for, clamped into the axis of that extent."""
    rank, last = len(domain), max(0, batch.size_of(extent.name) + extent.offset - 1)
    along = frame.get(extent.name)
    owner = owner_of(affine, domain)
    if owner is None:
        assert along is not None
        cell = _constant(along, affine, extent, batch).clamp(min=0, max=last)
        if along.order is not None and along.size:
            cell = along.order.gather(1, cell.expand(batch.size).unsqueeze(1)).squeeze(1).clamp(max=last)
        return cell.reshape(-1, *([1] * rank))
    binding = domain[owner]
    shape = [1] * (1 + rank)
    if isinstance(binding, Edges):
        rows = batch.tensors[binding.source]
        if affine.index == binding.index:
            place = torch.arange(rows.shape[1], device=batch.device).unsqueeze(0)
        else:
            place = rows[:, :, binding.ends.index(affine.index or "")]
        shape[0], shape[1 + owner] = place.shape
        return place.clamp(min=0, max=last).reshape(shape)
    length = max(0, batch.size_of(binding.dim) - binding.shrink)
    if along is not None and along.order is not None:
        place = along.order[:, affine.offset : affine.offset + length]
        shape[0], shape[1 + owner] = place.shape
    else:
        place = torch.arange(affine.offset, affine.offset + length, device=batch.device)
        shape[1 + owner] = length
    return place.clamp(max=last).reshape(shape)


def _constant(along: Along, affine: Affine, extent: Extent, batch: Batch) -> Tensor:
    """[B or 1]: the cell that a constant counts to, from the start or the end of its axis."""
    counts = along.counts(batch.device)
    return counts + (extent.offset + affine.offset) if affine.offset < 0 else torch.full_like(counts, affine.offset)


def constant_exists(frame: Frame, affine: Affine, extent: Extent, batch: Batch) -> Tensor | None:
    """[B or 1]: whether the cell that a constant counts to exists; `None` when it always does."""
    along = frame[extent.name]
    needed = affine.offset + 1 if affine.offset >= 0 else -affine.offset
    if along.count is None:
        if along.size + extent.offset >= needed:
            return None
        return torch.zeros(1, dtype=torch.bool, device=batch.device)
    return along.count + extent.offset >= needed


def value_constants(value: Expression) -> tuple[tuple[Affine, Extent], ...]:
    """The constant subscripts inside an expression, with the extents of the axes that they consume."""
    found: list[tuple[Affine, Extent]] = []
    if isinstance(value, At):
        pairs = zip(value.indices, value.base.type.index_axes, strict=False)
        found += [(affine, axis.extent) for affine, axis in pairs if affine.index is None]
    for part in value.parts:
        found += value_constants(part)
    return tuple(dict.fromkeys(found))


def roomy(tensor: Tensor, axes: int) -> Tensor:
    """A tensor whose first axes after the batch axis are not empty, so that a clamped position can be read."""
    for axis in range(1, 1 + axes):
        if tensor.shape[axis] == 0:
            shape = list(tensor.shape)
            shape[axis] = 1
            tensor = tensor.new_zeros(shape)
    return tensor

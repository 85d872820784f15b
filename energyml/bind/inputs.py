"""What inputs must look like, and whether their values fit the declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from energyml import errors
from energyml.bind.batch import Batch
from energyml.diagnostics import Diagnostic, Report, Source, Span, SpecError
from energyml.execution import is_host_readable, is_recording, under_transform
from energyml.ir.graph import Graph
from energyml.model.declared import Input
from energyml.model.types import REAL, EdgeType

# Types of whole numbers that labels and positions do not come in: conversion would hide a mistake, or wrap around.
NO_LABELS = {torch.bool: "truth values", torch.uint64: "unsigned 64-bit numbers"}


class DataError(SpecError, ValueError):
    """A tensor that breaks a declaration; the message shows the declaration."""


def data_error(source: Source, code: str, span: Span | None, **facts: object) -> DataError:
    """The error for a tensor that breaks a declaration."""
    help_text = facts.pop("help", None)
    found: Diagnostic = errors.diagnostic(code, span, help=help_text, **facts)  # type: ignore[arg-type]
    report = Report(source)
    report.add(found)
    return DataError(source, report.ordered())


class Axis(NamedTuple):
    """What an axis of an input must be: a fixed size, or a dim plus an offset."""

    shown: str
    fixed: int | None
    dim: str = ""
    offset: int = 0


class Wanted(NamedTuple):
    """What an input must look like, found once."""

    declared: Input
    axes: tuple[Axis, ...]
    integral: bool

    @classmethod
    def of(cls, declared: Input, counts: Mapping[str, int]) -> Wanted:
        """What a declaration asks for; `counts` has the size of each label set."""
        if isinstance(declared.type, EdgeType):
            ends = len(declared.type.ends)
            over = declared.type.over
            return cls(declared, (Axis(over, None, over), Axis(str(ends), ends)), True)
        axes: list[Axis] = []
        for axis in declared.type.axes:
            extent = axis.extent
            if extent.kind == "dim":
                axes.append(Axis(str(extent), None, extent.name, extent.offset))
            else:
                axes.append(Axis(str(extent), counts[extent.name] if extent.kind == "labels" else extent.offset))
        return cls(declared, tuple(axes), declared.type.element != REAL)

    def wrong_kind(self, source: Source, found: str, help_text: str | None = None) -> DataError:
        """The error for a tensor that holds something else."""
        declared = self.declared
        facts = {"name": declared.name, "found": found, "type": declared.type, "help": help_text}
        return data_error(source, "E0504", declared.span, **facts)


class Values:
    """Looks at the numbers, labels and edges of inputs; prepared once, used on every call.

    Args:
        graph: whose inputs these are.
        source: the spec, for messages.
        wanted: what each input must look like.
        counts: the size of each label set.
    """

    def __init__(self, graph: Graph, source: Source, wanted: Mapping[str, Wanted], counts: Mapping[str, int]) -> None:
        self.graph, self.source, self.wanted, self.counts = graph, source, wanted, counts
        # Values that are looked at: of fields, their backends tell which numbers are no good, and in which example.
        self.examined = frozenset(name for name, one in wanted.items() if one.integral or not graph.fields)
        # Fixed edges whose ends were found to exist: the tensor, its version, and the sizes of the dims at that time.
        self._fitting: dict[str, tuple[Tensor, int, list[int | None]]] = {}

    def check(self, batch: Batch, sizes: Mapping[str, int], given: Mapping[str, Tensor]) -> None:
        """Values on the host are checked, fixed ones once; on an accelerator that would wait for the device.

        Args:
            batch: the inputs in the types that scores are computed in.
            sizes: the padded sizes of dims.
            given: the inputs in the types that they came in.
        """
        if is_recording():
            return
        for name, tensor in batch.tensors.items():
            wanted = self.wanted[name]
            declared = wanted.declared
            if isinstance(declared.type, EdgeType):
                self._edges(wanted, declared.type, tensor, sizes, batch)
                continue
            if tensor.numel() == 0 or not is_host_readable(tensor):
                continue
            if not wanted.integral:
                if given[name] is not tensor:
                    self._converted(declared, given[name], tensor, batch)
                if name in self.examined:
                    self._numbers(declared, tensor, batch)
                continue
            count = self.counts[declared.type.element]
            low, high = extremes(tensor)
            if low < -1 or high >= count:
                bad = ((tensor < -1) | (tensor >= count)) & _existing(declared, tensor, batch)
                if bool(bad.any()):
                    spot = bad.nonzero()[0]
                    facts = {"value": int(tensor[tuple(spot)]), "example": int(spot[0]), "count": count}
                    raise data_error(
                        self.source, "E0505", declared.span, name=name, labels=declared.type.element, **facts
                    )

    def _numbers(self, declared: Input, tensor: Tensor, batch: Batch) -> None:
        """Refuse NaN and inf where there is a cell."""
        # One pass without a copy; where the sum is one of the two, every number is looked at.
        if float(tensor.detach().sum()) < math.inf:
            return
        bad = (tensor.isnan() | tensor.isposinf()) & self._read(declared, tensor, batch)
        if bool(bad.any()):
            spot = bad.nonzero()[0].tolist()
            value = "NaN" if math.isnan(float(tensor[tuple(spot)])) else "inf"
            raise data_error(
                self.source, "E0512", declared.span, name=declared.name, value=value, example=spot[0], place=spot[1:]
            )

    def _converted(self, declared: Input, given: Tensor, tensor: Tensor, batch: Batch) -> None:
        """Refuse finite numbers that the type of scores cannot hold, where there is a cell."""
        left = overflow(given, tensor)
        bad = None if left is None else left & self._read(declared, tensor, batch)
        if bad is not None and bool(bad.any()):
            spot = bad.nonzero()[0].tolist()
            facts = {"value": beyond(given[tuple(spot)], tensor), "example": spot[0], "place": spot[1:]}
            raise data_error(self.source, "E0512", declared.span, name=declared.name, help=SCALED, **facts)

    def _read(self, declared: Input, tensor: Tensor, batch: Batch) -> Tensor:
        """[B, *axes]: the entries of an input that belong to a cell."""
        found = _existing(declared, tensor, batch)
        for name, mask in batch.masks.items():
            found = found & _over(declared, mask, self.graph.variables[name].dims)
        return found

    def _edges(self, wanted: Wanted, edges: EdgeType, tensor: Tensor, sizes: Mapping[str, int], batch: Batch) -> None:
        """Check that edges lead to positions of their own example."""
        fixed = batch.fixed.get(wanted.declared.name)
        differ = any(dim in batch.along and batch.along[dim].count is not None for dim in edges.ends)
        if fixed is not None and not differ and self._fit(wanted.declared.name, fixed, sizes):
            return
        if tensor.numel() == 0 or not is_host_readable(tensor):
            return
        if fixed is None or differ:
            self._edge_values(wanted, edges, tensor if fixed is None else fixed, sizes, batch)
        else:
            self.check_fixed_edges(wanted, edges, fixed, sizes)

    def _fit(self, name: str, fixed: Tensor, sizes: Mapping[str, int]) -> bool:
        """Whether these are fixed edges whose ends were looked at, and neither they nor sizes have changed since."""
        before = self._fitting.get(name)
        if before is None or before[0] is not fixed or before[1] != fixed._version:
            return False
        return before[2] == [sizes.get(dim) for dim in self.wanted[name].declared.type.ends]  # type: ignore[union-attr]

    def check_fixed_edges(self, wanted: Wanted, edges: EdgeType, fixed: Tensor, sizes: Mapping[str, int]) -> None:
        """Check the ends of edges that hold for every example: once, until they or the sizes of their dims change."""
        if fixed.is_inference():  # it has no version that would tell of changes
            self._edge_values(wanted, edges, fixed, sizes)
        elif not self._fit(wanted.declared.name, fixed, sizes):
            self._edge_values(wanted, edges, fixed, sizes)
            self._fitting[wanted.declared.name] = (fixed, fixed._version, [sizes.get(dim) for dim in edges.ends])

    def _edge_values(
        self,
        wanted: Wanted,
        edges: EdgeType,
        tensor: Tensor,
        sizes: Mapping[str, int],
        batch: Batch | None = None,
    ) -> None:
        """Refuse ends [B or 1, E, ends] that are no positions of their example; rows beyond its edges are padding."""
        known = [dim for dim in edges.ends if dim in sizes]
        if not known or not tensor.numel():
            return
        counts = {dim: None if batch is None or dim not in batch.along else batch.along[dim].count for dim in known}
        own = {dim: one for dim, one in counts.items() if one is not None and one.numel()}
        least = min(extremes(own[dim])[0] if dim in own else sizes[dim] for dim in known)
        low, high = extremes(tensor)
        if low >= -1 and high < least:
            return  # whichever end has them
        rows = None if batch is None else batch.exists.get(edges.over)
        for end, dim in enumerate(edges.ends):
            if dim not in sizes:
                continue
            ends = tensor[..., end]
            count = own.get(dim)
            bad = (ends < -1) | (ends >= (sizes[dim] if count is None else count.unsqueeze(1)))
            bad = bad if rows is None else bad & rows
            if bool(bad.any()):
                example, place = bad.nonzero()[0].tolist()
                found = f"the position {int(ends.expand(bad.shape)[example, place])} in example {example}"
                size = sizes[dim] if count is None else int(count[example])
                remedy = f"`{dim}` has {size} positions, counted from 0; pad unused rows with -1"
                raise wanted.wrong_kind(self.source, found, remedy)


SCALED = "scale the data, or compute in a wider type (`model.double()`); -inf itself forbids"


def overflow(given: Tensor, converted: Tensor) -> Tensor | None:
    """Which finite numbers became infinite in a narrower floating-point type; `None` where none did."""
    if not (given.is_floating_point() and torch.finfo(given.dtype).max > torch.finfo(converted.dtype).max):
        return None
    infinite = converted.detach().isinf()
    if not bool(infinite.any()):
        return None
    return infinite & given.detach().isfinite()


def beyond(number: Tensor, converted: Tensor) -> str:
    """A number that a type cannot hold, in words."""
    kind = str(converted.dtype).removeprefix("torch.")
    return f"{float(number.detach()):g}, which {kind} cannot hold,"


def extremes(tensor: Tensor) -> tuple[int, int]:
    """The smallest and the largest of whole numbers on the host; a short list is sooner read than reduced."""
    if tensor.numel() <= 256 and not under_transform():
        numbers = set(tensor.numpy().ravel().tolist())
        return min(numbers), max(numbers)
    low, high = torch.aminmax(tensor)
    return int(low), int(high)


def _existing(declared: Input, tensor: Tensor, batch: Batch) -> Tensor:
    """[B, *axes]: the entries of an input that are no padding."""
    from energyml.nets.features import existing

    assert not isinstance(declared.type, EdgeType)
    dims = [axis.extent.name if axis.extent.kind == "dim" else None for axis in declared.type.axes]
    found = existing(dims, batch.exists, tensor.shape)
    return torch.ones_like(tensor, dtype=torch.bool) if found is None else found.expand(tensor.shape)


def _over(declared: Input, mask: Tensor, dims: Sequence[str]) -> Tensor:
    """The mask [B, *dims] of a variable as one of an input, [B, *axes], where the input has all of its dims.

    An axis such as `T-1` stands for pairs of cells: with gaps, none of its entries is known to be read.
    """
    assert not isinstance(declared.type, EdgeType)
    extents = [axis.extent for axis in declared.type.axes]
    if any(one.kind == "dim" and one.offset and one.name in dims for one in extents):
        return mask.new_zeros(())
    axes = [one.name if one.kind == "dim" else None for one in extents]
    if any(dim not in axes for dim in dims):
        return mask.new_ones(())
    order = sorted(range(len(dims)), key=lambda number: axes.index(dims[number]))
    shape = [mask.shape[1 + dims.index(axis)] if axis in dims else 1 for axis in axes]
    return mask.permute(0, *(1 + number for number in order)).reshape(mask.shape[0], *shape)

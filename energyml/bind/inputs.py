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
from energyml.ir.graph import Graph
from energyml.model.declared import Input
from energyml.model.types import REAL, EdgeType
from energyml.transforms import followed, seen


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

    def check(self, batch: Batch, sizes: Mapping[str, int]) -> None:
        """Values on the host are checked, fixed ones once; on an accelerator that would wait for the device."""
        if torch.compiler.is_compiling():
            return
        for name, tensor in batch.tensors.items():
            fixed = batch.fixed.get(name)
            if fixed is not None and self._fit(name, fixed, sizes):
                continue
            if name not in self.examined or tensor.numel() == 0 or not seen(tensor):
                continue
            wanted = self.wanted[name]
            declared = wanted.declared
            if not wanted.integral:
                self._numbers(declared, tensor, batch)
                continue
            if isinstance(declared.type, EdgeType):
                if fixed is None:
                    self._edge_values(wanted, declared.type, tensor, sizes)
                else:
                    self.check_fixed_edges(wanted, declared.type, fixed, sizes)
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
        bad = (tensor.isnan() | tensor.isposinf()) & _existing(declared, tensor, batch)
        for name, mask in batch.masks.items():
            bad &= _over(declared, mask, self.graph.variables[name].dims)
        if bool(bad.any()):
            spot = bad.nonzero()[0].tolist()
            value = "NaN" if math.isnan(float(tensor[tuple(spot)])) else "inf"
            raise data_error(
                self.source, "E0512", declared.span, name=declared.name, value=value, example=spot[0], place=spot[1:]
            )

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

    def _edge_values(self, wanted: Wanted, edges: EdgeType, tensor: Tensor, sizes: Mapping[str, int]) -> None:
        known = [sizes[dim] for dim in edges.ends if dim in sizes]
        if not known or not tensor.numel():
            return
        low, high = extremes(tensor)
        if low >= -1 and high < min(known):
            return  # whichever end has them
        for end, dim in enumerate(edges.ends):
            size = sizes.get(dim)
            ends = tensor[..., end]
            if size is None:
                continue
            low, high = extremes(ends)
            if low < -1 or high >= size:
                bad = ((ends < -1) | (ends >= size)).nonzero()[0]
                found = f"the position {int(ends[tuple(bad)])} in example {int(bad[0])}"
                remedy = f"`{dim}` has {size} positions, counted from 0; pad unused rows with -1"
                raise wanted.wrong_kind(self.source, found, remedy)


def extremes(tensor: Tensor) -> tuple[int, int]:
    """The smallest and the largest of whole numbers on the host; a short list is sooner read than reduced."""
    if tensor.numel() <= 256 and not followed():
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

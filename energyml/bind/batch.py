"""One batch: the caller's tensors checked against the declarations, the sizes of all dims, and which positions exist.

Tensors are batch first.  `lengths` say how many positions exist (the rest is padding, which networks never see); `mask` says
which of them carry a cell.  Along a sequence dim, cells are counted over present positions only: the i-th cell is the i-th
present position, so neighbours are the next present ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from energyml import errors
from energyml.diagnostics import Diagnostic, Report, Source, Span, SpecError, did_you_mean
from energyml.ir.graph import Graph
from energyml.model.declared import Variable
from energyml.model.types import REAL, EdgeType, TensorType

LengthsLike = Tensor | Sequence[int] | Mapping[str, Tensor]
MaskLike = Tensor | Mapping[str, Tensor]


@dataclass
class Along:
    """A dim in one batch.

    Attributes:
        size: the padded size.
        count: [B] how many cells each example has along it, or `None` when all have `size`.
        order: [B, size] the positions of the present cells, present ones first, or `None` when cell i is position i.
        rank: [B, size] for each position the cell that it is, or `None` likewise.
    """

    size: int
    count: Tensor | None = None
    order: Tensor | None = None
    rank: Tensor | None = None

    def compact(self, tensor: Tensor, axis: int) -> Tensor:
        """Reorder an axis of positions (perhaps shorter by a constant) into cells."""
        if self.order is None:
            return tensor
        length = tensor.shape[axis]
        order = self.order[:, :length].clamp(max=length - 1)
        shape = [1] * tensor.dim()
        shape[0], shape[axis] = order.shape[0], length
        index = order.reshape(shape).expand(*(max(a, b) for a, b in zip(tensor.shape, shape, strict=True)))
        source = tensor.expand(index.shape) if tensor.shape[0] == 1 else tensor
        return source.gather(axis, index)

    def repeat(self, copies: int) -> Along:
        """The same dim when every example stands `copies` times in a row."""
        if copies == 1:
            return self
        return Along(self.size, _repeat(self.count, copies), _repeat(self.order, copies), _repeat(self.rank, copies))

    def valid(self, length: int, device: torch.device) -> Tensor | None:
        """[B, length]: whether cell i and the cells after it that a term of this length needs exist."""
        if self.count is None:
            return None
        steps = torch.arange(length, device=device)
        return steps < (self.count - (self.size - length)).unsqueeze(1)


@dataclass
class Batch:
    """Checked tensors and sizes.

    Attributes:
        size: how many examples.
        tensors: the inputs by name, [B, ...].
        along: every dim that is not nested.
        exists: padding masks for networks: [B, T], or [B, T, M] for a nested dim.
        present: for variables over several dims: [B, *dims] which cells exist, absent when all do.
        device: where the tensors live.
        dtype: the floating-point type that scores are computed in.
    """

    size: int
    tensors: dict[str, Tensor]
    along: dict[str, Along]
    exists: dict[str, Tensor]
    present: dict[str, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    def repeat(self, copies: int) -> Batch:
        """The batch with every example `copies` times in a row."""
        if copies == 1:
            return self
        return Batch(
            self.size * copies,
            {name: tensor.repeat_interleave(copies, 0) for name, tensor in self.tensors.items()},
            {name: along.repeat(copies) for name, along in self.along.items()},
            {name: mask.repeat_interleave(copies, 0) for name, mask in self.exists.items()},
            {name: mask.repeat_interleave(copies, 0) for name, mask in self.present.items()},
            self.device,
            self.dtype,
        )

    def example(self, number: int) -> Batch:
        """The batch of one example."""
        here = slice(number, number + 1)
        along = {
            name: Along(a.size, *(None if part is None else part[here] for part in (a.count, a.order, a.rank)))
            for name, a in self.along.items()
        }
        return Batch(
            1,
            {name: tensor[here] for name, tensor in self.tensors.items()},
            along,
            {name: mask[here] for name, mask in self.exists.items()},
            {name: mask[here] for name, mask in self.present.items()},
            self.device,
            self.dtype,
        )

    def cells_exist(self, dims: tuple[str, ...], variable: str) -> Tensor:
        """[B, *dims]: which positions of a variable carry a cell."""
        sizes = [self.along[d].size if d in self.along else self.exists[d].shape[-1] for d in dims]
        if variable in self.present:
            return self.present[variable]
        if len(dims) == 1:
            along = self.along[dims[0]]
            if along.rank is not None:
                return along.rank >= 0
            exists = along.valid(along.size, self.device)
            if exists is not None:
                return exists
        return torch.ones(self.size, *sizes, dtype=torch.bool, device=self.device)


def _repeat(tensor: Tensor | None, copies: int) -> Tensor | None:
    return None if tensor is None else tensor.repeat_interleave(copies, 0)


class DataError(SpecError):
    """A tensor that breaks a declaration; the message shows the declaration."""


class BatchMaker:
    """Checks call arguments against one graph; prepared once, used on every call."""

    def __init__(self, graph: Graph, source: Source, used: frozenset[str]) -> None:
        self.graph, self.source = graph, source
        self.used = used
        self.sequence_dims = tuple(
            dict.fromkeys(d for v in graph.discrete for d in v.dims if graph.dims[d].kind == "observed")
        )
        self.fixed = {name: dim.size for name, dim in graph.dims.items() if dim.kind == "fixed"}
        self.counts = {
            name: len(labels.labels) for name, labels in graph.label_sets.items() if labels.labels is not None
        }

    # ------------------------------------------------------------------------------------------------------- complaints

    def fail(self, code: str, span: Span | None, **facts: object) -> DataError:
        """The error for a tensor that breaks a declaration."""
        help_text = facts.pop("help", None)
        found: Diagnostic = errors.diagnostic(code, span, help=help_text, **facts)  # type: ignore[arg-type]
        report = Report(self.source)
        report.add(found)
        return DataError(self.source, report.ordered())

    # ------------------------------------------------------------------------------------------------------------ making

    def make(
        self,
        given: Mapping[str, Tensor],
        lengths: LengthsLike | None,
        mask: MaskLike | None,
        reference: Tensor | None,
    ) -> Batch:
        """Check the arguments of one call.

        Args:
            given: input tensors by name.
            lengths: how many positions exist: [B] for the one observed dim, or by dim.
            mask: which cells are present: [B, *dims] for the one variable, or by variable.
            reference: a parameter that tells device and dtype when no real input does.
        """
        self._names(given)
        sizes: dict[str, int] = {name: size for name, size in self.fixed.items() if size is not None}
        batch_size: int | None = None
        for name in self.used:
            tensor = given.get(name)
            if tensor is None:
                declared = self.graph.inputs[name]
                raise self.fail("E0501", declared.span, name=name, help=f"pass it: `{name}=...`, declared `{declared.type}`")
            batch_size = self._shape(name, tensor, sizes, batch_size)
        by_dim = self._lengths_by_dim(lengths)
        masks = self._masks_by_variable(mask)
        batch_size = self._batch_size(batch_size, by_dim, masks)
        device, dtype = _where(given, reference, by_dim, masks)
        for name, tensor in by_dim.items():
            if name not in sizes and self.graph.dims[name].kind != "nested":
                sizes[name] = int(tensor.max()) if tensor.numel() else 0
        self._sizes_from_masks(masks, sizes)
        sizes.update({name: dim.size for name, dim in self.graph.dims.items() if dim.kind == "free" and dim.size})
        missing = [dim for dim in self.sequence_dims if dim not in sizes]
        if missing:
            raise self.fail("E0508", self.graph.dims[missing[0]].span, problem=f"the size of `{missing[0]}` is not known",
                            help=f"pass `lengths=`, or an input over `{missing[0]}`")  # fmt: skip
        batch = Batch(batch_size, dict(given), {}, {}, device=device, dtype=dtype)
        self._dims(batch, sizes, by_dim)
        self._presence(batch, masks)
        return batch

    def _names(self, given: Mapping[str, Tensor]) -> None:
        for name in given:
            if name not in self.graph.inputs:
                known = [*self.graph.inputs, *(v.name for v in self.graph.discrete)]
                guess = did_you_mean(name, known)
                raise self.fail("E0502", None, name=name, help=f"did you mean `{guess}`?" if guess else f"it has: {', '.join(known)}")

    def _shape(self, name: str, tensor: Tensor, sizes: dict[str, int], batch: int | None) -> int:
        declared = self.graph.inputs[name]
        if not isinstance(tensor, Tensor):
            raise self.fail("E0504", declared.span, name=name, found=type(tensor).__name__, type=declared.type,
                            help="pass a torch.Tensor")  # fmt: skip
        shape = tuple(tensor.shape)
        if isinstance(declared.type, EdgeType):
            wanted: list[tuple[str, str, int]] = [("dim", declared.type.over, 0), ("number", "", len(declared.type.ends))]
            integral = True
        else:
            wanted = [(axis.extent.kind, axis.extent.name, axis.extent.offset) for axis in declared.type.axes]
            integral = declared.type.element != REAL
        if len(shape) != len(wanted) + 1:
            raise self.fail("E0503", declared.span, name=name, shape=list(shape), type=declared.type,
                            problem=f"it needs a batch axis and {len(wanted)} more, found {len(shape)} axes")  # fmt: skip
        if batch is not None and shape[0] != batch:
            raise self.fail("E0503", declared.span, name=name, shape=list(shape), type=declared.type,
                            problem=f"other inputs have {batch} examples, this one {shape[0]}")  # fmt: skip
        if integral == tensor.is_floating_point():
            found = "real numbers" if tensor.is_floating_point() else "integers"
            raise self.fail("E0504", declared.span, name=name, found=found, type=declared.type)
        for axis, (kind, extent, offset) in enumerate(wanted, start=1):
            self._axis(name, declared.type, declared.span, shape, axis, (kind, extent, offset), sizes)
        if integral and not isinstance(declared.type, EdgeType):
            self._label_range(name, tensor, declared.type, declared.span)
        return shape[0]

    def _axis(
        self, name: str, declared: TensorType | EdgeType, span: Span, shape: tuple[int, ...], axis: int,
        wanted: tuple[str, str, int], sizes: dict[str, int],
    ) -> None:  # fmt: skip
        kind, extent, offset = wanted
        if kind == "dim":
            expected = sizes.setdefault(extent, shape[axis] - offset) + offset
        else:
            expected = self.counts[extent] if kind == "labels" else offset
        if shape[axis] != expected:
            what = f"{extent}{offset:+d}" if kind == "dim" and offset else extent or str(offset)
            raise self.fail("E0503", span, name=name, shape=list(shape), type=declared,
                            problem=f"axis {axis} (`{what}`) should be {expected}, found {shape[axis]}")  # fmt: skip

    def _label_range(self, name: str, tensor: Tensor, declared: TensorType, span: Span) -> None:
        """Labels on the host are checked; on an accelerator that would wait for the device."""
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return
        count = self.counts[declared.element]
        low, high = torch.aminmax(tensor)
        if int(low) < -1 or int(high) >= count:
            bad = ((tensor < -1) | (tensor >= count)).nonzero()[0]
            value = tensor[tuple(bad)]
            raise self.fail("E0505", span, name=name, value=int(value), example=int(bad[0]), labels=declared.element, count=count)

    # ----------------------------------------------------------------------------------------------- lengths and masks

    def _lengths_by_dim(self, lengths: LengthsLike | None) -> dict[str, Tensor]:
        if lengths is None:
            return {}
        if isinstance(lengths, Mapping):
            for name in lengths:
                if name not in self.graph.dims:
                    raise self.fail("E0508", None, problem=f"`lengths` names `{name}`, which is no dim of the model")
            return {name: torch.as_tensor(value) for name, value in lengths.items()}
        ragged = [n for n, d in self.graph.dims.items() if d.kind == "observed" and (n in self.sequence_dims or not self.sequence_dims)]
        if len(ragged) != 1:
            raise self.fail("E0508", None, problem=f"the model has {len(ragged)} observed dims, so `lengths` must say which",
                            help="pass a dict, as in `lengths={'T': n}`")  # fmt: skip
        return {ragged[0]: torch.as_tensor(lengths)}

    def _masks_by_variable(self, mask: MaskLike | None) -> dict[str, Tensor]:
        if mask is None:
            return {}
        if not isinstance(mask, Mapping):
            variables = [v for v in self.graph.discrete if v.dims]
            if len({v.dims for v in variables}) != 1:
                raise self.fail("E0508", None, problem="the model has several variables, so `mask` must say which",
                                help="pass a dict, as in `mask={'y': m}`")  # fmt: skip
            mask = {variables[0].name: mask}
        for name, tensor in mask.items():
            variable = self.graph.variables.get(name)
            if variable is None:
                raise self.fail("E0508", None, problem=f"`mask` names `{name}`, which is no variable of the model")
            if tensor.dtype != torch.bool or tensor.dim() != 1 + len(variable.dims):
                raise self.fail("E0508", variable.span, problem=f"the mask of `{name}` must be a bool tensor [B, {', '.join(variable.dims)}]")
        return dict(mask)

    def _batch_size(self, known: int | None, lengths: dict[str, Tensor], masks: dict[str, Tensor]) -> int:
        for name, tensor in (*lengths.items(), *masks.items()):
            if known is None:
                known = tensor.shape[0] if tensor.dim() else 1
            elif tensor.dim() == 0 or tensor.shape[0] != known:
                raise self.fail("E0508", None, problem=f"`{name}` has {list(tensor.shape)} entries, but the batch has {known} examples")
        return 1 if known is None else known

    def _sizes_from_masks(self, masks: dict[str, Tensor], sizes: dict[str, int]) -> None:
        for name, tensor in masks.items():
            variable = self.graph.variables[name]
            for axis, dim in enumerate(variable.dims, start=1):
                if sizes.setdefault(dim, tensor.shape[axis]) != tensor.shape[axis]:
                    raise self.fail("E0508", variable.span, problem=f"the mask of `{name}` has {tensor.shape[axis]} positions along `{dim}`, expected {sizes[dim]}")

    def _dims(self, batch: Batch, sizes: dict[str, int], lengths: dict[str, Tensor]) -> None:
        for name, size in sizes.items():
            if self.graph.dims[name].kind != "nested":
                batch.along[name] = Along(size)
        for name, given in lengths.items():
            count = given.to(batch.device)
            if self.graph.dims[name].kind == "nested":
                steps = torch.arange(sizes[name], device=batch.device)
                batch.exists[name] = steps < count.unsqueeze(-1)
                continue
            along = batch.along[name]
            if given.device.type == "cpu" and given.numel() and (int(given.max()) > along.size or int(given.min()) < 0):
                raise self.fail("E0508", self.graph.dims[name].span, problem=f"a length of `{name}` lies outside 0..{along.size}")
            along.count = count
            batch.exists[name] = torch.arange(along.size, device=batch.device) < count.unsqueeze(1)

    def _presence(self, batch: Batch, masks: dict[str, Tensor]) -> None:
        for name, tensor in masks.items():
            variable = self.graph.variables[name]
            if len(variable.dims) == 1:
                self._gaps(batch, variable, tensor.to(batch.device))
            else:
                batch.present[name] = tensor.to(batch.device)
        for variable in self.graph.discrete:
            if len(variable.dims) > 1:
                self._grid_presence(batch, variable)

    def _gaps(self, batch: Batch, variable: Variable, mask: Tensor) -> None:
        dim = variable.dims[0]
        along = batch.along[dim]
        if dim in batch.exists:
            mask = mask & batch.exists[dim]
        else:
            ahead = mask.flip(1).cumsum(1).flip(1)
            batch.exists[dim] = ahead > 0
        along.count = mask.sum(1)
        along.order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
        along.rank = torch.where(mask, mask.cumsum(1) - 1, -1)

    def _grid_presence(self, batch: Batch, variable: Variable) -> None:
        present = batch.present.get(variable.name)
        for axis, dim in enumerate(variable.dims):
            exists = batch.exists.get(dim)
            if exists is None:
                continue
            if self.graph.dims[dim].kind == "nested":
                shape = [batch.size, *([1] * len(variable.dims))]
                outer = variable.dims.index(self.graph.dims[dim].within or "")
                shape[1 + outer], shape[1 + axis] = exists.shape[1], exists.shape[2]
            else:
                shape = [batch.size, *([1] * len(variable.dims))]
                shape[1 + axis] = exists.shape[1]
            exists = exists.reshape(shape)
            present = exists if present is None else present & exists
        if present is not None:
            sizes = [batch.along[d].size if d in batch.along else batch.exists[d].shape[-1] for d in variable.dims]
            batch.present[variable.name] = present.expand(batch.size, *sizes)


def _where(
    given: Mapping[str, Tensor], reference: Tensor | None, lengths: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> tuple[torch.device, torch.dtype]:
    tensors = list(given.values())
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    first = reference if reference is not None else (floating or tensors or [*masks.values(), *lengths.values()] or [None])[0]
    if first is None:
        return torch.device("cpu"), torch.get_default_dtype()
    dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()
    return first.device, dtype

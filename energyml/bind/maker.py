"""The caller's arguments, checked against the declarations and made into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from energyml import errors
from energyml.bind.batch import Along, Batch, Nested, exist_below
from energyml.diagnostics import Diagnostic, Report, Source, Span, SpecError, did_you_mean
from energyml.ir.graph import Graph
from energyml.model.declared import Input
from energyml.model.types import REAL, EdgeType

OneLengths: TypeAlias = Tensor | Sequence[Any]
LengthsLike: TypeAlias = OneLengths | Mapping[str, OneLengths]
MaskLike: TypeAlias = Tensor | Mapping[str, Tensor]


class _Shorter(NamedTuple):
    """An axis over a dim less a constant, which can only be checked once the dim's size is known."""

    declared: Input
    shape: tuple[int, ...]
    axis: int
    dim: str
    offset: int

    @property
    def length(self) -> int:
        return self.shape[self.axis]


class DataError(SpecError):
    """A tensor that breaks a declaration; the message shows the declaration."""


def data_error(source: Source, code: str, span: Span | None, **facts: object) -> DataError:
    """The error for a tensor that breaks a declaration."""
    help_text = facts.pop("help", None)
    found: Diagnostic = errors.diagnostic(code, span, help=help_text, **facts)  # type: ignore[arg-type]
    report = Report(source)
    report.add(found)
    return DataError(source, report.ordered())


class BatchMaker:
    """Checks call arguments against one graph; prepared once, used on every call."""

    def __init__(self, graph: Graph, source: Source, used: frozenset[str]) -> None:
        self.graph, self.source, self.used = graph, source, used
        self.sequence_dims = tuple(
            dict.fromkeys(d for v in graph.discrete for d in v.dims if graph.dims[d].kind == "observed")
        )
        self.known = {name: dim.size for name, dim in graph.dims.items() if dim.kind in ("fixed", "free")}
        self.needed = tuple(
            dict.fromkeys(d for v in graph.discrete for d in v.dims if graph.dims[d].kind in ("observed", "nested"))
        )
        self.alone = {d: [v.name for v in graph.discrete if v.dims == (d,)] for d in self.sequence_dims}
        self.counts = {name: len(one.labels) for name, one in graph.label_sets.items() if one.labels is not None}

    def fail(self, code: str, span: Span | None, **facts: object) -> DataError:
        """The error for a tensor that breaks a declaration."""
        return data_error(self.source, code, span, **facts)

    # ----------------------------------------------------------------------------------------------------------- making

    def make(
        self,
        given: Mapping[str, Tensor],
        lengths: LengthsLike | None,
        mask: MaskLike | None,
        reference: Tensor | None,
    ) -> Batch:
        """Check the arguments of one call.

        Args:
            given: input tensors by name; real ones are converted to the model's floating-point type.
            lengths: how many positions exist: [B] for the one observed dim, or by dim; [B, T] for a dim nested in T.
            mask: which cells are present: [B, *dims] for the variables that share them, or by variable.
            reference: a parameter that tells device and dtype.
        """
        self._names(given)
        sizes: dict[str, int] = {name: size for name, size in self.known.items() if size is not None}
        shorter: list[_Shorter] = []
        batch_size: int | None = None
        for name, declared in self.graph.inputs.items():
            if name in given:
                batch_size = self._shape(declared, given[name], sizes, shorter, batch_size)
            elif name in self.used:
                hint = f"pass it: `{name}=...`, declared `{declared.type}`"
                raise self.fail("E0501", declared.span, name=name, help=hint)
        by_dim = {} if lengths is None else self._lengths_by_dim(lengths)
        masks = {} if mask is None else self._masks_by_variable(mask)
        batch_size = self._batch_size(batch_size, by_dim, masks)
        device, dtype = _where(given, reference, by_dim, masks)
        self._sizes(sizes, shorter, by_dim, masks)
        batch = Batch(batch_size, self._placed(given, device, dtype), {}, {}, device=device, dtype=dtype)
        self._dims(batch, sizes, by_dim)
        for name, tensor in masks.items():
            batch.masks[name] = tensor.to(device)
        if masks:
            self._padding_behind(batch)
        self._values(batch)
        return batch

    def _names(self, given: Mapping[str, Tensor]) -> None:
        for name in given:
            if name not in self.graph.inputs:
                known = [*self.graph.inputs, *(v.name for v in self.graph.discrete)]
                guess = did_you_mean(name, known)
                hint = f"did you mean `{guess}`?" if guess else f"it has: {', '.join(known)}"
                raise self.fail("E0502", None, name=name, help=hint)

    def _shape(
        self,
        declared: Input,
        tensor: Tensor,
        sizes: dict[str, int],
        shorter: list[_Shorter],
        batch: int | None,
    ) -> int:
        """Check one input and learn sizes from it; axes such as `T-1` wait until all sizes are known."""
        facts = {"name": declared.name, "type": declared.type}
        if not isinstance(tensor, Tensor):
            raise self.fail("E0504", declared.span, found=type(tensor).__name__, help="pass a torch.Tensor", **facts)
        shape = tuple(tensor.shape)
        if isinstance(declared.type, EdgeType):
            wanted = [("dim", declared.type.over, 0), ("number", "", len(declared.type.ends))]
            integral = True
        else:
            wanted = [(axis.extent.kind, axis.extent.name, axis.extent.offset) for axis in declared.type.axes]
            integral = declared.type.element != REAL
        facts["shape"] = list(shape)
        if len(shape) != len(wanted) + 1:
            problem = f"it needs a batch axis and {len(wanted)} more, found {len(shape)} axes"
            raise self.fail("E0503", declared.span, problem=problem, **facts)
        if batch is not None and shape[0] != batch:
            problem = f"other inputs have {batch} examples, this one {shape[0]}"
            raise self.fail("E0503", declared.span, problem=problem, **facts)
        if integral == tensor.is_floating_point() or tensor.is_complex():
            found = "complex numbers" if tensor.is_complex() else "real numbers" if integral else "integers"
            raise self.fail("E0504", declared.span, found=found, **facts)
        for axis, (kind, extent, offset) in enumerate(wanted, start=1):
            if kind == "dim" and offset:
                shorter.append(_Shorter(declared, shape, axis, extent, offset))
                continue
            if kind == "dim":
                expected = sizes.setdefault(extent, shape[axis])
            else:
                expected = self.counts[extent] if kind == "labels" else offset
            if shape[axis] != expected:
                raise self._wrong_axis(declared, shape, axis, extent or str(offset), expected)
        return shape[0]

    def _wrong_axis(self, declared: Input, shape: tuple[int, ...], axis: int, extent: str, expected: int) -> DataError:
        problem = f"axis {axis} (`{extent}`) should be {expected}, found {shape[axis]}"
        facts = {"name": declared.name, "type": declared.type, "shape": list(shape)}
        return self.fail("E0503", declared.span, problem=problem, **facts)

    def _placed(self, given: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Inputs in the types that scores are computed in; a tensor on another device is refused."""
        placed: dict[str, Tensor] = {}
        for name, tensor in given.items():
            if tensor.device != device:
                declared = self.graph.inputs[name]
                raise self.fail("E0504", declared.span, name=name, found=f"values on `{tensor.device}`", type=declared.type,
                                help=f"the model is on `{device}`: move one of them with `.to(...)`")  # fmt: skip
            if tensor.is_floating_point():
                placed[name] = tensor if tensor.dtype == dtype else tensor.to(dtype)
            else:
                placed[name] = tensor if tensor.dtype == torch.int64 else tensor.to(torch.int64)
        return placed

    # ----------------------------------------------------------------------------------------------------------- lengths

    def _lengths_by_dim(self, lengths: LengthsLike) -> dict[str, Tensor]:
        if isinstance(lengths, Mapping):
            return {name: self._one_lengths(name, value) for name, value in lengths.items()}
        ragged = [name for name, dim in self.graph.dims.items() if dim.kind == "observed"]
        if self.sequence_dims:
            ragged = [name for name in ragged if name in self.sequence_dims]
        if len(ragged) != 1:
            raise self.fail("E0508", None, problem=f"the model has {len(ragged)} observed dims, so `lengths` must say which",
                            help="pass a dict, as in `lengths={'T': n}`")  # fmt: skip
        return {ragged[0]: self._one_lengths(ragged[0], lengths)}

    def _one_lengths(self, name: str, value: OneLengths) -> Tensor:
        dim = self.graph.dims.get(name)
        if dim is None:
            raise self.fail("E0508", None, problem=f"`lengths` names `{name}`, which is no dim of the model")
        if dim.kind in ("fixed", "free"):
            reason = f"always {dim.size}" if dim.kind == "fixed" else "part of the answer"
            raise self.fail("E0508", dim.span, problem=f"`lengths` names `{name}`, but its size is {reason}",
                            help="clamp labels with `evidence`, or leave cells out with `mask`")  # fmt: skip
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError) as problem:
            raise self.fail("E0508", dim.span, problem=f"the lengths of `{name}` are no tensor: {problem}") from problem
        if tensor.numel() == 0 and not isinstance(value, Tensor):
            tensor = tensor.to(torch.int64)
        shape = f"[B, {dim.within}]" if dim.kind == "nested" else "[B]"
        integral = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        if tensor.dim() != (2 if dim.kind == "nested" else 1) or not integral:
            raise self.fail("E0508", dim.span, problem=f"the lengths of `{name}` must be whole numbers {shape}, found "
                            f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")  # fmt: skip
        return tensor.to(torch.int64)

    def _sizes(
        self,
        sizes: dict[str, int],
        shorter: list[_Shorter],
        lengths: dict[str, Tensor],
        masks: dict[str, Tensor],
    ) -> None:
        """Complete the sizes from masks, from axes such as `T-1` and from lengths, in this order; then check those axes."""
        for name, tensor in masks.items():
            variable = self.graph.variables[name]
            for axis, dim in enumerate(variable.dims, start=1):
                if sizes.setdefault(dim, tensor.shape[axis]) != tensor.shape[axis]:
                    problem = (
                        f"the mask of `{name}` has {tensor.shape[axis]} positions along `{dim}`, expected {sizes[dim]}"
                    )
                    raise self.fail("E0508", variable.span, problem=problem)
        for one in shorter:
            if one.dim not in sizes and (one.length > 0 or one.dim not in lengths):
                sizes[one.dim] = one.length - one.offset
        for dim, tensor in lengths.items():
            if dim not in sizes:
                sizes[dim] = int(tensor.max()) if tensor.numel() else 0
        for one in shorter:
            expected = max(0, sizes[one.dim] + one.offset)
            if one.length != expected:
                raise self._wrong_axis(one.declared, one.shape, one.axis, f"{one.dim}{one.offset:+d}", expected)
        missing = [dim for dim in self.needed if dim not in sizes]
        if missing:
            raise self.fail("E0508", self.graph.dims[missing[0]].span, problem=f"the size of `{missing[0]}` is not known",
                            help=f"pass `lengths=`, or an input over `{missing[0]}`")  # fmt: skip

    def _dims(self, batch: Batch, sizes: dict[str, int], lengths: dict[str, Tensor]) -> None:
        for name, size in sizes.items():
            dim = self.graph.dims[name]
            if dim.kind == "nested":
                batch.nested[name] = Nested(dim.within or "", size)
            else:
                batch.along[name] = Along(size)
        for name, given in lengths.items():
            dim, size = self.graph.dims[name], sizes[name]
            if dim.kind == "nested" and given.shape[1] != sizes[dim.within or ""]:
                problem = f"the lengths of `{name}` have {given.shape[1]} positions along `{dim.within}`"
                raise self.fail("E0508", dim.span, problem=f"{problem}, expected {sizes[dim.within or '']}")
            if given.device.type == "cpu" and given.numel():
                low, high = torch.aminmax(given)
                if int(low) < 0 or int(high) > size:
                    raise self.fail("E0508", dim.span, problem=f"a length of `{name}` lies outside 0..{size}")
            count = given.to(batch.device)
            batch.exists[name] = exist_below(count, size)
            if dim.kind == "nested":
                batch.nested[name].count = count
            else:
                batch.along[name].count = count

    # ------------------------------------------------------------------------------------------------------------- masks

    def _masks_by_variable(self, mask: MaskLike) -> dict[str, Tensor]:
        if not isinstance(mask, Mapping):
            variables = [v for v in self.graph.discrete if v.dims]
            if len({v.dims for v in variables}) != 1:
                raise self.fail("E0508", None, problem="the model's variables have different dims, so `mask` must say which",
                                help="pass a dict, as in `mask={'y': m}`")  # fmt: skip
            mask = {v.name: mask for v in variables}
        for name, tensor in mask.items():
            variable = self.graph.variables.get(name)
            if variable is None or variable.kind == "field" or variable.readout is not None:
                raise self.fail("E0508", None, problem=f"`mask` names `{name}`, which is no variable with labels")
            if any(self.graph.dims[dim].kind == "free" for dim in variable.dims):
                raise self.fail(
                    "E0508", variable.span, problem=f"`mask` names `{name}`, whose length is part of the answer"
                )
            rank = 1 + len(variable.dims)
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool or tensor.dim() != rank:
                axes = ", ".join(("B", *variable.dims))
                raise self.fail("E0508", variable.span, problem=f"the mask of `{name}` must be a bool tensor [{axes}]")
        return dict(mask)

    def _padding_behind(self, batch: Batch) -> None:
        """Without lengths, the positions behind the last one that carries a cell of any variable are padding."""
        for dim, names in self.alone.items():
            if dim in batch.exists or not names or any(name not in batch.masks for name in names):
                continue
            carried = torch.stack([batch.masks[name] for name in names]).any(0)
            batch.exists[dim] = carried.flip(1).cumsum(1).flip(1) > 0

    def _batch_size(self, known: int | None, lengths: dict[str, Tensor], masks: dict[str, Tensor]) -> int:
        for name, tensor in (*lengths.items(), *masks.items()):
            if known is None:
                known = tensor.shape[0]
            elif tensor.shape[0] != known:
                problem = f"`{name}` has {list(tensor.shape)} entries, but the batch has {known} examples"
                raise self.fail("E0508", None, problem=problem)
        return 1 if known is None else known

    # ------------------------------------------------------------------------------------------------------------ values

    def _values(self, batch: Batch) -> None:
        """Labels and edges on the host are checked; on an accelerator that would wait for the device."""
        for name, tensor in batch.tensors.items():
            declared = self.graph.inputs[name]
            if tensor.device.type != "cpu" or tensor.is_floating_point() or tensor.numel() == 0:
                continue
            if isinstance(declared.type, EdgeType):
                self._edge_values(declared, declared.type, tensor, batch)
                continue
            count = self.counts[declared.type.element]
            low, high = torch.aminmax(tensor)
            if int(low) < -1 or int(high) >= count:
                bad = ((tensor < -1) | (tensor >= count)) & _existing(declared, tensor, batch)
                if bool(bad.any()):
                    spot = bad.nonzero()[0]
                    raise self.fail("E0505", declared.span, name=name, value=int(tensor[tuple(spot)]), example=int(spot[0]),
                                    labels=declared.type.element, count=count)  # fmt: skip

    def _edge_values(self, declared: Input, edges: EdgeType, tensor: Tensor, batch: Batch) -> None:
        for end, dim in enumerate(edges.ends):
            size = batch.along[dim].size
            if int(tensor[..., end].max()) >= size:
                bad = (tensor[..., end] >= size).nonzero()[0]
                value = int(tensor[..., end][tuple(bad)])
                raise self.fail("E0504", declared.span, name=declared.name, type=edges,
                                found=f"the position {value} in example {int(bad[0])}",
                                help=f"`{dim}` has {size} positions, counted from 0; pad unused rows with -1")  # fmt: skip


def _existing(declared: Input, tensor: Tensor, batch: Batch) -> Tensor:
    """[B, *axes]: the entries of an input that are no padding."""
    from energyml.nets.features import existing

    assert not isinstance(declared.type, EdgeType)
    dims = [axis.extent.name if axis.extent.kind == "dim" else None for axis in declared.type.axes]
    found = existing(dims, batch.exists, tensor.shape)
    return torch.ones_like(tensor, dtype=torch.bool) if found is None else found.expand(tensor.shape)


def _where(
    given: Mapping[str, Tensor], reference: Tensor | None, lengths: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> tuple[torch.device, torch.dtype]:
    """The device and the floating-point type of scores: those of the parameters, else of the inputs."""
    if reference is not None:
        return reference.device, reference.dtype
    dtype: torch.dtype | None = None
    for tensor in given.values():
        if tensor.is_floating_point():
            dtype = tensor.dtype if dtype is None else torch.promote_types(dtype, tensor.dtype)
    first = next(iter((*given.values(), *masks.values(), *lengths.values())), None)
    device = torch.device("cpu") if first is None else first.device
    return device, torch.get_default_dtype() if dtype is None else dtype

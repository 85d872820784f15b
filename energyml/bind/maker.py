"""The caller's arguments, checked against the declarations and made into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from energyml.bind.batch import Along, Batch, Nested, exist_below
from energyml.bind.inputs import NO_LABELS, Axis, DataError, Values, Wanted, data_error, extremes
from energyml.bind.padding import PaddingNote
from energyml.diagnostics import Source, Span, did_you_mean
from energyml.execution import is_host_readable
from energyml.ir.graph import Graph
from energyml.model.declared import Variable
from energyml.model.types import EdgeType

OneLengths: TypeAlias = Tensor | Sequence[Any]
LengthsLike: TypeAlias = OneLengths | Mapping[str, OneLengths]
MaskLike: TypeAlias = Tensor | Mapping[str, Tensor]


class _Shorter(NamedTuple):
    """An axis over a dim less a constant, which can only be checked once the dim's size is known."""

    wanted: Wanted
    tensor: Tensor
    number: int
    axis: Axis

    @property
    def length(self) -> int:
        return self.tensor.shape[self.number]


class BatchMaker:
    """Checks call arguments against one graph; prepared once, used on every call."""

    def __init__(self, graph: Graph, source: Source, used: frozenset[str]) -> None:
        self.graph, self.source, self.used = graph, source, used
        self.counts = {name: len(one.labels) for name, one in graph.label_sets.items() if one.labels is not None}
        self.wanted = {name: Wanted.of(declared, self.counts) for name, declared in graph.inputs.items()}
        self.known = {n: d.size for n, d in graph.dims.items() if d.kind in ("fixed", "free") and d.size is not None}
        over = tuple(dict.fromkeys(dim for v in (*graph.discrete, *graph.fields) for dim in v.dims))
        self.sequence_dims = tuple(dim for dim in over if graph.dims[dim].kind == "observed")
        self.needed = tuple(dim for dim in over if graph.dims[dim].kind in ("observed", "nested"))
        self.axes = {v.name: max([0, *(axis for axis, _ in _dim_axes(v))]) for v in graph.variables.values()}
        # Dims whose variables all run along them alone: where all of these are masked, masks tell what is padding.
        along = {dim: [v for v in graph.discrete if dim in v.dims] for dim in self.sequence_dims}
        self.alone = {d: [v.name for v in ones] for d, ones in along.items() if all(v.dims == (d,) for v in ones)}
        self.values = Values(graph, source, self.wanted, self.counts)
        self.padding = PaddingNote(self.wanted, [dim for dim, names in self.alone.items() if names])

    def fail(self, code: str, span: Span | None, **facts: object) -> DataError:
        """The error for a tensor that breaks a declaration."""
        return data_error(self.source, code, span, **facts)

    def fail_sizes(self, span: Span | None, problem: str, help_text: str | None = None) -> DataError:
        """The error for lengths or masks."""
        return self.fail("E0508", span, problem=problem, help=help_text)

    # ------------------------------------------------------------------------------------------------------- making

    def make(
        self,
        given: Mapping[str, Tensor],
        lengths: LengthsLike | None,
        mask: MaskLike | None,
        reference: Tensor | None,
        answer: Mapping[str, Tensor] | None = None,
        fixed: Mapping[str, Tensor | None] | None = None,
    ) -> Batch:
        """Check the arguments of one call.

        Args:
            given: input tensors by name; real ones are converted to the model's floating-point type.
            lengths: how many positions exist: [B] for the one observed dim, or by dim; [B, T] for a dim nested in T.
            mask: which cells are present: [B, *dims] for the variables that share them, or by variable.
            reference: a parameter that tells device and dtype.
            answer: labels by variable, [B, *dims, ...]; they tell sizes where no input and no mask does.
            fixed: inputs [1, *axes] that hold for every example, where the caller gives no other.
        """
        sizes = dict(self.known)
        shorter: list[_Shorter] = []
        size: int | None = None
        for name, tensor in given.items():
            size = self._shape(name, tensor, sizes, shorter, size)
        shared: dict[str, Tensor] = {}
        if fixed:
            shared = {name: one for name, one in fixed.items() if one is not None and name not in given}
            for name, tensor in shared.items():
                self._shape(name, tensor, sizes, shorter, None)
            given = {**given, **shared}
        for name in self.used:
            if name not in given:
                declared = self.graph.inputs[name]
                hint = f"pass it: `{name}=...`, declared `{declared.type}`"
                raise self.fail("E0501", declared.span, name=name, help=hint)
        by_dim = {} if lengths is None else self._lengths_by_dim(lengths)
        masks = {} if mask is None else self._masks_by_variable(mask)
        labels = {} if answer is None else self._labelled(answer)
        size = self._batch_size(size, by_dim, masks, labels)
        if shared and size != 1:
            given = {**given, **{name: one.expand(size, *one.shape[1:]) for name, one in shared.items()}}
        device, dtype = _where(given, reference, by_dim, masks)
        self._sizes(sizes, shorter, by_dim, masks, labels)
        batch = Batch(size, self._placed(given, device, dtype), {}, device=device, dtype=dtype, fixed=shared)
        self._dims(batch, sizes, by_dim)
        if masks:
            batch.masks.update({name: tensor.to(device) for name, tensor in masks.items()})
            self._padding_behind(batch, by_dim)
        self.values.check(batch, sizes, given)
        if not self.padding.done and lengths is None and mask is None:
            self.padding.look(batch.tensors, size)
        return batch

    def check_fixed(self, fixed: Mapping[str, Tensor]) -> None:
        """Check inputs that are to hold for every example: one example each, and sizes that agree.

        The tensors are those that batches are made with, so that what is found about their values is known then.
        """
        sizes = dict(self.known)
        shorter: list[_Shorter] = []
        for name, tensor in fixed.items():
            if self._shape(name, tensor, sizes, shorter, None) != 1:
                problem = f"a fixed input holds for every example, so its batch axis is 1, found {tensor.shape[0]}"
                raise self._wrong_shape(self.wanted[name], tensor, problem)
        for name, tensor in fixed.items():
            declared = self.wanted[name].declared
            if isinstance(declared.type, EdgeType):
                self.values.check_fixed_edges(self.wanted[name], declared.type, tensor, sizes)

    def _shape(
        self, name: str, tensor: Tensor, sizes: dict[str, int], shorter: list[_Shorter], batch: int | None
    ) -> int:
        """Check one input and learn sizes from it; axes such as `T-1` wait until all sizes are known."""
        wanted = self.wanted.get(name)
        if wanted is None:
            known = [*self.graph.inputs, *self.graph.variables]
            guess = did_you_mean(name, known)
            hint = f"did you mean `{guess}`?" if guess else f"it has: {', '.join(known)}"
            raise self.fail("E0502", None, name=name, help=hint)
        if not isinstance(tensor, Tensor):
            raise wanted.wrong_kind(self.source, type(tensor).__name__, "pass a torch.Tensor")
        if tensor.layout is not torch.strided:
            raise wanted.wrong_kind(self.source, f"a tensor of layout `{tensor.layout}`", "pass `.to_dense()`")
        shape = tensor.shape
        if len(shape) != len(wanted.axes) + 1:
            problem = f"it needs a batch axis and {len(wanted.axes)} more, found {len(shape)} axes"
            raise self._wrong_shape(wanted, tensor, problem)
        if batch is not None and shape[0] != batch:
            raise self._wrong_shape(wanted, tensor, f"other inputs have {batch} examples, this one {shape[0]}")
        if wanted.integral == tensor.is_floating_point() or tensor.is_complex():
            found = "complex" if tensor.is_complex() else "real"
            found = f"{found} numbers" if wanted.integral or tensor.is_complex() else "integers"
            raise wanted.wrong_kind(self.source, found)
        if wanted.integral and tensor.dtype in NO_LABELS:
            raise wanted.wrong_kind(self.source, NO_LABELS[tensor.dtype], "convert it with `.to(torch.int64)`")
        for number, axis in enumerate(wanted.axes, start=1):
            if axis.offset:
                shorter.append(_Shorter(wanted, tensor, number, axis))
                continue
            expected = sizes.setdefault(axis.dim, shape[number]) if axis.fixed is None else axis.fixed
            if shape[number] != expected:
                raise self._wrong_axis(wanted, tensor, number, axis, expected)
        return shape[0]

    def _wrong_shape(self, wanted: Wanted, tensor: Tensor, problem: str) -> DataError:
        declared, shape = wanted.declared, list(tensor.shape)
        return self.fail("E0503", declared.span, name=declared.name, shape=shape, type=declared.type, problem=problem)

    def _wrong_axis(self, wanted: Wanted, tensor: Tensor, number: int, axis: Axis, expected: int) -> DataError:
        problem = f"axis {number} (`{axis.shown}`) should be {expected}, found {tensor.shape[number]}"
        return self._wrong_shape(wanted, tensor, problem)

    def _placed(self, given: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Inputs in the types that scores are computed in; a tensor on another device is refused."""
        placed: dict[str, Tensor] = {}
        for name, tensor in given.items():
            if tensor.device != device:
                remedy = f"the model is on `{device}`: move one of them with `.to(...)`"
                raise self.wanted[name].wrong_kind(self.source, f"values on `{tensor.device}`", remedy)
            wanted = torch.int64 if self.wanted[name].integral else dtype
            placed[name] = tensor if tensor.dtype == wanted else tensor.to(wanted)
        return placed

    # ------------------------------------------------------------------------------------------------------ lengths

    def _lengths_by_dim(self, lengths: LengthsLike) -> dict[str, Tensor]:
        if isinstance(lengths, Mapping):
            return {name: self._one_lengths(name, value) for name, value in lengths.items()}
        ragged = [name for name, dim in self.graph.dims.items() if dim.kind == "observed"]
        if self.sequence_dims:
            ragged = [name for name in ragged if name in self.sequence_dims]
        if len(ragged) != 1:
            problem = f"the model has {len(ragged)} observed dims, so `lengths` must say which"
            raise self.fail_sizes(None, problem, "pass a dict, as in `lengths={'T': n}`")
        return {ragged[0]: self._one_lengths(ragged[0], lengths)}

    def _one_lengths(self, name: str, value: OneLengths) -> Tensor:
        """Whole numbers [B], or [B, T] for a dim nested in T."""
        dim = self.graph.dims.get(name)
        if dim is None:
            raise self.fail_sizes(None, f"`lengths` names `{name}`, which is no dim of the model")
        if dim.kind in ("fixed", "free"):
            reason = f"always {dim.size}" if dim.kind == "fixed" else "part of the answer"
            remedy = "clamp labels with `evidence`, or leave cells out with `mask`"
            raise self.fail_sizes(dim.span, f"`lengths` names `{name}`, but its size is {reason}", remedy)
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError) as problem:
            raise self.fail_sizes(dim.span, f"the lengths of `{name}` are no tensor: {problem}") from problem
        rank = 2 if dim.kind == "nested" else 1
        empty = tensor.numel() == 0 and not isinstance(value, Tensor)  # an empty list has no type of its own
        real = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
        if tensor.dim() != rank or (real and not empty):
            shape = f"[B, {dim.within}]" if dim.kind == "nested" else "[B]"
            found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            problem_text = f"the lengths of `{name}` must be whole numbers {shape}, found {found}"
            raise self.fail_sizes(dim.span, problem_text)
        return tensor if tensor.dtype == torch.int64 else tensor.to(torch.int64)

    def _sizes(
        self,
        sizes: dict[str, int],
        shorter: list[_Shorter],
        lengths: dict[str, Tensor],
        masks: dict[str, Tensor],
        labels: dict[str, Tensor],
    ) -> None:
        """Complete the sizes from masks, axes such as `T-1`, labels and lengths, in this order; check those axes."""
        for name, tensor in masks.items():
            variable = self.graph.variables[name]
            for axis, dim in enumerate(variable.dims, start=1):
                found = tensor.shape[axis]
                if sizes.setdefault(dim, found) != found:
                    problem = f"the mask of `{name}` has {found} positions along `{dim}`, expected {sizes[dim]}"
                    raise self.fail_sizes(variable.span, problem)
        for one in shorter:
            if one.axis.dim not in sizes and (one.length > 0 or one.axis.dim not in lengths):
                sizes[one.axis.dim] = one.length - one.axis.offset
        for name, tensor in labels.items():
            for axis, dim in _dim_axes(self.graph.variables[name]):
                sizes.setdefault(dim, tensor.shape[axis])
        for dim, tensor in lengths.items():
            if dim not in sizes:
                sizes[dim] = int(tensor.max()) if tensor.numel() else 0
        for one in shorter:
            expected = max(0, sizes[one.axis.dim] + one.axis.offset)
            if one.length != expected:
                raise self._wrong_axis(one.wanted, one.tensor, one.number, one.axis, expected)
        for dim in self.needed:
            if dim not in sizes:
                remedy = f"pass `lengths=`, or an input over `{dim}`"
                raise self.fail_sizes(self.graph.dims[dim].span, f"the size of `{dim}` is not known", remedy)

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
                raise self.fail_sizes(dim.span, f"{problem}, expected {sizes[dim.within or '']}")
            if given.numel() and is_host_readable(given):
                low, high = extremes(given)
                if low < 0 or high > size:
                    outside, outer = (given < 0) | (given > size), lengths.get(dim.within or "")
                    if outer is not None:  # behind the end of the outer dim anything may stand
                        outside = outside & exist_below(outer.to(given.device), given.shape[1])
                    if bool(outside.any()):
                        raise self.fail_sizes(dim.span, f"a length of `{name}` lies outside 0..{size}")
            count = given.to(batch.device)
            if dim.kind == "nested":
                batch.nested[name].count = count
            else:
                batch.along[name].count = count

    # -------------------------------------------------------------------------------------------------------- masks

    def _masks_by_variable(self, mask: MaskLike) -> dict[str, Tensor]:
        if not isinstance(mask, Mapping):
            variables = [v for v in (*self.graph.discrete, *self.graph.fields) if v.dims]
            if len({v.dims for v in variables}) != 1:
                problem = "the model's variables have different dims, so `mask` must say which"
                raise self.fail_sizes(None, problem, "pass a dict, as in `mask={'y': m}`")
            mask = {v.name: mask for v in variables}
        for name, tensor in mask.items():
            variable = self.graph.variables.get(name)
            if variable is None or variable.readout is not None:
                remedy = f"mask the field `{variable.readout.field}`" if variable and variable.readout else None
                raise self.fail_sizes(None, f"`mask` names `{name}`, which is no variable of the score", remedy)
            if any(self.graph.dims[dim].kind == "free" for dim in variable.dims):
                problem = f"`mask` names `{name}`, whose length is part of the answer"
                raise self.fail_sizes(variable.span, problem)
            rank = 1 + len(variable.dims)
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool or tensor.dim() != rank:
                axes = ", ".join(("B", *variable.dims))
                raise self.fail_sizes(variable.span, f"the mask of `{name}` must be a bool tensor [{axes}]")
        return dict(mask)

    def _padding_behind(self, batch: Batch, lengths: dict[str, Tensor]) -> None:
        """Without lengths, the positions behind the last one that carries a cell of any variable are padding."""
        for dim, names in self.alone.items():
            if dim in lengths or not names or any(name not in batch.masks for name in names):
                continue
            carried = torch.stack([batch.masks[name] for name in names]).any(0)
            batch.seen[dim] = carried.flip(1).cumsum(1).flip(1) > 0

    def _labelled(self, answer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The labels that have enough axes to tell sizes; what is wrong with the others is said where they are read."""
        variables = self.graph.variables
        return {
            name: one
            for name, one in answer.items()
            if name in variables and isinstance(one, Tensor) and one.dim() > self.axes[name]
        }

    def _batch_size(
        self, known: int | None, lengths: dict[str, Tensor], masks: dict[str, Tensor], labels: dict[str, Tensor]
    ) -> int:
        if known is None and not lengths and not masks and labels:
            return next(iter(labels.values())).shape[0]
        for tensors in (lengths, masks):
            for name, tensor in tensors.items():
                if known is None:
                    known = tensor.shape[0]
                elif tensor.shape[0] != known:
                    shape = list(tensor.shape)
                    raise self.fail_sizes(None, f"`{name}` has {shape} entries, but the batch has {known} examples")
        return 1 if known is None else known


def _dim_axes(variable: Variable) -> list[tuple[int, str]]:
    """The axes of an answer [B, ...] that run along dims."""
    axes = enumerate(variable.type.axes, start=1)
    return [(number, axis.extent.name) for number, axis in axes if axis.extent.kind == "dim"]


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

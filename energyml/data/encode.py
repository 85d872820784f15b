"""Examples become columns: labels their numbers, numbers tensors, every size checked against the declarations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energyml.data.columns import (
    GOLD,
    LABELS,
    REALS,
    Array,
    Column,
    Form,
    NestedRagged,
    Numbers,
    pack,
    pack_nested,
    pack_runs,
)
from energyml.data.problems import BadData
from energyml.data.readers.reader import Example
from energyml.data.targets import Target
from energyml.data.vocabulary import Vocabulary
from energyml.diagnostics import did_you_mean
from energyml.ir.graph import Graph
from energyml.model.types import REAL, Axis, EdgeType, TensorType, dim_axis, number_axis

EDGES = GOLD  # whole numbers with -1 for padding, as gold labels are


@dataclass
class Encoded:
    """The columns of a split.

    Attributes:
        columns: by declared name; those of outputs hold gold numbers, see `Dataset`.
        sizes: by observed dim, [n] the size of each example.
        nested: by declared name, the nested dim that its values run over.
        unseen: by output, labels that its vocabulary lacks: the i-th has the number `len(vocabulary) + i`.
        missing: by output, how often it has a label that no training example has.
        edges: run-time graphs, whose ends are checked when all sizes are known.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    sizes: dict[str, Numbers] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, Counter[str]] = field(default_factory=dict)
    edges: list[tuple[Target, EdgeType, list[Array]]] = field(default_factory=list)


class Encoder:
    """Encodes the examples of one split.

    Args:
        graph: the declarations.
        vocabularies: the labels of every set that a target has.
        strict: whether an output label that the vocabulary lacks is an error (always so in training).
        training: whether these are examples that a model learns from; those of training may be judged by too.
    """

    def __init__(self, graph: Graph, vocabularies: Mapping[str, Vocabulary], *, strict: bool, training: bool) -> None:
        self.graph, self.vocabularies, self.strict, self.training = graph, vocabularies, strict, training

    def encode(self, targets: Sequence[Target], examples: Sequence[Example]) -> Encoded:
        """Encode all targets; O(values)."""
        found = Encoded()
        for target in targets:
            values = [example.values[target.field] for example in examples]
            declared = _tensor_type(target.type)
            inner = self._inner_dim(declared)
            if inner is not None:
                found.nested[target.name] = inner
                column: Column = self._nested(target, declared, values, examples, found)
            elif declared.element == REAL or isinstance(target.type, EdgeType):
                column = self._numbers(target, declared, values, examples, found)
            else:
                column = self._labels(target, declared, values, examples, found)
            found.columns[target.name] = column
        self._check_edges(examples, found)
        return found

    # ---------------------------------------------------------------------------------------------------------- labels

    def _labels(
        self, target: Target, declared: TensorType, values: list[Any], examples: Sequence[Example], found: Encoded
    ) -> Column:
        form = GOLD if target.is_output else LABELS
        if all(isinstance(value, np.ndarray) for value in values):
            return self._label_numbers(target, declared, values, examples, found, form)
        rank, vocabulary = len(declared.axes), self.vocabularies[declared.element]
        flat: list[Any] = []
        shapes: list[tuple[int, ...]] = []
        for value, example in zip(values, examples, strict=True):
            tokens, shape = _flattened(value, rank, target, example)
            if vocabulary.merges is not None:
                tokens = vocabulary.divided(tokens)
                shape = (len(tokens),)
            shapes.append(shape)
            flat += tokens
        numbers = self._encoded(target, flat, partial(_located, shapes, examples), found)
        self._sizes(target, declared, shapes, examples, found)
        if rank == 1:
            counts = np.array([shape[0] for shape in shapes], np.int64)
            if target.end is not None:
                numbers, counts = self._ended(target, declared, numbers, counts, examples)
            return pack_runs(numbers, counts, form)
        ends = np.cumsum([prod(shape) for shape in shapes])
        parts = np.split(numbers, ends[:-1])
        return pack([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], form)

    def _label_numbers(
        self,
        target: Target,
        declared: TensorType,
        values: list[Array],
        examples: Sequence[Example],
        found: Encoded,
        form: Form,
    ) -> Column:
        """Labels that a reader gives as their numbers (masks)."""
        count = len(self.vocabularies[declared.element])
        for value, example in zip(values, examples, strict=True):
            if value.ndim != len(declared.axes):
                raise _unfit(target, example, f"{value.ndim} axes")
            if value.dtype.kind not in "iu":
                found_here = str(value.flat[0]) if value.size else str(value.dtype)
                facts = {"place": example.place(), "expected": "the number of a label", "found": found_here}
                raise BadData("E0806", field=target.name, **facts)
            wrong = value[(value < -1) | (value >= count)]
            if wrong.size:
                facts = {"place": example.place(), "label": str(int(wrong[0])), "labels": declared.element}
                raise BadData("E0807", field=target.name, help=f"`{declared.element}` has {count} labels", **facts)
        self._sizes(target, declared, [value.shape for value in values], examples, found)
        return pack(values, form)

    def _encoded(
        self, target: Target, flat: list[Any], where: Callable[[int], tuple[Example, int]], found: Encoded
    ) -> NDArray[np.int32]:
        """The numbers of labels; what the vocabulary lacks is unknown, unseen, or an error at the place `where`."""
        vocabulary = self.vocabularies[_tensor_type(target.type).element]
        numbers = vocabulary.numbers(flat)
        lacking = np.flatnonzero(numbers < 0)
        if not len(lacking):
            return numbers
        unknown = vocabulary.unknown_number
        unseen = found.unseen.setdefault(target.name, []) if target.is_output else []
        places: dict[str, int] = {}
        for position in lacking.tolist():
            label = flat[position]
            if label is None:
                if not target.is_output:
                    raise _unfit(target, where(position)[0], "`null`, which only an output may have")
                continue  # not labelled
            if unknown < 0 and (self.strict or self.training or not target.is_output):
                raise self._lacking(target, vocabulary, label, *where(position))
            if not target.is_output:
                numbers[position] = unknown
                continue
            if label not in places:
                places[label] = len(vocabulary) + len(unseen)
                unseen.append(label)
            numbers[position] = places[label]
            if unknown < 0:
                found.missing.setdefault(target.name, Counter())[label] += 1
        return numbers

    def _lacking(self, target: Target, vocabulary: Vocabulary, label: str, example: Example, position: int) -> BadData:
        labels = vocabulary.name
        from_data = self.graph.label_sets[labels].source == "data"
        guess = did_you_mean(label, vocabulary.labels)
        if from_data and self.training:
            remedy = "it is too rare to be kept: give the set a label for such cases, `from data(unknown: '<unk>')`"
        elif from_data and not target.is_output:
            remedy = "training has no such label: give the set one for such cases, `from data(unknown: '<unk>')`"
        elif from_data:
            remedy = "training has no such label; with `unknown: count_wrong` in the `data` line it counts as wrong"
        elif self.training or not target.is_output:
            remedy = f"did you mean `{guess}`?" if guess else f"add it to `labels {labels} = ...`, or correct the file"
        else:
            remedy = f"add it to `labels {labels} = ...`, or write `unknown: count_wrong` in the `data` line"
        place = example.place(position)
        return BadData("E0807", field=target.name, help=remedy, place=place, label=label, labels=labels)

    def _ended(
        self,
        target: Target,
        declared: TensorType,
        numbers: NDArray[np.int32],
        counts: Numbers,
        examples: Sequence[Example],
    ) -> tuple[NDArray[np.int32], Numbers]:
        """Every sequence with its end label behind it; all must fit into the bound of the length."""
        dim = self.graph.dims[declared.axes[0].extent.name]
        longest = dim.size or 0
        for row in np.flatnonzero(counts + 1 > longest).tolist():
            facts = {"place": examples[row].place(), "count": str(counts[row]), "dim": dim.name, "bound": str(longest)}
            raise BadData("E0818", field=target.name, name=target.name, **facts)
        end = self.vocabularies[declared.element].number(target.end or "")
        return np.insert(numbers, np.cumsum(counts), end), counts + 1

    # --------------------------------------------------------------------------------------------------------- numbers

    def _numbers(
        self, target: Target, declared: TensorType, values: list[Any], examples: Sequence[Example], found: Encoded
    ) -> Column:
        edges = isinstance(target.type, EdgeType)
        fixed = [self._fixed(axis) for axis in declared.axes]
        parts: list[Array] = []
        for value, example in zip(values, examples, strict=True):
            array = _as_numbers(value, target, example, whole=edges)
            if array.ndim != len(fixed) or any(
                size is not None and size != length for size, length in zip(fixed, array.shape, strict=True)
            ):
                array = self._reshaped(array, fixed, target, example)
            parts.append(array)
        self._sizes(target, declared, [part.shape for part in parts], examples, found)
        if isinstance(target.type, EdgeType):
            found.edges.append((target, target.type, parts))
            return pack(parts, EDGES)
        return pack(parts, Form(np.float32, 0, target.scale))

    def _check_edges(self, examples: Sequence[Example], found: Encoded) -> None:
        """Ends of edges are positions of their dims; checked last, when all sizes are known."""
        for target, declared, parts in found.edges:
            for end, dim in enumerate(declared.ends):
                sizes = found.sizes.get(dim)
                for row, part in enumerate(parts):
                    size = self.graph.dims[dim].size if sizes is None else int(sizes[row])
                    wrong = part[:, end][(part[:, end] < 0) | (part[:, end] >= (size or 0))]
                    if len(wrong):
                        expected = f"a position of `{dim}`, from 0 to {(size or 0) - 1}"
                        facts = {"place": examples[row].place(), "expected": expected, "found": str(wrong[0])}
                        raise BadData("E0806", field=target.name, help="positions are counted from 0", **facts)

    def _reshaped(self, array: Array, fixed: list[int | None], target: Target, example: Example) -> Array:
        """An array that is written otherwise than declared: flat rows, axes that are split or merged in place, nothing.

        Numbers keep their order, and no axis is cut across another: 16 x 8 pixels are 128, 2 x 8 x 8 or 1 x 16 x 8, but
        no 8 x 16, and 16 x 8 x 3 are no 3 x 16 x 8.
        """
        inner = [size for size in fixed[1:] if size is not None]
        help_text = None
        if fixed and fixed[0] is None and len(inner) == len(fixed) - 1 and array.ndim:
            row = array.shape[1:]
            if array.shape == (0,) or _nested_shapes(row, inner):
                return array.reshape(len(array), *inner)
            if prod(row) == prod(inner):
                help_text = "numbers keep their order: declare the axes as the data has them, or turn them in the data"
        if array.ndim == len(fixed) + 1 and array.shape[0] == 1 and set(fixed) == {None}:
            single: Array = array[0]  # a grey image [1, H, W] as [H, W]
            return single
        raise _unfit(target, example, f"numbers of shape {list(array.shape)}", help_text)

    # ---------------------------------------------------------------------------------------------------------- nested

    def _nested(
        self, target: Target, declared: TensorType, values: list[Any], examples: Sequence[Example], found: Encoded
    ) -> NestedRagged:
        """Values at each place of each position: characters of words, or nested lists."""
        for value, example in zip(values, examples, strict=True):
            if not isinstance(value, list) or any(not isinstance(one, str | list) for one in value):
                raise _unfit(target, example, "no list of words or lists")
        if declared.element == REAL:
            return self._nested_numbers(target, declared, values, examples, found)
        counts = np.array([len(value) for value in values], np.int64)
        self._sizes(target, declared, [(len(value),) for value in values], examples, found, first_only=True)
        positions = list(chain.from_iterable(values))
        inner = np.array([len(one) for one in positions], dtype=np.int64)
        within = np.repeat(np.arange(len(positions)), inner)
        shapes = [(len(value),) for value in values]
        flat: list[Any] = []
        for value, example in zip(values, examples, strict=True):
            flat += _labels_only(list(chain.from_iterable(value)), target, example)
        encoded = self._encoded(
            target, flat, lambda character: _located(shapes, examples, int(within[character])), found
        )
        return pack_nested(encoded, inner, counts, GOLD if target.is_output else LABELS)

    def _nested_numbers(
        self, target: Target, declared: TensorType, values: list[Any], examples: Sequence[Example], found: Encoded
    ) -> NestedRagged:
        """Numbers [T, M, *fixed axes] in nested lists."""
        fixed = [self._fixed(axis) or 0 for axis in declared.axes[2:]]
        parts: list[Array] = []
        for value, example in zip(values, examples, strict=True):
            flat = list(chain.from_iterable(value))
            part = _as_numbers(flat, target, example, whole=False)
            if flat and list(part.shape) != [len(flat), *fixed]:
                raise _unfit(target, example, f"numbers of shape {list(part.shape)} in all its lists")
            parts.append(part.reshape(len(flat), *fixed))
        shapes = [(len(value),) for value in values]
        self._sizes(target, declared, shapes, examples, found, first_only=True)
        inner = np.array([len(one) for value in values for one in value], np.int64)
        counts = np.array([len(value) for value in values], np.int64)
        return pack_nested(np.concatenate(parts), inner, counts, REALS)

    def _inner_dim(self, declared: TensorType) -> str | None:
        """The nested dim of a type [T, M, ...]."""
        dims = self.graph.dims
        names = [axis.extent.name for axis in declared.axes[1:2] if axis.extent.kind == "dim"]
        return next((name for name in names if dims[name].kind == "nested"), None)

    # ----------------------------------------------------------------------------------------------------------- sizes

    def _fixed(self, axis: Axis) -> int | None:
        """The size of an axis where the declarations tell it."""
        extent = axis.extent
        if extent.kind == "number":
            return extent.offset
        if extent.kind == "labels":
            return len(self.vocabularies[extent.name])
        dim = self.graph.dims[extent.name]
        return dim.size + extent.offset if dim.kind == "fixed" and dim.size is not None else None

    def _sizes(
        self,
        target: Target,
        declared: TensorType,
        shapes: Sequence[tuple[int, ...]],
        examples: Sequence[Example],
        found: Encoded,
        *,
        first_only: bool = False,
    ) -> None:
        """Learn the sizes of dims, and check those that are known already."""
        axes = declared.axes[:1] if first_only else declared.axes
        for number, axis in enumerate(axes):
            lengths = np.array([shape[number] for shape in shapes], dtype=np.int64)
            fixed = self._fixed(axis)
            if fixed is not None:
                for row in np.flatnonzero(lengths != fixed).tolist():
                    raise _unfit(target, examples[row], f"{int(lengths[row])} along `{axis.extent}`")
                continue
            dim = self.graph.dims[axis.extent.name]
            if dim.kind != "observed":
                continue
            sizes = lengths - axis.extent.offset
            known = found.sizes.setdefault(dim.name, sizes)
            # Nothing along T-1 says that T is 0 or 1.
            told = lengths > 0 if axis.extent.offset < 0 else np.ones(len(lengths), dtype=bool)
            for row in np.flatnonzero((known != sizes) & told).tolist():
                facts = {"place": examples[row].place(), "name": target.name, "dim": dim.name}
                raise BadData("E0817", field=target.name, found=int(sizes[row]), expected=int(known[row]), **facts)


def _tensor_type(declared: TensorType | EdgeType) -> TensorType:
    """A type with axes: edges are rows of positions."""
    if isinstance(declared, TensorType):
        return declared
    return TensorType("edge", (dim_axis(declared.over), number_axis(len(declared.ends))))


def _unfit(target: Target, example: Example, found: str, help_text: str | None = None) -> BadData:
    facts = {"place": example.place(), "name": target.name, "type": str(target.type), "found": found}
    return BadData("E0816", field=target.name, help=help_text, **facts)


def _nested_shapes(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one shape is the other with axes split or merged in place: its axes end where those of the other do."""
    first, second = ({prod(shape[: n + 1]) for n in range(len(shape))} - {1} for shape in (one, other))
    return prod(one) == prod(other) and (first <= second or second <= first)


def _flattened(value: Any, rank: int, target: Target, example: Example) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists of equal lengths, and those lengths."""
    level: list[Any] = [value]
    shape: list[int] = []
    for _ in range(rank):
        if any(not isinstance(one, list) for one in level):
            raise _unfit(target, example, f"lists nested {len(shape)} deep")
        lengths = {len(one) for one in level} or {0}
        if len(lengths) > 1:
            raise _unfit(target, example, f"rows of {min(lengths)} and of {max(lengths)} labels")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return _labels_only(level, target, example), tuple(shape)


def _labels_only(found: list[Any], target: Target, example: Example) -> list[Any]:
    """Texts, whole numbers as texts, and `None` for a cell without a label."""
    if all(type(one) is str for one in found):
        return found
    for one in found:
        if (one is not None and not isinstance(one, str | int)) or isinstance(one, bool):
            what = "a list too many" if isinstance(one, list) else f"`{one}`"
            raise _unfit(target, example, f"{what} where a label should stand")
    return [one if one is None else str(one) for one in found]


def _as_numbers(value: Any, target: Target, example: Example, *, whole: bool) -> Array:
    """Numbers that the type of a batch holds: 64-bit whole numbers, or finite 32-bit reals (whole ones stay whole)."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise _unfit(target, example, "lists of different lengths") from None
    listed = not isinstance(value, np.ndarray)
    if array.size == 0 and listed:
        return array.astype(np.int64 if whole else np.float32)
    facts = {"place": example.place(), "expected": "a whole number" if whole else "a number"}
    if array.dtype.kind not in ("iu" if whole else "iuf"):
        wrong = _first_wrong(value if listed else array.tolist(), whole) or str(array.flat[0])
        raise BadData("E0806", field=target.name, found=wrong, **facts)
    if whole and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise BadData(
            "E0806", field=target.name, found=str(array.max()), **{**facts, "expected": "a whole number of 64 bits"}
        )
    if whole:
        return array.astype(np.int64)
    if array.dtype.kind != "f" and not listed:
        return array  # pixels: kept small
    with np.errstate(over="ignore"):
        made = array.astype(np.float32)
    if not np.isfinite(made).all():
        wrong = str(array[~np.isfinite(made)].flat[0])
        raise BadData("E0806", field=target.name, found=wrong, **{**facts, "expected": "a finite number of 32 bits"})
    return made


def _first_wrong(value: Any, whole: bool) -> str:
    """The first element of nested lists that is no number."""
    if isinstance(value, list):
        for one in value:
            wrong = _first_wrong(one, whole)
            if wrong:
                return wrong
        return ""
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    fits = not whole or not right or abs(value) < 2**63
    return "" if right and fits else str(value)


def _located(shapes: Sequence[tuple[int, ...]], examples: Sequence[Example], position: int) -> tuple[Example, int]:
    """The example that an element belongs to, and its place there."""
    ends = np.cumsum([prod(shape) for shape in shapes])
    row = int(np.searchsorted(ends, position, side="right"))
    return examples[row], position - int(ends[row - 1] if row else 0)

"""Compact columns: the values of all examples in one array, gathered into padded batches without a loop.

A column keeps values in the smallest type that holds them (pixels and most labels in a byte) and gives 64-bit labels or
32-bit reals. Along axes whose size differs between examples a batch is padded to its largest example. Gathering is done
with NumPy: on arrays of this size torch's parallel loops cost more than they save, and much more on a busy machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """What the values of a column become in a batch.

    Attributes:
        dtype: the type in a batch.
        fill: what stands at padding.
        scale: what numbers are multiplied with, as pixels of a byte with 1/255.
    """

    dtype: type[np.int64] | type[np.float32]
    fill: float = 0
    scale: float | None = None

    def shown(self, values: Array) -> Array:
        """Stored values as a batch has them, in a new array."""
        values = values.astype(self.dtype)
        if self.scale is not None:
            values *= self.dtype(self.scale)
        return values


LABELS = Form(np.int64)
GOLD = Form(np.int64, -1)
REALS = Form(np.float32)


class Column(ABC):
    """The values of one declaration for all examples of a data set."""

    form: Form

    @abstractmethod
    def gather(self, rows: Numbers, size: int | None = None) -> Array:
        """[B, *axes]: the values of some examples, padded.

        Args:
            rows: [B] the examples.
            size: what the first axis is padded to; the largest of these examples when left out.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How much memory the values take."""


@dataclass
class Even(Column):
    """Values [n, *axes]: all examples have the same shape."""

    values: Array
    form: Form

    def gather(self, rows: Numbers, size: int | None = None) -> Array:
        """[B, *axes]."""
        return _lengthened(self.form.shown(self.values[rows]), size, self.form)

    @property
    def nbytes(self) -> int:
        """How much memory the values take."""
        return self.values.nbytes


@dataclass
class Ragged(Column):
    """Examples that differ along their first axis: `values[starts[i] : starts[i] + counts[i]]` is the i-th.

    Gathering costs one index operation over the padded batch.
    """

    values: Array
    starts: Numbers
    counts: Numbers
    form: Form

    def gather(self, rows: Numbers, size: int | None = None) -> Array:
        """[B, longest, *fixed axes]."""
        return _windows(self.values, self.starts[rows], self.counts[rows], self.form, size)

    @property
    def nbytes(self) -> int:
        """How much memory the values take."""
        return self.values.nbytes + self.starts.nbytes + self.counts.nbytes


@dataclass
class NestedRagged(Column):
    """Examples that differ along their first axis, and each of its positions along the second (characters of words).

    Attributes:
        values: the values of all positions, one after the other.
        starts: where the values of each position start.
        counts: how many there are.
        first: the first position of each example.
        positions: how many positions each example has.
    """

    values: Array
    starts: Numbers
    counts: Numbers
    first: Numbers
    positions: Numbers
    form: Form

    def gather(self, rows: Numbers, size: int | None = None) -> Array:
        """[B, longest, longest inside, *fixed axes]."""
        places, counts = self._places(rows)
        found = _windows(self.values, self.starts[places].reshape(-1), counts.reshape(-1), self.form, None)
        return _lengthened(found.reshape(*places.shape, *found.shape[1:]), size, self.form)

    def inner_counts(self, rows: Numbers) -> Numbers:
        """[B, longest]: how many values each position has, 0 where there is none."""
        return self._places(rows)[1]

    def _places(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """[B, longest]: the positions of the examples, and how many values they have; 0 for padding."""
        positions = self.positions[rows]
        steps = np.arange(positions.max(initial=0))
        exists = steps < positions[:, None]
        places = np.where(exists, self.first[rows, None] + steps, 0)
        return places, np.where(exists, self.counts[places] if len(self.counts) else 0, 0)

    @property
    def nbytes(self) -> int:
        """How much memory the values take."""
        return sum(one.nbytes for one in (self.values, self.starts, self.counts, self.first, self.positions))


@dataclass
class Loose(Column):
    """Examples that differ along more than their first axis, as photographs do: copied one by one."""

    parts: list[Array]
    form: Form

    def gather(self, rows: Numbers, size: int | None = None) -> Array:
        """[B, *axes], padded along every axis."""
        chosen = [self.parts[row] for row in rows.tolist()]
        shape = [max(sizes) for sizes in zip(*(part.shape for part in chosen), strict=True)]
        found = np.full((len(chosen), *shape), self.form.fill, dtype=self.form.dtype)
        for place, part in zip(found, chosen, strict=True):
            place[tuple(slice(length) for length in part.shape)] = self.form.shown(part)
        return _lengthened(found, size, self.form)

    @property
    def nbytes(self) -> int:
        """How much memory the values take."""
        return sum(part.nbytes for part in self.parts)


def _windows(values: Array, starts: Numbers, counts: Numbers, form: Form, size: int | None) -> Array:
    """[B, longest, ...]: the windows of `values` that start and count as said, padded."""
    longest = int(counts.max(initial=0)) if size is None else size
    if not len(values):
        return np.full((len(counts), longest, *values.shape[1:]), form.fill, dtype=form.dtype)
    steps = np.arange(longest)
    found = form.shown(values.take(starts[:, None] + steps, axis=0, mode="clip"))
    found[steps >= counts[:, None]] = form.fill
    return found


def _lengthened(values: Array, size: int | None, form: Form) -> Array:
    """[B, size, ...]: padded further along the first axis."""
    if size is None or size <= values.shape[1]:
        return values
    found = np.full((values.shape[0], size, *values.shape[2:]), form.fill, dtype=values.dtype)
    found[:, : values.shape[1]] = values
    return found


# -------------------------------------------------------------------------------------------------------------- packing


def compact(values: Array) -> Array:
    """Values in the smallest type that holds them; reals in 32 bits."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, dtype=np.float32)
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kinds: tuple[type[np.integer[Any]], ...] = (np.uint8, np.int8, np.int16, np.int32)
    for kind in kinds:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return np.ascontiguousarray(values, dtype=kind)
    return np.ascontiguousarray(values, dtype=np.int64)


def _starts(counts: Numbers) -> Numbers:
    """Where each of many runs starts."""
    starts = np.zeros(len(counts), np.int64)
    np.cumsum(counts[:-1], out=starts[1:])
    return starts


def pack_runs(values: Array, counts: Numbers, form: Form) -> Column:
    """A column from the values [total, *fixed axes] of all examples, one after the other."""
    if len(counts) and int(counts.min()) == int(counts.max()):
        return Even(compact(values).reshape(len(counts), int(counts[0]), *values.shape[1:]), form)
    return Ragged(compact(values), _starts(counts), counts, form)


def pack_nested(values: Array, inner: Numbers, positions: Numbers, form: Form) -> NestedRagged:
    """A nested column from all values, how many each position has, and how many positions each example has."""
    return NestedRagged(compact(values), _starts(inner), inner, _starts(positions), positions, form)


def pack(parts: Sequence[Array], form: Form) -> Column:
    """A column from one array an example; all have the same number of axes."""
    shapes = {part.shape for part in parts}
    if len(shapes) == 1:
        return Even(compact(np.stack(parts)), form)
    if len({shape[1:] for shape in shapes}) == 1:
        return pack_runs(np.concatenate(parts), np.array([len(part) for part in parts], np.int64), form)
    return Loose([compact(part) for part in parts], form)

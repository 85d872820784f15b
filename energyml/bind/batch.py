"""One batch: checked tensors, the sizes of all dims, and which positions exist.

Tensors are batch first.  `lengths` say how many positions exist (the rest is padding, which networks never see); `mask`
says which of them carry a cell.  Along a sequence dim, cells are counted over present positions only: the i-th cell is
the i-th present position, so neighbours are the next present ones.  Masks belong to variables: a term counts the
positions where all variables of its scope that run along the dim alone have a cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

# For each dim along which a term counts cells: the variables in its scope that have this dim alone.
Counted: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
HALF = (torch.float16, torch.bfloat16)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are taken in: half precision is too coarse to add up in."""
    return torch.float32 if dtype in HALF else dtype


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """No products in low precision, whatever autocast surrounds this: networks may be coarse, sums are not."""
    if device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def wide(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class Along:
    """A dim in one batch.

    Attributes:
        size: the padded size.
        count: [B] how many cells each example has along it, or `None` when all have `size`.
        order: [B, size] the positions of the present cells, present ones first, or `None` when cell i is position i.
        rank: [B, size] for each position the cell that it is, -1 for none, or `None` likewise.
    """

    size: int
    count: Tensor | None = None
    order: Tensor | None = None
    rank: Tensor | None = None
    _exists: Tensor | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of_mask(mask: Tensor) -> Along:
        """The dim whose cells are the positions [B, size] where a mask holds."""
        order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
        rank = torch.where(mask, mask.cumsum(1) - 1, -1)
        return Along(mask.shape[1], mask.sum(1), order, rank)

    def compact(self, tensor: Tensor, axis: int) -> Tensor:
        """Reorder an axis of positions (perhaps shorter by a constant) into cells."""
        length = tensor.shape[axis]
        if self.order is None or length == 0:
            return tensor
        order = self.order[:, :length].clamp(max=length - 1)
        shape = [1] * tensor.dim()
        shape[0], shape[axis] = order.shape[0], length
        sizes = [order.shape[0], *tensor.shape[1:]]
        return tensor.expand(sizes).gather(axis, order.reshape(shape).expand(sizes))

    def spread(self, tensor: Tensor, fill: float) -> Tensor:
        """Values of cells [B, size, ...] at the caller's positions, `fill` where there is no cell."""
        beyond = [1] * (tensor.dim() - 2)
        if self.rank is not None:
            index = self.rank.clamp(min=0).reshape(*self.rank.shape, *beyond)
            exists: Tensor | None = self.rank >= 0
            tensor = tensor.gather(1, index.expand(tensor.shape))
        else:
            exists = self.valid(self.size, tensor.device)
        if exists is None:
            return tensor
        return tensor.masked_fill(~exists.reshape(*exists.shape, *beyond), fill)

    def repeat(self, copies: int) -> Along:
        """The same dim when every example stands `copies` times in a row."""
        if copies == 1:
            return self
        parts = (repeated(part, copies) for part in (self.count, self.order, self.rank))
        return Along(self.size, *parts)

    def example(self, here: slice) -> Along:
        """The same dim for some of the examples."""
        parts = (None if part is None else part[here] for part in (self.count, self.order, self.rank))
        return Along(self.size, *parts)

    def valid(self, length: int, device: torch.device) -> Tensor | None:
        """[B, length]: whether cell i and the `size - length` cells after it exist; `None` when all do."""
        if self.count is None:
            return None
        if length < self.size:
            return exist_below(self.count - (self.size - length), length)
        if self._exists is None:
            self._exists = exist_below(self.count, length)
        return self._exists

    def counts(self, device: torch.device) -> Tensor:
        """[B or 1]: how many cells there are."""
        return torch.full((1,), self.size, device=device) if self.count is None else self.count


@dataclass
class Nested:
    """A nested dim in one batch.

    Attributes:
        within: the dim that it is nested in.
        size: the padded size.
        count: [B, size of `within`] how many positions each position has, or `None` when all have `size`.
    """

    within: str
    size: int
    count: Tensor | None = None

    def repeat(self, copies: int) -> Nested:
        """The same dim when every example stands `copies` times in a row."""
        return Nested(self.within, self.size, repeated(self.count, copies))

    def example(self, here: slice) -> Nested:
        """The same dim for some of the examples."""
        return Nested(self.within, self.size, None if self.count is None else self.count[here])


@dataclass
class Batch:
    """Checked tensors and sizes.

    Attributes:
        size: how many examples.
        tensors: the inputs by name, [B, ...].
        along: every dim that is not nested, with its lengths.
        nested: every nested dim.
        masks: for masked variables: [B, *dims] which positions carry a cell.
        seen: by dim: [B, T] which positions networks see, where lengths alone do not say.
        device: where the tensors live.
        dtype: the floating-point type that scores are computed in.
        fixed: those of the inputs that hold for every example and every call, as the model keeps them, [1, ...].
        checked: labels by variable that a loss has checked already: what it asks with them need not do so again.
    """

    size: int
    tensors: dict[str, Tensor]
    along: dict[str, Along]
    nested: dict[str, Nested] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    seen: dict[str, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    _frames: dict[Counted, Mapping[str, Along]] = field(default_factory=dict, repr=False, compare=False)
    _cells: dict[str, Tensor | None] = field(default_factory=dict, repr=False, compare=False)
    _exists: Mapping[str, Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    checked: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _whole: bool | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def whole(self) -> bool:
        """Whether there are neither lengths nor masks: every position of every dim carries its cells."""
        if self._whole is None:
            counts = [*[one.count for one in self.along.values()], *[one.count for one in self.nested.values()]]
            self._whole = not self.masks and counts.count(None) == len(counts)
        return self._whole

    # Cached by hand: `cached_property` holds a lock, which compiled code cannot.
    @property
    def exists(self) -> Mapping[str, Tensor]:
        """Padding masks for networks: [B, T] by dim, [B, T, M] for a nested dim; a dim without padding is left out."""
        if self._exists is None:
            self._exists = self._find_padding()
        return self._exists

    def _find_padding(self) -> Mapping[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, along in self.along.items():
            exists = along.valid(along.size, self.device)
            if exists is not None:
                found[name] = exists
        for name, nested in self.nested.items():
            if nested.count is not None:
                found[name] = exist_below(nested.count, nested.size)
        return {**found, **self.seen}

    def repeat(self, copies: int) -> Batch:
        """The batch with every example `copies` times in a row."""
        if copies == 1:
            return self

        def each(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.repeat_interleave(copies, 0) for name, tensor in tensors.items()}

        along = {name: one.repeat(copies) for name, one in self.along.items()}
        nested = {name: one.repeat(copies) for name, one in self.nested.items()}
        parts = (nested, each(self.masks), each(self.seen))
        return Batch(self.size * copies, each(self.tensors), along, *parts, self.device, self.dtype)

    def example(self, number: int) -> Batch:
        """The batch of one example."""
        here = slice(number, number + 1)

        def each(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor[here] for name, tensor in tensors.items()}

        along = {name: one.example(here) for name, one in self.along.items()}
        nested = {name: one.example(here) for name, one in self.nested.items()}
        parts = (nested, each(self.masks), each(self.seen))
        return Batch(1, each(self.tensors), along, *parts, self.device, self.dtype)

    def with_lengths(self, counts: Mapping[str, Tensor]) -> Batch:
        """The batch when some dims have the lengths [B]: what an answer of that length is scored in."""
        along = {**self.along, **{dim: Along(self.along[dim].size, count) for dim, count in counts.items()}}
        parts = (self.nested, self.masks, self.seen)
        return Batch(self.size, self.tensors, along, *parts, self.device, self.dtype)

    def size_of(self, dim: str) -> int:
        """The padded size of a dim."""
        return self.along[dim].size if dim in self.along else self.nested[dim].size

    def sizes(self) -> dict[str, float]:
        """The padded size of every dim, as formulas of cost take them."""
        return {name: float(self.size_of(name)) for name in (*self.along, *self.nested)}

    def frame(self, counted: Counted) -> Mapping[str, Along]:
        """The dims as a term sees them: an index counts the positions where all `counted` variables have a cell."""
        if not self.masks:
            return self.along
        found = self._frames.get(counted)
        if found is None:
            found = {**self.along}
            for dim, variables in counted:
                masks = [self.masks[name] for name in variables if name in self.masks]
                if masks:
                    exists = self.along[dim].valid(self.along[dim].size, self.device)
                    found[dim] = Along.of_mask(_all_of([*masks, *([] if exists is None else [exists])]))
            self._frames[counted] = found
        return found

    def cells(self, variable: str, dims: tuple[str, ...]) -> Tensor | None:
        """[B, *dims]: which positions of a variable carry a cell; `None` when all do."""
        if self.whole:
            return None
        if variable not in self._cells:
            self._cells[variable] = self._find_cells(variable, dims)
        return self._cells[variable]

    def cells_exist(self, dims: tuple[str, ...], variable: str) -> Tensor:
        """[B, *dims]: which positions of a variable carry a cell."""
        sizes = (self.size, *(self.size_of(dim) for dim in dims))
        found = self.cells(variable, dims)
        return torch.ones(sizes, dtype=torch.bool, device=self.device) if found is None else found

    def _find_cells(self, variable: str, dims: tuple[str, ...]) -> Tensor | None:
        parts = [self.masks[variable]] if variable in self.masks else []
        for axis, dim in enumerate(dims):
            shape = [self.size, *([1] * len(dims))]
            if dim in self.along:
                exists = self.along[dim].valid(self.along[dim].size, self.device)
                shape[1 + axis] = self.along[dim].size
            else:
                inner = self.nested[dim]
                outer = dims.index(inner.within)
                exists = None if inner.count is None else exist_below(inner.count, inner.size)
                shape[1 + outer], shape[1 + axis] = self.along[inner.within].size, inner.size
            if exists is not None:
                parts.append(exists.reshape(shape))
        if not parts:
            return None
        return _all_of(parts).expand(self.size, *(self.size_of(dim) for dim in dims))


def exist_below(count: Tensor, size: int) -> Tensor:
    """[..., size]: position i exists when it is below the count [...]."""
    return torch.arange(size, device=count.device) < count.unsqueeze(-1)


def repeated(tensor: Tensor | None, copies: int) -> Tensor | None:
    """Every row `copies` times in a row."""
    return tensor if tensor is None or copies == 1 else tensor.repeat_interleave(copies, 0)


def _all_of(masks: list[Tensor]) -> Tensor:
    total = masks[0]
    for mask in masks[1:]:
        total = total & mask
    return total

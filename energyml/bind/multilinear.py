"""The score of a table at relaxed labels: its expectation under independent cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from energyml.bind.batch import Batch, full_precision
from energyml.bind.places import owner_of, roomy
from energyml.bind.tensors import Environment
from energyml.execution import is_host_readable
from energyml.ir.graph import Range, Term
from energyml.model.declared import CellRef

if TYPE_CHECKING:
    from energyml.bind.tables import TableTerm

# From vectors [B, K, *dims, labels] of a variable to those of one cell of a scope, for each element of an index set:
# [B, K, *domain (size 1 where shared), labels].
Reader: TypeAlias = Callable[[Tensor], Tensor]
# Names of axes in contractions: B and K stand for examples and copies, small letters for the index set.
_LABELS = ascii_uppercase[11:]


class MultilinearForm:
    """The multilinear form of a table in one batch, as a function of relaxed answers.

    Args:
        term: the bound term.
        env: the batch of B examples.
        copies: K, how many answers each example has.
        penalty: what the probability of forbidden joint labels costs; -inf as soon as there is any when `None`.
    """

    def __init__(self, term: TableTerm, env: Environment, copies: int, penalty: float | None) -> None:
        batch = env.batch
        self.batch_size, self.copies = batch.size, copies
        self.scope = term.term.scope
        self.readers = [_reader(term, batch, number) for number in range(len(self.scope))]
        valid = term.valid(batch)
        self.counted = None if valid is None or _is_implied(term, batch) else valid
        self.lead = "BK" + ascii_lowercase[: term.rank]
        self.twins = _twins(term, batch)
        table = term.table(env)
        hard = table.isneginf()
        used = _used(valid, table, term.rank)
        if used is not None:  # what stands where there is no element may be anything, even NaN
            table, hard = torch.where(used, table, 0), hard & used
        self.table = torch.where(hard, 0.0 if penalty is None else -penalty, table).unsqueeze(1)
        self.hard = hard.to(table.dtype).unsqueeze(1) if penalty is None and _maybe(hard) else None

    def __call__(self, answer: Mapping[str, Tensor]) -> Tensor:
        """[B * K]: the score of vectors [B * K, *dims, labels] by variable."""
        vectors = [
            read(answer[ref.variable].unflatten(0, (self.batch_size, self.copies)))
            for ref, read in zip(self.scope, self.readers, strict=True)
        ]
        if self.counted is not None:
            vectors[0] = torch.where(self.counted.unsqueeze(1).unsqueeze(-1), vectors[0], 0)
        with full_precision(self.table.device):
            value = self._expected(self.table, vectors)
            if self.hard is not None:
                with torch.no_grad():
                    mass = self._expected(self.hard, vectors)
                value = value.masked_fill(mass > 0, float("-inf"))
        return value

    def _expected(self, table: Tensor, vectors: list[Tensor]) -> Tensor:
        """[B * K]: the sum over elements of the expectation of a table [B or 1, 1, *domain, *labels]."""
        value, lead = table, len(self.lead)
        for number in range(len(vectors) - 1, 0, -1):
            left = self.lead + _LABELS[: number + 1]
            here = torch.einsum(f"{left},{self.lead}{left[-1]}->{left[:-1]}", value, vectors[number])
            for other in range(number):
                twin = self.twins.get((other, number))
                if twin is not None:  # one cell in two places: its label stands in both
                    same = value.diagonal(dim1=lead + other, dim2=lead + number).movedim(-1, lead + other)
                    twin = twin.unsqueeze(1)
                    here = torch.where(twin.reshape(*twin.shape, *([1] * number)), same, here)
            value = here
        return (value * vectors[0]).flatten(2).sum(2).reshape(self.batch_size * self.copies)


def _is_implied(term: TableTerm, batch: Batch) -> bool:
    """Whether each element that does not exist holds a cell that does not exist, whose vector is zero.

    So it is where every index runs over a range and reaches its end with some cell, and no position is left out.
    """
    if batch.masks or any(not isinstance(binding, Range) for binding in term.term.domain):
        return False
    if not all(_runs(term, ref) for ref in term.term.scope):
        return False
    reached = {(affine.index, affine.offset) for ref in term.term.scope for affine in ref.indices}
    return all(isinstance(one, Range) and (one.index, one.shrink) in reached for one in term.term.domain)


def _maybe(hard: Tensor) -> bool:
    """Whether a table may forbid something: looked up on the host, where looking costs nothing."""
    return bool(hard.any()) if is_host_readable(hard) else True


def _used(valid: Tensor | None, table: Tensor, rank: int) -> Tensor | None:
    """[B or 1, *domain, 1...]: which entries of a table stand for an element that exists; no larger than the table."""
    if valid is None:
        return None
    for axis in range(1 + rank):
        if table.shape[axis] == 1 and valid.shape[axis] != 1:
            valid = valid.any(axis, keepdim=True)
    return valid.reshape(*valid.shape, *([1] * (table.dim() - 1 - rank)))


# --------------------------------------------------------------------------------------------------------------- cells


def _reader(term: TableTerm, batch: Batch, number: int) -> Reader:
    """How the n-th cell of a scope is read: slices where each index runs over its own range, a gather elsewhere."""
    ref = term.term.scope[number]
    return _sliced(term, batch, ref) if _runs(term, ref) else _gathered(term, batch, number)


def _runs(term: TableTerm, ref: CellRef) -> bool:
    """Whether each index of a cell runs over a range of its own dim, no two over the same."""
    domain, dims = term.term.domain, term.graph.variables[ref.variable].dims
    owners = [owner_of(affine, domain) for affine in ref.indices]
    bindings = [domain[owner] for owner in owners if owner is not None]
    return len(bindings) == len(owners) == len(set(owners)) and all(
        isinstance(binding, Range) and binding.dim == dim for binding, dim in zip(bindings, dims, strict=True)
    )


def _sliced(term: TableTerm, batch: Batch, ref: CellRef) -> Reader:
    domain, frame = term.term.domain, term.frame(batch)
    owners = [owner_of(affine, domain) for affine in ref.indices]
    dims = term.graph.variables[ref.variable].dims
    last = 2 + len(dims)
    by_owner = {owner: 2 + axis for axis, owner in enumerate(owners)}
    order = [0, 1, *(by_owner[number] for number in range(term.rank) if number in by_owner), last]
    shared = [2 + number for number in range(term.rank) if number not in by_owner]

    def read(vectors: Tensor) -> Tensor:
        for axis, (dim, affine, owner) in enumerate(zip(dims, ref.indices, owners, strict=True), start=2):
            binding = domain[owner]  # type: ignore[index]
            assert isinstance(binding, Range)
            if dim in frame:
                vectors = frame[dim].compact(vectors, axis)
            length = max(0, batch.size_of(dim) - binding.shrink)
            if length != vectors.shape[axis]:
                vectors = vectors.narrow(axis, affine.offset if length else 0, length)
        vectors = vectors.permute(order)
        for axis in shared:
            vectors = vectors.unsqueeze(axis)
        return vectors

    return read


def _gathered(term: TableTerm, batch: Batch, number: int) -> Reader:
    places = term.cells(batch, number)
    examples = torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * term.rank))

    def read(vectors: Tensor) -> Tensor:
        return roomy(vectors.movedim(1, -2), len(places))[(examples, *places)].movedim(-2, 1)

    return read


def _twins(term: TableTerm, batch: Batch) -> dict[tuple[int, int], Tensor]:
    """For pairs of places in a scope that may be one cell: [B or 1, *domain] where they are."""
    found: dict[tuple[int, int], Tensor] = {}
    scope = term.term.scope
    for second in range(len(scope)):
        for first in range(second):
            if _may_meet(scope[first], scope[second], term.term):
                same = torch.ones((1, *([1] * term.rank)), dtype=torch.bool, device=batch.device)
                for one, other in zip(term.cells(batch, first), term.cells(batch, second), strict=True):
                    same = same & (one == other)
                found[first, second] = same
    return found


def _may_meet(one: CellRef, other: CellRef, term: Term) -> bool:
    """Whether two references may name one cell: along no dim do they keep a fixed distance."""
    if one.variable != other.variable:
        return False
    ranges = {binding.index for binding in term.domain if isinstance(binding, Range)}
    return not any(
        a.index is not None and a.index == b.index and a.index in ranges and a.offset != b.offset
        for a, b in zip(one.indices, other.indices, strict=True)
    )

"""Chain potentials: all tables of a first-order chain added into unaries and pairs, counted in present cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from energyml.bind.batch import Along, Batch, exist_below
from energyml.bind.problem import Evidence, Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import TableView, tables
from energyml.inference.precision import HALF, accumulated, large, widened
from energyml.ir.graph import Graph, Range, Term


class Potentials:
    """The scores of a batch of chains.

    Attributes:
        scores: [B, T, C] scores of each cell's labels, -inf where forbidden; anything where there is no cell.
        steps: [B or 1, T-1 or 1, C, C] scores of neighbouring labels (earlier, later); size 1 where they are shared.
        count: [B] how many cells each chain has, or `None` when all have T.
        coarse: whether they are sums of scores so large that their type has rounded away digits that matter.
    """

    def __init__(self, scores: Tensor, steps: Tensor, count: Tensor | None, coarse: bool = False) -> None:
        self.scores, self.steps, self.count, self.coarse = scores, steps, count, coarse
        self._exists: Tensor | None = None

    @property
    def shared(self) -> Tensor | None:
        """[C, C]: the pair scores, when every step of every chain has the same."""
        return self.steps.flatten(0, 2) if self.steps.shape[:2] == (1, 1) else None

    @property
    def tracked(self) -> bool:
        """Whether gradients are wanted."""
        return torch.is_grad_enabled() and (self.scores.requires_grad or self.steps.requires_grad)

    @property
    def dtype(self) -> torch.dtype:
        """The type of answers."""
        return torch.promote_types(self.scores.dtype, self.steps.dtype)

    def single(self) -> Potentials | None:
        """The same in single precision where scores are in half precision, which is too coarse to add up in."""
        if self.dtype not in HALF:
            return None
        return Potentials(self.scores.float(), self.steps.float(), self.count)

    # Cached by hand: `cached_property` holds a lock, which compiled code cannot.
    @property
    def exists(self) -> Tensor | None:
        """[B, T]: which cells exist; `None` when all do."""
        if self._exists is None and self.count is not None:
            self._exists = exist_below(self.count, self.scores.shape[1])
        return self._exists

    # Not cached: what is made without gradients must not serve where they are wanted.
    @property
    def unary(self) -> Tensor:
        """[B, T, C]: the scores, with 0 where there is no cell."""
        return self.scores if self.exists is None else self.scores.masked_fill(~self.exists.unsqueeze(-1), 0)

    @property
    def pair(self) -> Tensor:
        """[B, T-1, C, C]: the pair scores of every step."""
        batch, size, labels = self.scores.shape
        return self.steps.expand(batch, max(0, size - 1), labels, labels)


@dataclass(frozen=True)
class Placed:
    """Where a table of a chain belongs.

    Attributes:
        term: the table.
        arity: how many cells it reads.
        offset: the offset of its earliest cell.
        shrink: how much shorter than the chain its index set is.
        swapped: whether the later cell comes first in its scope.
        constant: the position of its only cell, for a term without an index set.
        scattered: whether its cells follow from positions known at run time.
    """

    term: TableView
    arity: int
    offset: int = 0
    shrink: int = 0
    swapped: bool = False
    constant: int | None = None
    scattered: bool = False


class Layout:
    """The tables of a first-order chain, sorted once.

    Attributes:
        variable: the variable of the chain.
        placed: its tables.
    """

    def __init__(self, graph: Graph, terms: Sequence[BoundTerm]) -> None:
        self.variable = graph.discrete[0].name
        self.placed = [_placed(term) for term in tables(terms)]
        self._dim = graph.discrete[0].dims[0]
        self._counted = ((self._dim, (self.variable,)),)

    def along(self, batch: Batch) -> Along:
        """The dim of the chain, counted in its cells."""
        return batch.frame(self._counted)[self._dim]


def _placed(bound: TableView) -> Placed:
    term: Term = bound.term
    offsets = [ref.indices[0].offset for ref in term.scope]
    if not term.domain:
        return Placed(bound, 1, constant=offsets[0])
    binding = term.domain[0]
    if len(term.domain) > 1 or not isinstance(binding, Range):
        return Placed(bound, 1, scattered=True)
    return Placed(bound, len(term.scope), min(offsets), binding.shrink, offsets != sorted(offsets))


def is_first_order(terms: Sequence[TableView]) -> bool:
    """Whether tables over the cells of one variable along one dim join neighbours at most."""
    return all(len(one.term.scope) == 1 or _joins_neighbours(one.term) for one in terms)


def _joins_neighbours(term: Term) -> bool:
    if len(term.scope) != 2 or len(term.domain) != 1 or not isinstance(term.domain[0], Range):
        return False
    one, other = (ref.indices[0] for ref in term.scope)
    return one.index is not None and one.index == other.index and abs(one.offset - other.offset) == 1


def assemble(problem: Problem, layout: Layout, evidence: Evidence, dtype: torch.dtype | None = None) -> Potentials:
    """Add up all tables, in a type if one is named, else in single precision where they are in half: O(B T C²)."""
    batch = problem.env.batch
    along = layout.along(batch)
    size, labels = along.size, problem.label_count(layout.variable)
    cells: list[Tensor] = []
    steps: list[Tensor] = []
    coarse = False
    for one in layout.placed:
        table = one.term.table(problem.env)
        table = widened(table) if dtype is None else table.to(dtype)
        if one.scattered or one.constant is not None:
            coarse = coarse or (one.scattered and large(table))  # several elements may stand at one cell
            cells.append(_at_positions(table, one, along, problem, labels))
        elif one.arity == 1:
            cells.append(_stretched(table, one, size, problem))
        else:
            table = table.transpose(-1, -2) if one.swapped else table
            steps.append(_stretched(table, one, max(0, size - 1), problem))
    coarse = coarse or any(len(some) > 1 and large(*some) for some in (cells, steps))
    unary, pair = (reduce(torch.add, some) if some else None for some in (cells, steps))
    if unary is None:
        unary = torch.zeros(1, 1, labels, device=batch.device, dtype=dtype or accumulated(batch.dtype))
    unary = unary.expand(batch.size, size, labels)
    allowed = evidence.allowed.get(layout.variable)
    if allowed is not None:
        unary = unary.masked_fill(~along.compact(allowed, 1), float("-inf"))
    if pair is None:
        pair = torch.zeros(1, 1, labels, labels, device=batch.device, dtype=dtype or accumulated(batch.dtype))
    return Potentials(unary, pair, along.count, coarse)


def _stretched(table: Tensor, one: Placed, length: int, problem: Problem) -> Tensor:
    """A table over a shorter index set, as one over the whole chain with zeros elsewhere."""
    extra = one.arity - 1
    whole = one.offset == 0 and one.shrink == extra
    shared = table.shape[1] == 1 and length != 1
    if whole and not one.term.constants and (shared or one.arity == 1):
        return table  # what lies beyond the chain is cut off later, and holds nothing but numbers
    shorter = max(0, length + extra - one.shrink)
    table = table.expand(table.shape[0], shorter, *table.shape[2:])
    valid = one.term.valid(problem.env.batch)
    if valid is not None:
        table = torch.where(valid.reshape(*valid.shape, *([1] * one.arity)), table, 0)
    if shorter == length:
        return table
    offset = min(one.offset, length - shorter)
    return torch.nn.functional.pad(table, [0, 0] * one.arity + [offset, length - shorter - offset])


def _at_positions(table: Tensor, one: Placed, along: Along, problem: Problem, labels: int) -> Tensor:
    """A unary table at cells that are known only at run time, such as the last one or the ends of edges: [B, T, C]."""
    batch = problem.env.batch
    (cells,) = one.term.cells(batch, 0)
    valid = one.term.valid(batch)
    lead = (batch.size, *one.term.domain_sizes(batch))
    table = table.expand(*lead, labels)
    if valid is not None:
        table = torch.where(valid.unsqueeze(-1), table, 0)
    total = torch.zeros(batch.size, max(1, along.size), labels, device=batch.device, dtype=table.dtype)
    index = cells.expand(lead)
    if along.rank is not None and along.size:
        index = along.rank.gather(1, index.flatten(1) if index.dim() > 1 else index.unsqueeze(1)).clamp(min=0)
    flat = index.reshape(batch.size, -1, 1) if batch.size else index.new_zeros(0, 0, 1)
    rows = table.reshape(batch.size, flat.shape[1], labels)
    return total.scatter_add(1, flat.expand(-1, -1, labels), rows)[:, : along.size]

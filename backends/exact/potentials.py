"""Chain potentials: all tables of a first-order chain added into unaries and pairs, in the coordinates of present cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.backend import Evidence, Problem
from energyml.bind.terms import BoundTerm, TableTerm
from energyml.ir.graph import Graph, Range, Term


@dataclass
class Potentials:
    """The scores of a batch of chains.

    Attributes:
        unary: [B, T, C] scores of each cell's labels; -inf where forbidden.
        pair: [B, T-1, C, C] scores of neighbouring labels (earlier, later).
        count: [B] how many cells each chain has, or `None` when all have T.
    """

    unary: Tensor
    pair: Tensor
    count: Tensor | None

    def exists(self) -> Tensor | None:
        """[B, T]: which cells exist."""
        if self.count is None:
            return None
        return torch.arange(self.unary.shape[1], device=self.unary.device) < self.count.unsqueeze(1)


@dataclass(frozen=True)
class Placed:
    """Where a table of a chain belongs: how many cells it reads, at which offset, how much shorter its index set is."""

    term: TableTerm
    arity: int
    offset: int
    shrink: int
    swapped: bool
    constant: int | None


def place(graph: Graph, terms: Sequence[BoundTerm]) -> list[Placed]:
    """Sort the tables of a first-order chain."""
    return [_placed(term) for term in terms if isinstance(term, TableTerm)]


def _placed(bound: TableTerm) -> Placed:
    term: Term = bound.term
    offsets = [ref.indices[0].offset for ref in term.scope]
    if not term.domain:
        return Placed(bound, 1, 0, 0, False, offsets[0])
    binding = term.domain[0]
    assert isinstance(binding, Range)
    return Placed(bound, len(term.scope), min(offsets), binding.shrink, offsets != sorted(offsets), None)


def assemble(problem: Problem, placed: Sequence[Placed], variable: str, evidence: Evidence) -> Potentials:
    """Add up all tables: O(B T C²)."""
    batch = problem.env.batch
    dim = problem.graph.variables[variable].dims[0]
    along = batch.along[dim]
    size, labels = along.size, problem.label_count(variable)
    unary: Tensor | None = None
    pair: Tensor | None = None
    for one in placed:
        table = one.term.table(problem.env)
        if one.constant is not None:
            unary = _at_constant(unary if unary is not None else _zeros(problem, size, labels), table, one, along.count)
        elif one.arity == 1:
            unary = _add(unary, _stretched(table, one, size, problem))
        else:
            table = table.transpose(-1, -2) if one.swapped else table
            pair = _add(pair, _stretched(table, one, size - 1, problem))
    if unary is None:
        unary = _zeros(problem, size, labels)
    unary = unary.expand(batch.size, size, labels)
    for allowed in _allowed(evidence, variable):
        unary = unary.masked_fill(~along.compact(allowed, 1), float("-inf"))
    edges = max(0, size - 1)
    if pair is None:
        pair = torch.zeros(1, 1, labels, labels, device=batch.device, dtype=batch.dtype)
    return Potentials(unary, pair.expand(batch.size, edges, labels, labels), along.count)


def _zeros(problem: Problem, size: int, labels: int) -> Tensor:
    batch = problem.env.batch
    return torch.zeros(batch.size, size, labels, device=batch.device, dtype=batch.dtype)


def _allowed(evidence: Evidence, variable: str) -> list[Tensor]:
    return [evidence.allowed[variable]] if variable in evidence.allowed else []


def _add(total: Tensor | None, table: Tensor) -> Tensor:
    return table if total is None else total + table


def _stretched(table: Tensor, one: Placed, length: int, problem: Problem) -> Tensor:
    """A table over a shorter index set, as one over the whole chain with zeros elsewhere."""
    extra = one.arity - 1
    if one.offset == 0 and one.shrink == extra:
        return table
    shorter = max(0, length + extra - one.shrink)
    table = table.expand(table.shape[0], shorter, *table.shape[2:])
    valid = one.term.valid(problem.env.batch)
    if valid is not None:
        table = torch.where(valid.reshape(*valid.shape, *([1] * one.arity)), table, 0)
    pad = [0, 0] * one.arity + [one.offset, length - shorter - one.offset]
    return torch.nn.functional.pad(table, pad)


def _at_constant(unary: Tensor, table: Tensor, one: Placed, count: Tensor | None) -> Tensor:
    """Add a table at one cell, counted from the start or from the end of each chain."""
    assert one.constant is not None
    size = unary.shape[1]
    steps = torch.arange(size, device=unary.device)
    where = one.constant if one.constant >= 0 else (size if count is None else count.unsqueeze(1)) + one.constant
    here = (steps == where).reshape(-1, size, 1)
    if count is not None and one.constant >= 0:
        here = here & (count > one.constant).reshape(-1, 1, 1)
    return torch.where(here, unary + table.reshape(-1, 1, table.shape[-1]), unary)

"""The factor graph of a batch as tensors: scores of single cells, and tables of the factors that join several."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from energyml.bind.batch import Along, full_precision
from energyml.bind.problem import Evidence, Problem
from energyml.bind.views import TableView
from energyml.execution import is_host_readable, may_cache
from energyml.grounded.grounding import Sources, StructureCache
from energyml.grounded.skeleton import (
    Block,
    Part,
    Skeleton,
    along_cells,
    build,
    compacted,
    on_device,
    ranked_dim,
)
from energyml.ir.graph import Edges, Graph, Range

# Structures that are cached: those of fixed graphs always come back, those of run-time graphs often.
LARGEST_CACHE = 64
ALPHABET = "abcdefghijklmnopqrstuvwxy"


@dataclass(eq=False)
class Factors:
    """A block with its numbers.

    Attributes:
        block: the factors.
        table: [R or 1, E or 1, *labels].
        valid: [R or 1, E] which factors exist, where the table is one for all of them; `None` when the table says so.
        hard: whether the table may hold -inf.
    """

    block: Block
    table: Tensor
    valid: Tensor | None
    hard: bool


@dataclass(eq=False)
class Potentials:
    """The scores of a batch.

    Attributes:
        unary: by variable: [R, N, labels], finite for at least one label of each cell.
        factors: the blocks of the skeleton with their tables.
        impossible: [B] whether evidence and scores leave some cell no label at all.
    """

    unary: dict[str, Tensor]
    factors: list[Factors]
    impossible: Tensor


class Grounder:
    """Finds the skeletons of batches and keeps them.

    Args:
        graph: the model.
        terms: its terms, all with tables.
    """

    def __init__(self, graph: Graph, terms: Sequence[TableView]) -> None:
        self.graph = graph
        self.joint = [term for term in terms if len(term.term.scope) > 1]
        self.single = [term for term in terms if len(term.term.scope) == 1]
        self._structures = StructureCache()
        self._known: OrderedDict[tuple[object, ...], Skeleton] = OrderedDict()

    def ground(self, problem: Problem) -> FactorGraph:
        """The factor graph of a batch.

        Its structure is looked up on the host where the positions of a factor's cells depend on the data: masks with
        gaps over several variables, and run-time edges.
        """
        batch = problem.env.batch
        dim = ranked_dim(self.graph, self.joint, batch)
        along = None if dim is None else along_cells(self.graph, batch, dim)
        plain = batch if dim is None or along is None else compacted(batch, dim, along)
        sources = Sources(self.graph, [(term, plain) for term in self.joint], plain)
        union = not sources.fixed
        if union and along is not None:
            along, sources = None, Sources(self.graph, [(term, batch) for term in self.joint], batch)
            union = not sources.fixed
        groups = self._structures.groups(sources) if batch.size else []
        size = batch.size if union else 1
        key = (sources.key, size, union, *((group.key, group.rows.tobytes() if union else b"") for group in groups))
        skeleton = self._known.get(key) if may_cache() else None
        if skeleton is None:
            skeleton = build(sources, groups, batch.size, union)
            if may_cache():
                self._known[key] = skeleton
            if len(self._known) > LARGEST_CACHE:
                self._known.popitem(last=False)
        return FactorGraph(self, problem, sources, skeleton, union, along)


class FactorGraph:
    """One batch: where its cells stand in rows, and its scores.

    Args:
        grounder: whose terms they are.
        problem: the batch.
        sources: its cells.
        skeleton: its factors.
        union: whether the batch is one row.
        along: how a single sequence counts its cells, where they are counted by presence.
    """

    def __init__(
        self,
        grounder: Grounder,
        problem: Problem,
        sources: Sources,
        skeleton: Skeleton,
        union: bool,
        along: Along | None,
    ) -> None:
        self.grounder, self.problem, self.skeleton, self.union, self.along = grounder, problem, skeleton, union, along
        self.batch, self.shapes = problem.env.batch, sources.cells.shapes
        self.device, self.dtype = self.batch.device, self.batch.dtype
        self.variables = [v.name for v in grounder.graph.discrete]
        self.dims = {v.name: v.dims for v in grounder.graph.discrete}
        self.rows = 1 if union else self.batch.size

    # ---------------------------------------------------------------------------------------------------------- places

    def inward(self, name: str, values: Tensor) -> Tensor:
        """Values [B, *dims, ...] of a variable's cells as rows [R, N, ...]."""
        shape = self.shapes[name]
        if self.along is not None:
            return self.along.compact(values, 1)
        return values.reshape(self.rows, self.skeleton.counts[name], *values.shape[1 + len(shape) :])

    def outward(self, name: str, values: Tensor, fill: float) -> Tensor:
        """Values [R, N, ...] at the caller's positions: [B, *dims, ...], `fill` where there is no cell."""
        if self.along is not None:
            return self.along.spread(values, fill)
        values = values.reshape(self.batch.size, *self.shapes[name], *values.shape[2:])
        exists = self.batch.cells(name, self.dims[name])
        if exists is None:
            return values
        return values.masked_fill(~exists.reshape(*exists.shape, *([1] * (values.dim() - exists.dim()))), fill)

    def exists(self, name: str) -> Tensor | None:
        """[R, N]: which cells exist; `None` when all do."""
        if self.along is not None:
            return self.along.valid(self.along.size, self.device)
        exists = self.batch.cells(name, self.dims[name])
        return None if exists is None else self.inward(name, exists)

    def by_example(self, name: str, values: Tensor) -> Tensor:
        """[B]: sums over a variable's cells of values [R, N]; cells that do not exist count for nothing."""
        exists = self.exists(name)
        if exists is not None:
            values = torch.where(exists, values, 0)
        return values.reshape(self.batch.size, prod(self.shapes[name])).sum(1)

    def rowwise(self, name: str, values: Tensor) -> Tensor:
        """[R, N]: values [B] of examples for each of a variable's cells."""
        shape = self.shapes[name]
        return self.inward(name, values.reshape(-1, *([1] * len(shape))).expand(-1, *shape))

    def factor_sums(self, factors: Factors, values: Tensor) -> Tensor:
        """[B]: sums over a block's factors of values [R or 1, E]."""
        block = factors.block
        if factors.valid is not None:
            values = torch.where(factors.valid, values, 0)
        if block.rows is None:
            return values.expand(self.rows, len(block.scope)).sum(1)
        index = self.placed(block.rows)
        return torch.zeros(self.batch.size, device=self.device, dtype=values.dtype).index_add(
            0, index, values.expand(1, len(block.scope))[0]
        )

    def largest_of_cells(self, values: Tensor) -> Tensor:
        """[B]: the largest of values [R, N] that each example has; there is at least one cell."""
        return values.reshape(self.batch.size, values.numel() // max(1, self.batch.size)).amax(1)

    def largest_of_factors(self, factors: Factors, values: Tensor) -> Tensor:
        """[B]: the largest of non-negative values [R or 1, E or 1] that the factors of each example have."""
        if factors.block.rows is None:
            return values.amax(1).expand(self.batch.size)
        index = self.placed(factors.block.rows)
        start = torch.zeros(self.batch.size, device=self.device, dtype=values.dtype)
        return start.scatter_reduce(0, index, values.expand(1, len(index))[0], "amax")

    def placed(self, values: np.ndarray) -> Tensor:
        """An array of the structure on the batch's device, copied there once."""
        known = ("placed", id(values), self.device)
        if known not in self.skeleton.kept:
            # With the array itself, so that its identity stays its own.
            self.skeleton.kept[known] = (values, on_device(values, self.device))
        made: Tensor = self.skeleton.kept[known][1]
        return made

    def spread_factors(self, term: TableView, found: Mapping[int, Tensor]) -> Tensor:
        """[B, *domain, *labels]: what is known about a term's factors, zero where an element does not exist.

        Args:
            term: the term.
            found: for each part of the term (by its place in `parts`): [R, E, *labels of the term's scope].
        """
        domain = term.domain_sizes(self.batch)
        labels = [self.problem.label_count(ref.variable) for ref in term.term.scope]
        total = torch.zeros(self.batch.size, prod(domain), *labels, device=self.device, dtype=self.dtype)
        for number, (_, part) in enumerate(self.parts(term)):
            value = found[number]
            elements = self.placed(part.elements)
            if part.rows is None:
                total = total.index_copy(1, elements, value.expand(self.rows, *value.shape[1:]))
            else:
                rows = self.placed(part.rows)
                total = total.index_put((rows, elements), value[0])
        valid = self._valid(term)
        if valid is not None:
            total = torch.where(valid.reshape(*valid.shape, *([1] * len(labels))), total, 0)
        return total.reshape(self.batch.size, *domain, *labels)

    def parts(self, term: TableView) -> list[tuple[Block, Part]]:
        """Where the elements of a term of several cells stand."""
        number = next(number for number, one in enumerate(self.grounder.joint) if one is term)
        blocks = (*self.skeleton.blocks, *self.skeleton.singles)
        return [(block, part) for block in blocks for part in block.parts if part.term == number]

    def cells_of(self, term: TableView) -> tuple[Tensor, Tensor | None]:
        """For a term of one cell: [B or 1, E] the cell of each element in its row, and which elements exist."""
        name = term.term.scope[0].variable
        domain = term.domain_sizes(self.batch)
        total = torch.zeros([1] * (1 + len(domain)), dtype=torch.long, device=self.device)
        for place, size in zip(term.cells(self.batch, 0), self.shapes[name], strict=True):
            total = total * size + place
        index = total.expand(total.shape[0], *domain).reshape(total.shape[0], prod(domain))
        if self.along is not None and self.along.rank is not None and self.along.size:
            index = self.along.rank.gather(1, index.expand(self.batch.size, -1)).clamp(min=0)
        return index, self._valid(term)

    def _valid(self, term: TableView) -> Tensor | None:
        """[B or 1, E]: which elements of a term exist."""
        valid = term.valid(self.batch)
        if valid is None:
            return None
        domain = term.domain_sizes(self.batch)
        return valid.expand(valid.shape[0], *domain).reshape(valid.shape[0], prod(domain))

    # ---------------------------------------------------------------------------------------------------------- scores

    def potentials(self, evidence: Evidence) -> Potentials:
        """The scores of the batch under some evidence.  Cost: one look at every table."""
        unary = {name: self._unary(name, evidence) for name in self.variables}
        factors = [self._factors(block) for block in self.skeleton.blocks]
        for block in self.skeleton.singles:
            made = self._factors(block)
            table = made.table.expand(self.rows, len(block.scope), made.table.shape[-1])
            if made.valid is not None:
                table = torch.where(made.valid.unsqueeze(-1), table, 0)
            (name,) = block.variables
            unary[name] = unary[name].index_add(1, self.placed(block.scope).squeeze(1), table)
        impossible = torch.zeros(self.batch.size, dtype=torch.bool, device=self.device)
        for name, scores in unary.items():
            gone = scores.isneginf().all(-1)
            unary[name] = torch.where(gone.unsqueeze(-1), 0, scores)
            impossible = impossible | (self.by_example(name, gone.to(self.dtype)) > 0)
        return Potentials(unary, factors, impossible)

    def _unary(self, name: str, evidence: Evidence) -> Tensor:
        """[R, N, labels]: the scores of single cells; a cell that does not exist has one label, with the score 0."""
        count = self.problem.label_count(name)
        shape = (self.batch.size, prod(self.shapes[name]), count)
        total: Tensor | None = None
        for term in self.grounder.single:
            if term.term.scope[0].variable != name or not shape[1]:
                continue
            table, domain = flat_table(term, self.problem), prod(term.domain_sizes(self.batch))
            index, valid = self.cells_of(term)
            if valid is not None:
                table = torch.where(valid.unsqueeze(-1), table.expand(-1, domain, -1), 0)
            if _straight(term, self.dims[name]) and (self.along is not None or name not in self.batch.masks):
                added = table.expand(shape)
            else:
                start = torch.zeros(shape, device=self.device, dtype=self.dtype)
                added = start.scatter_add(
                    1, index.unsqueeze(-1).expand(shape[0], domain, count), table.expand(shape[0], domain, count)
                )
            total = added if total is None else total + added
        if total is None:
            total = torch.zeros(shape, device=self.device, dtype=self.dtype)
        total = total.reshape(self.rows, self.skeleton.counts[name], count)
        allowed = evidence.allowed.get(name)
        if allowed is not None:
            total = total.masked_fill(~self.inward(name, allowed), float("-inf"))
        exists = self.exists(name)
        if exists is not None:
            only = torch.where(torch.arange(count, device=self.device) == 0, 0.0, float("-inf")).to(self.dtype)
            total = torch.where(exists.unsqueeze(-1), total, only)
        return total

    def _factors(self, block: Block) -> Factors:
        """The tables of a block's terms, added up; one table for all factors stays one where it can."""
        tables, valids, kinds = [], [], []
        for part in block.parts:
            term = self.grounder.joint[part.term]
            table = self._at(part, flat_table(term, self.problem))
            valid = None if self.union else self._valid(term)
            if valid is not None:
                valid = self._chosen(valid, part.elements)
                # A table that reads a position which may not exist means nothing where it does not.
                if table.shape[1] != 1 or term.constants:
                    table, valid = torch.where(_like(valid, table), table, 0), None
            tables.append(table)
            valids.append(valid)
            kinds.append(_kind(term))
        common = valids[0] if len(set(kinds)) == 1 and all(table.shape[1] == 1 for table in tables) else None
        if common is None:
            tables = [
                table if valid is None else torch.where(_like(valid, table), table, 0)
                for table, valid in zip(tables, valids, strict=True)
            ]
        total = tables[0]
        for table in tables[1:]:
            total = total + table
        hard = bool(total.isneginf().any()) if is_host_readable(total) else True
        return Factors(block, total, common, hard)

    def _chosen(self, values: Tensor, elements: np.ndarray) -> Tensor:
        """[..., E, ...]: values [B, all elements or 1, ...] of some elements."""
        count = values.shape[1]
        if count == 1 or (len(elements) == count and (elements == np.arange(count)).all()):
            return values
        return values[:, self.placed(elements)]

    def _at(self, part: Part, table: Tensor) -> Tensor:
        """[R or 1, E or 1, *labels of the block]: a part's tables at the factors of its block."""
        if part.rows is None:
            table = self._chosen(table, part.elements)
        elif table.shape[:2] != (1, 1):
            rows = self.placed(part.rows) if table.shape[0] > 1 else 0
            elements = self.placed(part.elements) if table.shape[1] > 1 else 0
            table = table[rows, elements].unsqueeze(0)
        return torch.einsum(f"...{_letters(part)}->...{ALPHABET[: max(part.axes) + 1]}", table)


def detached(potentials: Potentials) -> Potentials:
    """The same scores without gradients."""
    factors = [Factors(one.block, one.table.detach(), one.valid, one.hard) for one in potentials.factors]
    return Potentials({name: one.detach() for name, one in potentials.unary.items()}, factors, potentials.impossible)


def embedded(part: Part, joint: Tensor) -> Tensor:
    """A function of a block's slots [R, E, *labels] as one of a term's scope: zero where coinciding cells differ."""
    slots, letters = max(part.axes) + 1, _letters(part)
    if len(set(part.axes)) == len(part.axes):
        return torch.einsum(f"...{ALPHABET[:slots]}->...{letters}", joint)
    fresh = ALPHABET[slots : slots + len(part.axes)]
    operands: list[Tensor] = [joint]
    terms = [f"...{ALPHABET[:slots]}"]
    for letter, axis in zip(fresh, part.axes, strict=True):
        size = joint.shape[joint.dim() - slots + axis]
        operands.append(torch.eye(size, device=joint.device, dtype=joint.dtype))
        terms.append(f"{ALPHABET[axis]}{letter}")
    with full_precision(joint.device):
        return torch.einsum(f"{','.join(terms)}->...{fresh}", *operands)


def flat_table(term: TableView, problem: Problem) -> Tensor:
    """[B or 1, E or 1, *labels]: a term's table with one axis for its index set, of size 1 where all share it."""
    table = term.table(problem.env)
    rank = len(term.term.domain)
    domain = table.shape[1 : 1 + rank]
    if prod(domain) == 1 and prod(term.domain_sizes(problem.env.batch)) != 0:
        return table.reshape(table.shape[0], 1, *table.shape[1 + rank :])
    sizes = term.domain_sizes(problem.env.batch)
    full = table.expand(table.shape[0], *sizes, *table.shape[1 + rank :])
    return full.reshape(table.shape[0], prod(sizes), *table.shape[1 + rank :])


def _letters(part: Part) -> str:
    return "".join(ALPHABET[axis] for axis in part.axes)


def _like(valid: Tensor, table: Tensor) -> Tensor:
    return valid.reshape(*valid.shape, *([1] * (table.dim() - 2)))


def _kind(term: TableView) -> tuple[object, ...]:
    """What decides which elements of a term exist, beside the cells that they have."""
    domain = tuple(
        (binding.source, binding.over) if isinstance(binding, Edges) else (binding.dim, binding.shrink)
        for binding in term.term.domain
    )
    return domain, term.constants


def _straight(term: TableView, dims: tuple[str, ...]) -> bool:
    """Whether a term of one cell has one element for each cell of the variable, in the same order."""
    domain, ref = term.term.domain, term.term.scope[0]
    plain = [(one.dim, one.shrink) for one in domain if isinstance(one, Range)] == [(dim, 0) for dim in dims]
    indices = [(one.index, one.offset) for one in ref.indices] == [(one.index, 0) for one in domain]
    return plain and indices and len(domain) == len(dims)

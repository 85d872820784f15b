"""Terms with a table: factors and hard constraints."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from energyml.bind.batch import HALF, Batch
from energyml.bind.bound import BoundTerm, Labels, Softened
from energyml.bind.multilinear import MultilinearForm
from energyml.bind.places import Frame, constant_exists, counted_dims, positions, roomy, value_constants
from energyml.bind.tensors import Compiler, Environment, Evaluator, IndexSet
from energyml.ir.graph import Affine, Edges, Forbidden, Graph, Range, SchemeRule, Table, Term
from energyml.model import schemes
from energyml.model.expression import Potential
from energyml.model.types import Extent
from energyml.transforms import recorded


class TableTerm(BoundTerm):
    """A term with a table over the labels of its scope, for each element of its index set."""

    def __init__(self, term: Term, graph: Graph, table: Callable[[IndexSet], Evaluator]) -> None:
        super().__init__(term, graph)
        self.rank = len(term.domain)
        self.counted = counted_dims(term, graph)
        self.constants = _constants(term, graph)
        self.gathered = {end for b in term.domain if isinstance(b, Edges) for end in (b.index, *b.ends)}
        self.in_place = [_in_place(term, graph, number) for number in range(len(term.scope))]
        self.covers = len(term.scope) == 1 and _covers(term, graph)
        self.ends = None if self.constants else _ends(term)
        self.value = table(IndexSet(term.domain, self.counted, self.valid))

    def table(self, env: Environment) -> Tensor:
        """TABLE: [B or 1, *domain (size 1 where shared), *labels of the scope in order].

        Entries of elements that do not exist (see `valid`) mean nothing.
        """
        found = self.scaled(env, self.value(env))
        if found.dtype in HALF:  # of a network under autocast
            found = found.to(env.batch.dtype)
        self.finite.check(env, found, lambda: self.valid(env.batch))
        return found

    def weight(self, env: Environment) -> tuple[Tensor, Tensor]:
        """[B], [B]: the sum of the magnitudes of the finite entries of its tables, and how many there are."""
        table, valid = self.value(env), self.valid(env.batch)
        counted = table.isfinite()
        if valid is not None:
            counted = counted & valid.reshape(*valid.shape, *([1] * (table.dim() - valid.dim())))
        sizes = (env.batch.size, *self.domain_sizes(env.batch), *table.shape[1 + self.rank :])
        counted = counted.expand(sizes)
        total = torch.where(counted, table, 0).abs()
        return total.flatten(1).sum(1), counted.flatten(1).sum(1).to(table.dtype)

    def frame(self, batch: Batch) -> Frame:
        """The dims as this term counts them."""
        return batch.frame(self.counted)

    def cells(self, batch: Batch, number: int) -> tuple[Tensor, ...]:
        """The positions of the n-th cell of the scope, one tensor [B or 1, *domain] for each of its dims."""
        ref = self.term.scope[number]
        axes = self.graph.variables[ref.variable].type.index_axes
        frame, domain = self.frame(batch), self.term.domain
        pairs = zip(ref.indices, axes, strict=True)
        return tuple(positions(batch, frame, affine, axis.extent, domain) for affine, axis in pairs)

    def at_cells(self, batch: Batch, number: int, values: Tensor) -> Tensor:
        """Values [B, *dims, ...] of the n-th cell's variable, for each element of the index set: [B, *domain, ...]."""
        if self.in_place[number]:
            frame = self.frame(batch)
            if all(binding.dim in frame and frame[binding.dim].order is None for binding in self.in_place[number]):
                return values
        places = self.cells(batch, number)
        examples = torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * self.rank))
        return roomy(values, len(places))[(examples, *places)]

    def domain_sizes(self, batch: Batch) -> tuple[int, ...]:
        """The padded sizes of the index set."""
        return tuple([
            batch.tensors[b.source].shape[1] if isinstance(b, Edges) else max(0, batch.size_of(b.dim) - b.shrink)
            for b in self.term.domain
        ])  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- validity

    def valid(self, batch: Batch) -> Tensor | None:
        """[B or 1, *domain]: which elements of the index set exist; `None` when all do.

        An axis of the domain that does not matter has size 1.
        """
        frame = self.frame(batch)
        masks: list[Tensor] = []
        for number, binding in enumerate(self.term.domain):
            exists = (
                self._edge_exists(batch, binding)
                if isinstance(binding, Edges)
                else self._range_exists(batch, frame, binding)
            )
            if exists is not None:
                masks.append(exists if exists.dim() == 1 + self.rank else _over(exists, number, self.rank))
        for affine, extent in self.constants:
            exists = constant_exists(frame, affine, extent, batch)
            if exists is not None:
                masks.append(exists.reshape(-1, *([1] * self.rank)))
        for number in range(len(self.term.scope)):
            present = self._maybe_absent(batch, number)
            if present is not None:
                masks.append(self.at_cells(batch, number, present))
        if not masks:
            return None
        total = masks[0]
        for mask in masks[1:]:
            total = total & mask
        return total

    def _range_exists(self, batch: Batch, frame: Frame, binding: Range) -> Tensor | None:
        if binding.dim in frame:
            along = frame[binding.dim]
            return along.valid(max(0, along.size - binding.shrink), batch.device)
        nested = batch.nested[binding.dim]
        if nested.count is None:
            return None
        outer = next(b for b in self.term.domain if isinstance(b, Range) and b.dim == nested.within)
        place = positions(batch, frame, Affine(outer.index), Extent("dim", nested.within), self.term.domain)
        examples = torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * self.rank))
        count = roomy(nested.count, 1)[examples, place]
        length = max(0, nested.size - binding.shrink)
        steps = _over(
            torch.arange(length, device=batch.device).unsqueeze(0), self.term.domain.index(binding), self.rank
        )
        return steps < count - binding.shrink

    def _edge_exists(self, batch: Batch, binding: Edges) -> Tensor:
        """[B, rows]: rows that are no padding and whose ends are positions that exist."""
        rows = batch.tensors[binding.source]
        exists = (rows >= 0).all(-1)
        for end, dim in enumerate(binding.dims):
            exists = exists & (rows[..., end] < batch.along[dim].counts(batch.device).unsqueeze(1))
        counted = batch.along[binding.over].valid(rows.shape[1], batch.device)
        return exists if counted is None else exists & counted

    def _maybe_absent(self, batch: Batch, number: int) -> Tensor | None:
        """[B, *dims] which cells exist, where the index set alone does not say: grids, scalars, and ends of edges."""
        ref = self.term.scope[number]
        dims = self.graph.variables[ref.variable].dims
        if len(dims) == 1 and ref.indices[0].index not in self.gathered:
            return None
        return batch.cells(ref.variable, dims)

    # ---------------------------------------------------------------------------------------------------------- score

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE by looking the labels up in the table: one gather; summed up in a type that may be wider."""
        batch = env.batch
        table = self.table(env)
        valid = self.valid(batch)
        joint: Tensor | None = None
        for number, ref in enumerate(self.term.scope):
            labels = answer[ref.variable].unflatten(0, (batch.size, copies)).movedim(1, -1)
            here = self.at_cells(batch, number, labels).clamp(min=0)
            joint = here if joint is None else joint * table.shape[1 + self.rank + number] + here
        assert joint is not None
        flat = table.flatten(1 + self.rank)
        # `torch.broadcast_shapes` takes longer than the look-up
        lead = [own if other == 1 else other for own, other in zip(flat.shape[:-1], joint.shape[:-1], strict=True)]
        value = _looked_up(flat, joint.expand(*lead, copies))
        if valid is not None:
            value = torch.where(valid.unsqueeze(-1), value, 0)
        total = value.flatten(1, -2).sum(1, dtype=dtype).flatten() if value.dim() > 2 else value.flatten()
        return total if dtype is None else total.to(dtype)

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT: the multilinear form, the expected table under independent cells (Tu & Gimpel 2019, section 2).

        Linear in each cell's vector, also where a factor holds a cell twice.  Cost: that of contracting the table with
        a vector for each of its cells, copies x elements x joint labels multiplications.
        """
        return MultilinearForm(self, env, copies, penalty)


def _in_place(term: Term, graph: Graph, number: int) -> tuple[Range, ...]:
    """The index set of a term whose n-th cells are all those of their variable, in order; empty where they are not."""
    ref = term.scope[number]
    axes = graph.variables[ref.variable].type.index_axes
    ranges = tuple(one for one in term.domain if isinstance(one, Range) and one.shrink == 0)
    if not len(ranges) == len(term.domain) == len(axes):
        return ()
    same = all(
        affine.index == one.index and affine.offset == 0 and axis.extent.name == one.dim and axis.extent.offset == 0
        for affine, axis, one in zip(ref.indices, axes, ranges, strict=True)
    )
    return ranges if same else ()


def _covers(term: Term, graph: Graph) -> bool:
    """Whether a term over one cell has one element for each cell of its variable, in the same order."""
    (ref,), domain = term.scope, term.domain
    dims = graph.variables[ref.variable].dims
    plain = tuple((one.dim, one.shrink) for one in domain if isinstance(one, Range)) == tuple((d, 0) for d in dims)
    straight = [(one.index, one.offset) for one in ref.indices] == [(one.index, 0) for one in domain]
    return plain and straight and len(domain) == len(dims)


def _ends(term: Term) -> tuple[int, ...] | None:
    """Which end of an edge each cell of a term stands at, where its elements are edges, all of whose ends it uses."""
    binding = term.domain[0] if len(term.domain) == 1 else None
    if not isinstance(binding, Edges):
        return None
    ends = [ref.indices[0].index for ref in term.scope if len(ref.indices) == 1 and not ref.indices[0].offset]
    # An edge exists where all of its ends do, also those that the scope leaves out.
    if len(ends) != len(term.scope) or set(ends) != set(binding.ends):
        return None
    return tuple(binding.ends.index(end) for end in ends if end is not None)


def _looked_up(table: Tensor, joint: Tensor) -> Tensor:
    """[*lead, copies]: entries of a table [*lead (1 where shared), labels] at joint labels [*lead, copies].

    What is shared is not spread out, so that its gradient has its own size too.
    """
    lead = table.shape[:-1]
    if lead == joint.shape[:-1]:
        return table.gather(-1, joint)
    stride = table.shape[-1]
    for axis in reversed(range(len(lead))):
        if lead[axis] > 1:
            row = torch.arange(lead[axis], device=joint.device)
            joint = joint + stride * row.reshape(-1, *([1] * (joint.dim() - 1 - axis)))
            stride *= lead[axis]
    return table.reshape(-1).index_select(0, joint.reshape(-1)).reshape(joint.shape)


def _constants(term: Term, graph: Graph) -> tuple[tuple[Affine, Extent], ...]:
    """The constant indices of the scope and of the table, with the extents of their axes."""
    found: list[tuple[Affine, Extent]] = []
    for ref in term.scope:
        for affine, axis in zip(ref.indices, graph.variables[ref.variable].type.index_axes, strict=True):
            if affine.index is None:
                found.append((affine, axis.extent))
    for value in term.expressions():
        found += value_constants(value)
    return tuple(dict.fromkeys(found))


def _over(mask: Tensor, number: int, rank: int) -> Tensor:
    shape = [mask.shape[0], *([1] * rank)]
    shape[1 + number] = mask.shape[1]
    return mask.reshape(shape)


# -------------------------------------------------------------------------------------------------------------- tables


def factor_table(term: Term, body: Table, graph: Graph, compiler: Compiler, over: IndexSet) -> Evaluator:
    """The table of a factor, its label axes in the order of the scope."""
    value = compiler.lifted(body.value, over)
    if isinstance(body.value, Potential):
        count = len(graph.label_sets[graph.variables[term.scope[0].variable].type.element].labels or ())
        return lambda env: _potts(value(env), count)
    if body.order == tuple(range(len(body.order))):
        return value
    lead = 1 + len(term.domain)
    order = [*range(lead), *(lead + axis for axis in body.order)]
    return lambda env: value(env).permute(order)


def _potts(weight: Tensor, count: int) -> Tensor:
    same = torch.eye(count, device=weight.device, dtype=torch.bool)
    return torch.where(same, weight[..., None, None], 0)


def forbidden_table(term: Term, body: Forbidden, graph: Graph) -> Evaluator:
    """-inf where all conditions hold."""
    return _constant_table(term, graph, lambda labels: _holds(body, term, labels))


def scheme_table(term: Term, body: SchemeRule, graph: Graph) -> Evaluator:
    """-inf for what a labelling scheme does not allow."""
    return _constant_table(term, graph, lambda labels: not _scheme_allows(body, labels))


def _constant_table(term: Term, graph: Graph, forbidden: Callable[[tuple[str, ...]], bool]) -> Evaluator:
    """A table of 0 and -inf that depends on nothing but the labels."""
    sets = [graph.label_sets[graph.variables[ref.variable].type.element].labels or () for ref in term.scope]
    bad = torch.tensor([forbidden(labels) for labels in product(*sets)], dtype=torch.bool)
    bad = bad.reshape(*([1] * (1 + len(term.domain))), *(len(labels) for labels in sets))
    placed: dict[Any, Tensor] = {}

    def evaluate(env: Environment) -> Tensor:
        key = (env.batch.device, env.batch.dtype)
        found = placed.get(key)
        if found is None:
            with torch.inference_mode(False):
                zeros = torch.zeros(bad.shape, dtype=key[1], device=key[0])
                found = zeros.masked_fill(bad.to(key[0]), float("-inf"))
            if not recorded():  # what a transform or the compiler made is theirs
                placed[key] = found
        return found

    return evaluate


def _holds(body: Forbidden, term: Term, labels: tuple[str, ...]) -> bool:
    """Whether all conditions hold for the labels of the scope's cells."""
    by_cell = {(ref.variable, ref.indices): label for ref, label in zip(term.scope, labels, strict=True)}
    for condition in body.conditions:
        own = by_cell[condition.cell.variable, condition.cell.indices]
        if condition.other is not None:
            other = by_cell[condition.other.variable, condition.other.indices]
            if (own == other) == condition.negated:
                return False
        elif not condition.matches(own):
            return False
    return True


def _scheme_allows(body: SchemeRule, labels: tuple[str, ...]) -> bool:
    scheme = schemes.SCHEMES[body.scheme]
    if body.part == "first":
        return schemes.may_start(scheme, labels[0])
    if body.part == "last":
        return schemes.may_end(scheme, labels[0])
    return schemes.may_follow(scheme, labels[0], labels[1])

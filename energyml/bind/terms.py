"""Bound terms: each term of the graph with tensors behind its views.

Backends ask a bound term for a view and never for the kind of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.batch import Batch
from energyml.bind.tensors import Compiler, Environment, Evaluator, positions
from energyml.diagnostics import EnergyError
from energyml.ir.graph import (
    BlackBox,
    Edges,
    Forbidden,
    Graph,
    Linear,
    MaskedEnergy,
    SchemeRule,
    Stepwise,
    Table,
    Term,
)
from energyml.model import schemes
from energyml.model.expression import Potential
from energyml.queries import View

Labels = Mapping[str, Tensor]


@dataclass
class BoundTerm:
    """Base: a term, and the score of full answers."""

    term: Term
    graph: Graph

    @property
    def views(self) -> frozenset[View]:
        """The views that it offers."""
        return self.term.views

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the term's score of full answers.

        Args:
            env: the batch of B examples.
            answer: labels [B * copies, *dims] by variable, in the caller's positions; the copies of an example stand together.
            copies: how many answers each example has.

        Returns:
            Scores [B * copies].
        """
        raise NotImplementedError

    def scaled(self, env: Environment, value: Tensor) -> Tensor:
        """A value times the term's gain, where balance has set one."""
        gain = env.gains.get(self.term.gain)
        return value if gain is None else value * gain


class TableTerm(BoundTerm):
    """A term with a table: factors and hard constraints."""

    def __init__(self, term: Term, graph: Graph, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.value = value
        self.rank = len(term.domain)

    def table(self, env: Environment) -> Tensor:
        """TABLE: [B or 1, *domain (size 1 where shared), *labels of the scope in order]."""
        return self.scaled(env, self.value(env))

    def cells(self, batch: Batch, number: int) -> tuple[Tensor, ...]:
        """The positions of the n-th cell of the scope, one tensor [B or 1, *domain] for each of its dims."""
        ref = self.term.scope[number]
        dims = self.graph.variables[ref.variable].dims
        return tuple(
            positions(batch, affine, dim, self.term.domain, _size(batch, dim))
            for affine, dim in zip(ref.indices, dims, strict=True)
        )

    def valid(self, batch: Batch) -> Tensor | None:
        """[B, *domain]: which elements of the index set exist for each example; `None` when all do."""
        masks: list[Tensor] = []
        for number, binding in enumerate(self.term.domain):
            if isinstance(binding, Edges):
                masks.append(_over(self._edge_exists(batch, binding), number, self.rank))
            elif binding.dim in batch.along:
                along = batch.along[binding.dim]
                exists = along.valid(max(0, along.size - binding.shrink), batch.device)
                if exists is not None:
                    masks.append(_over(exists, number, self.rank))
        masks += self._constants_exist(batch)
        masks += self._cells_present(batch)
        if not masks:
            return None
        total = masks[0]
        for mask in masks[1:]:
            total = total & mask
        return total

    def _edge_exists(self, batch: Batch, binding: Edges) -> Tensor:
        rows = batch.tensors[binding.source]
        exists = (rows >= 0).all(-1)
        over = batch.along.get(binding.over)
        counted = over.valid(rows.shape[1], batch.device) if over is not None else None
        return exists if counted is None else exists & counted

    def _constants_exist(self, batch: Batch) -> list[Tensor]:
        masks: list[Tensor] = []
        for ref in self.term.scope:
            for affine, dim in zip(ref.indices, self.graph.variables[ref.variable].dims, strict=True):
                if affine.index is not None or dim not in batch.along:
                    continue
                along = batch.along[dim]
                needed = affine.offset + 1 if affine.offset >= 0 else -affine.offset
                count = along.count if along.count is not None else torch.full((1,), along.size, device=batch.device)
                masks.append((count >= needed).reshape(-1, *([1] * self.rank)))
        return masks

    def _cells_present(self, batch: Batch) -> list[Tensor]:
        """Cells that a mask removed: in grids, and at the ends of edges."""
        masks: list[Tensor] = []
        gathered = {end for b in self.term.domain if isinstance(b, Edges) for end in b.ends}
        for number, ref in enumerate(self.term.scope):
            dims = self.graph.variables[ref.variable].dims
            present = batch.present.get(ref.variable)
            if present is None and len(dims) == 1 and ref.indices[0].index in gathered:
                along = batch.along[dims[0]]
                if along.rank is not None:
                    present = along.rank >= 0
                elif along.count is not None:
                    present = torch.arange(along.size, device=batch.device) < along.count.unsqueeze(1)
            if present is None:
                continue
            places = self.cells(batch, number)
            examples = torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * self.rank))
            masks.append(present[(examples, *places)])
        return masks

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE by looking the labels up in the table: one gather."""
        batch = env.batch
        table = self.table(env)
        valid = self.valid(batch)
        examples = torch.arange(batch.size, device=batch.device).reshape(-1, *([1] * self.rank))
        joint: Tensor | None = None
        for number, ref in enumerate(self.term.scope):
            labels = answer[ref.variable].unflatten(0, (batch.size, copies)).movedim(1, -1)
            here = labels[(examples, *self.cells(batch, number))].clamp(min=0)
            joint = here if joint is None else joint * table.shape[1 + self.rank + number] + here
        assert joint is not None
        flat = table.flatten(1 + self.rank)
        lead = torch.broadcast_shapes(flat.shape[:-1], joint.shape[:-1])
        value = flat.expand(*lead, flat.shape[-1]).gather(-1, joint.expand(*lead, copies))
        if valid is not None:
            value = torch.where(valid.unsqueeze(-1), value, 0)
        return value.flatten(1, -2).sum(1).flatten() if value.dim() > 2 else value.flatten()


def _over(mask: Tensor, number: int, rank: int) -> Tensor:
    shape = [mask.shape[0], *([1] * rank)]
    shape[1 + number] = mask.shape[1]
    return mask.reshape(shape)


def _size(batch: Batch, dim: str) -> int:
    return batch.along[dim].size if dim in batch.along else batch.exists[dim].shape[-1]


class StepwiseTerm(BoundTerm):
    """A step network over a sequence."""

    def __init__(self, term: Term, graph: Graph, body: Stepwise, given: list[Evaluator]) -> None:
        super().__init__(term, graph)
        self.body, self.given = body, given
        labels = graph.label_sets[graph.variables[body.variable].type.element].labels
        assert labels is not None
        self.count = len(labels)
        self.end = labels.index(body.end) if body.end is not None else None

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the steps' scores of the labels, added up over the sequence; O(length) steps."""
        labels = answer[self.body.variable]
        net: Any = env.module._modules[self.body.net]
        batch, rows = env.batch, env.batch.size * copies
        given = tuple(_repeat(_full(one(env), batch.size), copies) for one in self.given)
        masks = {name: _repeat(mask, copies) for name, mask in batch.exists.items()}
        along = batch.along[self.graph.variables[self.body.variable].dims[0]]
        labels = along.repeat(copies).compact(labels, 1)
        exists = along.repeat(copies).valid(along.size, batch.device)
        counted = labels >= 0 if exists is None else exists & (labels >= 0)
        state = net.start(given, masks, rows)
        previous = torch.full((rows,), self.count, dtype=torch.long, device=batch.device)
        total = torch.zeros(rows, device=batch.device, dtype=batch.dtype)
        alive = torch.ones(rows, dtype=torch.bool, device=batch.device)
        for t in range(labels.shape[1]):
            scores, state = net.step(state, net.embed(previous), t)
            if self.body.normalize == "local":
                scores = F.log_softmax(scores, -1)
            here = labels[:, t].clamp(min=0)
            picked = scores.gather(1, here.unsqueeze(1)).squeeze(1)
            total = total + torch.where(alive & counted[:, t], picked, 0)
            if self.end is not None:
                alive = alive & (here != self.end)
            previous = here
        return self.scaled(env, total)


class MaskedTerm(BoundTerm):
    """Masked conditionals over a sequence."""

    def __init__(self, term: Term, graph: Graph, body: MaskedEnergy, given: list[Evaluator]) -> None:
        super().__init__(term, graph)
        self.body, self.given = body, given

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the masked scores of the labels, raw or as log-probabilities, added up over positions."""
        batch = env.batch
        net: Any = env.module._modules[self.body.net]
        dim = self.graph.variables[self.body.variable].dims[0]
        along = batch.along[dim].repeat(copies)
        given = tuple(_repeat(_full(one(env), batch.size), copies) for one in self.given)
        masks = {name: _repeat(mask, copies) for name, mask in batch.exists.items()}
        exists = along.valid(along.size, batch.device)
        if exists is not None:
            masks[dim] = exists
        labels = along.compact(answer[self.body.variable], 1).clamp(min=0)
        scores = net.masked_scores(labels, given, masks)
        if self.body.energy == "local":
            scores = F.log_softmax(scores, -1)
        picked = scores.gather(2, labels.unsqueeze(2)).squeeze(2)
        if exists is not None:
            picked = torch.where(exists, picked, 0)
        return self.scaled(env, picked.sum(1))


class BlackBoxTerm(BoundTerm):
    """A network over whole variables, given labels or their one-hot vectors."""

    def __init__(self, term: Term, graph: Graph, body: BlackBox, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.body, self.value = body, value

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the network at the corners of the relaxed space."""
        batch = env.batch.repeat(copies)
        relaxed: dict[tuple[str, bool], Tensor] = {}
        for name in self.body.variables:
            labels = answer[name]
            label_set = self.graph.label_sets[self.graph.variables[name].type.element].labels
            assert label_set is not None
            one_hot = F.one_hot(labels.clamp(min=0), len(label_set)).to(batch.dtype)
            relaxed[name, True] = one_hot * (labels >= 0).unsqueeze(-1)
            relaxed[name, False] = labels
        return self.scaled(env, _full(self.value(Environment(env.module, batch, relaxed)), batch.size))


class LinearTerm(BoundTerm):
    """The linear part of a Gaussian score."""

    def __init__(self, term: Term, graph: Graph, field: str, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.field, self.value = field, value

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: uᵀs for a field value s [B * copies, *axes]."""
        linear = _repeat(_full(self.value(env), env.batch.size), copies)
        return self.scaled(env, (linear * answer[self.field]).flatten(1).sum(1))


class QuadraticTerm(BoundTerm):
    """The quadratic part of a Gaussian score; its couplings stay symbolic for the backend that solves it."""

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE needs the couplings as operators, which the Gaussian backend holds."""
        raise EnergyError(
            f"the score of the field term `{self.term.name}` needs the Gaussian backend, which this version does not have"
        )


def _full(tensor: Tensor, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape[1:]) if tensor.shape[0] != batch else tensor


def _repeat(tensor: Tensor, copies: int) -> Tensor:
    return tensor if copies == 1 else tensor.repeat_interleave(copies, 0)


# --------------------------------------------------------------------------------------------------------------- binding


def bind_term(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    """The bound term of a term; the one place that knows which tensors stand behind which kind of body."""
    return _BINDERS[term.kind](term, graph, compiler)


def _bind_table(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return TableTerm(term, graph, _table(term, cast("Table", term.body), graph, compiler))


def _bind_forbid(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("Forbidden", term.body)
    return TableTerm(term, graph, _constant_table(term, graph, lambda labels: _holds(body, term, labels)))


def _bind_scheme(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("SchemeRule", term.body)
    return TableTerm(term, graph, _constant_table(term, graph, lambda labels: not _scheme_allows(body, labels)))


def _bind_stepwise(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return StepwiseTerm(term, graph, cast("Stepwise", term.body), [compiler.plain(one) for one in term.expressions()])


def _bind_masked(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return MaskedTerm(term, graph, cast("MaskedEnergy", term.body), [compiler.plain(one) for one in term.expressions()])


def _bind_black_box(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("BlackBox", term.body)
    return BlackBoxTerm(term, graph, body, compiler.plain(body.value))


def _bind_linear(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    body = cast("Linear", term.body)
    return LinearTerm(term, graph, body.field, compiler.plain(body.value))


def _bind_quadratic(term: Term, graph: Graph, compiler: Compiler) -> BoundTerm:
    return QuadraticTerm(term, graph)


_BINDERS: dict[str, Callable[[Term, Graph, Compiler], BoundTerm]] = {
    "table": _bind_table,
    "forbid": _bind_forbid,
    "scheme": _bind_scheme,
    "stepwise": _bind_stepwise,
    "masked": _bind_masked,
    "black box": _bind_black_box,
    "linear": _bind_linear,
    "quadratic": _bind_quadratic,
}


def _table(term: Term, body: Table, graph: Graph, compiler: Compiler) -> Evaluator:
    value = compiler.lifted(body.value, term.domain)
    rank = len(term.domain)
    if isinstance(body.value, Potential):
        count = len(graph.label_sets[graph.variables[term.scope[0].variable].type.element].labels or ())
        return lambda env: _potts(value(env), count)
    labels = [1 + rank + axis for axis in body.order]
    if body.order == tuple(range(len(body.order))):
        return value
    lead = list(range(1 + rank))
    return lambda env: value(env).permute(*lead, *labels)


def _potts(weight: Tensor, count: int) -> Tensor:
    eye = torch.eye(count, device=weight.device, dtype=weight.dtype)
    return weight[..., None, None] * eye


def _constant_table(term: Term, graph: Graph, forbidden: Callable[[tuple[str, ...]], bool]) -> Evaluator:
    """A table of 0 and -inf that depends on nothing but the labels."""
    sets = [graph.label_sets[graph.variables[ref.variable].type.element].labels or () for ref in term.scope]
    bad = torch.tensor([forbidden(labels) for labels in product(*sets)], dtype=torch.bool)
    table = torch.zeros(bad.shape).masked_fill(bad, float("-inf")).reshape(*(len(s) for s in sets))
    for _ in range(1 + len(term.domain)):
        table = table.unsqueeze(0)
    placed: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def evaluate(env: Environment) -> Tensor:
        key = (env.batch.device, env.batch.dtype)
        if key not in placed:
            placed[key] = table.to(device=key[0], dtype=key[1])
        return placed[key]

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

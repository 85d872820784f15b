"""First-order chains, exactly, through torch-struct's batched semiring scans.

A chain of T cells is handed to torch-struct as T edges behind a start cell that has one possible label, so that chains of any
length, one and zero included, are the same case.  -inf becomes a large finite score inside and is restored in the answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Evidence, Problem, QueryRefused, Session
from energyml.backends.exact.potentials import Placed, Potentials, assemble, place
from energyml.bind.terms import BoundTerm
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result

FORBIDDEN = -1e30


class ExactChain(Backend):
    """Exact answers for one sequence variable under first-order tables.  Cost: O(B T C³) for a scan of log T levels."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the tables into unaries and pairs."""
        self.variable = graph.discrete[0].name
        self.placed = place(graph, terms)

    def open(self, problem: Problem) -> Session:
        """Nothing is computed before a query asks."""
        return ChainSession(problem, self.variable, self.placed)


class ChainSession(Session):
    """One batch of chains."""

    def __init__(self, problem: Problem, variable: str, placed: list[Placed]) -> None:
        self.problem, self.variable, self.placed = problem, variable, placed

    def ask(self, query: Query) -> Result:
        """Answer any query of the card."""
        handler = getattr(self, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`exact` does not answer `{query.kind}`")
        return Result(handler(query))

    @cached_property
    def potentials(self) -> Potentials:
        """Unaries and pairs of the batch."""
        return assemble(self.problem, self.placed, self.variable, self.problem.evidence)

    @cached_property
    def log_z(self) -> Tensor:
        """[B]: the log-partition of each chain."""
        return chain_log_partition(self.potentials)

    # --------------------------------------------------------------------------------------------------------- queries

    def _log_partition(self, query: Query) -> Tensor:
        return self.log_z

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        unary, _ = self._moments()
        return {self.variable: self._positions(unary, 0.0)}

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Unary and pair marginals as gradients of the log-partition; differentiable where the scores are."""
        potentials = self.potentials
        track = torch.is_grad_enabled() and (potentials.unary.requires_grad or potentials.pair.requires_grad)
        with torch.enable_grad():
            unary, pair = potentials.unary, potentials.pair
            if not track:
                unary, pair = unary.detach(), pair.detach()
            unary = unary if unary.requires_grad else unary.clone().requires_grad_()
            pair = pair if pair.requires_grad else pair.clone().requires_grad_()
            copy = Potentials(unary, pair, potentials.count)
            log_z = chain_log_partition(copy)
            total = torch.where(log_z.isfinite(), log_z, 0).sum()
            if not total.requires_grad:
                return torch.zeros_like(unary), torch.zeros_like(pair)
            first, second = torch.autograd.grad(total, (unary, pair), create_graph=track, allow_unused=True)
        zero = torch.zeros_like
        return (first if first is not None else zero(unary)), (second if second is not None else zero(pair))

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each table; zero where an element of its index set does not exist."""
        unary, pair = self._moments()
        found = {}
        for one in self.placed:
            name = one.term.term.name
            if query.target is not None and name != query.target:
                continue
            found[name] = self._one_factor(one, unary, pair)
        return found

    def _one_factor(self, one: Placed, unary: Tensor, pair: Tensor) -> Tensor:
        if one.constant is not None:
            return self._cell(unary, one.constant)
        source = unary if one.arity == 1 else (pair.transpose(-1, -2) if one.swapped else pair)
        length = max(0, unary.shape[1] - one.shrink)
        value = source.narrow(1, one.offset, length)
        valid = one.term.valid(self.problem.env.batch)
        return value if valid is None else value * valid.reshape(*valid.shape, *([1] * one.arity))

    def _cell(self, unary: Tensor, constant: int) -> Tensor:
        """[B, C]: the marginal at a position counted from the start or the end; zero where there is none."""
        count = self.potentials.count
        size = unary.shape[1]
        where = torch.as_tensor(size, device=unary.device) if count is None else count
        spot = (where + constant if constant < 0 else torch.full_like(where, constant)).expand(unary.shape[0])
        steps = torch.arange(size, device=unary.device)
        here = (steps == spot.unsqueeze(1)) & (steps < where.reshape(-1, 1))
        return (unary * here.unsqueeze(-1)).sum(1)

    def _entropy(self, query: Query) -> Tensor:
        """log Z - E[score]."""
        unary, pair = self._moments()
        potentials = self.potentials
        expected = _weighted(unary, potentials.unary).sum((1, 2)) + _weighted(pair, potentials.pair).sum((1, 2, 3))
        return torch.where(self.log_z.isfinite(), self.log_z - expected, 0)

    def _log_prob(self, query: Query) -> Tensor:
        counts = {self.variable: self.problem.label_count(self.variable)}
        known = self.problem.evidence.both(Evidence.from_labels(query.answer, counts))
        clamped = assemble(self.problem, self.placed, self.variable, known)
        return chain_log_partition(clamped) - self.log_z

    def _map(self, query: Query) -> Assignment:
        return self._best(self.potentials)

    def _max_with_cost(self, query: Query) -> Assignment:
        """The best of score plus cost; `cost[variable]` is [B, T, C] in the caller's positions."""
        along = self.problem.env.batch.along[self.problem.graph.variables[self.variable].dims[0]]
        cost = along.compact(query.cost[self.variable], 1)
        potentials = self.potentials
        exists = potentials.exists()
        cost = cost if exists is None else cost * exists.unsqueeze(-1)
        return self._best(Potentials(potentials.unary + cost, potentials.pair, potentials.count))

    def _best(self, potentials: Potentials) -> Assignment:
        edges = _edges(potentials)
        parts, score = _argmax(edges)
        labels = self._labels(parts.sum(-1).argmax(-1))
        score = _restored(score)
        labels = labels.masked_fill(score.isneginf().unsqueeze(1), ABSENT)
        return Assignment({self.variable: labels}, score, self.problem.label_names())

    def _n_best(self, query: Query) -> Assignment:
        """The k best answers by torch-struct's k-max semiring; fewer answers leave -1 and -inf."""
        labels, scores = [], []
        edges = _edges(self.potentials)
        for parts, score in _k_best(edges, query.count):
            restored = _restored(score)
            one = self._labels(parts.sum(-1).argmax(-1))
            labels.append(one.masked_fill(restored.isneginf().unsqueeze(1), ABSENT))
            scores.append(restored)
        return Assignment({self.variable: torch.stack(labels, 1)}, torch.stack(scores, 1), self.problem.label_names())

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        """Forward and backward Viterbi scores added up: O(B T C²)."""
        unary, pair, exists = self.potentials.unary, self.potentials.pair, self.potentials.exists()
        size = unary.shape[1]
        if size == 0:
            return {self.variable: unary}
        ahead = [unary[:, 0]]
        for t in range(1, size):
            ahead.append((ahead[-1].unsqueeze(2) + pair[:, t - 1]).amax(1) + unary[:, t])
        behind = [torch.zeros_like(unary[:, 0])]
        for t in range(size - 1, 0, -1):
            step = (pair[:, t - 1] + (unary[:, t] + behind[-1]).unsqueeze(1)).amax(2)
            behind.append(step if exists is None else torch.where(exists[:, t : t + 1], step, 0))
        total = torch.stack(ahead, 1) + torch.stack(behind[::-1], 1)
        return {self.variable: self._positions(total, float("-inf"))}

    def _sample(self, query: Query) -> Assignment:
        """Forward filtering, backward sampling: exact draws, O(B T C²) and O(T C) more for each draw."""
        if bool(self.log_z.isneginf().any()):
            raise QueryRefused("no answer has positive probability, so there is nothing to draw")
        unary, pair, exists = self.potentials.unary, self.potentials.pair, self.potentials.exists()
        batch, size, _ = unary.shape
        with torch.no_grad():
            ahead = [unary[:, 0]] if size else []
            for t in range(1, size):
                step = _logsumexp(ahead[-1].unsqueeze(2) + pair[:, t - 1], 1) + unary[:, t]
                ahead.append(step)
            chosen = torch.zeros(query.count, batch, size, dtype=torch.long, device=unary.device)
            for t in range(size - 1, -1, -1):
                logits = ahead[t].expand(query.count, batch, -1)
                if t + 1 < size:
                    onward = pair[:, t].transpose(1, 2)[torch.arange(batch, device=unary.device), chosen[:, :, t + 1]]
                    logits = torch.where(_column(exists, t + 1), logits + onward, logits)
                logits = torch.where(_column(exists, t), logits, 0)
                p = torch.softmax(logits.double(), -1).flatten(0, 1)
                drawn = torch.multinomial(p, 1, generator=query.generator).reshape(query.count, batch)
                chosen[:, :, t] = drawn
            labels = torch.stack([self._labels(one) for one in chosen]) if query.count else chosen
        flat = {self.variable: labels.movedim(1, 0).flatten(0, 1)}
        score = self.problem.score(flat, query.count).unflatten(0, (batch, query.count)).movedim(0, 1)
        return Assignment({self.variable: labels}, score, self.problem.label_names())

    # ------------------------------------------------------------------------------------------------------- positions

    def _positions(self, values: Tensor, fill: float) -> Tensor:
        """Values of cells [B, T, ...] at the caller's positions, `fill` where there is no cell."""
        along = self.problem.env.batch.along[self.problem.graph.variables[self.variable].dims[0]]
        exists = self.potentials.exists()
        if along.rank is not None:
            index = along.rank.clamp(min=0).reshape(*along.rank.shape, *([1] * (values.dim() - 2)))
            values = values.gather(1, index.expand(values.shape))
            exists = along.rank >= 0
        if exists is None:
            return values
        return torch.where(exists.reshape(*exists.shape, *([1] * (values.dim() - 2))), values, fill)

    def _labels(self, labels: Tensor) -> Tensor:
        """Labels of cells [B, T] at the caller's positions, -1 where there is no cell."""
        return self._positions(labels.to(torch.float64), float(ABSENT)).long()


def _column(exists: Tensor | None, t: int) -> Tensor:
    return torch.ones((), dtype=torch.bool) if exists is None else exists[:, t].reshape(1, -1, 1)


def _logsumexp(values: Tensor, dim: int) -> Tensor:
    peak = values.amax(dim, keepdim=True)
    safe = torch.where(peak.isfinite(), peak, 0)
    return (values - safe).exp().sum(dim).log() + safe.squeeze(dim)


def _weighted(weight: Tensor, value: Tensor) -> Tensor:
    """weight * value with 0 * -inf = 0."""
    return torch.where(weight > 0, weight * torch.where(value.isfinite(), value, 0), 0)


# ---------------------------------------------------------------------------------------------------------- torch-struct


def chain_log_partition(potentials: Potentials) -> Tensor:
    """[B]: the log-partition of a batch of chains; -inf where every answer is forbidden.  O(B T C³) in log T levels."""
    return _restored(_scan(_edges(potentials), "LogSemiring"))


def _edges(potentials: Potentials) -> Tensor:
    """[B, max(T, 1), C, C] edge scores (later, earlier), behind a start cell whose only label is the first."""
    unary, pair = potentials.unary, potentials.pair
    batch, size, labels = unary.shape
    only_first = torch.full((labels,), FORBIDDEN, device=unary.device, dtype=unary.dtype)
    only_first[0] = 0.0
    idle = torch.full((labels, labels), FORBIDDEN, device=unary.device, dtype=unary.dtype)
    idle.fill_diagonal_(0.0)
    if size == 0:
        return (only_first.unsqueeze(1) + only_first.unsqueeze(0)).expand(batch, 1, labels, labels).clamp(min=FORBIDDEN)
    first = unary[:, :1].unsqueeze(3) + only_first
    edges = torch.cat([first, unary[:, 1:].unsqueeze(3) + pair.transpose(2, 3)], 1).clamp(min=FORBIDDEN)
    exists = potentials.exists()
    if exists is None:
        return edges
    empty = only_first.unsqueeze(1) + only_first.unsqueeze(0)
    waiting = idle.expand(size, labels, labels).clone()
    waiting[0] = empty.clamp(min=FORBIDDEN)
    return torch.where(exists.reshape(batch, size, 1, 1), edges, waiting)


def _restored(score: Tensor) -> Tensor:
    """-inf again for what contains a forbidden score."""
    return torch.where(score < FORBIDDEN / 2, float("-inf"), score)


def _struct(semiring: Any) -> Any:
    from torch_struct import LinearChain

    return LinearChain(semiring)


def _scan(edges: Tensor, semiring: str) -> Tensor:
    import torch_struct

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value: Tensor = _struct(getattr(torch_struct, semiring)).sum(edges)
    return value


def _argmax(edges: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T, C, C] indicator of the best answer's edges, and its score (differentiable)."""
    import torch_struct

    parts = _gradient(edges, torch_struct.MaxSemiring)[0]
    return parts, (edges * parts).sum((1, 2, 3))


def _gradient(edges: Tensor, semiring: Any) -> list[Tensor]:
    with torch.enable_grad():
        leaf = edges.detach().requires_grad_()
        raw = _struct(semiring).sum(leaf, _raw=True)
        found = []
        for number in range(raw.shape[0]):
            (one,) = torch.autograd.grad(raw[number].sum(), leaf, retain_graph=True)
            found.append(one)
    return found


def _k_best(edges: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    import torch_struct

    return [(parts, (edges * parts).sum((1, 2, 3))) for parts in _gradient(edges, torch_struct.KMaxSemiring(count))]



"""Exact search: prefixes in the order of a bound on their best completion (A*, Hart et al. 1968).

The bound of a prefix is its score plus the most that the remaining steps can add: nothing for log-probabilities, the
largest entries of tables; raw scores of networks have no bound, and then every prefix is looked at.  An answer is the
best when no prefix that is left has a higher bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count as counter

import torch
from torch import Tensor

from energyml.backends.beam.search import Plan, Search
from energyml.backends.beam.session import StepBackend, StepSession, first
from energyml.bind.problem import Evidence, Problem
from energyml.bind.steps import Steps
from energyml.bind.tensors import Environment
from energyml.queries import Quality, Query
from energyml.resolution import leave_type
from energyml.result import Result, Status

_NINF = float("-inf")
# The width of the beam whose answers are the first to beat, and how many prefixes of one length are extended at once.
FIRST_WIDTH = 5
TOGETHER = 32


class BestFirst(StepBackend):
    """Exact search within a budget of prefixes."""

    def open(self, problem: Problem) -> BestFirstSession:
        """Nothing is searched before a query asks."""
        return BestFirstSession(problem, self.selection)


class BestFirstSession(StepSession):
    """The best answers of each example, one example after the other."""

    def _map(self, query: Query) -> Result:
        result = self._n_best(replace(query, count=1))
        return replace(result, value=first(result.value))

    def _n_best(self, query: Query) -> Result:
        steps, budget = self._searched(), int(self.selection["nodes"])
        batch = steps.batch
        labels = torch.zeros(batch.size, query.count, steps.size, dtype=torch.long, device=batch.device)
        score = torch.full((batch.size, query.count), _NINF, device=batch.device, dtype=batch.dtype)
        looked_at, unfinished = 0, []
        for b in range(batch.size):
            search = _Exact(_alone(self.problem, b), query.count, budget)
            for place, (total, prefix) in enumerate(search.run()):
                labels[b, place] = torch.tensor(prefix, device=batch.device)
                score[b, place] = total
            looked_at += search.looked_at
            if not search.proven:
                unfinished.append(b)
        value = self._assignment(steps, labels, self._scored(steps, labels, score))
        statistics = {"nodes": float(looked_at), "proven": float(batch.size - len(unfinished))}
        # A sum that left its type reads as forbidden, so that nothing is proven.
        lost = bool(value.score.isinf().any()) and leave_type(self.problem)
        quality = Quality.LOWER if unfinished or lost else Quality.EXACT
        return Result(value, quality, _status(unfinished, budget), statistics)


def _status(unfinished: list[int], budget: int) -> Status:
    if not unfinished:
        return Status()
    message = (
        f"{len(unfinished)} examples (the first: {unfinished[0]}) have more than {budget} prefixes that may lead to a "
        "better answer, so that theirs is the best one found: (a) raise `nodes`; (b) scores without a bound "
        "(`normalize: global`) need all prefixes: shorten the examples, or take `beam`"
    )
    return Status(lambda: (False, message))


def _alone(problem: Problem, number: int) -> Problem:
    """The problem of one example."""
    here = slice(number, number + 1)
    env = Environment(problem.env.module, problem.env.batch.example(number), gains=problem.env.gains)
    allowed = {name: one[here] for name, one in problem.evidence.allowed.items()}
    return Problem(problem.graph, problem.terms, env, Evidence(allowed), problem.answers)


@dataclass(order=True)
class _Node:
    """A prefix that may be extended: those with the highest bound come first."""

    minus_bound: float
    number: int
    score: float = field(compare=False)
    labels: tuple[int, ...] = field(compare=False)


class _Exact:
    """The best answers of one example.

    Args:
        problem: the example alone.
        wanted: how many answers.
        budget: how many prefixes may be extended.

    Attributes:
        looked_at: how many were.
        proven: whether no other answer can be better.
    """

    def __init__(self, problem: Problem, wanted: int, budget: int) -> None:
        self.wanted, self.budget = wanted, budget
        with torch.no_grad():
            self.steps: Steps = problem.steps()
            self.bounds: list[float] = self.steps.best_remaining()[:, 0].tolist()
        self.length = int(self.steps.lengths[0])
        self.open: list[list[_Node]] = [[] for _ in range(self.length + 1)]
        self.answers: dict[tuple[int, ...], float] = {}
        self.numbers = counter()
        self.looked_at, self.proven = 0, False

    @torch.no_grad()
    def run(self) -> list[tuple[float, tuple[int, ...]]]:
        """The best answers with their scores, best first; labels by step, padded to the size of the batch."""
        if self.length == 0:
            self.answers[()] = 0.0
        else:
            self._begin()
        while self.looked_at < self.budget:
            depth = self._next()
            if depth is None:
                self.proven = True
                break
            self._extend(depth)
        else:
            self.proven = self._next() is None
        ranked = sorted(self.answers.items(), key=lambda one: -one[1])[: self.wanted]
        return [(score, self._padded(labels)) for labels, score in ranked]

    def _padded(self, labels: tuple[int, ...]) -> tuple[int, ...]:
        filler = 0 if self.steps.end is None else self.steps.end
        return (*labels, *[filler] * (self.steps.size - len(labels)))

    def _begin(self) -> None:
        """Answers of a beam to beat, and the prefixes of one label."""
        found = Search(self.steps, Plan(max(FIRST_WIDTH, self.wanted))).run()
        for labels, score in zip(found.labels[0].tolist(), found.score[0].tolist(), strict=True):
            if score > _NINF:
                self._answer(self._cut(labels), score)
        self._grow([(0.0, ())], 0)

    def _cut(self, labels: list[int]) -> tuple[int, ...]:
        if self.steps.end is not None and self.steps.end in labels:
            return tuple(labels[: labels.index(self.steps.end) + 1])
        return tuple(labels[: self.length])

    def _answer(self, labels: tuple[int, ...], score: float) -> None:
        self.answers[labels] = score
        if len(self.answers) > 2 * self.wanted + FIRST_WIDTH:
            kept = heapq.nlargest(self.wanted, self.answers.items(), key=lambda one: one[1])
            self.answers = dict(kept)

    def _to_beat(self) -> float:
        """The score of the last of the wanted answers."""
        best = heapq.nlargest(self.wanted, self.answers.values())
        return best[-1] if len(best) == self.wanted else _NINF

    def _next(self) -> int | None:
        """How many labels the prefix with the highest bound has; `None` when no prefix can lead to a better answer."""
        tops = [(-nodes[0].minus_bound, depth) for depth, nodes in enumerate(self.open) if nodes]
        # Of equal bounds, the longer prefix is nearer to an answer.
        bound, depth = max(tops, default=(_NINF, 0))
        return depth if bound > self._to_beat() else None

    def _extend(self, depth: int) -> None:
        """Extend the best prefixes of one length."""
        least = self._to_beat()
        nodes: list[_Node] = []
        while self.open[depth] and len(nodes) < min(TOGETHER, self.budget - self.looked_at):
            node = heapq.heappop(self.open[depth])
            if -node.minus_bound <= least:
                self.open[depth].clear()  # the others promise no more
                break
            nodes.append(node)
        self.looked_at += len(nodes)
        self._grow([(node.score, node.labels) for node in nodes], depth)

    def _grow(self, prefixes: list[tuple[float, tuple[int, ...]]], depth: int) -> None:
        """Keep the continuations that may still win; those that are complete are answers.

        Prefixes are walked again: the states of all of them would be too much to keep.
        """
        steps = self.steps
        labels = torch.tensor([labels for _, labels in prefixes], dtype=torch.long, device=steps.batch.device)
        state = steps.start(len(prefixes), apart=True)
        for t in range(depth):
            _, state = steps.advance(state, labels[:, t - 1] if t else None, t)
        scores, _ = steps.advance(state, labels[:, depth - 1] if depth else None, depth)
        least, bound = self._to_beat(), self.bounds[depth + 1]
        # In the type of the scores, so that an answer's score does not depend on who adds it up.
        given = torch.tensor([score for score, _ in prefixes], dtype=scores.dtype, device=scores.device)
        for row, label, score in _finite(given.unsqueeze(1) + scores):
            longer = (*prefixes[row][1], label)
            if depth + 1 == self.length or label == steps.end:
                self._answer(longer, score)
            elif score + bound > least:
                heapq.heappush(self.open[depth + 1], _Node(-(score + bound), next(self.numbers), score, longer))


def _finite(total: Tensor) -> Iterator[tuple[int, int, float]]:
    """The places and the values of the entries [n, C] that are not ruled out."""
    rows, labels = (~total.isneginf()).nonzero(as_tuple=True)
    return zip(rows.tolist(), labels.tolist(), total[rows, labels].tolist(), strict=True)

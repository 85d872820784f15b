"""The backend `ilp`: best answers of small loopy graphs by integer linear programming, with a proof or a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.ilp.program import Example, Solution, solve, solver, without_hopeless
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.cards.card import Selection
from energyml.diagnostics import QueryRefused
from energyml.grounded.decoding import likeliest, searched
from energyml.grounded.factors import Grounder
from energyml.inference.grounded import GroundedSession
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Quality, Query
from energyml.resolution import leave_type, too_large
from energyml.result import Assignment, Result, Status


class IntegerProgramming(Backend):
    """Integer linear programming by scipy's HiGHS, one example after the other, on the host."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms, and see that there is a solver."""
        solver()
        self.grounder = Grounder(graph, tables(terms))

    def open(self, problem: Problem) -> Session:
        """Nothing is solved before a query asks."""
        return ProgramSession(problem, self.grounder, self.selection)


@dataclass(eq=False)
class Found:
    """The answers of a batch.

    Attributes:
        labels: [R, N] by variable.
        bound: [B], an upper bound of the best score.
        proven: how many answers are provably best.
        nodes: of the search trees, all together.
    """

    labels: dict[str, Tensor]
    bound: Tensor
    proven: int
    nodes: int


class ProgramSession(GroundedSession):
    """One batch; its programs are solved once."""

    proves = True

    def __init__(self, problem: Problem, grounder: Grounder, selection: Selection) -> None:
        super().__init__(problem, grounder, selection.name)
        self.seconds, self.limit = float(selection["seconds"]), int(selection["limit"])

    def ask(self, query: Query) -> Result:
        """An answer that is not proven to be best is a lower bound, and its status says so."""
        result = super().ask(query)
        is_proven = self.solved.proven == self.graph.batch.size and not self._lost(result.value)
        quality = Quality.EXACT if is_proven and query.kind == "map" else Quality.LOWER
        return Result(result.value, quality if query.kind == "map" else Quality.UPPER, result.status, result.statistics)

    def status(self, query: Query, value: Any) -> Status:
        """Whether the time was enough for every example."""
        solved, size = self.solved, self.graph.batch.size
        if self._lost(value):
            return Status(lambda: too_large(self.problem))
        if solved.proven == size or query.kind != "map":
            return Status()
        message = (
            f"`ilp` could not prove {size - solved.proven} of {size} answers to be best: (a) {self.seconds:g} s each "
            "were too short, raise `seconds`; (b) scores of very different magnitudes leave the solver no digits; see "
            "`bound` in the statistics for how far they can be from it"
        )
        return Status(lambda: (False, message))

    def _lost(self, value: Any) -> bool:
        """Whether an answer may be missing because sums of scores left their type and read as forbidden."""
        scores = value.score if isinstance(value, Assignment) else value
        return bool(scores.isinf().any()) and leave_type(self.problem)

    def statistics(self, query: Query) -> Mapping[str, Any]:
        """[B] the upper bound of the best score, how many answers are proven, and the nodes of the search trees."""
        solved = self.solved
        return {"bound": solved.bound, "proven": float(solved.proven), "nodes": float(solved.nodes)}

    @property
    def solved(self) -> Found:
        """The solutions of all examples."""
        made: Found = self.once("solved", self._solve)
        return made

    def _solve(self) -> Found:
        examples = self._examples()
        for number, example in enumerate(examples):
            if example is not None and example.indicators > self.limit:
                raise QueryRefused(
                    f"`ilp` would need {example.indicators:,} indicators for example {number}, and `limit` is "
                    f"{self.limit:,}; raise it, or take `dual`, which bounds the best score of graphs of any size"
                )
        nothing = Solution(None, float("-inf"), True, 0)
        with torch.no_grad():
            ascent = self.ascent()
            known = self.answer(searched(ascent, [lambda: likeliest(ascent)]), wide=True).score.tolist()
        solutions = [
            nothing if example is None else solve(without_hopeless(example, score), self.seconds)
            for example, score in zip(examples, known, strict=True)
        ]
        with torch.no_grad():
            labels = self._placed(solutions)
            bound = torch.tensor([one.bound for one in solutions], device=self.graph.device, dtype=self.graph.dtype)
            score = self.answer(labels).score
        proven = sum(one.proven for one in solutions)
        return Found(labels, torch.maximum(bound, score), proven, sum(one.nodes for one in solutions))

    def _examples(self) -> list[Example | None]:
        """The examples with their scores on the host; `None` where evidence leaves some cell no label."""
        graph, potentials = self.graph, self.potentials
        size, impossible = graph.batch.size, _array(self.potentials.impossible)
        unary = {
            name: _array(one).reshape(size, one.numel() // max(1, size * one.shape[-1]), one.shape[-1])
            for name, one in potentials.unary.items()
        }
        blocks = []
        for factors in potentials.factors:
            scores = factors.table.detach()
            if factors.valid is not None:
                there = factors.valid.reshape(*factors.valid.shape, *([1] * (scores.dim() - 2)))
                scores = torch.where(there, scores, 0)
            blocks.append((factors.block, _array(scores)))
        found: list[Example | None] = []
        for b in range(size):
            if impossible[b]:
                found.append(None)
                continue
            parts = []
            for block, table in blocks:
                names, scope = block.variables, block.scope
                tables = np.broadcast_to(table, (table.shape[0], len(scope), *table.shape[2:]))
                if block.rows is not None:
                    here = np.flatnonzero(block.rows == b)
                    first = np.array([b * unary[name].shape[1] for name in names])
                    parts.append((names, scope[here] - first, tables[0, here]))
                else:
                    parts.append((names, scope, tables[b if len(tables) > 1 else 0]))
            found.append(Example({name: one[b] for name, one in unary.items()}, parts))
        return found

    def _placed(self, solutions: Sequence[Solution]) -> dict[str, Tensor]:
        """[R, N] by variable: the labels that were found, improved where single cells can; a search where none were.

        The solver stops within a tolerance of the best: of two answers that differ by less, the better one is taken.
        """
        graph = self.graph
        ascent = self.ascent()
        missing = any(one.labels is None and not one.proven for one in solutions)
        other = likeliest(ascent) if missing else {}
        start = {}
        for name, scores in self.potentials.unary.items():
            rows = []
            for b, solution in enumerate(solutions):
                if solution.labels is not None:
                    rows.append(torch.as_tensor(solution.labels[name]))
                elif name in other:
                    rows.append(other[name].reshape(len(solutions), -1)[b].cpu())
                else:
                    rows.append(torch.zeros(scores.numel() // (len(solutions) * scores.shape[-1]), dtype=torch.long))
            stacked = torch.stack(rows) if rows else torch.zeros(scores.shape[:2], dtype=torch.long)
            start[name] = stacked.reshape(scores.shape[:2]).to(graph.device)
        return searched(ascent, [lambda: start])

    def _map(self, query: Query) -> Assignment:
        return self.answer(self.solved.labels, query.wide)

    def _map_bound(self, query: Query) -> Tensor:
        return self.solved.bound


def _array(tensor: Tensor) -> np.ndarray:
    kept = tensor.detach().cpu()
    return (kept if kept.dtype == torch.bool else kept.double()).numpy()

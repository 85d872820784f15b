"""Queries on trees that are given at run time: the common ones are answered without planning each tree."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from energyml.backends.exact.elimination import leaf, runs_natively, slopes, tracked
from energyml.backends.exact.forest import Forest
from energyml.backends.exact.graph import GraphSession
from energyml.backends.exact.ground import Ground
from energyml.bind.problem import Evidence, Problem
from energyml.execution import gradients, under_transform
from energyml.grounded.grounding import spread_cells
from energyml.inference.precision import large
from energyml.queries import Query
from energyml.result import Assignment


class TreeSession(GraphSession):
    """One batch of forests; what is not answered here goes through elimination."""

    def __init__(self, problem: Problem, ground: Ground, forest: Forest, dtype: torch.dtype | None = None) -> None:
        super().__init__(problem, ground, dtype)
        self.forest = forest

    def _of_type(self, dtype: torch.dtype) -> TreeSession:
        return TreeSession(self.problem, self.ground, self.forest, dtype)

    def _rounds(self, query: Query) -> bool:
        """Trees add up all tables of a cell before they send messages."""
        if super()._rounds(query):
            return True
        if not (self.forest.adds or query.cost):
            return False
        tables = self.tables()
        own = (table for number in self.forest.singles if (table := tables[number]) is not None)
        return large(*own, *(query.cost or {}).values())

    def _scores(self, evidence: Evidence, cost: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """[B, N, C] scores of the cells of all variables and [B or 1, E or 1, C, C] of edges."""
        tables = [table for table in self.tables() if table is not None]
        cells = None
        if evidence.allowed or cost:
            own = [one for one in self.cell_tables(evidence, needed=True, cost=cost) if one is not None]
            cells = torch.cat([one.reshape(one.shape[0], prod(one.shape[1:-1]), one.shape[-1]) for one in own], 1)
        return self.forest.unary(tables, cells), self.forest.pair(tables)

    def _sum(self, evidence: Evidence, cost: Mapping[str, Tensor] | None = None) -> Tensor:
        return self.forest.log_partition(*self._scores(evidence, cost), self.kernels)

    def _log_prob(self, query: Query) -> Tensor:
        """Whole answers have their score and log Z from one sweep, and gradients of both."""
        if query.cost or not (self.kernels and runs_natively(self.tables()) and self._whole(query.answer)):
            return super()._log_prob(query)
        labels = torch.cat([query.answer[v.name].reshape(self.batch.size, -1) for v in self.graph.discrete], 1)
        return self.forest.log_likelihood(*self._scores(self.problem.evidence), labels)

    _log_prob_with_cost = _log_prob

    def _moments(self, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Marginals of cells [B, N, C] and of edges [B, E, C, C]; differentiable where the scores are."""
        unary, pair = self._scores(self.problem.evidence)
        if pairs:
            pair = pair.expand(self.batch.size, self.forest.edges, *pair.shape[2:])
        if under_transform():
            found = (
                gradients(self._total, (unary, pair)) if pairs else gradients(lambda u: self._total(u, pair), (unary,))
            )
            return found[0], found[1] if pairs else None
        if not tracked([unary, pair]):
            return self.forest.moments(unary, pair, self.kernels, pairs)
        leaves = [leaf(unary, True), *([leaf(pair, True)] if pairs else [])]
        slope = slopes(self._total(leaves[0], leaves[1] if pairs else pair), leaves, again=True)
        return slope[0], slope[1] if pairs else None

    def _total(self, unary: Tensor, pair: Tensor) -> Tensor:
        """The sum of all log-partitions that are finite."""
        log_z = self.forest.log_partition(unary, pair, self.kernels)
        return log_z.masked_fill(log_z.isneginf(), 0).sum()

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        values = self._moments(pairs=False)[0].movedim(-1, 0)
        found = spread_cells(self.sources.cells, values, self.variables)
        return {
            v.name: self._without_absent(found[v.name].movedim(0, -1), v.name, v.dims, 0.0) for v in self.graph.discrete
        }

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each table; zero where an element of its index set does not exist."""
        cells, edges = self._moments(pairs=True)
        assert edges is not None
        found: dict[int, Tensor] = {}
        start = 0
        for number, count in self.forest.pairs.items():
            found[number] = edges[:, start : start + count]
            start += count
        for number, places in self.forest.singles.items():
            if places is None:
                found[number] = cells
                continue
            index = torch.from_numpy(places).to(cells.device).expand(self.batch.size, -1).unsqueeze(-1)
            exists = (index >= 0) & (index < cells.shape[1])
            rows = cells.gather(1, torch.where(exists, index, 0).expand(-1, -1, cells.shape[2]))
            found[number] = torch.where(exists, rows, 0)
        return {
            term.term.name: found[number].reshape(
                self.batch.size, *term.domain_sizes(self.batch), *found[number].shape[2:]
            )
            for number, term in enumerate(self.terms)
            if query.target in (None, term.term.name)
        }

    def _best(self, cost: dict[str, Tensor]) -> Assignment:
        if not (self.kernels and runs_natively(self.tables())):
            return super()._best(cost)
        with torch.no_grad():
            labels, scores = self.forest.best(*self._scores(self.problem.evidence, cost))
        return self._assignment(labels, scores, cost)

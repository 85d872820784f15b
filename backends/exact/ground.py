"""One batch as elimination sees it, without its scores: cells, factors, plans, and what evidence says about cells."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from energyml.backends.exact.elimination import BatchElimination, Part
from energyml.backends.exact.forest import Forest, find_forest
from energyml.backends.exact.observed import Observed, observed
from energyml.backends.exact.plans import Plan, Plans
from energyml.backends.exact.traced import TracedElimination, traced
from energyml.bind.problem import Evidence, Problem
from energyml.grounded.grounding import Group, Sources

Elimination: TypeAlias = BatchElimination | TracedElimination


class Ground:
    """What a batch and its evidence alone decide: it is found once, and serves whatever the parameters are.

    Args:
        plans: programs by structure.
        sources: the tables of the batch.
        evidence: what is known about the answer; that of another question is looked at each time.
        kernels: whether the native kernel may be used.
    """

    def __init__(self, plans: Plans, sources: Sources, evidence: Evidence, kernels: bool) -> None:
        self.plans, self.sources, self.evidence, self.kernels = plans, sources, evidence, kernels
        self.terms = [term for term, _ in sources.terms]
        self.latent = [v.name for v in sources.graph.discrete if v.kind == "latent"]
        self._runs: dict[bool, BatchElimination] = {}
        self._known: Observed | None = None
        self._forest: Forest | Literal[False] | None = False  # as long as nobody has looked

    @staticmethod
    def of(problem: Problem, plans: Plans, kernels: bool) -> Ground:
        """That of a problem."""
        batch = problem.env.batch
        terms = [(term, batch) for term in problem.tables()]
        sources = Sources(problem.graph, terms, batch, torch.compiler.is_compiling())
        return Ground(plans, sources, problem.evidence, kernels)

    @property
    def forest(self) -> Forest | None:
        """The trees of the batch; `None` where it is no forest that is given at run time."""
        if self._forest is False:
            self._forest = find_forest(self.sources)
        return self._forest

    def observed(self, evidence: Evidence) -> Observed:
        """What evidence tells about the cells."""
        if evidence is not self.evidence or self.sources.traced:
            return observed(evidence, self.sources)
        if self._known is None:
            self._known = observed(evidence, self.sources)
        return self._known

    def run(self, evidence: Evidence, outputs_last: bool = False) -> Elimination:
        """The eliminations of the batch; with latents first where a maximum over outputs needs them summed out."""
        if self.sources.traced:
            return traced(self.plans, self.sources, outputs_last)
        if evidence is not self.evidence:
            return self._planned(evidence, outputs_last)
        if outputs_last not in self._runs:
            self._runs[outputs_last] = self._planned(evidence, outputs_last)
        return self._runs[outputs_last]

    def _planned(self, evidence: Evidence, outputs_last: bool) -> BatchElimination:
        known, sources, batch = self.observed(evidence), self.sources, self.sources.batch
        first = frozenset[int]()
        if outputs_last:
            spans = [sources.cells.span(name) for name in self.latent]
            first = frozenset(cell for span in spans for cell in range(span.start, span.stop))
        parts = [Part(group, plan) for group, plan in (self._plans(known, first) if batch.size else ())]
        return BatchElimination(parts, batch.size, sources.cells.count, known.labels, batch.device, self.kernels)

    def _plans(self, known: Observed, first: frozenset[int]) -> list[tuple[Group, Plan]]:
        """The groups of examples of one structure, and their plans."""
        plan, sources = self.plans.plan, self.sources
        return [(group, plan(sources, group, known.known(group.rows), first)) for group in self.plans.groups(sources)]

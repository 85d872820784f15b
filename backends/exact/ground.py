"""One batch as elimination sees it, without its scores: cells, factors, plans, and what evidence says about cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from energyml.backend import Evidence, Problem
from energyml.backends.exact.elimination import BatchElimination, Part
from energyml.backends.exact.forest import Forest, find_forest
from energyml.backends.exact.grounding import Sources
from energyml.backends.exact.observed import Observed, observed
from energyml.backends.exact.plans import Plans
from energyml.backends.exact.traced import TracedElimination, traced
from energyml.backends.native.graph import Question
from energyml.bind.terms import TableTerm

Elimination: TypeAlias = BatchElimination | TracedElimination


class Ground:
    """What is found about a batch and its evidence, once: it serves as long as both do, whatever the parameters are.

    Args:
        plans: known programs.
        sources: the tables of the batch.
        evidence: what is known about the answer; that of another question is looked at each time.
        kernels: whether the native kernel may be used.
    """

    def __init__(self, plans: Plans, sources: Sources, evidence: Evidence, kernels: bool) -> None:
        self.plans, self.sources, self.evidence, self.kernels = plans, sources, evidence, kernels
        self.terms = [term for term, _ in sources.terms]
        self.latent = [v.name for v in sources.graph.discrete if v.kind == "latent"]
        self._runs: dict[bool, BatchElimination] = {}
        # By kind: `None` for what was asked once; from then on a question, or `False` where there can be none.
        self.asked: dict[str, Question | Literal[False] | None] = {}

    @staticmethod
    def of(problem: Problem, plans: Plans, kernels: bool) -> Ground:
        """That of a problem; kept with a batch that comes again."""
        batch = problem.env.batch
        kept = batch.kept  # once: another thread may find that the batch does not come again
        found = None if kept is None else kept.get(plans)
        if isinstance(found, Ground) and found.evidence is problem.evidence:
            return found
        terms = [(term, batch) for term in problem.terms if isinstance(term, TableTerm)]
        sources = Sources(problem.graph, terms, batch, torch.compiler.is_compiling())
        made = Ground(plans, sources, problem.evidence, kernels)
        if kept is not None:
            kept[plans] = made
        return made

    @cached_property
    def forest(self) -> Forest | None:
        """The trees of the batch; `None` where it is no forest that is given at run time."""
        return find_forest(self.sources)

    def observed(self, evidence: Evidence) -> Observed:
        """What evidence tells about the cells."""
        kept = evidence is self.evidence and not self.sources.traced
        return self._observed if kept else observed(evidence, self.sources)

    @cached_property
    def _observed(self) -> Observed:
        return observed(self.evidence, self.sources)

    def run(self, evidence: Evidence, outputs_last: bool = False) -> Elimination:
        """The eliminations of the batch; with latents first where a maximum over outputs needs them summed out."""
        if self.sources.traced:
            return traced(self.plans, self.sources, outputs_last)
        if evidence is not self.evidence:
            return self._planned(evidence, outputs_last)
        if outputs_last not in self._runs:
            self._runs[outputs_last] = self._planned(evidence, outputs_last)
        return self._runs[outputs_last]

    def question(self, kind: str, tables: Sequence[Tensor], parameters: Mapping[str, Tensor | None]) -> Question | None:
        """A query as native code answers it from the parameters alone; `None` where that cannot be.

        Args:
            kind: `log_partition` or `marginals`.
            tables: the terms' tables.
            parameters: those of the model, by name.
        """
        run, batch, variables = self.run(self.evidence), self.sources.batch, self.sources.graph.discrete
        if not isinstance(run, BatchElimination) or batch.size != 1 or not self.observed(self.evidence).settled:
            return None
        read: dict[str, tuple[int, ...]] = {}
        for term, table in zip(self.terms, tables, strict=True):
            parameter = None if term.reads is None else parameters.get(term.reads)
            if term.reads is None or parameter is None or term.reads in read or not _whole(table, parameter):
                return None
            read[term.reads] = parameter.shape
        shapes = {v.name: (1, *self.sources.cells.shapes[v.name], self.sources.label_counts[v.name]) for v in variables}
        absent = any(batch.cells(v.name, v.dims) is not None for v in variables)
        if not read or absent or 0 in map(prod, shapes.values()):
            return None
        return run.question(tables, read, shapes if kind == "marginals" else {})

    def _planned(self, evidence: Evidence, outputs_last: bool) -> BatchElimination:
        known, sources, batch = self.observed(evidence), self.sources, self.sources.batch
        first = frozenset[int]()
        if outputs_last:
            spans = [sources.cells.span(name) for name in self.latent]
            first = frozenset(cell for span in spans for cell in range(span.start, span.stop))
        parts = [
            Part(group, self.plans.plan(sources, group, known.known(group.rows), first))
            for group in (self.plans.groups(sources) if batch.size else ())
        ]
        return BatchElimination(parts, batch.size, sources.cells.count, known.labels, batch.device, self.kernels)


def _whole(table: Tensor, parameter: Tensor) -> bool:
    """Whether a table is a parameter in double precision on the CPU, entry by entry."""
    if parameter.dtype is not torch.float64 or not parameter.is_cpu:
        return False
    same = table.data_ptr() == parameter.data_ptr() and table.numel() == parameter.numel() > 0
    return same and table.shape[0] == 1 and table.is_contiguous() and parameter.is_contiguous()

"""One batch as elimination sees it, without its scores: cells, factors, plans, and what evidence says about cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from energyml.backend import Evidence, Problem
from energyml.backends.exact.elimination import BatchElimination, Part
from energyml.backends.exact.forest import Forest, find_forest
from energyml.backends.exact.grounding import Group, Sources
from energyml.backends.exact.observed import Observed, observed
from energyml.backends.exact.plans import Plan, Plans
from energyml.backends.exact.traced import TracedElimination, traced
from energyml.bind.terms import TableTerm
from energyml.ir.graph import Edges
from energyml.native.graph import ASKS, Question
from energyml.transforms import eager

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
        self._known: Observed | None = None
        self._forest: Forest | Literal[False] | None = False  # as long as nobody has looked
        # By kind, or `False` where there can be none.
        self.asked: dict[str, Question | Literal[False]] = {}
        # Whether native code may be asked about the parameters: one example, all of whose cells exist.
        self.asks = ASKS and kernels and not sources.traced and sources.batch.size == 1 and sources.batch.whole

    @staticmethod
    def of(problem: Problem, plans: Plans, kernels: bool) -> Ground:
        """That of a problem; kept with a batch that comes again."""
        batch = problem.env.batch
        terms = [(term, batch) for term in problem.terms if isinstance(term, TableTerm)]
        sources = Sources(problem.graph, terms, batch, torch.compiler.is_compiling())
        made = Ground(plans, sources, problem.evidence, kernels)
        kept = batch.kept  # once: another thread may find that the batch does not come again
        if kept is not None:
            kept[plans] = made
        return made

    def at_once(self, kind: str, module: nn.Module, gains: Mapping[str, Any]) -> Any:
        """Log Z and marginals by native code that reads the parameters; `None` where it cannot."""
        question = self.asked.get(kind)
        return None if not question or gains or not eager() else question.ask(module._parameters)

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

    def question(
        self, kind: str, tables: Callable[[], Sequence[Tensor]], parameters: Mapping[str, Tensor | None]
    ) -> Question | None:
        """A query as native code answers it from the parameters alone; `None` where that cannot be.

        Args:
            kind: `log_partition` or `marginals`.
            tables: makes the terms' tables.
            parameters: those of the model, by name.
        """
        read: dict[str, Tensor] = {}
        for term in self.terms:
            parameter = None if term.reads is None else parameters.get(term.reads)
            if term.reads is None or parameter is None or term.reads in read:
                return None
            read[term.reads] = parameter
        sources = self.sources
        counts = sources.label_counts
        shapes = {name: (1, *shape, counts[name]) for name, shape in sources.cells.shapes.items()}
        marginals = shapes if kind == "marginals" else {}
        if not read or 0 in [prod(shape) for shape in shapes.values()]:
            return None
        found = self._question_of_edges(read, marginals) if self.plans.is_first(kind) else None
        if found is not None:
            return found
        made = tables()
        if not all(map(_whole, made, read.values())):
            return None
        known = self.observed(self.evidence)
        if not known.settled:
            return None
        ((_, plan),) = self._plans(known, frozenset())
        if plan.program.slices:
            return None
        cells = [shape[1:] if marginals else None for shape in shapes.values()]
        code = plan.code_of((*[tuple(table.shape[1:]) for table in made], *cells))
        return Question.of(code, known.labels, {name: one.shape for name, one in read.items()}, marginals)

    def _question_of_edges(
        self, read: Mapping[str, Tensor], marginals: Mapping[str, tuple[int, ...]]
    ) -> Question | None:
        """The same by native code alone, for factors on cells and on the ends of edges, where a plan is found soon.

        Nothing is kept for questions with other evidence, which is why the first one alone is answered so; the order
        that it finds serves another kind of question about the same cells.
        """
        sources, evidence = self.sources, self.evidence
        if len(evidence.labels) != len(evidence.allowed):
            return None
        tensors, terms = sources.batch.tensors, []
        for term, parameter in zip(self.terms, read.values(), strict=True):
            if not term.reads_whole or term.constants or (term.ends is None and not term.covers):
                return None
            binding = term.term.domain[0] if term.ends is not None else None
            edges = tensors[binding.source] if isinstance(binding, Edges) else None
            terms.append((parameter, edges, term.ends or (), term.variables))
        labels, counts = evidence.labels, sources.label_counts
        variables = [(shape, counts[name], labels.get(name)) for name, shape in sources.cells.shapes.items()]
        asked = [one for one in self.asked.values() if one]
        return Question.planned(
            sources.cells.count, self.plans.budget, (*variables,), (*terms,), tuple(read), marginals,
            asked[0] if asked else None,
        )  # fmt: skip

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


def _whole(table: Tensor, parameter: Tensor) -> bool:
    """Whether a table is a parameter in double precision on the CPU, entry by entry."""
    if parameter.dtype is not torch.float64 or not parameter.is_cpu:
        return False
    same = table.data_ptr() == parameter.data_ptr() and table.numel() == parameter.numel() > 0
    return same and table.shape[0] == 1 and table.is_contiguous() and parameter.is_contiguous()

"""What the sessions of variational backends share: one graph for a batch, answers at the caller's positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Evidence, Problem, QueryRefused, Session
from energyml.backends.expectations import factored_expectation
from energyml.backends.logspace import difference
from energyml.backends.variational.ascent import Ascent, Product
from energyml.backends.variational.decoding import feasible, likeliest, searched
from energyml.backends.variational.factors import FactorGraph, Grounder, Potentials, embedded
from energyml.backends.variational.schedule import Schedule, take
from energyml.bind.terms import TableTerm
from energyml.caching import ValueCache
from energyml.execution import is_host_readable
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result, Status

# A difference of two scores of this share of their size is no rounding.
VISIBLE = 1e-4
# Sweeps of the product that bounds the score of an answer whose latents are summed out.
LATENT_SWEEPS = 10


class GroundedSession(Session):
    """One batch as a factor graph of tables, and answers found on it.

    Args:
        problem: the batch.
        grounder: finds its structure.
        name: the backend, for refusals.

    Attributes:
        proves: whether it knows that there is no answer where it finds none.
    """

    proves = False

    def __init__(self, problem: Problem, grounder: Grounder, name: str) -> None:
        self.problem, self.grounder, self.name = problem, grounder, name
        self.terms = [term for term in problem.terms if isinstance(term, TableTerm)]
        self.latent = {v.name for v in problem.graph.discrete if v.kind == "latent"}
        self.once = ValueCache().once

    @cached_property
    def graph(self) -> FactorGraph:
        """The factor graph of the batch."""
        return self.grounder.ground(self.problem)

    def ask(self, query: Query) -> Result:
        """Answer any query of the card."""
        handler = getattr(self, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`{self.name}` does not answer `{query.kind}`")
        value = handler(query)
        status = self.status(query, value)
        if isinstance(value, Assignment) and not self.proves:
            status = status.also(lambda: self._forbidden(value))
        return Result(value, status=status, statistics=self.statistics(query))

    def impossible(self) -> Tensor:
        """[B]: the examples in which evidence and scores leave some cell no label."""
        return self.potentials.impossible

    def _forbidden(self, answer: Assignment) -> tuple[bool, str] | None:
        """A failing status where scores [..., B] are those of no answer, though evidence leaves every cell a label."""
        lost = (answer.score.isneginf() & ~self.potentials.impossible).reshape(-1, self.graph.batch.size).any(0)
        if not bool(lost.any()):
            return None
        return False, (
            f"`{self.name}` found no answer of positive weight for {int(lost.sum())} of {len(lost)} examples, which "
            "does not prove that there is none: all that it met are forbidden; ask a backend that follows all "
            "constraints, such as `exact` or `ilp`"
        )

    @abstractmethod
    def status(self, query: Query, value: Any) -> Status:
        """How the computation behind an answer ended."""

    @abstractmethod
    def statistics(self, query: Query) -> Mapping[str, Any]:
        """Sweeps, changes, bounds."""

    def schedule(self, order: str) -> Schedule:
        """The steps of an order of updates; kept with the structure."""
        kept, key = self.graph.skeleton.kept, ("schedule", order, self.graph.device)
        if key not in kept:
            kept[key] = Schedule(self.graph.skeleton, order, self.graph.device)
        made: Schedule = kept[key]
        return made

    @property
    def potentials(self) -> Potentials:
        """The scores of the batch under its evidence."""
        made: Potentials = self.once("potentials", lambda: self.graph.potentials(self.problem.evidence))
        return made

    # ---------------------------------------------------------------------------------------------------- best answers

    def found(self, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Labels [R, N] of all cells, improved cell by cell."""
        with torch.no_grad():
            ascent = self.ascent()
            return searched(ascent, [lambda: start, lambda: likeliest(ascent)])

    def ascent(self) -> Ascent:
        """Products and single answers under the batch's own evidence."""
        return Ascent(self.graph, self.potentials, self.schedule("sequential"))

    def answer(self, labels: Mapping[str, Tensor], wide: bool = False) -> Assignment:
        """The outputs of labels [R, N] with their score; -1 and -inf where the labels are no answer.

        Scores are added up in float64 and rounded once, unless they may be `wide`.

        Where latents are summed out, the score is a lower bound of that sum: the score with the labels of the latents,
        or the bound of a product of latents, whichever is larger.
        """
        placed = {name: self.graph.outward(name, one, ABSENT) for name, one in labels.items()}
        score = self.problem.score(placed, wide=True).masked_fill(self.potentials.impossible, float("-inf"))
        for name, one in labels.items():  # where scores left their type, labels may be those that evidence rules out
            out = self.potentials.unary[name].gather(-1, one.unsqueeze(-1)).squeeze(-1).isneginf()
            score = score.masked_fill(self.graph.by_example(name, out.to(score.dtype)) > 0, float("-inf"))
        found = ~score.isneginf()
        outputs = {name: one for name, one in placed.items() if name not in self.latent}
        if self.latent:
            score = torch.maximum(score, self.summed_score(outputs))
        outputs = {
            name: one.masked_fill(~found.reshape(-1, *([1] * (one.dim() - 1))), ABSENT) for name, one in outputs.items()
        }
        score = score.masked_fill(~found, float("-inf"))
        rounded = score if wide else score.to(self.graph.dtype)
        return Assignment(outputs, rounded, self.problem.label_names())

    def summed_score(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """[B]: a lower bound of the log of the sum of exp(score) over the latents of outputs [B, *dims]."""
        potentials = self.graph.potentials(self.problem.known(outputs))
        ascent = Ascent(self.graph, potentials, self.schedule("sequential"))
        q = ascent.run(ascent.start(False), ascent.schedule.sweeps(LATENT_SWEEPS))
        return ascent.bound(feasible(ascent, q, LATENT_SWEEPS) if ascent.hard else q)


class VariationalSession(GroundedSession):
    """One batch with probabilities of its cells and factors; arguments as in `GroundedSession`."""

    @abstractmethod
    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: the log-partition, or what stands for it, under some evidence."""

    @abstractmethod
    def cell_probabilities(self) -> Product:
        """By variable: [R, N, labels]."""

    @abstractmethod
    def factor_probabilities(self, number: int) -> Tensor:
        """[R, E, *labels]: of the factors of a block."""

    def improbable(self, value: Tensor) -> tuple[bool, str] | None:
        """A status where log-probabilities [B] are above 0; `None` also where nothing can be looked at."""
        if not is_host_readable(value):
            return None
        size = self._log_partition(Query("log_partition")).detach().abs()
        if not bool((value.detach() > VISIBLE * (1 + size)).any()):
            return None
        # Without numbers that differ from call to call, so that it warns once.
        return False, (
            f"`{self.name}` gives an answer a probability above 1, and so a negative loss: its log Z is below that "
            "answer's score, which means that sweeps ended far from the optimum; raise `steps`, write -inf for what "
            "is forbidden, or ask another backend, such as `exact` or `trw`"
        )

    def _log_partition(self, query: Query) -> Tensor:
        value: Tensor = self.once("log_z", lambda: self.log_z(self.problem.evidence))
        return value

    def _log_prob(self, query: Query) -> Tensor:
        """What stands for the log-partition of the answers that agree, less that of all.

        A full answer's is its score: less a lower bound of log Z this is an upper bound of log p, less an upper bound
        a lower one.  For a partial answer both are approximations, and the difference is an estimate.
        """
        total = self._log_partition(query)
        if self._whole(query.answer):
            score = self.problem.score(query.answer)
            return difference(score.masked_fill(self._contradicts(query.answer), float("-inf")), total)
        agreeing = self.log_z(self.problem.known(query.answer))
        return difference(agreeing, total.masked_fill(total.isneginf(), 0))

    def _whole(self, answer: Mapping[str, Tensor]) -> bool:
        """Whether an answer has a label for every cell; on an accelerator it is not looked at."""
        if self.graph.device.type != "cpu" or set(answer) != set(self.graph.variables):
            return False
        if not all(map(is_host_readable, answer.values())):
            return False
        for name, labels in answer.items():
            cells = self.graph.batch.cells(name, self.graph.dims[name])
            if not bool(((labels >= 0) if cells is None else (labels >= 0) | ~cells).all()):
                return False
        return True

    def _contradicts(self, answer: Mapping[str, Tensor]) -> Tensor:
        """[B]: whether an answer with a label for every cell has one that the evidence rules out."""
        broken = torch.zeros(self.graph.batch.size, dtype=torch.bool, device=self.graph.device)
        for name, allowed in self.problem.evidence.allowed.items():
            labels, cells = answer[name], self.graph.batch.cells(name, self.graph.dims[name])
            out = ~allowed.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            out = out if cells is None else out & cells
            broken = broken | out.reshape(len(broken), -1).any(1)
        return broken

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels]; zero where there is no cell, and for examples without any answer."""
        found = {}
        for name, p in self.cell_probabilities().items():
            found[name] = self._possible(self.graph.outward(name, p, 0.0))
        return found

    def _possible(self, values: Tensor) -> Tensor:
        """Probabilities [B, ...], zero for examples in which some cell has no label left."""
        impossible = self.potentials.impossible
        return values.masked_fill(impossible.reshape(-1, *([1] * (values.dim() - 1))), 0.0)

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each term; zero where an element of its index set does not exist."""
        return {
            term.term.name: self._possible(self._term_marginals(term))
            for term in self.terms
            if query.target in (None, term.term.name)
        }

    def _term_marginals(self, term: TableTerm) -> Tensor:
        graph, domain = self.graph, term.domain_sizes(self.graph.batch)
        cells = self.cell_probabilities()
        if len(term.term.scope) == 1:
            index, valid = graph.cells_of(term)
            p = cells[term.term.scope[0].variable]
            p = p.reshape(graph.batch.size, p.numel() // max(1, graph.batch.size * p.shape[-1]), p.shape[-1])
            if not p.shape[1]:
                return p.new_zeros(p.shape[0], *domain, p.shape[2])
            found = p.gather(1, index.unsqueeze(-1).expand(p.shape[0], -1, p.shape[2]))
            if valid is not None:
                found = torch.where(valid.unsqueeze(-1), found, 0)
            return found.reshape(p.shape[0], *domain, p.shape[2])
        parts = {}
        for number, (block, part) in enumerate(graph.parts(term)):
            if len(block.variables) == 1:
                joint = take(cells[block.variables[0]], graph.placed(block.scope).squeeze(1))
            else:
                joint = self.factor_probabilities(graph.skeleton.blocks.index(block))
            parts[number] = embedded(part, joint)
        return graph.spread_factors(term, parts)

    def _expectation(self, query: Query) -> Tensor:
        factors = self._factor_marginals(Query("factor_marginals"))
        return factored_expectation(query.values, self._marginals(Query("marginals")), factors)

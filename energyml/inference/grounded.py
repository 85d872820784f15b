"""Sessions over the factor graph of a batch: one graph, and answers at the caller's positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Session
from energyml.bind.problem import Problem
from energyml.caching import ValueCache
from energyml.diagnostics import QueryRefused
from energyml.grounded.ascent import Ascent
from energyml.grounded.decoding import feasible, likeliest, searched
from energyml.grounded.factors import FactorGraph, Grounder, Potentials
from energyml.grounded.schedule import Schedule
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result, Status

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
        self.terms = problem.tables()
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

"""The backend `dual`: an upper bound of the best score on any graph of tables, and the answer that it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.variational.dual_descent import Descent, Shares
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.cards.card import Selection
from energyml.grounded.factors import Grounder
from energyml.inference.grounded import GroundedSession
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Status

# Sweeps between two looks at the gap: an answer costs about half a sweep.
BETWEEN = 4


class Dual(Backend):
    """Dual decomposition.  Cost of a sweep: every table twice for each of its cells."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        self.grounder = Grounder(graph, tables(terms))

    def open(self, problem: Problem) -> Session:
        """Nothing is swept before a query asks."""
        return DualSession(problem, self.grounder, self.selection)


@dataclass(eq=False)
class Solved:
    """Where the descent ended.

    Attributes:
        descent: what made the steps.
        shares: the point of the dual.
        labels: [R, N] by variable: the answer that was found.
        bound: [B], without gradients.
        sweeps: how many were made.
    """

    descent: Descent
    shares: Shares
    labels: dict[str, Tensor]
    bound: Tensor
    sweeps: int


class DualSession(GroundedSession):
    """One batch; the descent is made once."""

    def __init__(self, problem: Problem, grounder: Grounder, selection: Selection) -> None:
        super().__init__(problem, grounder, selection.name)
        self.steps, self.tol, self.order = int(selection["steps"]), float(selection["tol"]), str(selection["schedule"])

    def status(self, query: Query, value: Any) -> Status:
        """A bound and an answer's own score keep their promise, converged or not."""
        return Status()

    def statistics(self, query: Query) -> Mapping[str, Any]:
        """The sweeps that were made, and [B] the upper bound of the best score."""
        solved = self.solved
        return {"sweeps": float(solved.sweeps), "bound": solved.bound}

    @property
    def solved(self) -> Solved:
        """The end of the descent."""
        made: Solved = self.once("solved", self._solve)
        return made

    def _solve(self) -> Solved:
        descent = Descent(self.graph, self.potentials, self.schedule(self.order))
        with torch.no_grad():
            shares, looks = descent.start(), self.graph.device.type == "cpu"
            before, bound, sweeps = None, descent.bound(shares), 0
            while sweeps < self.steps:
                descent.sweep(shares)
                sweeps += 1
                if not looks:
                    continue
                before, bound = bound, descent.bound(shares)
                slack = self.tol * bound.abs().clamp(min=1)
                # Both are -inf where there is no answer.
                if not bool((before - bound > slack).any()):
                    break
                if sweeps % BETWEEN == 1 and not bool((bound - self._score(descent.labels(shares)) > slack).any()):
                    break
            bound = descent.bound(shares)
            labels = self.found(descent.labels(shares))
            bound = torch.maximum(bound, self._score(labels))  # rounding may have gone too far
            bound = bound + descent.choices(shares, sorted(self.latent))
        return Solved(descent, shares, labels, bound.masked_fill(self.potentials.impossible, float("-inf")), sweeps)

    def _score(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[B]: the score of labels [R, N] of all variables."""
        placed = {name: self.graph.outward(name, one, ABSENT) for name, one in labels.items()}
        return self.problem.score(placed)

    def _map(self, query: Query) -> Assignment:
        return self.answer(self.solved.labels)

    def _map_bound(self, query: Query) -> Tensor:
        """[B]: the bound; where latents are summed out, each sum is at most its largest part times their number.

        Gradients are those of the score of the labels that were found: right where the bound is tight.
        """
        solved = self.solved
        if not torch.is_grad_enabled():
            return solved.bound
        score = self._score(solved.labels)
        lost = score.isneginf() | solved.bound.isneginf()
        score = score.masked_fill(lost, 0)
        return solved.bound + (score - score.detach())

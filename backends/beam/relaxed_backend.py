"""The backend `relaxed_beam`: relaxed labels for objectives, answers by hard back-pointers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.beam.relaxed import RelaxedBeam, relaxed_beam
from energyml.backends.beam.session import unanswered
from energyml.bind.problem import Problem
from energyml.bind.steps import Steps
from energyml.bind.terms import BoundTerm
from energyml.cards.card import Selection
from energyml.cards.options import Annealed
from energyml.diagnostics import QueryRefused
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result
from energyml.training_state import TrainingState


def peakedness(selection: Selection, state: TrainingState) -> float:
    """The option `alpha` where training stands: constant, or from its first to its last value by `anneal`.

    Linear annealing adds the same in every epoch, exponential annealing multiplies by the same.
    """
    alpha = selection["alpha"]
    if isinstance(alpha, Annealed) and selection["anneal"] == "exponential":
        return math.exp(state.value(Annealed(math.log(alpha.first), math.log(alpha.last))))
    return state.value(alpha)


class RelaxedBeamBackend(Backend):
    """Relaxed beam search over one sequence."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Nothing depends on the structure alone."""

    def open(self, problem: Problem) -> Session:
        """A session with the peakedness of the moment."""
        return RelaxedBeamSession(problem, self.selection)


class RelaxedBeamSession(Session):
    """A relaxed beam on one batch."""

    def __init__(self, problem: Problem, selection: Selection) -> None:
        self.problem, self.selection = problem, selection
        self.alpha = peakedness(selection, problem.state)

    def ask(self, query: Query) -> Result:
        """Answer `soft_decode`, `map` or `max_with_cost`."""
        match query.kind:
            case "soft_decode":
                return self._soft_decode(query)
            case "map":
                return self._map()
            case "max_with_cost":
                return self._max_with_cost(query)
        raise QueryRefused(f"`relaxed_beam` does not answer `{query.kind}`")

    def _soft_decode(self, query: Query) -> Result:
        """Relaxed labels; where the length is part of the answer and a query brings one, as far as that one goes.

        The end label is repeated behind the end, so that a cost counts the cells that are missing.
        """
        steps = self.problem.steps()
        if steps.size == 0:
            batch = steps.batch
            none = torch.zeros(batch.size, 0, steps.count, dtype=batch.dtype, device=batch.device)
            return Result({steps.variable: none})
        found = self._search(steps, self.alpha, self._lengths(steps, query), None)
        labels = found.soft_labels()
        if steps.end is not None and steps.allowed is not None:
            labels = _allowed_shares(labels, steps.allowed)
        placed = steps.along.spread(labels, 0.0)
        return Result({steps.variable: placed}, statistics={"alpha": self.alpha, "relaxed_score": found.best_score()})

    def _map(self) -> Result:
        """The answer along hard back-pointers, with its true score."""
        steps = self.problem.steps()
        with torch.no_grad():
            labels, relaxed = self._decoded(steps, self.alpha)
            # Distributions over histories may allow what their hard choices do not: the hard beam answers then.
            gone = relaxed.isneginf() | steps.score(_ended(steps, labels).unsqueeze(1)).squeeze(1).isneginf()
            if gone.device.type != "cpu" or bool(gone.any()):  # elsewhere, looking would wait for the device
                others, score = self._decoded(steps, math.inf)
                labels, gone = torch.where(gone.unsqueeze(1), others, labels), gone & score.isneginf()
        answer = self._placed(steps, labels)
        score = self.problem.score(answer).masked_fill(gone, float("-inf"))
        statistics = {"alpha": self.alpha, "relaxed_score": relaxed}
        return Result(
            self._assignment(answer, score), status=unanswered(score.detach().isneginf()), statistics=statistics
        )

    def _max_with_cost(self, query: Query) -> Result:
        """The peaked mean of the hypotheses' scores plus costs, differentiable; the answer by hard back-pointers."""
        steps = self.problem.steps()
        cost = query.cost.get(steps.variable)
        if steps.size == 0:
            return self._map()
        compact = None if cost is None else steps.by_step(cost)
        found = self._search(steps, self.alpha, self._lengths(steps, query), compact)
        answer = self._placed(steps, found.hard_labels())
        best = found.best_score()
        status = unanswered(best.detach().isneginf())
        return Result(self._assignment(answer, best), status=status, statistics={"alpha": self.alpha})

    # -------------------------------------------------------------------------------------------------------- pieces

    def _search(self, steps: Steps, alpha: float, lengths: Tensor | None, cost: Tensor | None) -> RelaxedBeam:
        return relaxed_beam(
            steps, width=int(self.selection["width"]), alpha=alpha, lengths=lengths, cost=cost,
            soft_pointers=bool(self.selection["soft_backpointers"]), recompute=bool(self.selection["recompute"]),
        )  # fmt: skip

    def _decoded(self, steps: Steps, alpha: float) -> tuple[Tensor, Tensor]:
        """[B, size] labels by step and [B] the relaxed score."""
        batch = steps.batch
        if steps.size == 0:
            score = torch.zeros(batch.size, dtype=batch.dtype, device=batch.device)
            return torch.zeros(batch.size, 0, dtype=torch.long, device=batch.device), score
        found = self._search(steps, alpha, None, None)
        return found.hard_labels(), found.best_score()

    def _lengths(self, steps: Steps, query: Query) -> Tensor | None:
        """[B]: the length of the answer that a query comes with, where the length is part of the answer."""
        if steps.end is None or query.answer is None or steps.variable not in query.answer:
            return None
        ends = steps.by_step(query.answer[steps.variable]) == steps.end
        return (ends.cumsum(1) == 0).sum(1) + 1

    def _placed(self, steps: Steps, labels: Tensor) -> dict[str, Tensor]:
        return {steps.variable: steps.place(labels.unsqueeze(1)).squeeze(1)}

    def _assignment(self, answer: dict[str, Tensor], score: Tensor) -> Assignment:
        """Labels and score; no labels where there is no answer."""
        gone = score.detach().isneginf().unsqueeze(1)
        return Assignment(
            {name: one.masked_fill(gone, ABSENT) for name, one in answer.items()}, score, self.problem.label_names()
        )


def _allowed_shares(labels: Tensor, allowed: Tensor) -> Tensor:
    """Relaxed labels [B, T, C] of what evidence allows; it speaks of cells, and those behind the end have none to say.

    The share of answers that end before a cell goes to the labels that the cell may have.
    """
    kept = labels * allowed
    missing = labels.sum(2, keepdim=True) - kept.sum(2, keepdim=True)
    return kept + missing * allowed / allowed.sum(2, keepdim=True).clamp(min=1)


def _ended(steps: Steps, labels: Tensor) -> Tensor:
    """Labels [B, T] by step, with nothing but the end label behind the first one."""
    if steps.end is None:
        return labels
    behind = (labels == steps.end).cumsum(1) > 0
    return labels.masked_fill(behind, steps.end)


__all__ = ["RelaxedBeamBackend", "peakedness"]

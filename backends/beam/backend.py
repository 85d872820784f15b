"""Greedy and beam search as backends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from energyml.backends.beam.report import SequenceReport, dataset_report
from energyml.backends.beam.search import Found, Plan, Search
from energyml.backends.beam.session import StepBackend, StepSession, first, padded, unanswered
from energyml.bind.problem import Problem
from energyml.bind.steps import Steps
from energyml.cards.card import Selection
from energyml.grounded.logspace import logsumexp
from energyml.queries import Query
from energyml.result import Assignment, Result, Status

if TYPE_CHECKING:
    from energyml.data.dataset import Dataset
    from energyml.energy_model import EnergyModel


class Beam(StepBackend):
    """Beam search (Goyal et al. 2018, algorithm 1)."""

    def open(self, problem: Problem) -> BeamSession:
        """Nothing is searched before a query asks."""
        chosen = self.selection
        plan = Plan(
            width=int(chosen["width"]),
            groups=int(chosen["diverse"]),
            diversity=float(chosen["diversity"]) if int(chosen["diverse"]) > 1 else 0.0,
            length_penalty=float(chosen["length_penalty"]),
            beside=chosen["finished"] == "beside",
        )
        return BeamSession(problem, chosen, plan)

    def report(self, model: EnergyModel, dataset: Dataset) -> tuple[SequenceReport | None, list[str]]:
        """Where the gold answers leave the beam, their log-normalisers, and lengths."""
        found, left_out = dataset_report(model, dataset, width=int(self.selection["width"]))
        told = f"beam: {left_out} examples with labels that the model cannot give are left out of its report"
        return found, [told] if left_out else []


class Greedy(StepBackend):
    """The best label at each step: a beam of width 1."""

    def open(self, problem: Problem) -> BeamSession:
        """Nothing is searched before a query asks."""
        return BeamSession(problem, self.selection, Plan(width=1, beside=False))


class BeamSession(StepSession):
    """One beam, searched when somebody asks.

    Args:
        problem: the batch.
        selection: the backend with its options.
        plan: how to search.
    """

    def __init__(self, problem: Problem, selection: Selection, plan: Plan) -> None:
        super().__init__(problem, selection)
        self.plan = plan
        self._found: dict[Plan, tuple[Steps, Found]] = {}

    def _beam(self, plan: Plan) -> tuple[Steps, Found]:
        if plan not in self._found:
            steps = self._searched()
            self._found[plan] = steps, Search(steps, plan).run()
        return self._found[plan]

    def _map(self, query: Query) -> Result:
        steps, found = self._beam(replace(self.plan, wanted=1))
        labels, score = found.labels[:, :1], self._scored(steps, found.labels[:, :1], found.score[:, :1])
        return _result(first(self._assignment(steps, labels, score)), found)

    def _n_best(self, query: Query) -> Result:
        """As many answers as are wanted: a beam that is too narrow for them is made wider."""
        groups = self.plan.groups
        width = max(self.plan.width, -(-query.count // groups) * groups)
        steps, found = self._beam(replace(self.plan, width=width, wanted=query.count))
        labels, score = padded(found.labels, query.count, 0), padded(found.score, query.count, float("-inf"))
        return _result(self._assignment(steps, labels, self._scored(steps, labels, score)), found)

    def _log_partition(self, query: Query) -> Result:
        """The log of the summed exp(score) of the distinct complete answers in the beam."""
        steps, found = self._beam(self.plan)
        return _result(logsumexp(self._scored(steps, found.labels, found.score), 1), found)

    def _max_with_cost(self, query: Query) -> Result:
        """The best of score plus cost that a beam finds which sees both; the score includes the cost."""
        steps = self._searched()
        cost = query.cost.get(steps.variable)
        bonus = None
        if cost is not None:
            behind = torch.arange(steps.size, device=cost.device) >= steps.lengths.unsqueeze(1)
            bonus = steps.by_step(cost.detach()).masked_fill(behind.unsqueeze(-1), 0)
        found = Search(steps, self.plan, bonus).run()
        labels, score = found.labels[:, :1], self._scored(steps, found.labels[:, :1], found.score[:, :1], query.cost)
        return _result(first(self._assignment(steps, labels, score)), found)


def _result(value: Assignment | torch.Tensor, found: Found) -> Result:
    """An answer with what the search has measured."""
    gone = found.score[:, 0].isneginf()
    statistics = {"steps": float(found.steps), "without_answer": gone.sum(), "ranks": found.rank}
    return Result(value, status=unanswered(gone) if isinstance(value, Assignment) else Status(), statistics=statistics)

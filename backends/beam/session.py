"""What the sessions of step backends share: from labels by step to answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.bind.problem import Problem
from energyml.bind.steps import Steps
from energyml.bind.terms import BoundTerm
from energyml.cards.card import Selection
from energyml.diagnostics import QueryRefused
from energyml.inference.costs import cost_of
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result, Status


class StepBackend(Backend):
    """A backend that writes answers from left to right."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Nothing depends on the structure alone."""

    @abstractmethod
    def open(self, problem: Problem) -> StepSession:
        """Nothing is searched before a query asks."""


class StepSession(Session):
    """Answers to queries about one sequence variable, from a search or from draws.

    Args:
        problem: the batch.
        selection: the backend with its options.
    """

    def __init__(self, problem: Problem, selection: Selection) -> None:
        self.problem, self.selection = problem, selection

    def ask(self, query: Query) -> Result:
        """Answer a query of the card."""
        handler: Callable[[Query], Result] | None = getattr(self, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`{self.selection.name}` does not answer `{query.kind}`")
        return handler(query)

    def _searched(self) -> Steps:
        """The steps without gradients: a choice of labels has none."""
        with torch.no_grad():
            return self.problem.steps()

    def _scored(self, steps: Steps, labels: Tensor, score: Tensor, cost: Mapping[str, Tensor] | None = None) -> Tensor:
        """The scores [B, n] of labels [B, n, T] that a search has found: where gradients are wanted, with gradients.

        What the search has given up stays -inf.
        """
        if not torch.is_grad_enabled():
            return score
        gone = score.isneginf()
        total = self.problem.steps().score(labels)
        if cost:
            placed = {steps.variable: steps.place(labels)}
            total = total + cost_of(placed, {name: one.unsqueeze(1) for name, one in cost.items()}, lead=2)
        return total.masked_fill(gone, float("-inf"))

    def _assignment(self, steps: Steps, labels: Tensor, score: Tensor) -> Assignment:
        """Answers [B, n, T] by step with their scores [B, n]; -1 where there is none."""
        placed = steps.place(labels).masked_fill(score.isneginf().unsqueeze(-1), ABSENT)
        return Assignment({steps.variable: placed}, score, self.problem.label_names())


def first(best: Assignment) -> Assignment:
    """The best of several answers."""
    return Assignment({name: one[:, 0] for name, one in best.labels.items()}, best.score[:, 0], best.names)


def drawn(several: Assignment) -> Assignment:
    """Answers [B, n, ...] as draws [n, B, ...]."""
    labels = {name: one.movedim(1, 0) for name, one in several.labels.items()}
    return Assignment(labels, several.score.movedim(1, 0), several.names)


def padded(tensor: Tensor, count: int, fill: Any) -> Tensor:
    """[B, count, ...]: the first entries along axis 1, filled up where there are fewer."""
    if tensor.shape[1] >= count:
        return tensor[:, :count]
    rest = tensor.new_full((tensor.shape[0], count - tensor.shape[1], *tensor.shape[2:]), fill)
    return torch.cat([tensor, rest], 1)


def unanswered(gone: Tensor) -> Status:
    """What is wrong with examples [B] of which no hypothesis could be completed."""

    def check() -> tuple[bool, str] | None:
        examples = gone.nonzero().flatten().tolist()
        if not examples:
            return None
        return False, (
            f"no hypothesis of {len(examples)} examples (the first: {examples[0]}) could be completed: (a) every "
            "answer is forbidden; (b) all that was kept led to forbidden labels: raise `width`, or take `best_first`"
        )

    return Status(check)

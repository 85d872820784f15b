"""The card of a backend: which view it needs, which queries it answers and how well, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from energyml.cards.card import Card, Selection
from energyml.plan.cost import Cost
from energyml.plan.structure import Structure
from energyml.queries import Quality, View


@dataclass(frozen=True)
class Refusal:
    """Why a backend cannot serve a model, and what could."""

    reason: str
    alternative: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.alternative}" if self.alternative else self.reason


def never_refuses(structure: Structure, selection: Selection) -> Refusal | None:
    """The structure check of a backend that asks for nothing but its view."""
    return None


@dataclass(frozen=True)
class BackendCard(Card):
    """What the planner knows about a backend.

    Attributes:
        view: what it needs from every term.
        answers: the queries it answers, each with the quality of the answer.
        field_answers: the same for models of fields, which it then wants as quadratic forms; none when empty.
        field_implementation: `module:attribute` of the backend that serves these, where it is not `implementation`.
        refuses: what it asks of the structure, given its options.
        refuses_by_size: whether that depends on the sizes of an example.
        cost: the cost of one log-partition or its nearest relative.
        method: how it would work on the model, in one line.
        needs_fitting: whether it owns parameters that must be trained first.
        preference: `auto` takes the serving backend with the smallest number.
    """

    view: View = View.SCORE
    answers: Mapping[str, Quality] = field(default_factory=dict)
    field_answers: Mapping[str, Quality] = field(default_factory=dict)
    field_implementation: str | None = None
    refuses: Callable[[Structure, Selection], Refusal | None] = never_refuses
    refuses_by_size: bool = False
    cost: Callable[[Structure], Cost | None] = lambda structure: None
    method: Callable[[Structure, Selection], str | None] = lambda structure, selection: None
    needs_fitting: bool = False
    preference: int = 100

    def serving(self, structure: Structure) -> tuple[View, Mapping[str, Quality]]:
        """The view that it needs for a model, and what it then answers."""
        if structure.has_field and self.field_answers:
            return View.QUADRATIC, self.field_answers
        return self.view, self.answers

    def for_model(self, structure: Structure) -> BackendCard:
        """The card whose implementation serves a model."""
        if structure.has_field and self.field_implementation is not None:
            return replace(self, implementation=self.field_implementation)
        return self

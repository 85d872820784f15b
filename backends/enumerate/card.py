"""The card of `enumerate`: the oracle for anything small."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Whole
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.cost import Cost, Formula, Sizes
from energyml.plan.structure import Structure
from energyml.queries import LABEL_QUERIES, Quality, View

LIMIT = 1_000_000


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("a field has infinitely many values", "`cg` solves fields")
    number = answers_formula(structure).value(structure.sizes)
    limit = int(selection["limit"])
    if number is not None and number > limit:
        return Refusal(
            f"one example has {number:.3g} answers, and the limit is {limit}", "raise `limit`, or give smaller sizes"
        )
    return None


def answers_formula(structure: Structure) -> Formula:
    """How many answers one example has."""

    def evaluate(sizes: Sizes) -> float:
        total = 1.0
        for _, dims, labels in structure.cells:
            cells = 1.0
            for dim in dims:
                cells *= sizes[dim]
            total *= sizes[f"|{labels}|"] ** cells
        return total

    parts = [f"|{labels}|^({' * '.join(dims)})" if dims else f"|{labels}|" for _, dims, labels in structure.cells]
    return Formula(" * ".join(parts) or "1", evaluate)


def _cost(structure: Structure) -> Cost:
    answers = answers_formula(structure)
    per_batch = Formula(f"B * {answers}", lambda sizes: sizes["B"] * answers.evaluate(sizes))
    memory = Formula(f"8 * {answers}", lambda sizes: 8 * answers.evaluate(sizes))
    return Cost(per_batch, memory)


CARDS = (
    BackendCard(
        "backend",
        "enumerate",
        "every answer of a small example, one by one: the oracle",
        (Option("limit", Whole(), LIMIT, "largest number of answers of one example"),),
        0,
        "energyml.backends.enumerate.oracle:Oracle",
        view=View.SCORE,
        answers=dict.fromkeys((*LABEL_QUERIES, "conditionals"), Quality.EXACT),
        refuses=_refuses,
        cost=_cost,
        preference=50,
    ),
    BackendCard("backend", "auto", "the planner's choice, with its reason"),
)

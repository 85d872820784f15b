"""The card of `enumerate`: the oracle for anything small."""

from __future__ import annotations

import math

from energyml.cards.card import Selection
from energyml.cards.options import Option, Whole
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.cost import Cost, Formula, Sizes
from energyml.plan.structure import Structure
from energyml.queries import LABEL_QUERIES, Quality, View

LIMIT = 1_000_000
# Above this number of answers raising `limit` is no advice: each takes a score and some bytes for each of its cells.
MOST_ADVISED = 100_000_000.0


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("a field has infinitely many values", "`cg` solves fields")
    # Label sets that are not known yet count as two labels, as for an elimination order: there are at least so many.
    unknown = {f"|{labels}|": 2.0 for _, _, labels in structure.cells if f"|{labels}|" not in structure.sizes}
    number = answers_formula(structure).value({**structure.sizes, **unknown})
    limit = int(selection["limit"])
    if number is not None and number > limit:
        least = "at least " if unknown else ""
        reason = f"one example has {least}{count_of_answers(math.log10(number))} answers, and the limit is {limit}"
        return Refusal(reason, "raise `limit`, or give smaller sizes" if number <= MOST_ADVISED else "")
    return None


def count_of_answers(digits: float) -> str:
    """A number of answers for people, from its decimal logarithm."""
    if math.isinf(digits):
        return "more than 1e308"
    return f"{10**digits:.3g}" if digits < 300 else f"1e{digits:.0f}"


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
        refuses_by_size=True,
        cost=_cost,
        preference=50,
    ),
    BackendCard("backend", "auto", "the planner's choice, with its reason"),
)

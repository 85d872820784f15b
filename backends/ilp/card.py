"""The card of integer linear programming."""

from __future__ import annotations

from energyml.cards.options import Option, Real
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View

CARDS = (
    BackendCard(
        "backend",
        "ilp",
        "the best answer of a small loopy graph by integer linear programming",
        (Option("seconds", Real(0, open_low=True), 60.0, "time limit"),),
        0,
        view=View.TABLE,
        answers={"map": Quality.EXACT},
        preference=58,
    ),
)

"""The card of gradient-descent inference."""

from __future__ import annotations

from energyml.cards.options import Flag, Option, Real, Whole, Word
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View

CARDS = (
    BackendCard(
        "backend",
        "relaxed",
        "gradient descent on relaxed labels",
        (
            Option("steps", Whole(), 50, "gradient steps"),
            Option("lr", Real(0, open_low=True), 1.0, "step size"),
            Option("momentum", Real(0, 1), 0.9, "momentum"),
            Option("optimizer", Word(("sgd", "adam", "exponentiated")), "sgd", "how logits move"),
            Option("restarts", Whole(), 1, "starting points"),
            Option("start", Word(("random", "unary", "infnet", "mean_field")), "random", "where it starts"),
            Option("round", Flag(), True, "whether to round coordinate by coordinate"),
        ),
        0,
        source="Tu & Gimpel 2019, section 3.1",
        view=View.SOFT,
        answers={"map": Quality.LOWER, "soft_decode": Quality.ESTIMATE},
        preference=70,
    ),
)

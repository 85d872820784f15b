"""The cards of mean field and belief propagation."""

from __future__ import annotations

from energyml.cards.options import Option, Real, Whole, Word
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View

_SCHEDULE = Option("schedule", Word(("sequential", "parallel")), "sequential", "the order of updates")
_DAMPING = Option("damping", Real(0, 1), 0.0, "share of the old value that is kept")

CARDS = (
    BackendCard(
        "backend",
        "mean_field",
        "a product of independent cells, updated in turn",
        (
            Option("steps", Whole(), 10, "sweeps"),
            _SCHEDULE,
            _DAMPING,
            Option("tol", Real(0), 1e-6, "change that counts as none"),
        ),
        1,
        source="Shevchenko & Osokin 2019, eq. 6",
        view=View.MULTILINEAR,
        answers={
            "log_partition": Quality.LOWER,
            "marginals": Quality.ESTIMATE,
            "entropy": Quality.ESTIMATE,
            "map": Quality.LOWER,
        },
        preference=60,
    ),
    BackendCard(
        "backend",
        "bp",
        "belief propagation: exact on trees, an estimate on loopy graphs",
        (Option("steps", Whole(), 50, "sweeps"), _DAMPING, Option("tol", Real(0), 1e-6, "change that counts as none")),
        1,
        view=View.TABLE,
        answers={
            "log_partition": Quality.ESTIMATE,
            "marginals": Quality.ESTIMATE,
            "factor_marginals": Quality.ESTIMATE,
            "map": Quality.LOWER,
        },
        preference=55,
    ),
)

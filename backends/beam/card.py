"""The cards of hard and relaxed beam search."""

from __future__ import annotations

from energyml.cards.options import Flag, Option, Real, Scheduled, Whole
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View

_WIDTH = Option("width", Whole(), 5, "hypotheses kept at each step")

CARDS = (
    BackendCard(
        "backend",
        "beam",
        "beam search from left to right",
        (
            _WIDTH,
            Option("length_penalty", Real(0), 0.0, "exponent of the length in the final score"),
            Option("diverse", Whole(), 1, "groups that must differ"),
        ),
        1,
        source="Goyal et al. 2018, algorithm 1",
        view=View.STEP,
        answers={"map": Quality.LOWER, "n_best": Quality.LOWER, "log_partition": Quality.LOWER},
        preference=65,
    ),
    BackendCard(
        "backend",
        "greedy",
        "the best label at each step",
        (),
        0,
        view=View.STEP,
        answers={"map": Quality.LOWER},
        preference=90,
    ),
    BackendCard(
        "backend",
        "ancestral",
        "sampling from left to right",
        (
            Option("temperature", Real(0, open_low=True), 1.0, "temperature of each step"),
            Option("nucleus", Real(0, 1), 1.0, "mass that is kept"),
            Option("top", Whole(), None, "labels that are kept"),
        ),
        0,
        view=View.STEP,
        answers={"sample": Quality.ESTIMATE},
        preference=85,
    ),
    BackendCard(
        "backend",
        "relaxed_beam",
        "a beam with a continuous top-k, which gradients flow through",
        (
            _WIDTH,
            Option("alpha", Scheduled(Real(0, open_low=True)), 1.0, "peakedness of the relaxed top-k"),
            Option("soft_backpointers", Flag(), True, "soft or hard back-pointers"),
        ),
        1,
        source="Goyal et al. 2018, algorithms 2 and 3",
        view=View.STEP,
        answers={"soft_decode": Quality.ESTIMATE, "map": Quality.LOWER},
        preference=95,
    ),
)

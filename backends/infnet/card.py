"""The card of inference networks, and their architectures."""

from __future__ import annotations

from energyml.cards.card import Card
from energyml.cards.options import CardOf, Flag, Option, Real, Scheduled, Whole
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View

_SOURCE = "Tu & Gimpel 2019, section 4"
_HIDDEN = Option("hidden", Whole(), 100, "units of a hidden layer")

CARDS: tuple[Card, ...] = (
    BackendCard(
        "backend",
        "infnet",
        "a network trained to answer at once",
        (
            Option("architecture", CardOf("architecture"), None, "`blstm`, `cnn` or `seq2seq`"),
            Option("weight", Scheduled(Real(0)), 1.0, "weight of the local cross-entropy"),
            Option("tailor", Whole(0), 0, "steps of instance tailoring"),
            Option("plus", Flag(), False, "embedding fine-tuning, character CNN and dropout"),
        ),
        1,
        source=_SOURCE,
        view=View.SOFT,
        answers={"map": Quality.LOWER, "soft_decode": Quality.ESTIMATE},
        needs_fitting=True,
        preference=80,
    ),
    Card(
        "architecture",
        "blstm",
        "a bidirectional LSTM",
        (_HIDDEN, Option("layers", Whole(1, 2), 1, "layers")),
        source=_SOURCE,
    ),
    Card(
        "architecture",
        "cnn",
        "convolutions without pooling",
        (_HIDDEN, Option("width", Whole(), 3, "window")),
        source=_SOURCE,
    ),
    Card("architecture", "seq2seq", "an aligned decoder that reads its own predictions", (_HIDDEN,), source=_SOURCE),
)

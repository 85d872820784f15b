"""Optimisers, stop rules, balance and initial values: their options."""

from __future__ import annotations

from energyml.cards.card import Card
from energyml.cards.groups import GroupOf
from energyml.cards.options import Flag, Option, RangeOf, Real, Whole, Word

METRICS = ("accuracy", "averaged_accuracy", "word_accuracy", "f1", "jaccard", "loss", "bleu")

_SCALE = Option(
    "scale", GroupOf(("term",), "term"), None, "the terms that are scaled; those of single cells by default"
)
_AGAINST = Option("against", GroupOf(("term",), "term"), None, "what they are weighed against; all others by default")
_ALPHA = Option("alpha", Real(0, open_low=True), 1.0, "the scale")
_SOURCE = "Shevchenko & Osokin 2019"

CARDS: tuple[Card, ...] = (
    Card(
        "optimizer",
        "adam",
        "Adam",
        (
            Option("lr", Real(0, open_low=True), 1e-3, "learning rate"),
            Option("weight_decay", Real(0), 0.0, "L2 penalty"),
        ),
    ),
    Card(
        "optimizer",
        "sgd",
        "stochastic gradient descent",
        (
            Option("lr", Real(0, open_low=True), 1e-2, "learning rate"),
            Option("momentum", Real(0, 1), 0.9, "momentum"),
            Option("weight_decay", Real(0), 0.0, "L2 penalty"),
        ),
    ),
    Card(
        "stop",
        "plateau",
        "lower the learning rate, then stop, when a metric no longer changes",
        (
            Option("metric", Word(METRICS), "accuracy", "which metric"),
            Option("patience", Whole(), 7, "epochs without change before stopping"),
            Option("reduce", Whole(), 3, "epochs without change before the learning rate falls"),
            Option("threshold", Real(0), 1e-3, "smallest change that counts, the metric as a fraction"),
        ),
        1,
        source=f"{_SOURCE}, appendix B",
    ),
    Card("balance", "none", "no scaling"),
    Card(
        "balance",
        "constant",
        "a fixed scale",
        (_SCALE, _AGAINST, _ALPHA),
        source=f"{_SOURCE}, section 2 and figure 1",
    ),
    Card(
        "balance",
        "online",
        "pick the scale on a grid after each epoch",
        (
            _SCALE,
            _AGAINST,
            Option("grid", RangeOf(Real(0, open_low=True)), None, "the grid of scales, 2^-8..2^8 when left out"),
            Option("subset", Whole(), 2000, "training examples that the grid search looks at"),
        ),
        source=f"{_SOURCE}, algorithm 1",
    ),
    Card(
        "balance",
        "offline",
        "divide both by their mean magnitude, or pull the ratio of these towards alpha",
        (
            _SCALE,
            _AGAINST,
            _ALPHA,
            Option("regularized", Flag(), False, "the penalty of eq. 21 instead of the division of eq. 20"),
            Option("weight", Real(0), 0.1, "of the penalty"),
        ),
        source=f"{_SOURCE}, eq. 20-21",
    ),
    Card(
        "balance",
        "temperature",
        "one factor for both",
        (_SCALE, _AGAINST, _ALPHA, Option("normalize", Flag(), False, "after dividing both by their mean magnitude")),
        source=f"{_SOURCE}, appendix A.2",
    ),
    Card("procedure", "joint", "all parameters at once"),
    Card(
        "procedure",
        "staged",
        "the scaled terms alone by cross-entropy, then the others, then all",
        (_SCALE, _AGAINST),
        source=f"{_SOURCE}, section 3",
    ),
    Card("init", "zeros", "all zero"),
    Card("init", "constant", "one value", (Option("value", Real(), summary="the value"),), 1),
    Card("init", "normal", "Gaussian noise", (Option("std", Real(0), 0.1, "standard deviation"),), 1),
    Card("init", "uniform", "uniform noise", (Option("bound", Real(0), 0.1, "largest magnitude"),), 1),
)

"""Metrics: what predictions are judged by, and their options.  All are fractions from 0 to 1."""

from __future__ import annotations

from energyml.cards.card import Card
from energyml.cards.options import Label, Option, Word

_PAPER = "Shevchenko & Osokin 2019, section 6.1"

CARDS: tuple[Card, ...] = (
    Card(
        "metric",
        "accuracy",
        "share of cells whose label is right",
        implementation="energyml.metrics.accuracy:Accuracy",
    ),
    Card(
        "metric",
        "averaged_accuracy",
        "share of right cells of each example, averaged over examples: short words count as much as long ones",
        implementation="energyml.metrics.averaged_accuracy:AveragedAccuracy",
        source=_PAPER,
    ),
    Card(
        "metric",
        "word_accuracy",
        "share of examples that are right in every cell",
        implementation="energyml.metrics.word_accuracy:WordAccuracy",
    ),
    Card(
        "metric",
        "f1",
        "F1 of whole spans (chunks, entities) by the rules of conlleval; labels in IOB1, IOB2, IOBES or BILOU",
        implementation="energyml.metrics.f1:SpanF1",
        source="Tjong Kim Sang & Buchholz 2000",
    ),
    Card(
        "metric",
        "jaccard",
        "intersection over union of the cells with a label",
        (
            Option(
                "label",
                Label(),
                None,
                "the label whose cells are compared; the second of two when left out, else the mean over all labels",
            ),
            Option(
                "over",
                Word(("examples", "cells")),
                "examples",
                "the mean of each example's index, or one index of all cells",
            ),
        ),
        implementation="energyml.metrics.jaccard:Jaccard",
        source=_PAPER,
    ),
    Card(
        "metric",
        "bleu",
        "BLEU of the corpus over up to four tokens in a row, by sacrebleu; tokens are those of the data",
        implementation="energyml.metrics.bleu:Bleu",
        source="Papineni et al. 2002; Post 2018",
    ),
)

"""Metrics: one file each.  Names are imported when they are first used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energyml.cards.card import Selection
    from energyml.metrics.confusion import Confusion as Confusion
    from energyml.metrics.tally import Judged as Judged
    from energyml.metrics.tally import Metric as Metric
    from energyml.metrics.tally import MetricError as MetricError

_PUBLIC = {
    "Confusion": "energyml.metrics.confusion",
    "Judged": "energyml.metrics.tally",
    "Metric": "energyml.metrics.tally",
    "MetricError": "energyml.metrics.tally",
}

__all__ = [*_PUBLIC, "make_metric"]


def make_metric(
    choice: str | Selection,
    labels: Sequence[str],
    *,
    known: int | None = None,
    end: str | None = None,
    pieces: bool = False,
) -> Metric:
    """A metric in the spec's own words: `f1`, `jaccard(over: cells)`.

    Args:
        choice: the metric's name, with options.
        labels: what gold numbers stand for (`Dataset.spelling`).
        known: how many of them a model can give; all when left out.
        end: the label that ends a sequence.
        pieces: whether labels are pieces of words; metrics of texts join them.
    """
    from energyml import cards
    from energyml.driver import read_choice
    from energyml.metrics.tally import judged

    selection = read_choice("metric", choice) if isinstance(choice, str) else choice
    options = {**selection.card.defaults(), **selection.options}
    made: Metric = cards.implementation(selection.card)(judged(labels, known, end, pieces=pieces), **options)
    return made


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the cards of metrics never import torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'energyml.metrics' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

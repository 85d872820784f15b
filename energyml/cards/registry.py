"""Where cards are found: the built-in lists, and backends of other packages through their entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from energyml.cards.card import Card, CardKind
from energyml.diagnostics import EnergyError

ENTRY_POINTS = "energyml.backends"

_MODULES: dict[CardKind, tuple[str, ...]] = {
    "net": ("energyml.nets.cards",),
    "potential": ("energyml.model.potentials",),
    "init": ("energyml.train.cards",),
    "objective": ("energyml.objectives.cards",),
    "decoder": ("energyml.objectives.cards",),
    "cost": ("energyml.objectives.cards",),
    "mixing": ("energyml.objectives.cards",),
    "optimizer": ("energyml.train.cards",),
    "balance": ("energyml.train.cards",),
    "stop": ("energyml.train.cards",),
    "reader": ("energyml.data.cards",),
    "architecture": ("energyml.backends.infnet.card",),
    "backend": tuple(
        f"energyml.backends.{folder}.card"
        for folder in ("exact", "enumerate", "variational", "relaxed", "infnet", "beam", "mcmc", "gaussian", "ilp")
    ),
}


@cache
def built_in(kind: CardKind) -> dict[str, Card]:
    """The cards of a kind that come with the package, by name."""
    cards: dict[str, Card] = {}
    for module in _MODULES[kind]:
        for card in import_module(module).CARDS:
            if card.kind == kind:
                cards[card.name] = card
    return cards


@cache
def _from_other_packages() -> dict[str, Card]:
    from importlib.metadata import entry_points

    cards: dict[str, Card] = {}
    for point in entry_points(group=ENTRY_POINTS):
        card = point.load()
        if not isinstance(card, Card) or card.kind != "backend":
            raise EnergyError(
                f"the entry point `{point.name}` in group `{ENTRY_POINTS}` must name a backend card, found {type(card).__name__}"
            )
        cards[card.name] = card
    return cards


def find(kind: CardKind, name: str) -> Card | None:
    """The card of that name; other packages are asked only for a backend that is not built in."""
    card = built_in(kind).get(name)
    if card is None and kind == "backend":
        card = _from_other_packages().get(name)
    return card


def every(kind: CardKind) -> list[Card]:
    """All cards of a kind, those of other packages included."""
    cards = dict(built_in(kind))
    if kind == "backend":
        cards = {**_from_other_packages(), **cards}
    return list(cards.values())


def implementation(card: Card) -> Any:
    """Import what a card describes; refuses with a remedy when this version has only the card."""
    if card.implementation is None:
        raise EnergyError(
            f"the {card.kind} `{card.name}` is part of the language, but this version of energyml has no implementation of it"
        )
    module, _, attribute = card.implementation.partition(":")
    return getattr(import_module(module), attribute)

"""Where cards are found: the built-in lists, and backends of other packages through their entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from energyml.cards.card import Card, CardKind
from energyml.diagnostics import EnergyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    "procedure": ("energyml.train.cards",),
    "reader": ("energyml.data.cards",),
    "metric": ("energyml.metrics.cards",),
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
def _entry_points() -> dict[str, EntryPoint]:
    """The backends of other packages by name; none of them is imported yet."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


@cache
def _from_other_package(name: str) -> Card:
    point = _entry_points()[name]
    package = f" of the package `{point.dist.name}`" if point.dist is not None else ""
    try:
        card = point.load()
    except Exception as problem:
        raise EnergyError(f"the backend `{name}`{package} cannot be loaded: `{point.value}`: {problem}") from problem
    if not isinstance(card, Card) or card.kind != "backend" or card.name != name:
        found = f"the {card.kind} card `{card.name}`" if isinstance(card, Card) else type(card).__name__
        raise EnergyError(f"the entry point `{name}`{package} must name the card of a backend `{name}`, found {found}")
    return card


def find(kind: CardKind, name: str) -> Card | None:
    """The card of that name; another package is imported only for a backend that it brings and that is not built in."""
    card = built_in(kind).get(name)
    if card is None and kind == "backend" and name in _entry_points():
        card = _from_other_package(name)
    return card


def every(kind: CardKind) -> list[Card]:
    """All cards of a kind, those of other packages included; what cannot be loaded is left out (see `broken`)."""
    found = list(built_in(kind).values())
    if kind == "backend":
        unusable = broken()
        found += [_from_other_package(name) for name in _foreign_names() if name not in unusable]
    return found


def broken() -> dict[str, str]:
    """The backends of other packages that cannot be loaded, with the reason."""
    problems: dict[str, str] = {}
    for name in _foreign_names():
        try:
            _from_other_package(name)
        except EnergyError as problem:
            problems[name] = str(problem)
    return problems


def _foreign_names() -> list[str]:
    return [name for name in _entry_points() if name not in built_in("backend")]


def implementation(card: Card) -> Any:
    """Import what a card describes; refuses with a remedy when this version has only the card."""
    if card.implementation is None:
        what = f"the {card.kind} `{card.name}`"
        raise EnergyError(f"{what} is part of the language, but this version of energyml has no implementation of it")
    return _imported(card.implementation)


@cache
def _imported(place: str) -> Any:
    """What stands at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)

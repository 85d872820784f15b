"""What the contract tests share: families of cases, backends, and how many cases a test draws."""

from __future__ import annotations

import math
import os
from typing import cast

from hypothesis import settings

from energyml import cards
from energyml.objectives.cards import ObjectiveCard
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality
from tests.contract import chains, graphs, wholes

FAMILIES = {
    "chains": chains.chains(),
    "sugar": chains.sugar(),
    "graphs": graphs.graphs(),
    "trees": graphs.trees(),
    "grids": graphs.grids(),
    "nested": graphs.nested(),
    "wholes": wholes.wholes(),
    "free_lengths": wholes.free_lengths(),
}
TABLES = ("chains", "sugar", "graphs", "trees", "grids", "nested")
BACKENDS = [card.name for card in cards.every("backend") if card.implementation is not None]
# Choices of one backend that must give the same answers.
ENGINES = ["exact(engine: torch)", "exact(engine: torch_struct)"]
FUZZ = int(os.environ.get("ENERGYML_FUZZ") or 300)


def some(count: int) -> settings:
    """A number of cases that grows with ENERGYML_FUZZ, 300 being its default."""
    return settings(max_examples=max(1, math.ceil(count * FUZZ / 300)))


def exact_queries(using: str) -> set[str]:
    """The queries that a backend promises to answer exactly."""
    return {kind for kind, quality in card_of(using).answers.items() if quality is Quality.EXACT}


def exact_objectives(using: str) -> list[str]:
    """The implemented objectives all of whose queries a backend answers exactly; `log_prob` serves the likelihood."""
    found = []
    for card in cards.every("objective"):
        asks = {*cast("ObjectiveCard", card).asks, *(["log_prob"] if card.name == "nll" else [])}
        if card.implementation is not None and asks <= exact_queries(using):
            found.append(card.name)
    return found


def card_of(using: str) -> BackendCard:
    """The card of a choice such as `exact(engine: torch_struct)`."""
    return cast("BackendCard", cards.find("backend", using.partition("(")[0]))

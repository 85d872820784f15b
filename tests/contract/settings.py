"""What the contract tests share: families of cases, backends, and how many cases a test draws."""

from __future__ import annotations

import math
import os
from typing import cast

from hypothesis import settings

from energyml import cards
from energyml.plan.backend_card import BackendCard
from tests.contract import models, wholes

FAMILIES = {
    "chains": models.chains(),
    "sugar": models.sugar(),
    "graphs": models.graphs(),
    "grids": models.grids(),
    "nested": models.nested(),
    "wholes": wholes.wholes(),
    "free_lengths": wholes.free_lengths(),
}
TABLES = ("chains", "sugar", "graphs", "grids", "nested")
BACKENDS = [card.name for card in cards.every("backend") if card.implementation is not None]
# Choices of one backend that must give the same answers.
ENGINES = ["exact(engine: torch_struct)"]
FUZZ = int(os.environ.get("ENERGYML_FUZZ") or 300)


def some(count: int) -> settings:
    """A number of cases that grows with ENERGYML_FUZZ, 300 being its default."""
    return settings(max_examples=max(1, math.ceil(count * FUZZ / 300)))


def card_of(using: str) -> BackendCard:
    """The card of a choice such as `exact(engine: torch_struct)`."""
    return cast("BackendCard", cards.find("backend", using.partition("(")[0]))

"""What the contract tests share: families of cases, backends, and how many cases a test draws."""

from __future__ import annotations

import math
import os
from typing import cast

from hypothesis import settings

from energyml import cards
from energyml.objectives.cards import ObjectiveCard
from energyml.plan.backend_card import BackendCard
from energyml.queries import Quality, View
from tests.contract import chains, graphs, wholes

FAMILIES = {
    "chains": chains.chains(),
    "sugar": chains.sugar(),
    "graphs": graphs.graphs(),
    "trees": graphs.trees(),
    "triples": graphs.triples(),
    "grids": graphs.grids(),
    "nested": graphs.nested(),
    "wholes": wholes.wholes(),
    "free_lengths": wholes.free_lengths(),
}
TABLES = ("chains", "sugar", "graphs", "trees", "triples", "grids", "nested")
# Choices that are as good as a backend's own here, and cheaper.
SMALL = {"infnet": "infnet(cnn(hidden: 4))", "relaxed": "relaxed(steps: 12)"}
# Samplers promise nothing exactly, and have no gradients: a few sweeps show that their answers are well formed. That
# they are right is shown in tests/mcmc.
_FEW = "sweeps: 5, burn_in: 1, chains: 2"
SAMPLERS = {
    "gibbs": f"gibbs({_FEW})",
    "metropolis": f"metropolis({_FEW}, block: 2)",
    "gradient_gibbs": f"gradient_gibbs({_FEW})",
    "langevin": f"langevin({_FEW})",
    "tempering": f"tempering({_FEW}, rungs: 2)",
    "degenerate_gibbs": f"degenerate_gibbs({_FEW})",
    "mask_predict": "mask_predict(2)",
    "ais": "ais(steps: 3, chains: 4)",
    "bridge": f"bridge({_FEW}, rungs: 2)",
    "swendsen_wang": f"swendsen_wang({_FEW})",
    "nuts": "nuts(draws: 2, warmup: 1)",
}
BACKENDS = [
    SMALL.get(card.name, card.name)
    for card in cards.every("backend")
    if card.implementation is not None and card.name not in SAMPLERS
]
# Backends that go from left to right; tests/beam has the models that they are made for.
STEPWISE = ("beam", "greedy", "ancestral", "stochastic_beam", "best_first")
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
        # Objectives that ask nothing look at steps, masks or samples, and have suites of their own; those that look at
        # conditionals serve all of these models.
        answered = bool(asks) or cast("ObjectiveCard", card).view is View.CONDITIONAL
        if card.implementation is not None and answered and asks <= exact_queries(using):
            found.append(card.name)
    return found


def card_of(using: str) -> BackendCard:
    """The card of a choice such as `exact(engine: torch_struct)`."""
    return cast("BackendCard", cards.find("backend", using.partition("(")[0]))

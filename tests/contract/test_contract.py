"""Every backend, every query that its card claims, on every family of models that it serves, against enumeration by hand."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import energyml as em
from energyml import cards
from energyml.backend import QueryRefused
from energyml.energy_model import BackendRefused
from energyml.plan.backend_card import BackendCard
from energyml.queries import QUERIES, Quality
from tests.contract import models, wholes
from tests.contract.cases import Case
from tests.contract.checks import CHECKS, Question, arguments, values
from tests.contract.reference import NINF, examples

torch.set_num_threads(1)

FAMILIES = {
    "chains": models.chains(),
    "sugar": models.sugar(),
    "graphs": models.graphs(),
    "grids": models.grids(),
    "nested": models.nested(),
    "wholes": wholes.wholes(),
    "free_lengths": wholes.free_lengths(),
}
BACKENDS = [card.name for card in cards.every("backend") if card.implementation is not None]
ENGINES = ["exact(engine: torch_struct)"]
FUZZ = int(os.environ.get("ENERGYML_FUZZ") or 300)


def some(count: int) -> settings:
    """A number of cases that grows with ENERGYML_FUZZ, 300 being its default."""
    return settings(max_examples=max(1, math.ceil(count * FUZZ / 300)))


def card_of(using: str) -> BackendCard:
    card = cards.find("backend", using.partition("(")[0])
    return cast("BackendCard", card)


def check_backend(case: Case, using: str) -> None:
    refusal = case.model.plan(using).verdict.refusal
    if refusal is not None:
        assert refusal.reason
        with pytest.raises(BackendRefused, match="cannot serve this model"):
            case.infer(using)
        return
    question = Question(case, case.infer(using), examples(case))
    claimed = card_of(using).answers
    for kind in QUERIES:
        if kind in claimed:
            CHECKS[kind](question)
            assert question.qualities.get(kind, claimed[kind]) is claimed[kind]
        else:
            with pytest.raises(QueryRefused, match=f"does not answer `{kind}`"):
                question.posterior.ask(kind, **arguments(kind, question))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("using", BACKENDS)
def test_every_claimed_query(using: str, family: str) -> None:
    @some(40 if family == "chains" else 20)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        check_backend(case, using)

    run()

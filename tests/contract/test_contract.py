"""Every backend, every query that its card claims, on every family of models that it serves, against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from energyml.diagnostics import QueryRefused
from energyml.energy_model import BackendRefused
from energyml.queries import QUERIES
from tests.contract.cases import Case
from tests.contract.checks import CHECKS, Question, arguments
from tests.contract.reference import examples
from tests.contract.settings import BACKENDS, ENGINES, FAMILIES, SAMPLERS, STEPWISE, card_of, some

torch.set_num_threads(1)


def check_backend(case: Case, using: str) -> None:
    """A refusal with a reason, or right answers to all claimed queries and refusals of all others."""
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
    few = 120 if using not in ("enumerate", "ilp", "dual") and family == "chains" else 50

    @some(12 if using in STEPWISE else few)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        check_backend(case, using)

    run()


# `swendsen_wang` refuses most graphs when it sees their tables; tests/mcmc has those that it serves.
@pytest.mark.parametrize("family", FAMILIES)
def test_samplers(family: str) -> None:
    @some(2)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        for using in SAMPLERS.values():
            if not using.startswith("swendsen_wang"):
                check_backend(case, using)

    run()


@pytest.mark.parametrize("using", ENGINES)
@some(60)
@given(case=FAMILIES["chains"])
def test_every_engine(using: str, case: Case) -> None:
    check_backend(case, using)


@pytest.mark.parametrize("family", ["graphs", "trees", "grids", "nested"])
def test_torch_operations_serve_graphs(family: str) -> None:
    """What serves graphs where the native kernels are not built, and on other devices."""

    @some(40)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        check_backend(case, "exact(engine: torch)")

    run()

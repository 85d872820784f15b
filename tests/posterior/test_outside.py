"""Scores and log-probabilities that are finite but larger than their type holds come with a failing status."""

import pytest
import torch

import energyml as em

SPEC = """\
dim T
labels Tag = {A, B}
output y : Tag[T]
input u : real[T, Tag]
factor node [t in T] (y[t]) = u[t]
"""
LARGE = torch.tensor([[[3.2e38, -1.4e38], [-2.7e38, 2.8e38]]])


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "enumerate"])
def test_an_answer_that_does_not_fit_its_type_is_told(using):
    posterior = em.compile(SPEC).infer(u=LARGE, using=using)
    answer = {"y": torch.tensor([[1, 0]])}
    found = posterior.ask("log_prob", answer=answer)
    assert found.value.isneginf().all()
    assert not found.status.ok
    assert "larger than float32 holds" in found.status.message
    drawn = posterior.ask("sample", count=2)
    assert drawn.value.score.isposinf().all()
    assert not drawn.status.ok


@pytest.mark.parametrize("using", ["exact", "enumerate"])
def test_a_forbidden_answer_is_no_alarm(using):
    scores = torch.tensor([[[1.0, -2.0], [0.5, -float("inf")]]])
    posterior = em.compile(SPEC).infer(u=scores, using=using)
    found = posterior.ask("log_prob", answer={"y": torch.tensor([[0, 1]])})
    assert found.value.isneginf().all()
    assert found.status.ok

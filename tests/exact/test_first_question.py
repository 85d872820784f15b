"""First questions, which native code plans from labels and scopes alone, beside enumeration and the general road."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.native.graph import ASKS, Question
from tests.exact.test_again import SPEC as REPEATED

torch.set_num_threads(1)

# Two variables of other label sets, one along two dims; scopes in another order than the ends; a variable that no term
# is about alone.
SPEC = """\
labels L = {a, b, c}
labels M = {d, e}
dim T = 4
dim S = 3
dim H = 2
dim W = 2
dim E = 5
dim F = 3
input link : edge(T, S)[E]
input near : edge(T, T)[F]
output y : L[T]
output z : M[S]
output g : M[H, W]
param u : real[T, L] = zeros
param v : real[H, W, M] = zeros
param w : real[E, q: M, p: L] = zeros
param x : real[F, p: L, q: L] = zeros
factor node [t in T] (y[t]) = u[t]
factor spot [i in H, j in W] (g[i, j]) = v[i, j]
factor across [e = (i, j) in link] (q: z[j], p: y[i]) = w[e]
factor along [e = (i, j) in near] (p: y[i], q: y[j]) = x[e]
"""
LINK = [[0, 0], [1, 0], [3, 0], [-1, -1], [2, -1]]
NEAR = [[0, 1], [1, 0], [2, 2]]
EVIDENCE = [
    None,
    {"y": torch.tensor([[-1, 2, -1, 0]])},
    {"y": torch.tensor([[0, 1, 2, 0]]), "z": torch.tensor([[1, -1, 0]])},
    {"g": torch.tensor([[[1, -1], [-1, 0]]])},
]


def made(dtype: torch.dtype = torch.float64) -> em.EnergyModel:
    model = em.compile(SPEC).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        model.u[2, 1] = -torch.inf
    return model.fix(link=torch.tensor([LINK]), near=torch.tensor([NEAR]))


def asked(model: em.EnergyModel, evidence: dict[str, Tensor] | None, using: str = "exact") -> list[Tensor]:
    with torch.no_grad():
        posterior = model.infer(evidence=evidence, using=using)
        return [posterior.log_partition, *posterior.marginals.values()]


@pytest.mark.parametrize("evidence", EVIDENCE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_first_and_later_questions_agree_with_enumeration(
    evidence: dict[str, Tensor] | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, planned = Question.planned, []
    monkeypatch.setattr(Question, "planned", lambda *given: planned.append(plan(*given)) or planned[-1])
    model = made(dtype)
    truth = asked(model, evidence, "enumerate")
    for labels in (evidence, EVIDENCE[1], evidence):
        expected = truth if labels is evidence else asked(model, labels, "enumerate")
        for found, wanted in zip(asked(model, labels), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    if ASKS and dtype is torch.float64:
        assert len(planned) == 2 and None not in planned  # one for each kind of question


def test_a_first_question_within_little_memory_is_refused_or_sliced() -> None:
    """The short way leaves to the general one what does not fit, which slices it or names its remedy."""
    model, truth = made(), asked(made(), None, "enumerate")
    tight = "exact(memory: 0)"
    with pytest.raises(em.EnergyError, match="memory"):
        asked(model, None, tight)
    for found, wanted in zip(asked(model, None), truth, strict=True):
        torch.testing.assert_close(found, wanted)


GRAPH = REPEATED.replace("dim T = 5", "dim T = 30").replace("dim E = 6", "dim E = 130")


@pytest.mark.parametrize("seed", range(3))
def test_a_first_question_that_is_worth_many_searches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph whose orders take more than some operations, beside the program that Python chooses."""
    generator = torch.Generator().manual_seed(seed)
    model, other = em.compile(GRAPH).double(), em.compile(GRAPH).double()
    for parameter, same in zip(model.parameters(), other.parameters(), strict=True):
        same.data = parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    link = torch.randint(30, (1, 130, 2), generator=generator)
    model.fix(link=link), other.fix(link=link)
    evidence = {"y": torch.full((1, 30), -1)}
    evidence["y"][0, :4] = torch.randint(3, (4,), generator=generator)
    plan, given = Question.planned, []
    monkeypatch.setattr(Question, "planned", lambda *every: given.append((every, plan(*every))) or given[-1][1])
    found = asked(model, evidence)
    again = asked(model, evidence)
    if ASKS:
        (first, question), (second, marginals) = given
        assert question is not None and marginals is not None
        assert first[-1] is None and second[-1] is question  # what was found for log Z serves marginals
    monkeypatch.setattr(Question, "planned", lambda *_: None)
    for ours, repeated, wanted in zip(found, again, asked(other, evidence), strict=True):
        torch.testing.assert_close(ours, wanted)
        torch.testing.assert_close(ours, repeated)

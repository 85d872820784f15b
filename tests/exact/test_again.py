"""The same call under other parameters, evidence and types: every change is noticed, and `again` asks anew."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.exact.ground import Ground
from energyml.backends.exact.plans import Plans
from energyml.grounded.grounding import Sources

torch.set_num_threads(1)

SPEC = """\
labels L = {a, b, c}
dim T = 5
dim E = 6
input link : edge(T, T)[E]
output y : L[T]
param u : real[T, L] = zeros
param w : real[E, p: L, q: L] = zeros
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (p: y[i], q: y[j]) = w[e]
"""
CYCLE = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 2]]
STAR = [[0, 1], [0, 2], [0, 3], [0, 4], [-1, -1], [-1, -1]]


def made(edges: list[list[int]] = CYCLE, seed: int = 0) -> em.EnergyModel:
    model = em.compile(SPEC).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.fix(link=torch.tensor([edges]))


def known(*labels: int) -> Tensor:
    return torch.tensor([labels])


def ask(model: em.EnergyModel, labels: Tensor | None, using: str = "exact") -> Tensor:
    evidence = None if labels is None else {"y": labels}
    posterior = model.infer(evidence=evidence, using=using)
    return torch.cat([posterior.log_partition, posterior.marginals["y"].flatten()])


def fresh(model: em.EnergyModel, labels: Tensor | None) -> Tensor:
    """What the same question gives where nothing is remembered."""
    return ask(copy.deepcopy(model), labels, "enumerate")


def test_parameters_edges_and_types_may_change_between_equal_calls() -> None:
    model, labels = made(), known(-1, 2, -1, -1, 0)

    def check() -> None:
        torch.testing.assert_close(ask(model, labels), fresh(model, labels))
        torch.testing.assert_close(ask(model, labels), fresh(model, labels))

    check()
    with torch.no_grad():
        model.u.mul_(2)
    check()
    model.w.data = torch.randn_like(model.w)
    check()
    model.float()
    assert ask(model, labels).dtype == torch.float32
    check()
    model.double()
    check()
    model.fix(link=torch.tensor([STAR]))
    check()
    model.fixed["link"][0, 4] = torch.tensor([1, 2])
    check()
    model.fix(link=None)
    link = torch.tensor([CYCLE])
    found = model.infer(link=link, evidence={"y": labels}, using="exact").log_partition
    torch.testing.assert_close(found, ask(made_like(model, CYCLE), labels)[:1])


def made_like(model: em.EnergyModel, edges: list[list[int]]) -> em.EnergyModel:
    return copy.deepcopy(model).fix(link=torch.tensor([edges]))


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)"])
def test_gradients_after_calls_without_them(using: str) -> None:
    model, labels = made(), known(-1, 2, -1, -1, 0)
    truth = torch.autograd.grad(fresh_total(model, labels), list(model.parameters()))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(ask(model, labels, using), fresh(model, labels))
            torch.testing.assert_close(ask(model, labels, using), fresh(model, labels))
        total = model.infer(evidence={"y": labels}, using=using).log_partition.sum()
        found = torch.autograd.grad(total, list(model.parameters()))
        for one, other in zip(found, truth, strict=True):
            torch.testing.assert_close(one, other)


def fresh_total(model: em.EnergyModel, labels: Tensor) -> Tensor:
    return model.infer(evidence={"y": labels}, using="enumerate").log_partition.sum()


def test_copies_and_pickles_remember_nothing_of_each_other() -> None:
    model, labels = made(), known(-1, 2, -1, -1, 0)
    ask(model, labels)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.u.add_(1)
        torch.testing.assert_close(ask(other, labels), fresh(other, labels))
        torch.testing.assert_close(ask(model, labels), fresh(model, labels))


def test_evidence_of_other_types_says_the_same() -> None:
    model = made()
    labels = known(-1, 2, -1, -1, 0)
    allowed = (labels.unsqueeze(-1) == torch.arange(3)) | (labels < 0).unsqueeze(-1)
    for one in (labels, labels.int(), allowed, allowed, labels.int()):
        torch.testing.assert_close(ask(model, one), fresh(model, labels))
    with pytest.raises(em.EnergyError, match="holds 7"):
        ask(model, known(-1, 7, -1, -1, 0))
    torch.testing.assert_close(ask(model, labels), fresh(model, labels))


def test_what_is_found_about_a_batch_is_freed_with_it():
    text = """\
labels L = {a, b}
dim T, E
input u : real[T, L]
input link : edge(T, T)[E]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
factor unary [t in T] (y[t]) = u[t]
factor pair [e = (i, j) in link] (from: y[i], to: y[j]) = W
infer exact
"""
    model = em.compile(text, seed=0)
    given = {"u": torch.randn(2, 3, 2), "link": torch.tensor([[[0, 1], [1, 2]], [[0, 1], [0, 2]]])}
    model.infer(**given).marginals  # noqa: B018
    gc.collect()
    gc.disable()
    try:
        posterior = model.infer(**given)
        assert posterior.log_partition.isfinite().all()
        batch = weakref.ref(posterior.problem.env.batch)
        del posterior
        assert batch() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "enumerate"])
@pytest.mark.parametrize("edges", [CYCLE, STAR])
def test_a_posterior_asked_again_sees_other_parameters(edges: list[list[int]], using: str) -> None:
    model, labels = made(edges), known(-1, 2, -1, -1, 0)
    with torch.no_grad():
        first = model.infer(evidence={"y": labels}, using=using)
        kept = first.log_partition.clone(), first.marginals["y"].clone()
        for step in range(4):
            model.u.add_(torch.randn_like(model.u))
            again = first.again() if step % 2 else first.again().again()
            truth = fresh(model, known(-1, 2, -1, -1, 0))
            torch.testing.assert_close(torch.cat([again.log_partition, again.marginals["y"].flatten()]), truth)
        assert torch.equal(first.log_partition, kept[0])
        assert torch.equal(first.marginals["y"], kept[1])
        model.gains["node"] = 0.5
        torch.testing.assert_close(first.again().log_partition, fresh(model, known(-1, 2, -1, -1, 0))[:1])
        model.gains.clear()
    total = first.again().log_partition.sum()
    found = torch.autograd.grad(total, [model.u])[0]
    torch.testing.assert_close(found, torch.autograd.grad(fresh_total(model, known(-1, 2, -1, -1, 0)), [model.u])[0])


@pytest.mark.parametrize("edges", [CYCLE, STAR])
def test_again_neither_grounds_nor_plans_anew(edges: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, labels = made(edges), known(-1, 2, -1, -1, 0)

    def refuse(*given: object) -> None:
        raise AssertionError("the structure of the batch is known")

    with torch.inference_mode():
        posterior = model.infer(evidence={"y": labels}, using="exact")
        kinds = ("log_partition", "marginals", "entropy", "map", "max_marginals")
        for kind in kinds:
            posterior.ask(kind)
    monkeypatch.setattr(Ground, "of", refuse)
    monkeypatch.setattr(Plans, "plan", refuse)
    monkeypatch.setattr(Sources, "scopes", refuse)
    for _ in range(2):
        with torch.no_grad():
            model.u.add_(torch.randn_like(model.u))
        posterior = posterior.again()
        truth = copy.deepcopy(model).infer(evidence={"y": labels}, using="enumerate")
        for kind in kinds[:3]:
            torch.testing.assert_close(posterior.ask(kind).value, truth.ask(kind).value)
        torch.testing.assert_close(posterior.map().score, truth.map().score)
        found = torch.autograd.grad(posterior.log_partition.sum(), [model.u])[0]
        torch.testing.assert_close(found, torch.autograd.grad(fresh_total(model, labels), [model.u])[0])


def test_again_inside_of_transforms() -> None:
    model, labels = made(), known(-1, 2, -1, -1, 0)
    posterior = model.infer(evidence={"y": labels}, using="exact")
    posterior.log_partition  # noqa: B018

    def total(u: Tensor) -> Tensor:
        model._parameters["u"] = u
        try:
            return posterior.again().log_partition.sum()
        finally:
            model._parameters["u"] = own

    own = model.u
    several = torch.randn(3, *own.shape, dtype=own.dtype)
    found = torch.func.vmap(torch.func.grad(total))(several)
    for one, slope in zip(several, found, strict=True):
        with torch.no_grad():
            own.copy_(one)
        torch.testing.assert_close(slope, torch.autograd.grad(fresh_total(model, labels), [own])[0])


def test_repeated_calls_without_gradients_notice_all_that_changes() -> None:
    model, labels = made(), known(-1, 2, -1, -1, 0)

    def check(near: float = 1e-12) -> None:
        for mode in (torch.no_grad, torch.inference_mode):
            for _ in range(4):
                with mode():
                    posterior = model.infer(evidence={"y": labels}, using="exact")
                    total, marginals = posterior.log_partition, posterior.marginals["y"]
                    found = torch.cat([total, marginals.flatten()])
                    torch.testing.assert_close(found, fresh(model, labels), rtol=near, atol=near)
                    total.add_(1)  # answers are the caller's
                    marginals.zero_()

    check()
    model.w.data = model.w.data.transpose(1, 2)  # not contiguous
    check()
    model.w.data = torch.randn_like(model.w).contiguous()
    check()
    with torch.no_grad():
        model.w[2] = -torch.inf
        model.u[0] = 1e5
    check(1e-9)
    with torch.no_grad():
        model.w[2, 0, 0] = 1e6
    check(1e-9)
    with torch.no_grad():
        model.w.normal_()
        model.u.normal_()
    model.gains["node"] = 0.5
    check()
    model.gains.clear()
    check()
    model.float()
    check(1e-5)
    model.double()
    labels[0, 0] = 2
    check()
    with torch.no_grad():
        model.u[0, 2] = -torch.inf  # what is observed is forbidden
        assert model.infer(evidence={"y": labels}, using="exact").log_partition.isneginf().all()
        for _ in range(3):
            posterior = model.infer(evidence={"y": labels}, using="exact")
            assert posterior.log_partition.isneginf().all()
            assert not posterior.marginals["y"].any()

"""Posteriors are copied and stored: the copy is about the weights and inputs of that time, and answers alike."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import Tensor

import energyml as em
from energyml.bind.snapshot import PosteriorOutdated
from energyml.diagnostics import QueryRefused
from energyml.energy_model import EnergyModel
from energyml.posterior import Posterior
from energyml.result import Assignment
from tests.contract.settings import BACKENDS, SAMPLERS

torch.set_num_threads(1)

POTTS = """\
dim T
labels Tag = {A, B, C}
input x : real[T, 4]
output y : Tag[T]
net f = linear(out: Tag)
param k : real
factor one [t in T] (y[t]) = f(x)[t]
factor two [t in T-1] (y[t], y[t+1]) = potts(k)
"""
EDGES = """\
dim N, E
labels Tag = {A, B}
input x : real[N, 4]
input link : edge(N, N)[E]
output y : Tag[N]
net f = linear(out: Tag)
param w : real[a: Tag, b: Tag]
factor node [n in N] (y[n]) = f(x)[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = w
"""
STEPS = """\
dim T
labels Tag = {A, B, C}
input x : real[T, 4]
output y : Tag[T]
net decoder = lstm_decoder(hidden: 3)
sequence y { step: decoder, given: x, normalize: local }
"""
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
TREE, LOOP = (torch.tensor([[[0, 1], [1, 2], end]] * 2) for end in ([-1, -1], [2, 0]))
MODELS: dict[str, tuple[str, dict[str, Tensor]]] = {
    "chain": (POTTS, {"x": X}),
    "tree": (EDGES, {"x": X, "link": TREE}),
    "graph": (EDGES, {"x": X, "link": LOOP}),
    "steps": (STEPS, {"x": X}),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "deepcopy": copy.deepcopy,
    "another process": lambda one: pickle.loads(ForkingPickler.dumps(one)),
}


def inferred(name: str, using: str, **more: Any) -> Posterior | None:
    """A posterior of a small model; `None` where the backend does not serve it."""
    text, given = MODELS[name]
    model = em.compile(text, seed=0)
    if not model.plan(using).verdict.serves:
        return None
    model.inference_module(using)
    lengths = {"chain": {"T": [3, 2]}, "tree": {"N": [3, 3]}, "graph": {"N": [3, 3]}}.get(name)
    return model.infer(using=using, lengths=lengths, **given, **more)


def answers(posterior: Posterior) -> Iterator[Tensor]:
    """The numbers of every answer, with the same random numbers each time."""
    batch = posterior.problem.env.batch
    labels = torch.zeros(batch.size, 3, dtype=torch.long)
    cost = torch.ones(batch.size, 3, len(posterior.problem.label_names()["y"]))
    for kind in posterior.answers:
        generator = torch.Generator().manual_seed(1)
        more: dict[str, Any] = {"answer": {"y": labels}, "cost": {"y": cost}, "values": {"y": cost}}
        try:
            value = posterior.ask(kind, count=2, generator=generator, other=posterior, **more).value
        except QueryRefused:
            continue
        if isinstance(value, Assignment):
            yield from (*value.labels.values(), value.score)
        else:
            yield from value.values() if isinstance(value, dict) else [value]


def same(one: Posterior, other: Posterior) -> None:
    for a, b in zip(answers(one), answers(other), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("using", [*BACKENDS, *SAMPLERS.values()])
def test_a_copy_answers_alike(using: str, name: str) -> None:
    posterior = inferred(name, using)
    if posterior is None:
        return
    torch.manual_seed(0)
    wanted = list(answers(posterior))  # samplers keep what they have drawn
    for way in ("pickle", "deepcopy"):
        for one, other in zip(answers(WAYS[way](posterior)), wanted, strict=True):
            torch.testing.assert_close(one.detach(), other.detach(), equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_has_weights_of_its_own(way: str) -> None:
    posterior = inferred("chain", "exact")
    assert posterior is not None
    copied = WAYS[way](posterior)
    before = [one.detach().clone() for one in answers(posterior)]
    with torch.no_grad():
        for weight in posterior.problem.env.module.parameters():
            weight.add_(1.0)
    with pytest.raises(PosteriorOutdated):
        posterior.ask("map")
    for one, other in zip(answers(copied), before, strict=True):
        torch.testing.assert_close(one.detach(), other)
    copied.log_partition.sum().backward()
    own, others = (one.problem.env.module.parameters() for one in (copied, posterior))
    assert all(one.grad is not None for one in own) and all(one.grad is None for one in others)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_notices_that_its_weights_change(way: str) -> None:
    posterior = inferred("chain", "exact")
    assert posterior is not None
    copied = WAYS[way](posterior)
    with torch.no_grad():
        next(copied.problem.env.module.parameters()).add_(1.0)
    with pytest.raises(PosteriorOutdated):
        copied.ask("map")
    posterior.ask("map")


@pytest.mark.parametrize("way", WAYS)
def test_what_changed_since_infer_cannot_be_copied(way: str) -> None:
    posterior = inferred("chain", "exact")
    assert posterior is not None
    with torch.no_grad():
        next(posterior.problem.env.module.parameters()).add_(1.0)
    with pytest.raises(PosteriorOutdated):
        WAYS[way](posterior)


@pytest.mark.parametrize("way", WAYS)
def test_values_that_were_asked_for_have_gradients_in_a_copy(way: str) -> None:
    posterior = inferred("chain", "exact")
    assert posterior is not None
    wanted = posterior.marginals["y"]
    assert wanted.requires_grad
    copied = WAYS[way](posterior)
    with torch.no_grad():
        torch.testing.assert_close(copied.marginals["y"], wanted)
    found = copied.marginals["y"]
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for one, other in zip(*(p.problem.env.module.parameters() for p in (copied, posterior)), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("way", WAYS)
def test_inputs_that_were_computed_are_copied_without_their_graph(way: str) -> None:
    text, given = MODELS["chain"]
    model = em.compile(text, seed=0)
    scale = torch.ones((), requires_grad=True)
    evidence = {"y": torch.tensor([[0, -1, -1], [-1, 1, -1]])}
    posterior = model.infer(
        x=given["x"] * scale, evidence=evidence, mask=torch.tensor([[True] * 3, [True, False, True]])
    )
    same(WAYS[way](posterior), posterior)


@pytest.mark.parametrize("way", WAYS)
def test_gains_and_fixed_inputs_are_copied(way: str) -> None:
    text, given = MODELS["graph"]
    model = em.compile(text, seed=0).fix(link=given["link"][:1])
    model.gains["arc"] = 3.0
    posterior = model.infer(x=given["x"])
    model.gains["arc"] = 0.5
    same(WAYS[way](posterior), posterior)


@pytest.mark.parametrize("way", WAYS)
def test_networks_that_drew_numbers_are_not_copied(way: str) -> None:
    model = em.compile(POTTS.replace("linear(out: Tag)", "blstm(out: Tag, hidden: 3, dropout: 0.5)"), seed=0).train()
    with pytest.raises(em.EnergyError, match=r"dropout.*eval"):
        WAYS[way](model.infer(x=X))
    posterior = model.eval().infer(x=X)
    same(WAYS[way](posterior), posterior)


@pytest.mark.parametrize("way", WAYS)
def test_a_field_is_copied(way: str) -> None:
    model: EnergyModel = em.load("examples/shapes.energy", seed=0)
    posterior = model.infer(**shapes(model))
    found, wanted = WAYS[way](posterior).mode, posterior.mode
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def shapes(model: EnergyModel) -> dict[str, Tensor]:
    """Random inputs of two positions along each observed dim."""
    from energyml.run import random_inputs

    return random_inputs(model, {}, 2, 0)


@pytest.mark.parametrize("way", WAYS)
def test_results_are_copied_with_what_their_status_finds(way: str) -> None:
    posterior = inferred("chain", SAMPLERS["gibbs"])
    assert posterior is not None
    result = posterior.ask("marginals")
    copied = WAYS[way](result)
    assert copied.status.message == result.status.message and copied.quality is result.quality
    assert dict(copied.statistics).keys() == dict(result.statistics).keys()
    torch.testing.assert_close(copied.value["y"], result.value["y"])

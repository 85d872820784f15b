"""Backends on a device that is not there: no host copies, no waiting, no writing into inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from tests.contract.device_harness import DeviceHarness, Violation, elsewhere
from tests.contract.settings import BACKENDS, exact_objectives

torch.set_num_threads(1)

# Backends that wait for the device by their nature, and why.
EXEMPT = {
    "enumerate": "it lists the cells that exist before it enumerates them",
    "ilp": "its solver works on the host",
    "best_first": "its queue of prefixes is kept on the host",
}

# Backends that stop when values no longer change do all of their sweeps where nobody can look: two of them show enough.
FEW = {
    "bp": "bp(steps: 2)", "dual": "dual(steps: 1)", "trw": "trw(steps: 2)", "mean_field": "mean_field(steps: 2)",
    "relaxed(steps: 12)": "relaxed(steps: 2)",
}  # fmt: skip

CHAIN = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
input x : real[T, 4]
input v : real[T-1, from: Tag, to: Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
param s : real[Tag]
net f = linear(out: Tag)
net g = blstm(out: Tag, hidden: 3)
chain y { unary: u, pair: w, start: s }
factor more [t in T] (y[t]) = f(x)[t] + g(x)[t]
factor shifted [t in T-1] (to: y[t+1], from: y[t]) = v[t]
factor last (y[-1]) = u[-1]
forbid [t in T-1] y[t] = A and y[t+1] = B
forbid y[0] = C
"""
# The structure follows from the sizes, so that nothing has to be looked up on the device.
ELIMINATED = {
    "order 2": """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param w : real[a: Tag, b: Tag, c: Tag]
factor one [t in T] (y[t]) = u[t]
factor three [t in T-2] (a: y[t], b: y[t+1], c: y[t+2]) = w
forbid [t in T-1] y[t] = A and y[t+1] = B
""",
    "two variables": """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
output z : Tag
param w : real[a: Tag, b: Tag]
factor one [t in T] (y[t]) = u[t]
factor two [t in T] (a: y[t], b: z) = w
""",
}
GRAPH = """\
dim N, E
labels Tag = {A, B}
input x : real[N, 4]
input link : edge(N, N)[E]
output y : Tag[N]
output z : Tag[N]
net f = linear(out: Tag)
net tail = pooled(hidden: 3)
net decoder = lstm_decoder(hidden: 3)
net around = masked_blstm(hidden: 3)
param k : real
param w : real[a: Tag, b: Tag]
factor node [n in N] (y[n]) = f(x)[n]
factor arc [e = (i, j) in link] (y[i], y[j]) = potts(k)
factor both [n in N] (a: y[n], b: z[n]) = w
score whole (y) = tail(soft(y), x)
sequence z { step: decoder, given: x }
masked y { conditionals: around }
"""


def tensors() -> dict[str, Tensor]:
    return {"u": torch.randn(2, 5, 3), "x": torch.randn(2, 5, 4), "v": torch.randn(2, 4, 3, 3)}


def arguments(kind: str) -> dict[str, Any]:
    """Lengths, masks with gaps, or both."""
    given: dict[str, Any] = {}
    if "lengths" in kind:
        given["lengths"] = torch.tensor([5, 3])
    if "mask" in kind:
        given["mask"] = torch.rand(2, 5) < 0.7
    return elsewhere(given)


KINDS = ("plain", "lengths", "mask", "lengths and mask")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("using", [name for name in BACKENDS if name not in EXEMPT])
def test_queries_stay_on_the_device(using: str, tracked: bool, kind: str) -> None:
    """Every pair of kind, gradients and evidence is met; evidence comes with every second case."""
    model = em.compile(CHAIN, seed=0).to("meta")
    using = FEW.get(using, using)
    if not model.plan(using).verdict.serves:
        return
    model.inference_module(using)
    inputs = {name: one.requires_grad_(tracked) for name, one in elsewhere(tensors()).items()}
    labels = torch.zeros(2, 5, dtype=torch.long, device="meta")
    given = {**inputs, **arguments(kind)}
    cost = torch.zeros(2, 5, 3, device="meta")
    known = {"y": labels} if KINDS.index(kind) % 2 == tracked else None
    with (
        DeviceHarness([*inputs.values(), *model.parameters(), labels, cost]) as harness,
        torch.set_grad_enabled(tracked),
    ):
        posterior = model.infer(using=using, evidence=known, **given)
        for query in model.plan(using).verdict.answers:
            more = {"answer": {"y": labels}, "cost": {"y": cost}, "values": {"y": cost}, "other": posterior}
            posterior.ask(query, count=2, **more)
        assert model.score(y=labels, **given).device.type == "meta"
        for objective in exact_objectives(using):
            loss = model.loss(objective=objective, using=using, y=labels, **given)
            if tracked:
                loss.backward()
    assert harness.operations > 100


@pytest.mark.parametrize("kind", ["plain", "lengths"])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("name", ELIMINATED)
def test_elimination_stays_on_the_device(name: str, tracked: bool, kind: str) -> None:
    model = em.compile(ELIMINATED[name], seed=0).to("meta")
    inputs = {"u": elsewhere({"u": torch.randn(2, 5, 3)})["u"].requires_grad_(tracked)}
    labels = torch.zeros(2, 5, dtype=torch.long, device="meta")
    cost = torch.zeros(2, 5, 3, device="meta")
    given = {**inputs, **arguments(kind)}
    with DeviceHarness([*inputs.values(), *model.parameters(), labels, cost]), torch.set_grad_enabled(tracked):
        for known in (None, {"y": labels}):
            posterior = model.infer(using="exact", evidence=known, **given)
            for query in model.plan("exact").verdict.answers:
                more = {"answer": {"y": labels}, "cost": {"y": cost}, "values": {"y": cost}, "other": posterior}
                posterior.ask(query, count=2, **more)


def test_scores_of_all_kinds_stay_on_the_device() -> None:
    model = em.compile(GRAPH, seed=0).to("meta")
    link = torch.tensor([[[0, 1], [1, 2], [-1, -1]], [[0, 2], [3, 1], [2, 2]]])
    inputs = elsewhere({"x": torch.randn(2, 5, 4), "link": link})
    given = {**inputs, "lengths": elsewhere({"N": torch.tensor([5, 4])})}
    labels = {name: torch.zeros(2, 5, dtype=torch.long, device="meta") for name in ("y", "z")}
    masks = elsewhere({"y": torch.rand(2, 5) < 0.5})
    with DeviceHarness([*inputs.values(), *model.parameters(), *labels.values()]):
        assert model.score(**given, **labels).shape == (2,)
        assert model.score(mask=masks, **given, **labels).shape == (2,)


# -------------------------------------------------------------------------------------------------- the harness itself


def somewhere() -> Tensor:
    return torch.zeros(3, device="meta")


BAD = {
    "a value": lambda x: x.sum().item(),
    "a branch": lambda x: 1 if (x > 0).any() else 0,
    "a factory": lambda x: torch.arange(3),
    "a constant": lambda x: torch.zeros(3),
    "a list": lambda x: torch.tensor([1.0, 2.0, 3.0]),
    "a write": lambda x: x.add_(1),
    "a write through a view": lambda x: x[:2].fill_(0),
}
GOOD = {
    "numbers beside tensors": lambda x: torch.where(x > 0, x, 0) + 1.5,
    "a factory with a device": lambda x: torch.arange(3, device=x.device) + x,
    "a write into a copy": lambda x: x.clone().add_(1),
}


@pytest.mark.parametrize("name", BAD)
def test_the_harness_finds(name: str) -> None:
    x = somewhere()
    with pytest.raises(Violation), DeviceHarness([x]):
        BAD[name](x)


@pytest.mark.parametrize("name", GOOD)
def test_the_harness_lets_pass(name: str) -> None:
    x = somewhere()
    with DeviceHarness([x]):
        GOOD[name](x)


def test_inputs_are_not_written_on_the_host_either() -> None:
    """With real values, where checks of labels and lengths run too."""
    model = em.compile(CHAIN, seed=0)
    inputs = tensors()
    given = {**inputs, "lengths": torch.tensor([5, 3]), "mask": torch.tensor([[True, False] + [True] * 3, [True] * 5])}
    labels = torch.zeros(2, 5, dtype=torch.long)
    before = copy.deepcopy((given, labels))
    with torch.no_grad():
        for using in BACKENDS:
            if not model.plan(using).verdict.serves:
                continue
            model.inference_module(using)
            posterior = model.infer(using=using, **given)
            for query in model.plan(using).verdict.answers:
                cost = torch.zeros(2, 5, 3)
                more = {"answer": {"y": labels}, "cost": {"y": cost}, "values": {"y": cost}, "other": posterior}
                posterior.ask(query, count=2, **more)
            for objective in exact_objectives(using):
                model.loss(objective=objective, using=using, y=labels, **given)
    for name, one in given.items():
        assert torch.equal(one, before[0][name]), name
    assert torch.equal(labels, before[1])

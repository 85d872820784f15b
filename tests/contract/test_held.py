"""Every backend on a device that is not there, with numbers: no operation mixes places, and answers are the host's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.energy_model import EnergyModel
from energyml.result import Assignment
from tests.contract.device_harness import ELSEWHERE, Violation
from tests.contract.held import WAITED, Elsewhere, Generator, Held, here, moved, sent, tensor
from tests.contract.settings import BACKENDS, FUZZ, SAMPLERS
from tests.gaussian.cases import CASES

torch.set_num_threads(1)

CHAIN = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param k : real = constant(0.3)
net f = linear(out: Tag)
factor one [t in T] (y[t]) = u[t] + f(u)[t]
factor two [t in T-1] (y[t], y[t+1]) = potts(k)
"""
HARD = CHAIN + "forbid y[0] = C\nforbid [t in T-1] y[t] = A and y[t+1] = B\n"
EDGES = """\
dim N, E
labels Tag = {A, B}
input u : real[N, Tag]
input link : edge(N, N)[E]
output y : Tag[N]
param w : real[a: Tag, b: Tag]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = w
"""
STEPS = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
net decoder = lstm_decoder(hidden: 3, attention: dot)
sequence y { step: decoder, given: u, normalize: local }
"""
SEEDED = torch.Generator().manual_seed(0)
U = torch.randn(2, 4, 3, generator=SEEDED)
V = torch.randn(2, 4, 2, generator=SEEDED)
TREE, LOOP = (torch.tensor([[[0, 1], [1, 2], [2, 3], end]] * 2) for end in ([-1, -1], [3, 0]))
MODELS: dict[str, tuple[str, dict[str, Tensor]]] = {
    "chain": (CHAIN, {"u": U}),
    "hard chain": (HARD, {"u": U}),
    "tree": (EDGES, {"u": V, "link": TREE}),
    "graph": (EDGES, {"u": V, "link": LOOP}),
    "steps": (STEPS, {"u": U}),
}
# Fewer sweeps where none may stop them: the host does not look whether values still change.
FEW = {
    "bp": "bp(steps: 4)", "trw": "trw(steps: 4)", "dual": "dual(steps: 2)", "mean_field": "mean_field(steps: 4)",
    "relaxed(steps: 12)": "relaxed(steps: 2)",
}  # fmt: skip
# Answers that depend on random numbers, which the host draws otherwise where native code draws them.
DRAWN = {*SAMPLERS} - {"mask_predict"}
EVERY = [FEW.get(name, name).replace("sweeps: 5", "sweeps: 2") for name in (*BACKENDS, *SAMPLERS.values())]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the device that is not there without an operation."""
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "tensor", tensor)


def answers(model: Any, using: str, given: dict[str, Any], place: torch.device) -> Iterator[tuple[str, Tensor]]:
    """The tensors of every answer, by query."""
    try:
        posterior = model.infer(using=using, **given)
    except QueryRefused:  # the model has more than the planner tells of
        return
    labels = torch.zeros(2, 4, dtype=torch.long, device=place)
    cost = torch.ones(2, 4, len(posterior.problem.label_names()["y"]), device=place)
    for kind in posterior.answers:
        generator = Generator(place).manual_seed(1)
        more: dict[str, Any] = {"answer": {"y": labels}, "cost": {"y": cost}, "values": {"y": cost}}
        torch.manual_seed(0)
        try:
            value = posterior.ask(kind, count=2, generator=generator, other=posterior, **more).value
        except QueryRefused:
            continue
        if isinstance(value, Assignment):
            tensors = [*value.labels.values(), value.score]
        else:
            tensors = list(value.values()) if isinstance(value, dict) else [value]
        yield from ((kind, one) for one in tensors)


def worth_a_run(using: str, name: str) -> bool:
    """Whether a model shows what others do not; all of them under a larger ENERGYML_FUZZ."""
    few = {"chain": ("swendsen_wang",), "tree": ("exact", "bp", "trw", "dual")}
    return FUZZ > 300 or name not in few or using.partition("(")[0] in few[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("using", EVERY)
def test_no_operation_mixes_devices(using: str, name: str) -> None:
    """Gradients come with every second pair of backend and model."""
    text, given = MODELS[name]
    model, host = em.compile(text, seed=0), em.compile(text, seed=0)
    if not model.plan(using).verdict.serves or not worth_a_run(using, name):
        return
    for one in (model, host):
        one.inference_module(using)
    with torch.set_grad_enabled((EVERY.index(using) + list(MODELS).index(name)) % 2 == 0):
        with Elsewhere():
            found = list(answers(moved(model), using, sent(given), ELSEWHERE))
            numbers = here(one for _, one in found)
            for _, one in found:
                if one.requires_grad and one.is_floating_point():
                    one.sum().backward(retain_graph=True)
        wanted = list(answers(host, using, given, torch.device("cpu")))
    if not wanted:  # the host refuses numbers that it reads; on a device the status of an answer tells of them
        return
    assert [kind for kind, _ in found] == [kind for kind, _ in wanted]
    if using.partition("(")[0] in DRAWN:
        return
    for (kind, one), other in zip(wanted, numbers, strict=True):
        if kind != "sample" and one.dtype != torch.long:  # equally good answers may differ
            torch.testing.assert_close(other, one.detach(), atol=1e-3, rtol=1e-3)


# Iterations are many operations: one case of each kind.
ITERATED = {"potts", "smooth edges", "sparse", "sparse and low rank", "line"}
FIELDS = ["exact", "cg(iterations: 20)"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("using", FIELDS)
def test_fields_do_not_mix_devices(using: str, name: str) -> None:
    case = CASES[name]
    model, host = case.model(), case.model()
    if not host.plan(using).verdict.serves:
        return
    if using.startswith("cg") and name not in ITERATED:
        return
    inputs = case.inputs()
    asked = ["mode"] if using.startswith("cg") else ["mode", "log_partition", "variance", "sample"]

    def answered(model: EnergyModel, given: dict[str, Tensor], place: torch.device) -> list[Tensor]:
        posterior, found = model.infer(using=using, **given), []
        for kind in asked:
            value = posterior.ask(kind, count=2, generator=Generator(place).manual_seed(0)).value
            value = value.fields if isinstance(value, Assignment) else value
            found += [value] if isinstance(value, Tensor) else [value[one] for one in sorted(value)]
        return found

    torch.manual_seed(0)
    wanted = answered(host, inputs, torch.device("cpu"))
    torch.manual_seed(0)
    with Elsewhere():
        given = {key: one.requires_grad_() if one.is_floating_point() else one for key, one in sent(inputs).items()}
        answers = answered(moved(model), given, ELSEWHERE)
        found = here(answers)
        for one in answers:
            if one.requires_grad:
                one.sum().backward(retain_graph=True)
    for kind, one, other in zip(asked, found, wanted, strict=True):
        if kind != "sample":
            torch.testing.assert_close(one.detach(), other.detach(), atol=1e-3, rtol=1e-3)


# ------------------------------------------------------------------------------------------------- the harness itself


def test_the_harness_finds_a_mixture_and_counts_what_waits() -> None:
    with Elsewhere():
        x = torch.zeros(3, device=ELSEWHERE)
        assert isinstance(x, Held)
        with pytest.raises(Violation, match="mixes"):
            x + torch.ones(3)
        x[1] = 2.0
        assert float(x.sum()) == 2.0 and x.cpu().tolist() == [0.0, 2.0, 0.0]
        assert dict(WAITED) == {"aten::_local_scalar_dense": 1, "aten::_to_copy": 1}
        assert isinstance(torch.rand(2, generator=Generator(ELSEWHERE), device=ELSEWHERE), Held)

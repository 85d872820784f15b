"""Programs that are recorded, tensors that are watched, and tensors that are no plain memory: right, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import energyml as em
from energyml.bind.inputs import DataError
from energyml.energy_model import EnergyModel
from energyml.execution import NotRecorded
from tests.contract.settings import BACKENDS, SAMPLERS

torch.set_num_threads(1)

# The first forward derivative of a process makes torch compile scripts of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

CHAIN = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
chain y { unary: u, pair: w }
"""
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
TREE = torch.tensor([[[0, 1], [1, 2], [2, 3]]] * 2)
LOOP = torch.tensor([[[0, 1], [1, 2], [2, 0], [2, 3]]] * 2)

Case = tuple[str, dict[str, Tensor]]


def case(name: str, u: Tensor | None = None) -> Case:
    seeded = torch.Generator().manual_seed(0)
    if name == "chain":
        return CHAIN, {"u": torch.randn(2, 4, 3, generator=seeded) if u is None else u}
    link = TREE if name == "tree" else LOOP
    return EDGES, {"u": torch.randn(2, 4, 2, generator=seeded) if u is None else u, "link": link}


CASES = ("chain", "tree", "graph")
ASKED: dict[str, Callable[[Any], Tensor]] = {
    "log_partition": lambda posterior: posterior.log_partition,
    "marginals": lambda posterior: posterior.marginals["y"],
    "map": lambda posterior: posterior.map()["y"],
    "log_prob": lambda posterior: posterior.log_prob(y=torch.zeros(2, 4, dtype=torch.long)),
    "entropy": lambda posterior: posterior.entropy,
}


class Asking(torch.nn.Module):
    """A module whose forward pass asks one question."""

    def __init__(self, model: EnergyModel, kind: str, names: list[str]) -> None:
        super().__init__()
        self.model, self.kind, self.names = model, kind, names

    def forward(self, *tensors: Tensor) -> Tensor:
        given = dict(zip(self.names, tensors, strict=True))
        return ASKED[self.kind](self.model.infer(using="exact", **given))


def asking(name: str, kind: str) -> tuple[Asking, dict[str, Tensor]]:
    text, given = case(name)
    return Asking(em.compile(text, seed=0), kind, list(given)), given


def far(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores of another size: what was decided by the numbers of the recorded call is wrong for them."""
    return {**given, "u": given["u"].flip(1) * 60}


# --------------------------------------------------------------------------------------------------------- recorders


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("name", CASES)
def test_an_export_answers_for_other_numbers_or_is_refused(name: str, kind: str) -> None:
    asked, given = asking(name, kind)
    with torch.no_grad():
        try:
            program = torch.export.export(asked, tuple(given.values()), strict=False).module()
        except em.EnergyError:
            assert name != "chain" or kind in ("marginals", "entropy")
            return
        found, wanted = program(*far(given).values()), asked(*far(given).values())
    assert type(found) is Tensor
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("name", CASES)
def test_a_trace_of_one_call_is_refused(name: str, kind: str) -> None:
    asked, given = asking(name, kind)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's own, about sizes, and that it is deprecated
        with pytest.raises(NotRecorded, match=r"torch\.jit\.trace"):
            torch.jit.trace(asked, tuple(given.values()), check_trace=False)
        with pytest.raises(NotRecorded, match="make_fx"):
            make_fx(asked)(*given.values())


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("name", CASES)
def test_a_program_recorded_from_fake_tensors_answers_for_other_numbers(name: str, kind: str) -> None:
    asked, given = asking(name, kind)
    with torch.no_grad():
        try:
            program = make_fx(asked, tracing_mode="fake", _allow_non_fake_inputs=True)(*given.values())
        except em.EnergyError:
            assert name != "chain"
            return
        torch.testing.assert_close(program(*far(given).values()), asked(*far(given).values()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("function", ["chain_log_partition", "chain_marginals", "chain_best"])
def test_functions_of_scores_are_recorded_or_refused(function: str) -> None:
    called = getattr(em.functional, function)
    u, w = case("chain")[1]["u"], torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotRecorded, match=r"torch\.jit\.trace"):
            torch.jit.trace(called, (u, w), check_trace=False)
        with pytest.raises(NotRecorded, match="make_fx"):
            make_fx(lambda unary, pair: called(unary, pair))(u, w)
        program = make_fx(lambda unary, pair: called(unary, pair), tracing_mode="fake")(u, w)
        torch.testing.assert_close(program(u * 60, w), called(u * 60, w), atol=1e-4, rtol=1e-4)


def test_a_posterior_from_before_a_recording_keeps_nothing_of_it() -> None:
    text, given = case("chain")
    posterior = em.compile(text, seed=0).infer(**given)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(NotRecorded, match="inside of the program"):
        posterior.marginals  # noqa: B018
    assert type(posterior.marginals["y"]) is Tensor


RECORDED = [*BACKENDS, *SAMPLERS.values()]


@pytest.mark.parametrize("using", RECORDED)
def test_fake_tensors_leave_nothing_behind(using: str) -> None:
    """What a model keeps for later calls holds numbers, whatever it was asked about before."""
    text, given = case("chain")
    model, fresh = em.compile(text, seed=0), em.compile(text, seed=0)
    if not model.plan(using).verdict.serves or using.startswith("swendsen_wang"):  # it wants `potts`
        return
    for one in (model, fresh):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            one.inference_module(using)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for kind in model.plan(using).verdict.answers:
        if kind not in ("log_partition", "marginals", "map", "sample"):
            continue
        with mode:
            try:
                found = ASKED[kind](model.infer(using=using, u=mode.from_tensor(given["u"]))) if kind in ASKED else None
                assert found is None or isinstance(found, FakeTensor)
            except em.EnergyError:
                pass
        torch.manual_seed(0)
        found = model.infer(using=using, **given).ask(kind, generator=torch.Generator().manual_seed(0)).value
        torch.manual_seed(0)
        wanted = fresh.infer(using=using, **given).ask(kind, generator=torch.Generator().manual_seed(0)).value
        for one, other in zip(tensors_of(found), tensors_of(wanted), strict=True):
            assert type(one) is Tensor
            torch.testing.assert_close(one, other, equal_nan=True)


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        yield from (value.labels.values() if hasattr(value, "labels") else value.values())


# ------------------------------------------------------------------------------------------------- what is watched


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("name", CASES)
def test_operations_that_are_watched_give_the_same_answers(name: str, kind: str) -> None:
    asked, given = asking(name, kind)
    wanted = asked(*given.values())
    with FlopCounterMode(display=False):
        torch.testing.assert_close(asked(*given.values()), wanted, atol=1e-5, rtol=1e-5)
    leaves = [one.clone().requires_grad_() for one in (given["u"], given["u"])]
    if wanted.is_floating_point():
        asked(*{**given, "u": leaves[0]}.values()).sum().backward()
        watched = asked(*{**given, "u": leaves[1]}.values()).sum()
        with FlopCounterMode(display=False):
            watched.backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", ["chain_log_partition", "chain_log_prob"])
def test_forward_differentiation_of_functions_of_scores(function: str) -> None:
    u = case("chain")[1]["u"].double()
    w, along = torch.zeros(3, 3, dtype=torch.float64), torch.randn_like(u)
    more = (torch.zeros(2, 4, dtype=torch.long),) if function == "chain_log_prob" else ()
    called = getattr(em.functional, function)
    leaf = u.clone().requires_grad_()
    (slope,) = torch.autograd.grad(called(leaf, w, *more).sum(), leaf)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(called(forward_ad.make_dual(u, along), w, *more)).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent.sum(), (slope * along).sum())


# ------------------------------------------------------------------------------------------------- kinds of tensors


class Marked(torch.Tensor):
    """A class of a user's own."""


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "a subclass": lambda one: one.as_subclass(Marked),
    "a negative view": lambda one: torch._neg_view(-one),
    "every second number": lambda one: torch.stack([one, one + 1], -1)[..., 0],
    "a transposed one": lambda one: one.mT.contiguous().mT,
    "a part of a larger one": lambda one: torch.cat([one, one], 1)[:, : one.shape[1]],
}


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_any_form_of_a_tensor_gives_the_same_answer(name: str, form: str, kind: str) -> None:
    asked, given = asking(name, kind)
    for dtype in (torch.float32, torch.float64):
        asked.to(dtype)
        u = given["u"].to(dtype)
        with torch.no_grad():
            wanted = asked(*{**given, "u": u}.values())
            found = asked(*{**given, "u": KINDS[form](u)}.values())
        torch.testing.assert_close(found.as_subclass(Tensor), wanted, atol=1e-4, rtol=1e-4)
        if wanted.is_floating_point():
            leaves = [u.clone().requires_grad_() for _ in range(2)]
            asked(*{**given, "u": leaves[0]}.values()).sum().backward()
            asked(*{**given, "u": KINDS[form](leaves[1])}.values()).sum().backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_shared_example_gives_the_same_answer(name: str) -> None:
    asked, given = asking(name, "marginals")
    one = given["u"][:1]
    found = asked(*{**given, "u": one.expand(2, -1, -1)}.values())
    torch.testing.assert_close(found, asked(*{**given, "u": one.repeat(2, 1, 1)}.values()))


@pytest.mark.parametrize("form", [form for form in KINDS if form != "a subclass"])
@pytest.mark.parametrize("function", ["chain_log_partition", "chain_marginals", "chain_best", "chain_log_prob"])
def test_functions_of_scores_take_any_form(function: str, form: str) -> None:
    called, u = getattr(em.functional, function), case("chain")[1]["u"]
    w = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    more = (torch.zeros(2, 4, dtype=torch.long),) if function == "chain_log_prob" else ()
    for first, second in ((KINDS[form](u), w), (u, torch._neg_view(-w))):
        torch.testing.assert_close(called(first, second, *more), called(u, w, *more))


@pytest.mark.parametrize("name", CASES)
def test_a_negative_gradient_view_is_read_as_it_is(name: str) -> None:
    asked, given = asking(name, "log_partition")
    weight = torch.tensor([2.0, 3.0])
    found = []
    for one in (-weight, torch._neg_view(weight)):
        leaf = given["u"].clone().requires_grad_()
        found += torch.autograd.grad(asked(*{**given, "u": leaf}.values()), leaf, one)
    torch.testing.assert_close(found[0], found[1])


def test_sparse_inputs_are_refused() -> None:
    text, given = case("chain")
    with pytest.raises(DataError, match="to_dense"):
        em.compile(text, seed=0).infer(u=given["u"].to_sparse())


@pytest.mark.parametrize("name", CASES)
def test_a_default_device_leaves_tensors_where_they_are(name: str) -> None:
    for kind in ("log_partition", "marginals", "map", "entropy"):
        asked, given = asking(name, kind)
        with torch.no_grad():
            wanted = asked(*given.values())
            with torch.device("meta"):
                found = asked(*given.values())
        torch.testing.assert_close(found, wanted)


# ------------------------------------------------------------------------------------------------------------- meta


def _calls(model: EnergyModel, u: Tensor) -> list[Callable[[], Any]]:
    gold = torch.zeros(2, 4, dtype=torch.long, device="meta")
    return [
        lambda: model.infer(u=u),
        lambda: model(u=u),
        lambda: model.loss(u=u, y=gold, objective="nll"),
        lambda: model.score(u=u, y=gold),
        lambda: model.infer(u=u, using="gibbs").sample(),
    ]


def test_a_model_without_numbers_says_how_to_get_some() -> None:
    text, given = case("chain")
    model = em.compile(text, seed=0)
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    wanted = model.infer(**given).log_partition
    model = model.to("meta")
    for call in _calls(model, given["u"].to("meta")):
        with pytest.raises(em.EnergyError, match=r"hold no numbers.*to_empty.*load_state_dict"):
            call()
    model = model.to_empty(device="cpu")
    model.load_state_dict(weights)
    torch.testing.assert_close(model.infer(**given).log_partition, wanted)


def test_inputs_without_numbers_are_refused() -> None:
    model = em.compile(CHAIN.replace("param w :", "input w :"), seed=0)
    u, w = torch.zeros(2, 4, 3, device="meta"), torch.zeros(2, 3, 3, device="meta")
    with pytest.raises(em.EnergyError, match="the inputs are on `meta`"):
        model.infer(u=u, w=w)


def test_a_mode_that_watches_operations_may_want_shapes_alone() -> None:
    model = em.compile(CHAIN, seed=0).to("meta")
    with FlopCounterMode(display=False):
        assert model.infer(u=torch.zeros(2, 4, 3, device="meta")).log_partition.shape == (2,)

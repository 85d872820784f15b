"""Calls that are recalled without a check in Python, beside the checks in Python: what differs is noticed by both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import energyml as em
from energyml.backends.native.graph import ASKS
from energyml.posterior import Recalled

torch.set_num_threads(1)

SPEC = """\
labels L = {a, b, c}
labels M = {d, e}
dim T = 4
dim E = 4
input link : edge(T, T)[E]
output y : L[T]
output z : M[T]
param u : real[T, L] = zeros
param v : real[T, L, M] = zeros
param w : real[E, p: L, q: L] = zeros
factor node [t in T] (y[t]) = u[t]
factor both [t in T] (y[t], z[t]) = v[t]
factor arc [e = (i, j) in link] (p: y[i], q: y[j]) = w[e]
infer exact
"""
EDGES = [[0, 1], [1, 2], [2, 3], [3, 0]]
Labels = dict[str, Tensor]
needs_kernels = pytest.mark.skipif(not ASKS, reason="calls are recalled by native code")


def made() -> em.EnergyModel:
    model = em.compile(SPEC).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.fix(link=torch.tensor([EDGES]))


def labels() -> Labels:
    return {"y": torch.tensor([[-1, 2, -1, 0]]), "z": torch.tensor([[1, -1, -1, -1]])}


def recalls(model: em.EnergyModel, evidence: Mapping[str, Any] | None, using: str | None = "exact") -> bool:
    """Whether a call is recalled, and whether that is what the checks in Python say."""
    last = model._last_call._last
    assert last is not None
    found = model._last_call.recall(using, evidence, model._buffers, model._parameters)
    if found is not None:
        assert last.again(evidence or {}, model._buffers, model._reference())
        assert found.said is last.made
    return found is not None


def total(model: em.EnergyModel, evidence: Mapping[str, Tensor] | None, using: str | None = "exact") -> Tensor:
    with torch.no_grad():
        return model.infer(evidence=evidence, using=using).log_partition


def right(model: em.EnergyModel, evidence: Mapping[str, Tensor] | None) -> None:
    """Two calls, of which the second may be recalled, beside one of which nothing is remembered."""
    truth = total(model, None if evidence is None else dict(evidence), "enumerate")
    for _ in range(3):
        torch.testing.assert_close(total(model, evidence), truth)


@needs_kernels
@pytest.mark.parametrize("using", ["exact", "exact(memory: 64)", None])
def test_a_call_that_says_the_same_is_recalled(using: str | None) -> None:
    model = made()
    for evidence in (labels(), None, {}):
        with torch.no_grad():
            first = [model.infer(evidence=evidence, using=using).log_partition for _ in range(2)]
        assert recalls(model, None if evidence is None else dict(evidence), using)
        posterior = model.infer(evidence=evidence, using=using)
        assert isinstance(posterior, Recalled)
        with torch.no_grad():
            assert torch.equal(posterior.log_partition, first[0])
            assert posterior.log_partition is posterior.log_partition
            assert posterior.log_partition is not first[0]
    assert not recalls(model, None, "enumerate")
    assert recalls(model, {}, using)


def other_label(given: Labels) -> object:
    return {**given, "y": torch.tensor([[-1, 1, -1, 0]])}


def by_numpy(given: Labels) -> object:
    given["z"].numpy()[0, 3] = 0
    return given


def one_less(given: Labels) -> object:
    return {"y": given["y"]}


def one_renamed(given: Labels) -> object:
    return {"y": given["y"], "x": given["z"]}


def other_type(given: Labels) -> object:
    return {**given, "y": given["y"].int()}


def other_shape(given: Labels) -> object:
    return {**given, "y": given["y"].reshape(2, 2)}


def nothing(given: Labels) -> object:
    return None


def strided(given: Labels) -> object:
    return {**given, "y": torch.stack([given["y"], given["y"]], -1)[..., 0]}


def another_mapping(given: Labels) -> object:
    return MappingProxyType(given)


def a_list(given: Labels) -> object:
    return {**given, "y": given["y"].tolist()}


def a_tensor(given: Labels) -> object:
    return given["y"]


@pytest.mark.parametrize(
    "change",
    [
        other_label, by_numpy, one_less, one_renamed, other_type, other_shape, nothing, strided, another_mapping,
        a_list, a_tensor,
    ],
)  # fmt: skip
def test_evidence_that_says_something_else_is_not_recalled(change: Callable[[Labels], object]) -> None:
    model, evidence = made(), labels()
    right(model, evidence)
    changed = change(evidence)
    assert not recalls(model, changed)  # type: ignore[arg-type]
    if change in (other_label, by_numpy, one_less, other_type, nothing, strided, another_mapping):
        right(model, changed)  # type: ignore[arg-type]
    else:
        with pytest.raises(em.EnergyError):
            total(model, changed)  # type: ignore[arg-type]
    right(model, labels())


def test_equal_evidence_in_other_tensors_is_recalled() -> None:
    model = made()
    right(model, labels())
    assert recalls(model, labels()) == ASKS
    assert recalls(model, {name: nn.Parameter(one, False) for name, one in labels().items()}) == ASKS
    assert recalls(model, dict(reversed(labels().items()))) == ASKS


def test_parameters_may_be_anything_at_each_call() -> None:
    model, evidence = made(), labels()
    right(model, evidence)
    with torch.no_grad():
        model.u.add_(1)
    right(model, evidence)
    model.u.data = model.u.data * 2
    right(model, evidence)
    model._parameters["w"] = nn.Parameter(torch.randn_like(model.w))
    right(model, evidence)
    model.v.requires_grad_(False)
    right(model, evidence)
    model.u.detach().numpy()[:] = 0.5
    right(model, evidence)
    for kind in (torch.float32, torch.float64):
        model.to(kind)
        assert not recalls(model, evidence)
        right(model, evidence)
        assert total(model, evidence).dtype == kind


def test_fixed_inputs_that_change_are_noticed() -> None:
    model, evidence = made(), labels()
    right(model, evidence)
    model.fixed["link"][0, 3] = torch.tensor([0, 2])
    assert not recalls(model, evidence)
    right(model, evidence)
    model.fix(link=torch.tensor([EDGES]))
    assert not recalls(model, evidence)
    right(model, evidence)
    model.fix(link=None)
    assert not recalls(model, evidence)
    with pytest.raises(em.EnergyError, match="link"):
        total(model, evidence)


def test_gradients_and_modes_after_calls_without_them() -> None:
    model, evidence = made(), labels()
    right(model, evidence)
    truth = model.infer(evidence=evidence, using="enumerate").log_partition
    wanted = torch.autograd.grad(truth.sum(), list(model.parameters()))
    posterior = model.infer(evidence=evidence, using="exact")
    with torch.no_grad():
        assert not posterior.log_partition.requires_grad
    for one in (posterior, model.infer(evidence=evidence, using="exact")):
        found = torch.autograd.grad(one.log_partition.sum(), list(model.parameters()))
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
    with torch.inference_mode():
        assert not recalls(model, evidence)
        for _ in range(3):
            torch.testing.assert_close(model.infer(evidence=evidence, using="exact").log_partition, truth.detach())
    assert not recalls(model, evidence)
    right(model, evidence)
    torch.set_default_dtype(torch.float64)
    try:
        assert not recalls(model, evidence)
        right(model, evidence)
    finally:
        torch.set_default_dtype(torch.float32)
    right(model, evidence)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")  # loaded with `jvp`
def test_transforms_follow_a_call_that_comes_again() -> None:
    model, evidence = made(), labels()
    right(model, evidence)
    truth = model.infer(evidence=evidence, using="enumerate").log_partition
    wanted = torch.autograd.grad(truth.sum(), [model.u])[0]

    class Asked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return self.model.infer(evidence=evidence, using="exact").log_partition.sum()

    def asked(u: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(Asked(), {"model.u": u}, ())
        return found

    u = model.u.detach()
    torch.testing.assert_close(torch.func.grad(asked)(u), wanted)
    with torch.no_grad():
        posterior = model.infer(evidence=evidence, using="exact")
        torch.testing.assert_close(asked(u + 1), total(model, evidence).sum() + 4)
        tangent = torch.func.jvp(asked, (u,), (torch.ones_like(wanted),))[1]
        torch.testing.assert_close(tangent, wanted.sum())
        torch.testing.assert_close(posterior.log_partition, truth.detach())


def test_answers_have_memory_of_their_own() -> None:
    model, evidence = made(), labels()
    found = [total(model, evidence) for _ in range(50)]
    truth = found[0].item()
    del model
    for number, one in enumerate(found):
        assert one.item() == truth
        assert (one.shape, one.dtype, one.requires_grad, one._version) == ((1,), torch.float64, False, 0)
        one.mul_(0).add_(number)
    assert [one.item() for one in found] == list(range(50))
    assert torch.cat(found).numpy().sum() == sum(range(50))
    with torch.inference_mode():
        model = made()
        answers = [model.infer(evidence=evidence, using="exact").log_partition for _ in range(3)]
    assert all(one.is_inference() for one in answers)


def test_threads_that_ask_one_model_different_things() -> None:
    model = made()
    questions = [labels(), {"y": torch.tensor([[0, -1, -1, 1]])}, None]
    truths = [total(model, one, "enumerate") for one in questions]
    wrong: list[str] = []

    def ask_often(number: int) -> None:
        for step in range(150):
            which = number if step % 3 else (number + step) % 3  # mostly the same
            found = total(model, questions[which])
            if not torch.allclose(found, truths[which]):
                wrong.append(f"{found} for {truths[which]}")

    threads = [threading.Thread(target=ask_often, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong

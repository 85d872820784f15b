"""Gaussian fields against dense algebra: no wrong number with a passing status, whatever solves them.

`make test` runs a part, `make fuzz` 3,000 fields and more, new ones each time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import energyml as em
from energyml.bind.snapshot import PosteriorOutdated
from energyml.diagnostics import EnergyError
from tests.contract.settings import FUZZ
from tests.fuzz.dense import exact
from tests.fuzz.fields import FieldCase, fields
from tests.fuzz.judge import Ledger
from tests.fuzz.judge_fields import METHODS, PROBABILITY, PROBES, Forced, judge

torch.set_num_threads(1)

FRACTION = 0.01  # of right answers may carry a failing status
# `nuts` is left out: it draws from the score alone, and tests/mcmc holds it to its distribution.
CG = f"probes: {PROBES}, iterations: 100"
ITERATIVE = [f"cg({CG})", f"cg({CG}, engine: torch)"]
ITERATIVE += [f"cg({CG}, preconditioner: {one})" for one in ("none", "jacobi", "lowrank", "transform")]
CHOICES = [*(("exact", one) for one in METHODS), ("exact(engine: torch)", "as planned")]
CHOICES += [(using, "as planned") for using in ITERATIVE]
CERTAIN = ("exact", "exact(engine: torch)", "cg(tol: 1e-10)")
Answers = Mapping[str, Tensor]


@pytest.mark.parametrize(("using", "method"), CHOICES)
def test_no_answer_about_a_field_is_wrong_without_a_word(using: str, method: str) -> None:
    ledger = Ledger()

    @settings(max_examples=max(2, FUZZ // (75 if "cg" in using else 40)))
    @given(case=fields())
    def run(case: FieldCase) -> None:
        try:
            with Forced(method):
                judge(case, exact(case), using, ledger)
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}\n{case}") from wrong

    run()
    if os.environ.get("ENERGYML_FUZZ"):
        print(f"\n{using}, {method}\n{ledger}")
    right, alarms = ledger.total("right"), ledger.total("right, with a failing status")
    assert alarms <= max(1, FRACTION * (right + alarms)), f"right answers with failing statuses:\n{ledger}"


# ------------------------------------------------------------------------------------------------------- same questions


def answers(posterior: em.Posterior) -> dict[str, Tensor]:
    """The tensors of the plain queries that are answered exactly, and say that they are fine."""
    found: dict[str, Tensor] = {}
    for kind in ("mode", "variance", "log_partition", "entropy"):
        result = posterior.ask(kind)
        if result.quality.value == "exact" and result.status.ok:
            found[kind] = result.value if isinstance(result.value, Tensor) else result.value["s"]
    return {name: one.detach() for name, one in found.items()}


def same(one: Answers, other: Answers, loss: float) -> None:
    """Equal up to rounding, which a badly conditioned matrix makes larger."""
    for name in one.keys() & other.keys():
        near = 1e-8 + 64 * torch.finfo(one[name].dtype).eps * loss
        size = float(one[name].abs().max()) if one[name].numel() else 0.0
        apart = float((one[name] - other[name]).abs().max()) if one[name].numel() else 0.0
        assert apart <= near * (1 + size), f"{name}: {one[name]} and {other[name]}"


def condition(case: FieldCase) -> float:
    """The worst of the examples'."""
    return max((one.condition * one.count for one in exact(case) if one.definite and one.count), default=1.0)


def run(check: object, share: int = 40) -> None:
    @settings(max_examples=max(4, FUZZ // share))
    @given(case=fields(), using=st.sampled_from(CERTAIN))
    def one(case: FieldCase, using: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check(case, using)  # type: ignore[operator]
            except AssertionError as wrong:
                raise AssertionError(f"`{using}`: {wrong}\n{case}") from wrong

    one()


def test_a_batch_of_fields_is_a_loop_of_singles() -> None:
    def check(case: FieldCase, using: str) -> None:
        together = answers(case.infer(using))
        for b in range(case.batch):
            alone = answers(case.example(b).infer(using))
            same({name: one[b : b + 1] for name, one in together.items()}, alone, condition(case))

    run(check)


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers, every other one of a larger tensor with reversed axes."""
    wide = torch.zeros([2 * size for size in reversed(tensor.shape)], dtype=tensor.dtype)
    view = wide.permute(*reversed(range(tensor.dim())))[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def test_fields_of_views_are_those_of_their_copies() -> None:
    """With strides; and one example that is repeated without a copy."""

    def check(case: FieldCase, using: str) -> None:
        names = ("inputs", "masks", "evidence")
        parts = {part: {n: _strided(t) for n, t in getattr(case, part).items()} for part in names}
        same(answers(case.infer(using)), answers(replace(case, **parts).infer(using)), condition(case))
        first = case.example(0)
        names = ("inputs", "lengths", "masks", "evidence")
        many = {part: {n: t.expand(3, *t.shape[1:]) for n, t in getattr(first, part).items()} for part in names}
        copies = {part: {n: t.contiguous() for n, t in one.items()} for part, one in many.items()}
        values = first.answer.expand(3, *first.answer.shape[1:])
        views, whole = (replace(first, answer=values, **one).infer(using) for one in (many, copies))
        same(answers(views), answers(whole), condition(first))

    run(check)


def test_changes_in_place_are_noticed() -> None:
    """Where a posterior has a copy, as of evidence that is masked, its answers stay those of before."""

    def check(case: FieldCase, using: str) -> None:
        before = answers(case.infer(using))
        for tensor in [*case.inputs.values(), *case.evidence.values(), *case.model.parameters()]:
            posterior = case.infer(using)
            kept = tensor.detach().clone()
            with torch.no_grad():
                tensor.copy_(tensor.flip(0) + 1)
            try:
                same(answers(posterior), before, 1.0)
                assert any(tensor is one for one in case.evidence.values()), "a change was not noticed"
            except PosteriorOutdated:
                pass
            finally:
                with torch.no_grad():
                    tensor.copy_(kept)

    run(check, 60)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    """Where they count: at a free cell of the unary, in the ridge, in a coupling that is read."""

    def check(case: FieldCase, using: str) -> None:
        known = exact(case)
        if not known[0].free.any():
            return
        spoilt = case.inputs["u"].clone().flatten(1)
        spoilt[0, int(known[0].free.nonzero()[0][0])] = value
        given = [{"u": spoilt.reshape(case.inputs["u"].shape)}]
        given += [{"r": torch.full_like(case.inputs["r"], value)}] if "r" in case.inputs else []
        for one in given:
            posterior = replace(case, inputs={**case.inputs, **one}).infer(using)
            for kind in ("mode", "variance", "log_partition", "entropy", "sample"):
                if kind in ("variance", "entropy") and "u" in one:
                    continue  # they do not depend on it
                try:
                    result = posterior.ask(kind)
                except EnergyError:
                    continue
                assert not result.status.ok, f"`{kind}` of {list(one)} = {value} says ok: {result.value}"

    run(check, 60)


def test_derivatives_of_answers_are_those_of_dense_algebra() -> None:
    """dlog Z / du is the mean; d(w'mean) / du is the covariance times w; values with gradients are those without."""

    def check(case: FieldCase, using: str) -> None:
        if "unary: u" not in case.text:
            return
        known = exact(case)
        u = case.inputs["u"].detach().clone().requires_grad_()
        posterior = replace(case, inputs={**case.inputs, "u": u}).infer(using)
        with torch.no_grad():
            same(answers(case.infer(using)), answers(posterior), condition(case))
        mode, total = posterior.ask("mode"), posterior.ask("log_partition")
        if not (mode.status.ok and total.status.ok) or not u.numel():
            return
        (first,) = torch.autograd.grad(total.value.sum(), u, retain_graph=True, materialize_grads=True)
        (second,) = torch.autograd.grad(mode.value["s"].sum(), u, materialize_grads=True)
        slopes = [one.double().flatten(1).numpy() for one in (first, second)]
        for b, one in enumerate(known):
            if not one.definite or one.condition * one.count * one.eps > PROBABILITY:
                continue
            truth = np.zeros((2, len(one.u)))
            truth[0] = one.mean
            truth[1, one.free] = one.covariance.sum(1)
            for found, wanted in zip(slopes, truth, strict=True):
                slack = (64 * one.count * one.eps + 1e-8) * one.condition * np.linalg.norm(wanted)
                assert np.linalg.norm(found[b] - wanted) <= slack + 1e-300, f"{found[b]} for {wanted}"

    run(check)

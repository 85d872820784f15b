"""Judges answers about Gaussian fields: right, or wrong with a status that says so, or wrong without one.

Tolerances are those that `tests.fuzz.dense` derives from the backward error of a Cholesky factorisation, which grows
with the condition number.  Conjugate gradients add the relative residual that they are asked for.  Estimates are judged
by their distribution: six standard deviations, which one right answer in 10^8 exceeds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import energyml as em
from energyml.backends.gaussian import methods
from energyml.backends.gaussian.solver import LEAST
from energyml.diagnostics import EnergyError
from energyml.plan.fields import Choice, FieldFacts, Purpose, conjugate_gradients
from energyml.plan.fields import _base as base_of  # type: ignore[attr-defined]
from energyml.queries import Quality
from energyml.result import Result
from tests.fuzz.dense import LOG_2_PI, Array, Exact
from tests.fuzz.fields import FieldCase
from tests.fuzz.judge import Ledger

# Probabilities; the share of an answer that may be wrong where a status says `ok`, whatever the condition number.
PROBABILITY, ROUGH = 1e-4, 5 * LEAST
DEVIATIONS = 6.0
TOL, PROBES, DRAWS = 1e-6, 16, 60
# A failing status is right where so much of an answer may be lost.
POOR = 1e-3


class Judged:
    """One case under one backend.

    Attributes:
        wrong: by example, the first mistake of its answer.
    """

    def __init__(self, case: FieldCase, posterior: em.Posterior, known: list[Exact], residual: float) -> None:
        self.case, self.posterior, self.known, self.residual = case, posterior, known, residual
        self.wrong: dict[int, str] = {}

    def ask(self, kind: str, **arguments: Any) -> Result:
        return self.posterior.ask(kind, **arguments)

    def say(self, example: int, sound: Any, message: str) -> None:
        if not bool(np.all(sound)):
            self.wrong.setdefault(example, f"example {example}: {message}")

    def each(self) -> list[tuple[int, Exact]]:
        """The examples that have an answer."""
        return [(b, one) for b, one in enumerate(self.known) if one.definite]

    def numbers(self, value: Tensor, wanted: Callable[[Exact], tuple[float, float]], error: Tensor | None) -> None:
        """Numbers [B] against (truth, tolerance)."""
        assert value.shape == (len(self.known),), f"shape {tuple(value.shape)}"
        for b, one in self.each():
            truth, slack = wanted(one)
            found, spread = float(value[b]), 0.0 if error is None else DEVIATIONS * float(error[b])
            self.say(
                b, abs(found - truth) <= slack + spread, f"{found!r} for {truth!r}, tolerance {slack + spread:.3g}"
            )

    def cells(self, value: Tensor) -> Array:
        """[B, cells]."""
        assert value.shape == self.case.answer.shape, f"shape {tuple(value.shape)}"
        found: Array = value.detach().double().flatten(1).numpy()
        return found


def _mode(q: Judged, values: Tensor | None = None) -> Result:
    result = q.ask("mode")
    found = q.cells(result.value["s"] if values is None else values)
    for b, one in q.each():
        apart = np.linalg.norm(found[b] - one.mean)
        slack = one.mean_error(q.residual) + 8 * one.eps * np.linalg.norm(one.mean)
        q.say(b, apart <= slack, f"{found[b]} for {one.mean}, {apart:.3g} apart, tolerance {slack:.3g}")
        size = np.linalg.norm(one.mean_of_free)
        inner = np.linalg.norm((found[b] - one.mean)[one.free])
        q.say(b, inner <= ROUGH * size or not _is_reliable(one), f"{found[b]} for {one.mean}: no digits")
        q.say(b, found[b][~one.present] == 0, f"{found[b]} where there is no cell")
    return result


def _is_reliable(one: Exact) -> bool:
    """Whether the reference itself has digits."""
    doubled = one.norm * np.finfo(np.float64).eps * one.count
    return bool(one.count and one.eigenvalues[0] > 1e3 * doubled and np.linalg.norm(one.rhs) > 0)


def _map(q: Judged) -> Result:
    result = q.ask("map")
    best = result.value

    def wanted(one: Exact) -> tuple[float, float]:
        return one.best, one.best_error(q.residual)

    q.numbers(best.score, wanted, None)
    _mode(q, best["s"])
    axis = _label_axis(q.case)
    for b, one in q.each():
        values = np.moveaxis(one.mean.reshape(q.case.sizes), axis, -1)
        exists = np.moveaxis(one.present.reshape(q.case.sizes), axis, -1)[..., 0]
        labels = best["y"][b].numpy()
        q.say(b, (labels >= 0) == exists, f"labels {labels} where cells are {exists}")
        picked = np.take_along_axis(values, np.maximum(labels, 0)[..., None], -1)[..., 0]
        behind = np.where(exists, values.max(-1) - picked, 0)
        q.say(b, behind <= 2 * one.mean_error(q.residual) + 1e-300, f"labels {labels} for {values}")
    return result


def _label_axis(case: FieldCase) -> int:
    return next(axis for axis in range(len(case.sizes)) if axis not in case.positions)


def _marginals(q: Judged) -> Result:
    result = q.ask("marginals")
    axis = _label_axis(q.case)
    for b, one in q.each():
        values = np.moveaxis(one.mean.reshape(q.case.sizes), axis, -1)
        exists = np.moveaxis(one.present.reshape(q.case.sizes), axis, -1)
        shares = np.exp(values - values.max(-1, keepdims=True))
        shares = np.where(exists, shares / shares.sum(-1, keepdims=True), 0)
        found = result.value["y"][b].detach().double().numpy()
        slack = PROBABILITY + one.mean_error(q.residual) + 16 * one.eps * abs(values).max(initial=0.0)
        q.say(b, abs(found - shares) <= slack, f"{found} for {shares}, tolerance {slack:.3g}")
    return result


def _variance(q: Judged) -> Result:
    result = q.ask("variance")
    found = q.cells(result.value["s"])
    estimated = result.quality is Quality.ESTIMATE
    for b, one in q.each():
        slack = one.variance_error() + 8 * one.eps * one.variance.max(initial=0.0)
        apart = abs(found[b] - one.variance)
        if estimated:  # 1 / Qii plus the mean of squares, whose cube root is nearly normal (Wilson & Hilferty 1931)
            own = np.zeros_like(one.u)
            own[one.free] = 1 / one.matrix.diagonal()
            mean, truth = (np.maximum(part - own, 0) for part in (found[b], one.variance))
            width = math.sqrt(2 / (9 * PROBES))
            low, high = ((1 - width**2 + sign * DEVIATIONS * width) ** 3 * truth for sign in (-1, 1))
            slack += 20 * q.residual * one.variance.max(initial=0.0) * math.sqrt(one.condition)
            apart = np.maximum(low - mean, mean - high)
        q.say(b, apart <= slack, f"{found[b]} for {one.variance}, tolerance {slack:.3g}")
        q.say(b, found[b][~one.free] == 0, f"{found[b]} where nothing is free")
    return result


def _log_partition(q: Judged) -> Result:
    result = q.ask("log_partition")

    def wanted(one: Exact) -> tuple[float, float]:
        return one.log_partition, one.log_partition_error(q.residual) + _quadrature(q, one)

    q.numbers(result.value, wanted, result.statistics.get("error"))
    return result


def _quadrature(q: Judged, one: Exact) -> float:
    """Lanczos quadrature stops where the residual is small: the eigenvalues that it has not met are left out."""
    return 0.0 if q.residual == 0 else 1e-3 * one.count


def _entropy(q: Judged) -> Result:
    result = q.ask("entropy")

    def wanted(one: Exact) -> tuple[float, float]:
        slack = 0.5 * one.log_determinant_error() + 8 * one.eps * one.count
        return one.entropy, slack + (_quadrature(q, one) if "error" in result.statistics else 0.0)

    q.numbers(result.value, wanted, result.statistics.get("error"))
    return result


def _log_prob(q: Judged) -> Result:
    """Of all cells, and of some."""
    for share in (1.0, 0.5):
        generator = torch.Generator().manual_seed(q.case.batch)
        asked = torch.rand(q.case.answer.shape, generator=generator) < share
        values = torch.where(asked, q.case.answer, float("nan"))
        result = q.ask("log_prob", answer={"s": values})
        left = [one.given(v) for one, v in zip(q.known, values.double().flatten(1).numpy(), strict=True)]
        after = dict(zip(map(id, q.known), left, strict=True))

        def wanted(one: Exact, after: dict[int, Exact] = after) -> tuple[float, float]:
            rest = after[id(one)]
            parts = (rest, one)
            slack = sum(part.log_partition_error(q.residual) + _quadrature(q, part) for part in parts)
            return rest.log_partition - one.log_partition, slack

        q.numbers(result.value, wanted, result.statistics.get("error"))
        if q.wrong or not result.status.ok:
            return result
    return result


def _conditionals(q: Judged) -> Result:
    result = q.ask("conditionals", answer={"s": q.case.answer})
    mean, variance = (q.cells(one) for one in result.value["s"])
    values = q.case.answer.double().flatten(1).numpy()
    for b, one in enumerate(q.known):
        own = np.where(one.free, one.q.diagonal(), 1)
        if not (own > 8 * one.backward).all():
            continue
        terms = abs(one.u) + abs(one.q) @ abs(values[b] * one.present)
        others = one.q @ (values[b] * one.present) - one.q.diagonal() * values[b]
        truth = np.where(one.free, (one.u - others) / own, one.known)
        slack = 2 * (8 * one.eps * (one.count + 4) * terms + one.backward * (1 + abs(truth))) / own + 8 * one.eps * abs(
            truth
        )
        q.say(b, abs(mean[b] - truth) <= slack, f"mean {mean[b]} for {truth}, tolerance {slack}")
        spread = np.where(one.free, 1 / own, 0)
        slack = 2 * one.backward * spread**2 + 8 * one.eps * spread
        q.say(b, abs(variance[b] - spread) <= slack, f"variance {variance[b]} for {spread}")
    return result


def _sample(q: Judged) -> Result:
    count = DRAWS if q.residual == 0 else DRAWS // 2
    result = q.ask("sample", count=count, generator=torch.Generator().manual_seed(0))
    draws = result.value["s"]
    assert draws.shape == (count, *q.case.answer.shape), f"shape {tuple(draws.shape)}"
    cells = draws.detach().double().flatten(2).numpy()
    for b, one in q.each():
        fixed = cells[:, b][:, ~one.free]
        q.say(b, fixed == one.known[~one.free], "draws where nothing is free")
        values, vectors = np.linalg.eigh(one.matrix)
        apart = cells[:, b][:, one.free] - one.mean_of_free
        whitened = apart @ vectors * np.sqrt(np.maximum(values, 0))
        share = one.mean_error(q.residual) * np.sqrt(np.maximum(values, 0)) + one.backward / values + (
            20 * q.residual * math.sqrt(one.condition))  # fmt: skip
        mean = abs(whitened.mean(0))
        q.say(b, mean <= DEVIATIONS / math.sqrt(count) + share, f"whitened means of draws {mean}")
        squares, width = (whitened - whitened.mean(0)).var(0, ddof=1), math.sqrt(2 / (9 * (count - 1)))
        off = abs(np.cbrt(squares) - (1 - width**2))
        q.say(b, off <= DEVIATIONS * width + share, f"whitened variances of draws {squares}")
    return result


CHECKS: Mapping[str, Callable[[Judged], Result]] = {
    "mode": _mode, "map": _map, "marginals": _marginals, "variance": _variance, "log_partition": _log_partition,
    "entropy": _entropy, "log_prob": _log_prob, "sample": _sample, "conditionals": _conditionals,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- verdicts


def judge(case: FieldCase, known: list[Exact], using: str, ledger: Ledger) -> None:
    """Ask a backend every query of its card, and raise `AssertionError` for a wrong answer that says `ok`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = case.infer(using)
        for kind in posterior.answers:
            if kind in ("marginals", "map") and "output" not in case.text:
                continue
            ledger.verdicts[kind, _verdict(case, posterior, known, kind, ledger)] += 1
            ledger.strata[kind, case.kind.partition(",")[0], str(case.dtype)] += 1


def _verdict(case: FieldCase, posterior: em.Posterior, known: list[Exact], kind: str, ledger: Ledger) -> str:
    tol = float(posterior.selection["tol"]) if posterior.backend == "cg" else TOL if _iterates(posterior) else 0.0
    known = [replace(one, loss=loss) for one, loss in zip(known, _losses(posterior, known), strict=True)]
    question = Judged(case, posterior, known, 1.1 * tol)
    try:
        result = CHECKS[kind](question)
    except EnergyError as refusal:
        return f"refused: {type(refusal).__name__}"
    what = f"`{kind}` of `{posterior.selection}`"
    bad = [b for b, one in enumerate(known) if _is_bad(one, kind)]
    if result.status.ok:
        assert not bad, f"{what} says ok, and the matrix of example {bad[0]} is not positive definite: {result.value}"
        for b, one in enumerate(known):
            if one.definite is None and kind != "conditionals":
                parts = [t for t in _tensors(result.value) if t.shape[: t.dim()] and len(known) in t.shape[:2]]
                lost = any(bool(part.isnan().any()) for part in parts)
                assert not lost, f"{what} says ok and holds NaN; example {b} is singular"
        assert not question.wrong, f"{what} is wrong and says ok: {next(iter(question.wrong.values()))}"
        return "right"
    assert result.status.message
    well = {b for b, one in enumerate(known) if _is_well(one, question.residual, kind)}
    if bad and "is not positive definite" in result.status.message and kind not in ("sample", "conditionals"):
        lost = [message for b, message in question.wrong.items() if b in well]
        assert not lost, f"{what} loses an example that is well, beside example {bad[0]}: {lost[0]}"
    if bad or len(well) < len(known):
        return "said"
    worst = max((one.condition for one in known if one.count), default=1.0)
    assert not result.status.is_useless, (
        f"{what} has no answer, and the condition number is {worst:.3g}: {result.status.message}"
    )
    if question.wrong:
        return "wrong, and said"
    if len(ledger.alarms) < 8:
        ledger.alarms.append(f"{what}: {result.status.message}\n{case}")
    return "right, with a failing status"


def _is_bad(one: Exact, kind: str) -> bool:
    if kind == "conditionals":
        return False
    return one.definite is False


def _is_well(one: Exact, residual: float, kind: str) -> bool:
    """Whether an answer has digits to lose."""
    if kind == "conditionals":
        return bool((one.q.diagonal()[one.present] > 16 * one.backward).all())
    return one.definite is True and one.condition * (one.count * one.eps + residual) < POOR


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, em.Assignment):
        return [value.score, *value.fields.values()]
    return [one for part in (value.values() if isinstance(value, Mapping) else value) for one in _tensors(part)]


# -------------------------------------------------------------------------------------------------------- named methods


def _iterates(posterior: em.Posterior) -> bool:
    """Whether `exact` solves by conjugate gradients."""
    for one in posterior._session.fields.values():  # type: ignore[attr-defined]
        choice = one.methods(one.system).choice("solve")
        if choice is not None and choice.method == "cg":
            return True
    return False


def _losses(posterior: em.Posterior, known: list[Exact]) -> list[float]:
    """By example, the condition number that a Woodbury solver reports over that of the matrix, and at least 1.

    Its answers lose digits by the product of the condition numbers of both of its systems.
    """
    (one,) = posterior._session.fields.values()  # type: ignore[attr-defined]
    choice = one.methods(one.system).choice("determinant")
    if choice is None or choice.method != "woodbury":
        return [1.0] * len(known)
    reported = one.methods(one.system).solver(choice, attached=False).condition().double().tolist()
    pairs = zip(reported, known, strict=True)
    return [max(1.0, own / truth.condition) if truth.definite and own > 0 else 1.0 for own, truth in pairs]


def forced(name: str) -> Callable[[FieldFacts, float, Purpose], Choice | None]:
    """A planner that takes a method by name where it serves a field, else dense Cholesky."""

    def chosen(facts: FieldFacts, budget: float, purpose: Purpose = "solve") -> Choice | None:
        dense = Choice("cholesky")
        if name == "cg":
            return conjugate_gradients(facts) if purpose == "solve" else dense
        if name == "cholesky" or facts.dense:
            return dense
        base = base_of(facts)
        coupled = facts.stencil or facts.links
        if name == "banded" and coupled and not (facts.stencil and facts.links):
            base = Choice("banded")
        if base is None:
            return dense
        return Choice("woodbury", base.method) if facts.rank else base

    return chosen


METHODS = ("as planned", "cholesky", "layered", "banded", "cg")


class Forced:
    """Makes `exact` take a method by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before = methods._chosen
        if self.name != "as planned":
            methods._chosen = forced(self.name)

    def __exit__(self, *_: object) -> None:
        methods._chosen = self.before


__all__ = ["LOG_2_PI", "METHODS", "Forced", "judge"]

"""Judges answers: right, or wrong with a status that says so, or wrong without one."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import EnergyError
from energyml.energy_model import BackendRefused
from energyml.queries import Quality
from energyml.resolution import RESOLVED
from tests.contract.cases import Case
from tests.contract.checks import CHECKS, Question, values
from tests.contract.reference import NINF, Example, examples
from tests.contract.settings import card_of
from tests.fuzz.spectra import computed, constraints

# In units in the last place of the magnitude of the terms: scores and log Z; what is a difference of such numbers.
ULPS, DIFFERENCE_ULPS = 4, 64
DIFFERENCES = frozenset({"log_prob", "log_prob_with_cost", "cross_entropy", "kl"})
# Of probabilities; and of scores that a network computes: the rounding of computed scores is the model's own.
PROBABILITY = 1e-4
# No score is asked for more closely than this.
SMALLEST = 2.0**-60
NETWORK = {torch.float32: 1e-4, torch.float64: 1e-12}
# Answers whose score is further below the best one do not count for tolerances.
RELEVANT = 50.0


@dataclass
class Ledger:
    """Counts the verdicts of a run.

    Attributes:
        verdicts: by (query, verdict).
        strata: how many cases by (query, constraint, spectrum).
        alarms: the first right answers that came with a failing status.
    """

    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    strata: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)

    def total(self, verdict: str) -> int:
        """How many answers got a verdict."""
        return sum(count for (_, one), count in self.verdicts.items() if one == verdict)

    def __str__(self) -> str:
        lines = [f"{kind:20} {verdict:28} {count}" for (kind, verdict), count in sorted(self.verdicts.items())]
        return "\n".join([*lines, f"least cases of a stratum: {min(self.strata.values(), default=0)}", *self.alarms])


class Judged(Question):
    """A question whose tolerances follow the magnitudes of the scores, and that remembers the statuses it met."""

    def __init__(self, case: Case, posterior: em.Posterior, known: list[Example], kind: str) -> None:
        super().__init__(case, posterior, known)
        self.ulps = DIFFERENCE_ULPS if kind in DIFFERENCES else ULPS
        self.computed = NETWORK[case.dtype] if "net " in case.text else DIFFERENCE_ULPS * torch.finfo(case.dtype).eps
        self.computed = self.computed if computed(case) else 0.0
        self.probability_error = PROBABILITY / 10  # of large scores; the checks allow ten times it
        self.statuses: list[str] = []
        self.failing: list[str] = []
        self.unfit, self.loose = False, False
        self.sizes = np.array([_size(one) for one in known])

    def ask(self, kind: str, **arguments: Any) -> Any:
        result = self.posterior.ask(kind, **arguments)
        if not result.status.ok:
            self.statuses.append(result.status.message)
        if result.status.is_useless:
            self.failing.append(result.status.message)
        self.quality = result.quality
        self.qualities[kind] = result.quality
        # A search that ends without an answer says so, also where some of its draws found one.
        nothing = isinstance(result.value, em.Assignment) and bool(result.value.score.isneginf().any())
        self.loose = self.loose or (nothing and result.quality is not Quality.EXACT)
        return result.value

    def score_of(self, found: Tensor, wanted: float, size: float) -> None:
        self._compare(found, np.asarray(wanted, dtype=np.float64), np.asarray(size))

    def compared_with(self, second: Sequence[Example]) -> None:
        own = zip(self.examples, second, strict=True)
        sizes = np.array([two.size[one.probabilities > 0].max(initial=0.0) + _size(two) for one, two in own])
        # Probabilities are off by as much as the scores that they come from are rounded, and weigh the others' scores.
        unit = self.ulps * torch.finfo(self.case.dtype).eps
        shares = np.minimum(unit * self.sizes, PROBABILITY)
        self.sizes = np.maximum(self.sizes, sizes) + shares * sizes / unit

    def scores(self, found: Tensor, wanted: Any) -> None:
        want = np.asarray(wanted, dtype=np.float64)
        assert found.shape == want.shape, f"shape {tuple(found.shape)}, expected {want.shape}"
        one_each = want.ndim and len(want) == len(self.sizes)
        sizes = self.sizes.reshape(-1, *[1] * (want.ndim - 1)) if one_each else self.sizes.max(initial=1.0)
        self._compare(found, want, sizes)

    def _compare(self, found: Tensor, want: Any, sizes: Any) -> None:
        have = values(found)
        assert not np.isnan(have).any(), f"NaN in {have}"
        # A model without any score of its own answers in torch's default type.
        limit = max(torch.finfo(found.dtype), torch.finfo(self.case.dtype), key=lambda one: one.eps)
        # Sums just beyond the largest number are rounded to it or to infinity, as the order of their terms has it.
        largest = limit.max / 2
        outside = np.isfinite(want) & (np.abs(want) / 2 > largest * (1 + self.ulps * limit.eps))
        either = np.isfinite(want) & (np.abs(want) > limit.max) & ~outside
        if outside.any() and self.quality is Quality.EXACT:
            self.unfit = True
            assert (have[outside] == np.sign(want[outside]) * np.inf).all(), f"{have} for {want}, which does not fit"
        fits = ~outside & ~either
        have, want = have[fits], want[fits]
        finite = np.isfinite(want)
        known = np.where(finite, want, 0)
        slack = self.ulps * limit.eps * np.maximum(np.broadcast_to(sizes, fits.shape)[fits], np.abs(known))
        slack = slack + self.computed + SMALLEST
        if self.quality is Quality.EXACT:
            assert ((have == NINF) == (want == NINF)).all(), f"-inf differs: {have} and {want}"
            assert (abs(have - known)[finite] <= slack[finite]).all(), f"{have} for {want}, with a tolerance of {slack}"
            return
        # A failing status on a bound is no false alarm, unless the bound is as good as the answer.
        close = fits.all() and finite.all() and (abs(have - known) <= slack + PROBABILITY).all()
        self.loose = self.loose or not close
        if self.quality is Quality.LOWER:
            assert (have <= want + slack).all(), f"{have} is no lower bound of {want}, with a tolerance of {slack}"
        elif self.quality is Quality.UPPER:
            assert (have >= want - slack).all(), f"{have} is no upper bound of {want}, with a tolerance of {slack}"

    def probabilities(self, found: Tensor, wanted: Any) -> None:
        have, want = values(found), np.asarray(wanted, dtype=np.float64)
        assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
        assert not np.isnan(have).any(), f"NaN in {have}"
        if self.quality is Quality.EXACT:
            np.testing.assert_allclose(have, want, atol=PROBABILITY, rtol=PROBABILITY)
        else:
            self.loose = True


def _size(example: Example) -> float:
    """The magnitude of the terms of log Z: scores of the answers that count, and the log of how many there are."""
    counts = example.level >= -RELEVANT
    cells = sum(int((labels >= 0).any(0).sum()) for labels in example.labels.values())
    return float(example.size[counts].max(initial=0.0)) + 1.0 + cells


def judge(case: Case, using: str, spectrum: str, ledger: Ledger) -> None:
    """Ask a backend every query that its card claims, and raise `AssertionError` for a wrong answer that says `ok`."""
    kinds = constraints(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            posterior = case.infer(using)
        except BackendRefused:
            return
        known = examples(case)
        asked, doubted = card_of(using).answers, False
        for kind in sorted(asked, key=lambda kind: kind != "marginals"):
            for constraint in kinds:
                ledger.strata[kind, constraint, spectrum] += 1
            verdict = _verdict(case, posterior, known, kind, ledger, doubted)
            ledger.verdicts[kind, verdict] += 1
            # Where probabilities are wrong and said to be, other answers about them may be right by their tolerance.
            doubted = doubted or (kind == "marginals" and verdict == "wrong, and said")
        for problem in _plain(case, using, posterior):
            raise AssertionError(problem)


def _verdict(
    case: Case, posterior: em.Posterior, known: list[Example], kind: str, ledger: Ledger, doubted: bool
) -> str:
    question = Judged(case, posterior, known, kind)
    try:
        CHECKS[kind](question)
        if kind == "log_partition":
            _is_sharp(question)
    except EnergyError as refusal:
        return f"refused: {type(refusal).__name__}"
    except AssertionError as wrong:
        if not question.statuses:
            raise AssertionError(f"`{kind}` of `{posterior.backend}` is wrong and says ok: {wrong}") from wrong
        return "wrong, and said"
    if question.unfit and not question.statuses:
        raise AssertionError(f"`{kind}` of `{posterior.backend}` does not fit the type and says ok")
    # Draws never show that they are right: a warning about them is no alarm, and an approximation that finds no answer
    # does not know that there is none.
    drawn = question.quality in (Quality.ESTIMATE, Quality.READOUT)
    alarms = question.failing if drawn else question.statuses
    hopeless = drawn and any(one.n_best(1)[0] == NINF for one in known)
    if alarms and not (question.unfit or question.loose or hopeless or (doubted and kind in RESOLVED)):
        if len(ledger.alarms) < 8:
            ledger.alarms.append(f"{kind}: {alarms[0]}\n{describe(case)}")
        return "right, with a failing status"
    return "right"


def _is_sharp(question: Judged) -> None:
    """A bound that anybody can see is no answer: factors one by one bound log Z from above, any answer from below."""
    found = values(question.posterior.ask("log_partition").value)
    if question.quality is Quality.UPPER:
        ceiling = np.array([one.ceiling for one in question.examples])
        slack = 1e-3 * (1 + abs(np.where(np.isneginf(ceiling), 0, ceiling)))
        slack = slack + DIFFERENCE_ULPS * torch.finfo(question.case.dtype).eps * question.sizes
        assert (found <= ceiling + slack).all(), f"{found} where factors alone give {ceiling}"
    elif question.quality is Quality.LOWER and "map" in question.posterior.answers:
        best = values(question.posterior.ask("map").value.score)
        best = np.where(np.isneginf(best), found, best)
        assert (found >= best - 1e-3 * (1 + abs(best))).all(), f"{found} where an answer has the score {best}"


def _plain(case: Case, using: str, posterior: em.Posterior) -> Iterator[str]:
    """Answers that are asked for as attributes and without gradients are those of `ask`."""
    if case.model.plan(using).verdict.answers.get("log_partition") is not Quality.EXACT:
        return
    try:
        asked = {kind: posterior.ask(kind) for kind in ("log_partition", "marginals")}
    except EnergyError:  # refused, also as an attribute
        return
    if not all(one.status.ok for one in asked.values()):
        return
    with torch.no_grad():
        other = case.infer(using)
        total, marginals = other.log_partition, other.marginals
    wide = torch.finfo(case.dtype).eps
    if not torch.allclose(total, asked["log_partition"].value, rtol=8 * wide, atol=64 * wide, equal_nan=True):
        yield f"log Z {total} as an attribute, {asked['log_partition'].value} by `ask`"
    for name, one in marginals.items():
        if not torch.allclose(one, asked["marginals"].value[name], rtol=0, atol=1e-5, equal_nan=True):
            yield f"marginals of {name}: {one} as an attribute, {asked['marginals'].value[name]} by `ask`"


def describe(case: Case) -> str:
    """A case as text, to run it again."""
    torch.set_printoptions(precision=9)
    parts = {name: getattr(case, name) for name in ("inputs", "weights", "lengths", "masks", "evidence")}
    given = (f"{name}: {dict(one)}" for name, one in parts.items() if one)
    return "\n".join([case.text, f"dtype: {case.dtype}", *given])

"""How each query's answer is held against the reference, at the quality that a backend's card promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.queries import Quality, View
from energyml.result import Result, without_answer
from tests.contract.cases import Case
from tests.contract.reference import NINF, Example, examples

COUNT = 3
Check = Callable[["Question"], None]


class Question:
    """One posterior, the reference of its examples, and how closely they must agree."""

    def __init__(self, case: Case, posterior: em.Posterior, examples: Sequence[Example]) -> None:
        self.case, self.posterior, self.examples = case, posterior, examples
        single = case.dtype == torch.float32
        self.score_error = (2e-5 if single else 1e-9) * max(1.0, case.magnitude)
        self.probability_error = min(1.0, (2e-5 if single else 1e-9) * max(1.0, case.magnitude))
        self.generator = torch.Generator().manual_seed(case.batch + 17)
        torch.manual_seed(case.batch + 17)  # samplers draw from torch's own generator where they are given none
        self.quality = Quality.EXACT
        self.qualities: dict[str, Quality] = {}

    def ask(self, kind: str, **arguments: Any) -> Any:
        """The value of a query; its quality is remembered."""
        result = self.posterior.ask(kind, **arguments)
        assert result.status.message
        # An estimate or a bound may say that it is less exact than it was asked to be; what is promised must be kept.
        # A search may say that it found nothing, where it gives no answer.
        assert (
            result.status.ok
            or (result.quality in (Quality.ESTIMATE, Quality.UPPER) and "raise" in result.status.message)
            or (result.quality is not Quality.EXACT and self._gives_up(kind, result))
            or (kind == "log_partition" and "is below the score of an answer" in result.status.message)
        )
        self.quality = result.quality
        self.qualities[kind] = result.quality
        return result.value

    @staticmethod
    def _gives_up(kind: str, result: Result) -> bool:
        """Whether an answer shows that nothing was found, and its status says so."""
        gone = without_answer(kind, result.value)
        said = any(words in result.status.message for words in ("forbidden", "of positive weight"))
        return said and gone is not None and bool(gone.any())

    def exactly(self, *kinds: str) -> bool:
        """Whether the backend answers these queries, and exactly."""
        answers = self.case.model.plan(self.posterior.backend).verdict.answers
        return all(answers.get(kind) is Quality.EXACT for kind in kinds)

    @property
    def sums_out(self) -> bool:
        """Whether latents are summed out."""
        return any(v.kind == "latent" for v in self.case.model.graph.discrete)

    def bound(self, found: Tensor, wanted: Any, upper: bool) -> None:
        """Scores that lie on one side of the wanted ones."""
        before, self.quality = self.quality, Quality.UPPER if upper else Quality.LOWER
        self.scores(found, wanted)
        self.quality = before

    def scores(self, found: Tensor, wanted: Any) -> None:
        """Compare scores; -inf must stand exactly where it should."""
        have, want = values(found), np.asarray(wanted, dtype=np.float64)
        assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
        assert not np.isnan(have).any(), f"NaN in {have}"
        if self.quality is Quality.EXACT:
            assert ((have == NINF) == (want == NINF)).all(), f"-inf differs: {have} and {want}"
            finite = want != NINF
            np.testing.assert_allclose(have[finite], want[finite], atol=self.score_error, rtol=1e-6)
        elif self.quality in (Quality.LOWER, Quality.UPPER):
            error = self.score_error + 1e-6 * np.abs(np.where(np.isfinite(want), want, 0))
            if self.quality is Quality.LOWER:
                assert (have <= want + error).all(), f"{have} is no lower bound of {want}"
            else:
                assert (have >= want - error).all(), f"{have} is no upper bound of {want}"

    def score_of(self, found: Tensor, wanted: float, size: float) -> None:
        """Compare the score of one answer; its terms' magnitudes add up to `size`."""
        self.scores(found, wanted)

    def compared_with(self, second: Sequence[Example]) -> None:
        """Take note that an answer is made of scores of other examples too."""

    def probabilities(self, found: Tensor, wanted: Any) -> None:
        """Compare probabilities, entropies and the like."""
        have, want = values(found), np.asarray(wanted, dtype=np.float64)
        assert have.shape == want.shape, f"shape {have.shape}, expected {want.shape}"
        assert not np.isnan(have).any(), f"NaN in {have}"
        if self.quality is Quality.EXACT:
            np.testing.assert_allclose(have, want, atol=10 * self.probability_error, rtol=1e-5)

    def distributions(self, found: Tensor, wanted: Any, axes: int) -> None:
        """Probabilities over the last axes.

        Exact ones equal the wanted ones, which need not add up to 1 where the length is part of the answer; all others
        add up to 1 where there is an answer.
        """
        self.probabilities(found, wanted)
        assert (values(found) >= 0).all(), "negative probabilities"
        if self.quality is Quality.EXACT:
            return
        have, want = (one.sum(tuple(range(-axes, 0))) for one in (values(found), np.asarray(wanted)))
        # A model without any score of its own answers in torch's default type.
        error = 1e-4 if torch.float32 in (self.case.dtype, found.dtype) else 1e-9
        if any(dim.kind == "free" for dim in self.case.model.graph.dims.values()):
            # Where the length is part of the answer, a sum is the estimated probability that there is a cell.
            assert (have <= 1 + error).all(), "a probability above 1"
            assert (have[want == 0] <= error).all(), "probability where there is never a cell"
            return
        known = want > 0.5
        np.testing.assert_allclose(have[known], 1, atol=error)
        assert (np.minimum(abs(have), abs(have - 1))[~known] <= error).all(), "neither 0 nor 1 as a sum"

    def shaped(self, variable: str, *beyond: int) -> tuple[int, ...]:
        """The shape of a variable's tensor."""
        return (self.case.batch, *self.examples[0].shape(variable), *beyond)

    @property
    def outputs(self) -> list[str]:
        """The variables that answers name."""
        return [v.name for v in self.case.model.graph.discrete if v.kind != "latent"]

    def random_answer(self, known: float) -> dict[str, Tensor]:
        """Labels for every variable, -1 where a coin says so."""
        answer = {}
        for name, count in self.examples[0].counts.items():
            labels = torch.randint(0, count, self.shaped(name), generator=self.generator)
            answer[name] = labels.masked_fill(torch.rand(labels.shape, generator=self.generator) >= known, -1)
        return answer

    def is_full(self, answer: Mapping[str, Tensor]) -> bool:
        """Whether lengths are fixed and an answer has a label for every cell of every variable, latents too."""
        if any(dim.kind == "free" for dim in self.case.model.graph.dims.values()):
            return False
        return set(answer) == set(self.examples[0].counts) and all(
            ((labels[b].numpy() >= 0) | (example.labels[name] < 0).all(0)).all()
            for name, labels in answer.items()
            for b, example in enumerate(self.examples)
        )

    def best_answer(self) -> dict[str, Tensor]:
        """For each example a likely answer, latents left open: so that not all probabilities are zero."""
        found = {name: torch.full(self.shaped(name), -1) for name in self.outputs}
        for b, example in enumerate(self.examples):
            first, scores = example.outputs()
            order = np.argsort(scores)[::-1]
            row = first[order[min(1, len(order) - 1)]]
            for name in found:
                found[name][b] = torch.as_tensor(example.labels[name][row])
        return found


def values(tensor: Tensor) -> Any:
    """As float64."""
    return tensor.detach().double().numpy()


def log_partition(q: Question) -> None:
    found, wanted = q.ask("log_partition"), [e.log_partition for e in q.examples]
    q.scores(found, wanted)
    if q.quality is not Quality.LOWER:
        assert (np.array(wanted)[values(found) == NINF] == NINF).all(), "possible examples are said to be impossible"


def marginals(q: Question) -> None:
    found = q.ask("marginals")
    assert set(found) == set(q.examples[0].counts)
    for name, one in found.items():
        q.distributions(one, np.stack([e.marginals(name) for e in q.examples]), 1)


def factor_marginals(q: Question) -> None:
    found = q.ask("factor_marginals")
    tables = [term for term in q.case.model.graph.terms if View.TABLE in term.views]
    assert set(found) == {term.name for term in tables}
    for term in tables:
        domain = found[term.name].shape[1 : 1 + len(term.domain)]
        wanted = np.stack([e.factor_marginals(term, tuple(domain)) for e in q.examples])
        q.distributions(found[term.name], wanted, len(term.scope))
    if tables:
        only = q.ask("factor_marginals", target=tables[0].name)
        assert set(only) == {tables[0].name}


def max_marginals(q: Question) -> None:
    found = q.ask("max_marginals")
    assert set(found) == set(q.outputs)
    for name, one in found.items():
        q.scores(one, np.stack([e.max_marginals(name) for e in q.examples]))


def best(q: Question) -> None:
    found = q.ask("map")
    q.scores(found.score, [e.n_best(1)[0] for e in q.examples])
    _holds_what_it_says(
        q, {name: labels.unsqueeze(1) for name, labels in found.labels.items()}, found.score.unsqueeze(1)
    )
    kinds = {v.kind for v in q.case.model.graph.discrete}
    if q.exactly("map", "log_partition", "log_prob") and "latent" not in kinds:
        log_z = q.ask("log_partition")
        possible = ~found.score.isneginf()
        stated = torch.where(possible, found.score - log_z.masked_fill(~possible, 0), NINF)
        q.scores(q.posterior.log_prob(**found.labels), values(stated))


def best_bound(q: Question) -> None:
    found = q.ask("map_bound")
    q.scores(found, [e.n_best(1)[0] for e in q.examples])
    answer = q.posterior.ask("map")
    q.bound(answer.value.score, values(found), upper=False)
    np.testing.assert_array_equal(values(answer.statistics["bound"]), values(found))


def n_best(q: Question) -> None:
    found = q.ask("n_best", count=COUNT)
    assert found.score.shape == (q.case.batch, COUNT)
    q.scores(found.score, np.stack([e.n_best(COUNT) for e in q.examples]))
    scores = values(found.score)
    assert (scores[:, :-1] >= scores[:, 1:]).all(), "not sorted"
    _holds_what_it_says(q, found.labels, found.score)
    for b in range(q.case.batch):
        rows = [tuple(tuple(one[b, k].flatten().tolist()) for one in found.labels.values())
                for k in range(COUNT) if scores[b, k] != NINF]  # fmt: skip
        assert len(set(rows)) == len(rows), "the same answer twice"
    if q.exactly("map"):
        q.scores(q.ask("map").score, scores[:, 0])


def _holds_what_it_says(q: Question, labels: Any, score: Tensor) -> None:
    """Labels [B, k, *dims] have the scores [B, k] that they come with, and -1 only where there is no cell or answer."""
    assert set(labels) == set(q.outputs)
    stated = values(score)
    for b, example in enumerate(q.examples):
        first, scores = example.outputs()
        for k in range(stated.shape[1]):
            answer = {name: one[b, k].numpy() for name, one in labels.items()}
            if stated[b, k] == NINF:
                assert all((one == -1).all() for one in answer.values()), "labels without an answer"
                continue
            rows = [
                n for n, row in enumerate(first) if all((example.labels[v][row] == answer[v]).all() for v in answer)
            ]
            assert len(rows) == 1, f"{answer} is no answer"
            # Whoever found an answer, by whatever approximation: the score that comes with it is its own.
            before, q.quality = q.quality, q.quality if q.sums_out else Quality.EXACT
            q.score_of(torch.tensor(stated[b, k], dtype=torch.float64), scores[rows[0]], example.size[first[rows[0]]])
            q.quality = before


def sample(q: Question) -> None:
    found = q.ask("sample", count=COUNT, generator=q.generator)
    assert found.score.shape == (COUNT, q.case.batch)
    labels = {name: one.movedim(0, 1) for name, one in found.labels.items()}
    _holds_what_it_says(q, labels, found.score.movedim(0, 1))


def entropy(q: Question) -> None:
    found = q.ask("entropy")
    q.probabilities(found, [e.entropy for e in q.examples])
    # A model without any score of its own answers in torch's default type.
    error = 10 * (q.probability_error if found.dtype == q.case.dtype else max(q.probability_error, 2e-5))
    assert (values(found) >= -error).all()
    first = q.examples[0]
    most = sum(np.prod(first.shape(name)) * np.log(first.counts[name]) for name in q.outputs)
    assert (values(found) <= most + error).all()


def log_prob(q: Question) -> None:
    asked = []
    for answer in (q.random_answer(1.0), q.random_answer(0.4), q.best_answer()):
        found, wanted = q.ask("log_prob", answer=answer), [e.log_prob(answer) for e in q.examples]
        q.scores(found, wanted)
        asked.append((found, wanted))
    bounds = {Quality.LOWER: True, Quality.UPPER: False}
    kind = q.case.model.plan(q.posterior.backend).verdict.answers.get("log_partition")
    if kind in bounds and not q.sums_out:
        for found, wanted in (asked[0], asked[2]):  # of whole answers
            # The score less a lower bound of log Z is an upper bound, and the other way round; -inf stays -inf.
            possible = torch.tensor([one != NINF for one in wanted])
            q.bound(found[possible], np.array(wanted)[possible.numpy()], upper=bounds[kind])


def max_with_cost(q: Question) -> None:
    cost = {}
    for name in q.outputs:
        shape = q.shaped(name, q.examples[0].counts[name])
        cost[name] = torch.rand(shape, generator=q.generator, dtype=torch.float64).to(q.case.dtype) * q.case.magnitude
    found = q.ask("max_with_cost", cost=cost)
    q.scores(found.score, [e.max_with_cost(cost) for e in q.examples])


def log_prob_with_cost(q: Question) -> None:
    for answer in (q.random_answer(1.0), q.random_answer(0.4), q.best_answer()):
        cost = {}
        for name, count in q.examples[0].counts.items():
            one = torch.rand(q.shaped(name, count), generator=q.generator, dtype=torch.float64).to(q.case.dtype)
            cost[name] = one * q.case.magnitude
        found = q.ask("log_prob_with_cost", answer=answer, cost=cost)
        q.scores(found, [e.log_prob_with_cost(answer, cost) for e in q.examples])
    nothing = {name: torch.zeros_like(one) for name, one in cost.items()}
    q.scores(q.ask("log_prob_with_cost", answer=answer, cost=nothing), [e.log_prob(answer) for e in q.examples])


def conditionals(q: Question) -> None:
    answer = q.random_answer(1.0)
    if any(dim.kind == "free" for dim in q.case.model.graph.dims.values()):
        with pytest.raises(QueryRefused, match="part of the answer"):
            q.ask("conditionals", answer=answer)
        return
    found = q.ask("conditionals", answer=answer)
    for name, one in found.items():
        wanted = np.full(one.shape, NINF)
        for b, example in enumerate(q.examples):
            for place in np.ndindex(*example.shape(name)):
                if (example.labels[name][(slice(None), *place)] < 0).all():
                    continue
                trial = {v: labels[b].numpy().copy() for v, labels in answer.items()}
                trials = []
                for label in range(example.counts[name]):
                    trial[name][place] = label
                    trials.append({v: labels.copy() for v, labels in trial.items()})
                levels = example.levels_of(trials)
                if levels.max() != NINF:
                    wanted[(b, *place)] = levels - np.logaddexp.reduce(levels)
        q.scores(one, wanted)


def expectation(q: Question) -> None:
    asked: dict[str, Tensor] = {}
    wanted = np.zeros(q.case.batch)
    factors = q.ask("factor_marginals")
    for name, count in q.examples[0].counts.items():
        asked[name] = torch.randn(q.shaped(name, count), generator=q.generator, dtype=torch.float64).to(q.case.dtype)
        wanted += [(e.marginals(name) * values(asked[name])[b]).sum() for b, e in enumerate(q.examples)]
    for term in q.case.model.graph.terms:
        if term.name in factors and term.name not in asked:
            shape = (1, *factors[term.name].shape[1:])
            asked[term.name] = torch.randn(shape, generator=q.generator, dtype=torch.float64).to(q.case.dtype)
            domain = tuple(shape[1 : 1 + len(term.domain)])
            wanted += [(e.factor_marginals(term, domain) * values(asked[term.name])[0]).sum() for e in q.examples]
    found = q.ask("expectation", values=asked)
    q.probabilities(found, wanted)
    if q.quality is not Quality.EXACT:
        known = {**factors, **q.ask("marginals")}
        own = sum((values(known[name]) * values(one)).reshape(q.case.batch, -1).sum(1) for name, one in asked.items())
        np.testing.assert_allclose(values(found), own, atol=1e-4 if q.case.dtype == torch.float32 else 1e-9, rtol=1e-5)


def _second(q: Question) -> tuple[em.Posterior, Sequence[Example]]:
    """Another posterior of the same cells: the same model with other inputs."""
    inputs = {
        name: (one * 0.5 + torch.rand(one.shape, generator=q.generator).to(one.dtype))
        if one.is_floating_point()
        else one
        for name, one in q.case.inputs.items()
    }
    case = replace(q.case, inputs=inputs)
    return case.infer(q.posterior.backend), examples(case)


def _compared(q: Question, kind: str) -> None:
    graph = q.case.model.graph
    other, second = _second(q)
    reason = next((word for word, holds in (
        ("latents", any(v.kind == "latent" for v in graph.discrete)),
        ("part of the answer", any(dim.kind == "free" for dim in graph.dims.values())),
    ) if holds), None)  # fmt: skip
    if reason is not None:
        with pytest.raises(QueryRefused, match=reason):
            q.ask(kind, other=other)
        return
    wanted = []
    for one, two in zip(q.examples, second, strict=True):
        p = one.probabilities
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p, log_q = one.log_probabilities, two.log_probabilities
            minus = log_q if kind == "cross_entropy" else log_q - log_p
            wanted.append(float(np.where(p > 0, p * minus, 0).sum()) if p.sum() > 0 else 0.0)
    found = -q.ask(kind, other=other)
    q.compared_with(second)
    q.scores(found, wanted)


def cross_entropy(q: Question) -> None:
    _compared(q, "cross_entropy")


def kl(q: Question) -> None:
    _compared(q, "kl")


def soft_decode(q: Question) -> None:
    """Probability vectors of what exists and is allowed; only an example without any answer may have none."""
    with torch.no_grad():
        found = q.ask("soft_decode")
    assert set(found) == set(q.examples[0].counts)
    for name, one in found.items():
        have, error = values(one), 1e-4 if one.dtype == torch.float32 else 1e-9
        assert have.shape == q.shaped(name, q.examples[0].counts[name])
        assert not np.isnan(have).any() and (have >= 0).all()
        for b, example in enumerate(q.examples):
            cells = (example.labels[name] >= 0).any(0)
            allowed = example.allowed(name)
            total = have[b].sum(-1)
            assert (total[~cells] == 0).all(), "probability where there is no cell"
            assert (have[b][~allowed & (total > 0)[..., None]] == 0).all(), "probability that evidence rules out"
            given_up = example.log_partition == NINF and (total == 0).all()
            assert given_up or (abs(total[cells] - 1) <= error).all(), "no distribution"


CHECKS: dict[str, Check] = {
    "log_partition": log_partition,
    "marginals": marginals,
    "factor_marginals": factor_marginals,
    "max_marginals": max_marginals,
    "map": best,
    "map_bound": best_bound,
    "n_best": n_best,
    "sample": sample,
    "entropy": entropy,
    "log_prob": log_prob,
    "max_with_cost": max_with_cost,
    "log_prob_with_cost": log_prob_with_cost,
    "conditionals": conditionals,
    "expectation": expectation,
    "cross_entropy": cross_entropy,
    "kl": kl,
    "soft_decode": soft_decode,
}


def arguments(kind: str, q: Question) -> dict[str, Any]:
    """What a query of a kind needs, so that only its kind can be the reason for a refusal."""
    if kind == "log_prob" or kind == "conditionals":
        return {"answer": q.random_answer(1.0)}
    if kind in ("max_with_cost", "log_prob_with_cost"):
        costs = {n: torch.zeros(q.shaped(n, q.examples[0].counts[n]), dtype=q.case.dtype) for n in q.outputs}
        return {"cost": costs} if kind == "max_with_cost" else {"cost": costs, "answer": q.random_answer(1.0)}
    if kind == "expectation":
        return {"values": {n: torch.zeros(q.shaped(n, q.examples[0].counts[n]), dtype=q.case.dtype) for n in q.outputs}}
    if kind in ("cross_entropy", "kl"):
        return {"other": q.posterior}
    return {}

"""What must agree: scores with the reference, batches with their examples, precisions, losses and draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

import energyml as em
from tests.contract.cases import Case
from tests.contract.checks import Question, values
from tests.contract.reference import NINF, Example, examples
from tests.contract.settings import BACKENDS, FAMILIES, TABLES, card_of, exact_objectives, exact_queries, some

torch.set_num_threads(1)

LOSSES = ("nll", "ssvm", "softmax_margin", "marginal_ce")


def serves(case: Case, using: str) -> bool:
    return case.model.plan(using).verdict.serves


# ------------------------------------------------------------------------------------------------------------- scores


def chosen_answers(case: Case, references: list[Example], turn: int) -> tuple[dict[str, Tensor], list[float]]:
    """An answer for each example, with nonsense where there is no cell, and its score."""
    answer = {name: torch.full((case.batch, *references[0].shape(name)), -9) for name in references[0].labels}
    scores = []
    for b, example in enumerate(references):
        row = (turn * 7919 + b) % len(example.score)
        for name, labels in example.labels.items():
            known = torch.as_tensor(labels[row])
            answer[name][b] = torch.where(known >= 0, known, answer[name][b])
        scores.append(float(example.score[row]))
    return answer, scores


@pytest.mark.parametrize("family", FAMILIES)
def test_score_is_the_sum_of_terms(family: str) -> None:
    @some(50)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        free = any(dim.kind == "free" for dim in case.model.graph.dims.values())
        without = replace(case, evidence={})
        references = examples(without)
        question = Question(without, None, references)  # type: ignore[arg-type]
        for turn in range(4):
            answer, wanted = chosen_answers(without, references, turn)
            if free:
                answer = {name: labels.clamp(min=0) for name, labels in answer.items()}
            question.scores(case.model.score(**case.arguments(**answer)), wanted)

    run()


@some(30)
@given(case=FAMILIES["free_lengths"])
def test_an_answer_without_an_end_is_no_answer(case: Case) -> None:
    labels = torch.zeros(case.batch, case.sizes["T"], dtype=torch.long)
    assert case.model.score(**case.arguments(y=labels)).isneginf().all()
    assert case.infer("enumerate").log_prob(y=labels).isneginf().all()


# ---------------------------------------------------------------------------------------------- batches and precision


def all_values(case: Case, using: str) -> dict[str, Tensor]:
    """The tensors of the queries that a backend answers exactly, by name."""
    posterior = case.infer(using)
    found: dict[str, Tensor] = {}
    asking = {
        "sample", "log_prob", "max_with_cost", "log_prob_with_cost", "conditionals", "expectation", "cross_entropy",
        "kl",
    }  # fmt: skip
    for kind in sorted(exact_queries(using) - asking):
        value = posterior.ask(kind, count=2).value
        if isinstance(value, Tensor):
            found[kind] = value
        elif isinstance(value, dict):
            found.update({f"{kind}.{name}": one for name, one in value.items()})
        else:
            found[kind] = value.score
    return found


def close(one: Tensor, other: Tensor, error: float) -> None:
    a, b = values(one), values(other)
    assert ((a == NINF) == (b == NINF)).all()
    finite = a != NINF
    np.testing.assert_allclose(a[finite], b[finite], atol=error, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("using", BACKENDS)
def test_a_batch_is_its_examples(using: str, family: str) -> None:
    @some(25)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        if not serves(case, using):
            return
        together = all_values(case, using)
        for b in range(case.batch):
            for name, one in all_values(case.example(b), using).items():
                # Alone, an example may be padded less, where nothing but lengths tells the size.
                here = together[name][b][tuple(slice(size) for size in one.shape[1:])]
                close(here, one[0], (1e-5 if case.dtype == torch.float32 else 1e-9) * case.magnitude)

    run()


@pytest.mark.parametrize("family", TABLES)
@pytest.mark.parametrize("using", BACKENDS)
def test_single_precision_agrees_with_double(using: str, family: str) -> None:
    @some(25)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        if not serves(case, using):
            return
        single = case.converted(torch.float32)
        double = all_values(single.converted(torch.float64), using)
        for name, one in all_values(single, using).items():
            assert one.dtype == torch.float32
            close(one, double[name], 2e-5 * case.magnitude)

    run()


@some(80)
@given(case=FAMILIES["chains"])
def test_backends_agree_on_chains(case: Case) -> None:
    truth = all_values(case, "enumerate")
    for using in BACKENDS:
        if using == "enumerate" or not serves(case, using):
            continue
        for name, one in all_values(case, using).items():
            close(one, truth[name], (2e-5 if case.dtype == torch.float32 else 1e-9) * case.magnitude)


# ------------------------------------------------------------------------------------------------------------- losses


def expected_losses(references: list[Example], answer: dict[str, Tensor], tiny: float) -> dict[str, list[float]]:
    """The losses of labels (-1 for unknown) from the enumerated answers; `tiny` is the smallest probability."""
    found: dict[str, list[float]] = {name: [] for name in LOSSES}
    for b, example in enumerate(references):
        here = {
            name: np.where((example.labels[name] >= 0).any(0), labels[b].numpy(), -1) for name, labels in answer.items()
        }
        known = sum(int((labels >= 0).sum()) for labels in here.values())
        found["nll"].append(-example.log_prob(answer))
        first, scores = example.outputs()
        gold, worst = NINF, NINF
        for row, score in zip(first, scores, strict=True):
            pairs = [(example.labels[name][row], labels) for name, labels in here.items()]
            wrong = sum(int(((one != labels) & (labels >= 0) & (one >= 0)).sum()) for one, labels in pairs)
            worst = max(worst, score + wrong / max(1, known))
            gold = max(gold, score) if wrong == 0 else gold
        found["ssvm"].append(np.inf if gold == NINF else worst - gold)
        cost = {name: torch.zeros(len(references), *labels.shape, example.counts[name], dtype=torch.float64)
                for name, labels in here.items()}  # fmt: skip
        for name, labels in here.items():
            for place in np.ndindex(*labels.shape):
                if labels[place] >= 0:
                    cost[name][(b, *place)] = 1 / known
                    cost[name][(b, *place, labels[place])] = 0
        found["softmax_margin"].append(-example.log_prob_with_cost(answer, cost))
        total = 0.0
        for name, labels in here.items():
            p = example.marginals(name)
            picked = np.take_along_axis(p, np.maximum(labels, 0)[..., None], -1)[..., 0]
            total += float(np.where(labels >= 0, -np.log(np.clip(picked, tiny, 1)), 0).sum())
            best = np.take_along_axis(example.max_marginals(name), np.maximum(labels, 0)[..., None], -1)[..., 0]
            total = np.inf if ((best == NINF) & (labels >= 0)).any() else total
        found["marginal_ce"].append(total)
    return found


@pytest.mark.parametrize("family", ["chains", "sugar", "graphs", "grids", "wholes"])
@pytest.mark.parametrize("using", [using for using in BACKENDS if "log_prob" in card_of(using).answers])
def test_losses(using: str, family: str) -> None:
    @some(25)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        case = replace(case, evidence={})
        if not serves(case, using):
            return
        references = examples(case)
        question = Question(case, None, references)  # type: ignore[arg-type]
        outputs = set(question.outputs)
        for answer in (question.random_answer(1.0), question.random_answer(0.5), question.best_answer()):
            gold = {name: labels for name, labels in answer.items() if name in outputs}
            made = case.model.loss(objective="nll", using=using, reduction="none", **case.arguments(**gold))
            wanted = expected_losses(references, gold, torch.finfo(made.dtype).tiny)
            for objective in exact_objectives(using):
                if objective == "pseudo_likelihood" and not question.is_full(gold):
                    with pytest.raises(em.EnergyError, match="needs a full answer"):
                        case.model.loss(objective=objective, using=using, **case.arguments(**gold))
                    continue
                losses = case.model.loss(objective=objective, using=using, reduction="none", **case.arguments(**gold))
                if objective not in LOSSES:
                    assert not losses.isnan().any()
                    continue
                have, want = values(losses), np.array(wanted[objective])
                assert not np.isnan(have).any()
                assert (have >= -question.score_error).all(), f"{objective} is negative: {have}"
                assert (have[want == np.inf] == np.inf).all()
                if objective == "marginal_ce" and case.magnitude > 1:
                    continue  # marginals underflow, and their logarithms with them
                finite = want != np.inf
                assert (have[finite] != np.inf).all()
                exactness = 1e-4 if losses.dtype == torch.float32 else 1e-9
                np.testing.assert_allclose(have[finite], want[finite], atol=5 * question.score_error, rtol=exactness)

    run()


def test_reductions() -> None:
    case = chain_case()
    gold = torch.tensor([[0, 1, -1], [1, 1, 0]])
    given_ = case.arguments(y=gold, objective="nll", using="exact")
    each = case.model.loss(reduction="none", **given_)
    assert torch.allclose(case.model.loss(**given_), each.mean())
    assert torch.allclose(case.model.loss(reduction="example", **given_), each.mean())
    assert torch.allclose(case.model.loss(reduction="sum", **given_), each.sum())
    assert torch.allclose(case.model.loss(reduction="cell", **given_), each.sum() / 5)
    with pytest.raises(ValueError, match="unknown reduction"):
        case.model.loss(reduction="mean", **given_)


# -------------------------------------------------------------------------------------------------------------- draws

CHAIN = """\
dim T
labels Tag = {A, B}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
chain y { unary: u, pair: w }
forbid [t in T-1] y[t] = B and y[t+1] = B
"""
GRID = """\
dim H = 2, W = 2
labels Tag = {A, B}
input u : real[H, W, Tag]
output y : Tag[H, W]
latent s : Tag
param w : real[a: Tag, b: Tag]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor whole [i in H, j in W] (a: y[i, j], b: s) = w
"""


def chain_case(**more: Any) -> Case:
    u = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return Case(CHAIN, {"u": u}, {"T": 3}, batch=2, **more)


def grid_case() -> Case:
    u = torch.randn(2, 2, 2, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return Case(GRID, {"u": u}, {}, batch=2)


@pytest.mark.parametrize("make", [chain_case, grid_case])
@pytest.mark.parametrize("using", BACKENDS)
def test_draws_have_the_right_frequencies(using: str, make: Any) -> None:
    case = (
        make()
        if make is grid_case
        else chain_case(masks={"y": torch.tensor([[True, False, True], [True, True, True]])})
    )
    if not serves(case, using) or "sample" not in exact_queries(using):
        return
    posterior, count = case.infer(using), 4000
    drawn = posterior.sample(count, generator=torch.Generator().manual_seed(5))
    again = posterior.sample(count, generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn["y"], again["y"])
    for b, example in enumerate(examples(case)):
        first, scores = example.outputs()
        p = np.exp(scores - np.logaddexp.reduce(scores))
        rows = drawn["y"][:, b].reshape(count, -1).numpy()
        for row, probability in zip(first, p, strict=True):
            share = (rows == example.labels["y"][row].reshape(-1)).all(1).mean()
            assert abs(share - probability) < 5 * np.sqrt(max(probability, 1e-3) / count)

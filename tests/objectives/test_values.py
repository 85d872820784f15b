"""Losses against their definitions over random models: values, signs, limits, partial labels and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import energyml as em
from energyml.bind.inputs import DataError
from energyml.driver import read_choice
from tests.objectives.models import (
    BATCH,
    LABELS,
    LENGTHS,
    SIZE,
    SPECS,
    compiled,
    gold_labels,
    inputs,
    listed,
    lse,
    wanted,
)

torch.set_num_threads(1)

SEEDS = st.integers(0, 10_000)
KNOWN = st.sampled_from((1.0, 0.5, 0.0))
EXACT = ("exact", "exact(engine: torch)", "enumerate")
# How each cost is written, and what it means for a gold and a predicted label (O, B, I are 0, 1, 2).
COSTS: dict[str, Callable[[int, int], float]] = {
    "": lambda gold, one: float(gold != one),
    "(cost: hamming)": lambda gold, one: float(gold != one),
    "(cost: hamming({ O: 2, I: 0.5 }))": lambda gold, one: (gold != one) * (2.0, 1.0, 0.5)[one],
    "(cost: confusion({ O: { B: 3, I: 0 }, I: { B: 0.5 } }))": lambda gold, one: {
        (0, 1): 3.0,
        (0, 2): 0.0,
        (2, 1): 0.5,
    }.get((gold, one), float(gold != one)),
    "(cost: confusion({ B: { O: 4 } }, otherwise: 0.25))": lambda gold, one: (
        4.0 if (gold, one) == (1, 0) else 0.25 * (gold != one)
    ),
}


def losses(objective: str, name: str, seed: int, gold: torch.Tensor, using: str, scale: float = 1.0) -> torch.Tensor:
    model = compiled(name, seed)
    return model.loss(objective=objective, using=using, reduction="none", y=gold, **inputs(name, seed, scale)).detach()


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce"])
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=10)
@given(seed=SEEDS, known=KNOWN)
def test_losses_are_what_they_say(objective: str, name: str, seed: int, known: float) -> None:
    gold = gold_labels(seed, known)
    expected = wanted(objective, compiled(name, seed), inputs(name, seed), gold, COSTS[""])
    for using in EXACT:
        found = losses(objective, name, seed, gold, using)
        assert (found >= -1e-12).all()
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("objective", ["ssvm", "softmax_margin"])
@pytest.mark.parametrize("cost", COSTS)
@settings(max_examples=5)
@given(name=st.sampled_from(sorted(SPECS)), seed=SEEDS, known=KNOWN)
def test_costs_are_what_they_say(objective: str, cost: str, name: str, seed: int, known: float) -> None:
    gold = gold_labels(seed, known)
    expected = wanted(objective, compiled(name, seed), inputs(name, seed), gold, COSTS[cost])
    for using in EXACT:
        torch.testing.assert_close(losses(objective + cost, name, seed, gold, using), expected, atol=1e-9, rtol=1e-9)


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(SPECS)), seed=SEEDS, scale=st.sampled_from((0.1, 1.0, 30.0)))
def test_the_softmax_margin_lies_above_both_of_its_parents(name: str, seed: int, scale: float) -> None:
    gold = gold_labels(seed)
    margin, likelihood, hinge = (
        losses(objective, name, seed, gold, "exact", scale) for objective in ("softmax_margin", "nll", "ssvm")
    )
    assert (margin >= likelihood - 1e-9).all() and (margin >= hinge - 1e-9).all()
    # A cost is at most 1, and an answer with the best score plus cost is one of all answers.
    assert (margin <= likelihood + 1 + 1e-9).all()
    most = torch.tensor([length * torch.log(torch.tensor(float(LABELS))) for length in LENGTHS], dtype=torch.float64)
    assert (margin <= hinge + most + 1e-9).all()


@settings(max_examples=10)
@given(name=st.sampled_from(sorted(SPECS)), seed=SEEDS, known=KNOWN)
def test_without_costs_margins_are_gone(name: str, seed: int, known: float) -> None:
    gold, free = gold_labels(seed, known), "(cost: confusion({}, otherwise: 0))"
    likelihood = losses("nll", name, seed, gold, "exact")
    torch.testing.assert_close(losses("softmax_margin" + free, name, seed, gold, "exact"), likelihood)
    model, given_ = compiled(name, seed), inputs(name, seed)
    best = model.infer(**given_).map()
    assert (losses("ssvm" + free, name, seed, best["y"], "exact").abs() < 1e-9).all()


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce", "pseudo_likelihood"])
@pytest.mark.parametrize("name", SPECS)
def test_a_gold_answer_far_above_all_others_costs_nothing(objective: str, name: str) -> None:
    model, given_, gold = compiled(name, 3), inputs(name, 3), gold_labels(3)
    given_["u"] = given_["u"] + 100 * torch.nn.functional.one_hot(gold, LABELS)
    found = model.loss(objective=objective, y=gold, using="exact", reduction="none", **given_).detach()
    # Score and log-partition are sums of the same numbers, perhaps in another order: they differ by a rounding at most.
    rounding = torch.finfo(found.dtype).eps * 100 * SIZE
    assert (found >= 0).all() and (found <= rounding).all()


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce"])
@pytest.mark.parametrize("using", EXACT)
def test_no_labels_at_all_cost_nothing(objective: str, using: str) -> None:
    gold = torch.full((BATCH, SIZE), -1)
    assert (losses(objective, "loop", 5, gold, using).abs() < 1e-9).all()


@pytest.mark.parametrize("using", EXACT)
def test_sets_of_allowed_labels_are_evidence(using: str) -> None:
    for name in SPECS:
        model, given_ = compiled(name, 8), inputs(name, 8)
        allowed = torch.rand(BATCH, SIZE, LABELS, generator=torch.Generator().manual_seed(4)) < 0.6
        allowed[..., 0] |= ~allowed[..., :2].any(-1)
        known = model.infer(using=using, evidence={"y": allowed}, **given_).log_partition
        found = (model.infer(using=using, **given_).log_partition - known).detach()
        expected = []
        for one in listed(model, given_):
            may = allowed[one.example].tolist()
            pairs = zip(one.answers, one.scores, strict=True)
            agreeing = [score for answer, score in pairs if all(may[t][label] for t, label in enumerate(answer))]
            expected.append(lse(one.scores) - lse(agreeing))
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------- costs from Python


@pytest.mark.parametrize("objective", ["ssvm", "softmax_margin"])
def test_tensors_are_costs_as_they_are(objective: str) -> None:
    model, given_, gold = compiled("chain", 2), inputs("chain", 2), gold_labels(2, 0.7)
    matrix = torch.rand(LABELS, LABELS, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    cost = matrix[gold.clamp(min=0)]
    chosen = read_choice("objective", objective, model.compiled.model)
    found = model.loss(
        objective=replace(chosen, options={"cost": {"y": cost}}), y=gold, using="exact", reduction="none", **given_
    )
    lengths = torch.tensor(LENGTHS)
    known = ((gold >= 0) & (torch.arange(SIZE) < lengths.unsqueeze(1))).sum(1).clamp(min=1).tolist()
    rows = [
        wanted(objective, model, given_, gold, lambda a, b, n=n: n * float(matrix[a, b]) * (a != b))[example]
        for example, n in enumerate(known)
    ]
    torch.testing.assert_close(found.detach(), torch.stack(rows))
    with pytest.raises(DataError, match="expected \\[3, 4, 3\\]"):
        model.loss(objective=replace(chosen, options={"cost": {"y": cost[..., :2]}}), y=gold, **given_)


@pytest.mark.parametrize(
    "cost, message",
    [
        ("confusion({ O: { O: 1 } })", "pairs of different labels, found `O` for `O`"),
        ("confusion({ O: { Bee: 1 } })", "takes labels of an output, found `Bee`"),
        ("confusion({ O: 1 })", "found `1`"),
        ("confusion({ O: { B: 1 }, O: { I: 1 } })", "each label once"),
        ("confusion({ O: { B: 1 } }, otherwise: -1)", "at least 0"),
        ("confusion", "needs the option `costs`"),
    ],
)
def test_mistakes_in_costs(cost: str, message: str) -> None:
    with pytest.raises(em.EnergyError, match=message):
        compiled("chain", 0).loss(objective=f"ssvm(cost: {cost})", y=gold_labels(0), **inputs("chain", 0))


def test_a_cost_is_about_labels_of_the_data() -> None:
    text = SPECS["chain"].replace("= {O, B, I}", "from data").replace("forbid y[0] = I\n", "")
    model = em.compile(text + "train ssvm { cost: confusion({ O: { Bee: 2 } }) }\n", labels={"Tag": ["O", "B", "I"]})
    with pytest.raises(em.EnergyError, match="weighs `Bee`, which is no label of the outputs"):
        model.loss(y=gold_labels(0), **{k: v.float() if k == "u" else v for k, v in inputs("chain", 0).items()})


@pytest.mark.parametrize("objective", ["ssvm", "softmax_margin", "marginal_ce"])
def test_values_of_a_field_have_no_labels(objective: str) -> None:
    model = em.compile("dim T\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u, ridge: 1 }\n")
    with pytest.raises(em.EnergyError, match="needs labels"):
        model.loss(objective=objective, u=torch.zeros(1, 3), s=torch.zeros(1, 3), using="exact")


# ----------------------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce"])
def test_reductions(objective: str) -> None:
    model, given_, gold = compiled("chain", 4), inputs("chain", 4), gold_labels(4, 0.7)
    each = model.loss(objective=objective, y=gold, reduction="none", **given_)
    labelled = ((gold >= 0) & (torch.arange(SIZE) < torch.tensor(LENGTHS).unsqueeze(1))).sum()
    reduced = {"sum": each.sum(), "example": each.mean(), "cell": each.sum() / labelled}
    assert each.shape == (BATCH,)
    for reduction, expected in reduced.items():
        torch.testing.assert_close(model.loss(objective=objective, y=gold, reduction=reduction, **given_), expected)
        written = f"{objective}(reduction: {reduction})"
        torch.testing.assert_close(model.loss(objective=written, y=gold, **given_), expected)
    usual = "cell" if objective == "marginal_ce" else "example"
    torch.testing.assert_close(model.loss(objective=objective, y=gold, **given_), reduced[usual])


# ---------------------------------------------------------------------------------------------------- other backends


@pytest.mark.parametrize("using", ["mean_field", "bp", "trw"])
@pytest.mark.parametrize("name", SPECS)
def test_cross_entropy_of_approximate_marginals(name: str, using: str) -> None:
    model, given_, gold = compiled(name, 6), inputs(name, 6), gold_labels(6, 0.8)
    model.zero_grad()
    found = model.loss(objective="marginal_ce", using=using, y=gold, reduction="none", **given_)
    p = model.infer(using=using, **given_).marginals["y"]
    picked = p.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    exists = (gold >= 0) & (torch.arange(SIZE) < torch.tensor(LENGTHS).unsqueeze(1))
    torch.testing.assert_close(found, torch.where(exists, -picked.clamp(min=1e-300).log(), 0).sum(1))
    assert (found >= 0).all()
    found.sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() and one.grad.any() for one in model.parameters())
    if using == "bp" and name != "loop":
        exact = model.loss(objective="marginal_ce", using="exact", y=gold, reduction="none", **given_)
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)


def test_margins_are_refused_where_nobody_adds_costs() -> None:
    for objective, query in (("ssvm", "max_with_cost"), ("softmax_margin", "log_prob_with_cost")):
        with pytest.raises(em.EnergyError, match=f"does not answer `{query}`"):
            losses(objective, "chain", 0, gold_labels(0), "mean_field")

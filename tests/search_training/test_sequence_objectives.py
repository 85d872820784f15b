"""Objectives of sequences against enumeration: values, limits, what they refuse, their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.cards.card import Selection
from energyml.driver import read_choice
from energyml.energy_model import EnergyModel
from energyml.objectives.scheduled_sampling import gold_share
from energyml.objectives.sequences import drawn, first_of_each, gold_of
from energyml.objectives.tracked_beam import tracked_beam
from energyml.training_state import TrainingState
from tests.search_training.models import (
    ENDED,
    GRU,
    LSTM,
    TAGS,
    TRANSFORMER,
    every_answer,
    tagged,
    tagger,
    translated,
    translator,
)

torch.set_num_threads(1)
KINDS = ("tagger", "translator")
OBJECTIVES = (
    "teacher_forcing",
    "self_normalized",
    "scheduled_sampling",
    "scheduled_sampling(choose: sample, relax: fixed, alpha: 2, mixing: always)",
    "beam_nll(width: 2)",
    "beam_nll(width: 2, early: false)",
    "minimum_risk(count: 3)",
    "minimum_risk(count: 4, over: samples)",
    "distill(count: 4)",
)
ON_BEAMS = ("beam_hinge", "beam_hinge(relax: false, width: 2)", "direct_loss")
RELAXED = "relaxed_beam(width: 2, alpha: 1)"


def made(kind: str, normalize: str = "local", beside: bool = False, seed: int = 0, decoder: str = LSTM) -> EnergyModel:
    return (tagger if kind == "tagger" else translator)(normalize, decoder, beside, seed)


def inputs(kind: str, seed: int = 0) -> dict[str, Any]:
    return dict(tagged(seed)) if kind == "tagger" else translated(seed)


def gold(kind: str) -> Tensor:
    return TAGS if kind == "tagger" else ENDED


def losses(model: EnergyModel, kind: str, objective: str | Selection, using: str = "enumerate", **more: Any) -> Tensor:
    given: dict[str, Any] = {"y": gold(kind), **inputs(kind), **more}
    return model.loss(objective=objective, using=using, reduction="none", **given)


# ------------------------------------------------------------------------------------------------------ teacher forcing


@pytest.mark.parametrize("decoder", [LSTM, GRU, TRANSFORMER])
def test_teacher_forcing_is_the_likelihood_of_a_local_score(decoder: str) -> None:
    model = made("tagger", decoder=decoder)
    torch.testing.assert_close(
        losses(model, "tagger", "teacher_forcing").detach(), every_answer(model, inputs("tagger")).nll(TAGS)
    )


@pytest.mark.parametrize("normalize", ["local", "global"])
def test_teacher_forcing_normalises_each_step(normalize: str) -> None:
    model = made("tagger", normalize, beside=True)
    steps, found = model.problem(**inputs("tagger")).steps(), losses(model, "tagger", "teacher_forcing")
    state, previous, total = steps.start(), None, torch.zeros(3, dtype=torch.float64)
    for t in range(4):
        scores, state = steps.advance(state, previous, t)
        previous = TAGS[:, t].clamp(min=0)
        p = torch.log_softmax(scores, 1).gather(1, previous.unsqueeze(1)).squeeze(1)
        total = total - torch.where(TAGS[:, t] >= 0, p, 0)
    torch.testing.assert_close(found, total)


def test_free_lengths_end_with_their_end_label() -> None:
    # the answers that fit into the bound have less than all of the mass, and the rest is the difference
    model = made("translator")
    every = every_answer(model, inputs("translator"))
    missing = every.score.logsumexp(1)
    torch.testing.assert_close(losses(model, "translator", "teacher_forcing").detach(), every.nll(ENDED) - missing)


def test_the_penalty_is_inside_the_sum_over_steps() -> None:
    for kind in KINDS:
        plain, raw = made(kind, "local"), made(kind, "global")
        steps = raw.problem(**inputs(kind)).steps()
        labels = gold(kind)
        state, previous, penalty = steps.start(), None, torch.zeros(3, dtype=torch.float64)
        for t in range(4):
            state = steps.advance(state, previous, t)[1]
            penalty = penalty + torch.where(labels[:, t] >= 0, state.normalizer.square(), 0)
            previous = labels[:, t].clamp(min=0)
        with_penalty = losses(plain, kind, "self_normalized(weight: 0.3)")
        torch.testing.assert_close(with_penalty - losses(plain, kind, "teacher_forcing"), 0.3 * penalty)
    with pytest.raises(em.EnergyError, match="the model has none"):
        text = "dim T\nlabels L = {A, B}\ninput u : real[T, L]\noutput y : L[T]\nfactor f [t in T] (y[t]) = u[t]\n"
        chain = em.compile(text)
        chain.loss(objective="self_normalized", u=torch.zeros(1, 2, 2), y=torch.zeros(1, 2, dtype=torch.long))


# --------------------------------------------------------------------------------------------------- scheduled sampling


def test_shares_of_gold_labels() -> None:
    model = made("tagger")

    def share(mixing: str, epoch: int) -> float:
        chosen = read_choice("objective", f"scheduled_sampling(mixing: {mixing})", model.compiled.model)
        return gold_share(chosen["mixing"], TrainingState(epoch, 11))

    assert share("always", 3) == 0
    assert share("inverse_sigmoid(k: 100)", 50) > 0.98
    assert share("inverse_sigmoid(k: 5)", 10) == pytest.approx(5 / (5 + math.exp(2)))
    assert share("inverse_sigmoid(k: 1)", 10_000) == pytest.approx(0, abs=1e-12)
    assert share("exponential(k: 0.9)", 3) == pytest.approx(0.9**3)
    assert share("linear(share: 1 -> 0)", 5) == pytest.approx(0.5) and share("linear(share: 0.25)", 7) == 0.25
    assert gold_share(None, TrainingState(10, 11)) == pytest.approx(10 / (10 + math.e))


@pytest.mark.parametrize("kind", KINDS)
def test_gold_labels_alone_are_teacher_forcing(kind: str) -> None:
    model = made(kind, beside=True)
    for relax in ("hard", "fixed"):
        found = losses(model, kind, f"scheduled_sampling(relax: {relax}, mixing: linear(share: 1))")
        torch.testing.assert_close(found, losses(model, kind, "teacher_forcing"))


def test_own_labels_are_those_of_greedy_search() -> None:
    model = made("tagger")
    steps = model.problem(**inputs("tagger")).steps()
    state, previous, total = steps.start(), None, torch.zeros(3, dtype=torch.float64)
    for t in range(4):
        scores, state = steps.advance(state, previous, t)
        total = total - torch.where(TAGS[:, t] >= 0, scores.gather(1, TAGS[:, t : t + 1].clamp(min=0)).squeeze(1), 0)
        previous = scores.argmax(1)
    hard = losses(model, "tagger", "scheduled_sampling(mixing: always)")
    torch.testing.assert_close(hard, total)
    peaked = losses(model, "tagger", "scheduled_sampling(mixing: always, relax: fixed, alpha: 1e6)")
    torch.testing.assert_close(peaked, total)


def test_gradients_flow_through_relaxed_labels_alone() -> None:
    found = {}
    for relax in ("hard", "fixed"):
        model = made("tagger")
        inside = torch.zeros(3, 4, 2, dtype=torch.float64, requires_grad=True)
        given = {**inputs("tagger"), "x": inputs("tagger")["x"] + inside}
        objective = f"scheduled_sampling(mixing: always, relax: {relax}, alpha: 1)"
        loss = model.loss(objective=objective, using="enumerate", y=TAGS, **given)
        (embedding,) = torch.autograd.grad(loss, model.d.label_embedding.weight)
        found[relax] = int((embedding.abs().sum(1) > 0).sum())
    # a relaxed label touches the embeddings of all labels, a hard one those that were chosen
    assert found["fixed"] == 4 >= found["hard"]


def test_samples_follow_the_steps() -> None:
    model = made("tagger", "global")
    x = inputs("tagger")["x"][:1, :2].expand(4000, 2, 2)
    steps = model.problem(x=x).steps()
    torch.manual_seed(0)
    labels, counts, log_prob = drawn(steps, 1)
    assert counts.all()
    one = model.problem(x=x[:1]).steps()
    first, state = one.advance(one.start(3), None, 0)
    second, _ = one.advance(state, torch.arange(3), 1)
    joint = (torch.log_softmax(first[:1], 1).transpose(0, 1) + torch.log_softmax(second, 1)).flatten().detach()
    index = labels[:, 0, 0] * 3 + labels[:, 0, 1]
    torch.testing.assert_close(log_prob[:, 0], joint[index])
    share = torch.bincount(index, minlength=9) / 4000
    error = 5 * (joint.exp() * (1 - joint.exp()) / 4000).sqrt()
    assert ((share - joint.exp()).abs() < error + 1e-3).all()


def test_schedules_of_relaxed_labels_are_checked() -> None:
    model = made("tagger")
    with pytest.raises(em.EnergyError, match="relax: annealed"):
        losses(model, "tagger", "scheduled_sampling(relax: fixed, alpha: 1 -> 5)")
    with pytest.raises(em.EnergyError, match="needs a schedule"):
        losses(model, "tagger", "scheduled_sampling(relax: annealed)")
    # annealed exponentially: the middle of 1 -> 9 is 3
    annealed = "scheduled_sampling(relax: annealed, alpha: 1 -> 9, mixing: always)"
    found = losses(model, "tagger", annealed, training_state=TrainingState(1, 3))
    wanted = losses(model, "tagger", "scheduled_sampling(relax: fixed, alpha: 3, mixing: always)")
    torch.testing.assert_close(found, wanted)


# ---------------------------------------------------------------------------------------------------------------- beams


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalize", ["local", "global"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_beam_of_full_width_gives_the_likelihood(kind: str, normalize: str, beside: bool) -> None:
    model = made(kind, normalize, beside)
    wanted = every_answer(model, inputs(kind)).nll(gold(kind))
    for early in ("true", "false"):
        found = losses(model, kind, f"beam_nll(width: 100, early: {early})")
        torch.testing.assert_close(found.detach(), wanted)
    smaller = losses(model, kind, "beam_nll(width: 2, early: false)")
    assert (smaller >= 0).all() and (smaller <= wanted + 1e-9).all()


def test_an_early_update_compares_prefixes() -> None:
    model = made("tagger", "global")
    given, steps = inputs("tagger"), model.problem(**inputs("tagger")).steps()
    found = losses(model, "tagger", "beam_nll(width: 1)")
    for example, length in enumerate((4, 2, 3)):
        # a beam of one is greedy: the first step at which the gold label is not the best one decides
        one = model.problem(x=given["x"][example : example + 1, :length]).steps()
        state, previous, score, best = one.start(), None, 0.0, 0.0
        for t in range(length):
            scores, state = one.advance(state, previous, t)
            score, best = score + scores[0, TAGS[example, t]], best + scores[0].max()
            previous = scores.argmax(1)
            if int(previous) != int(TAGS[example, t]):
                break
        wanted = torch.logaddexp(score, best) - score if int(previous) != int(TAGS[example, t]) else 0 * score
        torch.testing.assert_close(found[example], wanted)
    assert steps.size == 4


def test_what_a_beam_knows_about_gold_labels() -> None:
    model = made("tagger", "global", beside=True)
    best = model.infer(using="enumerate", **inputs("tagger")).map()["y"]
    found = tracked_beam(gold_of(model.problem(**inputs("tagger")), {"y": best}, "test"), 60, early=True)
    assert found.kept.all() and found.is_gold.sum(1).eq(1).all() and found.stopped.tolist() == [4, 2, 3]
    kept = found.labels.masked_fill(~found.counts, -1)
    assert torch.equal(first_of_each(kept) & found.exists, found.exists)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hinge_of_a_peaked_beam_is_that_of_the_hard_beam(kind: str) -> None:
    for normalize in ("local", "global"):
        model = made(kind, normalize, beside=True)
        soft = losses(model, kind, "beam_hinge", "relaxed_beam(width: 3, alpha: 1e8)")
        hard = losses(model, kind, "beam_hinge(relax: false, width: 3)", RELAXED)
        torch.testing.assert_close(soft, hard)


def test_the_hinge_of_a_beam_of_full_width_is_that_of_all_answers() -> None:
    for objective in ("beam_hinge", "beam_hinge(relax: false, width: 90)"):
        model = made("tagger", "global", beside=True)
        every = every_answer(model, inputs("tagger"))
        score = every.score.gather(1, every.index(TAGS).unsqueeze(1)).squeeze(1)
        wanted = ((every.score + every.cost(TAGS)).amax(1) - score).clamp(min=0)
        found = losses(model, "tagger", objective, "relaxed_beam(width: 90, alpha: 1e9)")
        torch.testing.assert_close(found.detach(), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_direct_loss_of_a_peaked_beam_is_the_cost_of_the_hard_one(kind: str) -> None:
    """Gold answers as long as they may be, as the search stops where they end."""
    model = made(kind, "global", beside=True)
    stop = int(ENDED[1, 0])
    longest = TAGS if kind == "tagger" else torch.tensor([[0, 1, 0, stop], [1, 0, 1, stop], [1, 1, 0, stop]])
    found = losses(model, kind, "direct_loss", "relaxed_beam(width: 90, alpha: 1e9)", y=longest)
    every = every_answer(model, inputs(kind))
    torch.testing.assert_close(found.detach(), every.cost(longest)[:, 0], atol=1e-6, rtol=0)


def test_the_search_of_a_direct_loss_stops_where_the_gold_answer_ends() -> None:
    model = made("translator", "global", beside=True)
    found = losses(model, "translator", "direct_loss", "relaxed_beam(width: 90, alpha: 1e9)")
    steps = model.problem(**inputs("translator")).steps()
    scores, _ = steps.advance(steps.start(), None, 0)
    wrong = scores[1].argmax() != ENDED[1, 0]  # the second answer ends at once: only its first label is looked at
    assert float(found[1].detach()) == pytest.approx(float(wrong), abs=1e-6)


def test_predicting_a_label_wrongly_costs_what_it_weighs() -> None:
    model = made("tagger", "global")
    best = model.infer(using="enumerate", **inputs("tagger")).map()["y"]
    wrong = torch.where(best == 0, 1, 0).masked_fill(best < 0, -1)  # every cell is wrong, whatever was predicted
    each = torch.where(best == 0, 2.0, 1.0).double().masked_fill(best < 0, 0)
    for objective in ("direct_loss(cost: hamming({ A: 2 }))", "minimum_risk(count: 1, cost: hamming({ A: 2 }))"):
        using = "relaxed_beam(width: 90, alpha: 1e9)" if "direct" in objective else "enumerate"
        found = losses(model, "tagger", objective, using, y=wrong)
        torch.testing.assert_close(found.detach(), each.sum(1) / (best >= 0).sum(1), atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------------------------ risk and distillation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", [False, True])
def test_the_risk_of_all_answers_is_the_expected_cost(kind: str, beside: bool) -> None:
    model = made(kind, "global", beside)
    every = every_answer(model, inputs(kind))
    wanted = (every.score.softmax(1) * every.cost(gold(kind))).sum(1)
    for using in ("enumerate", "beam(width: 90)"):
        found = losses(model, kind, "minimum_risk(count: 90)", using)
        torch.testing.assert_close(found.detach(), wanted)
    sharp = losses(model, kind, "minimum_risk(count: 90, sharpness: 1e6)")
    torch.testing.assert_close(sharp.detach(), every.cost(gold(kind))[:, 0])
    torch.manual_seed(0)
    sampled = losses(model, kind, "minimum_risk(count: 800, over: samples)", "enumerate")
    torch.testing.assert_close(sampled.detach(), wanted, atol=0.05, rtol=0)


def test_the_risk_moves_scores_whoever_searched() -> None:
    for kind in KINDS:
        gradients = []
        for using in ("enumerate", "beam(width: 90)"):
            model = made(kind, "global", beside=True)
            losses(model, kind, "minimum_risk(count: 90)", using).sum().backward()
            gradients.append(model.w.grad)
        torch.testing.assert_close(*gradients)


def test_distillation_is_the_divergence_of_whole_sequences() -> None:
    teacher, student = made("tagger", "local", seed=3), made("tagger", "global", seed=4)
    for model in (teacher, student):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.3)  # so that the draws reach every answer
    chosen = read_choice("objective", "distill(count: 1500)", student.compiled.model)
    chosen = Selection(chosen.card, {**chosen.options, "teacher": teacher})
    torch.manual_seed(0)
    found = losses(student, "tagger", chosen)
    p, q = every_answer(student, inputs("tagger")), every_answer(teacher, inputs("tagger"))
    for example in range(3):
        code = [(answers.labels[example].clamp(min=0) * torch.tensor([27, 9, 3, 1])).sum(1) for answers in (p, q)]
        order = [one.score[example].isfinite().nonzero().squeeze(1) for one in (p, q)]
        logs = []
        for answers, numbers, exist in zip((p, q), code, order, strict=True):
            kept = numbers[exist].argsort()
            logs.append(answers.score[example][exist][kept].log_softmax(0))
        wanted = (logs[1].exp() * (logs[1] - logs[0])).sum()
        torch.testing.assert_close(found[example].detach(), wanted, atol=0.02, rtol=0.02)
    # a locally normalised model is its own projection
    torch.testing.assert_close(losses(teacher, "tagger", "distill(count: 20)").detach(), torch.zeros(3).double())
    losses(student, "tagger", chosen).sum().backward()
    assert student.d.readout.weight.grad is not None and teacher.d.readout.weight.grad is None


# -------------------------------------------------------------------------------------------------- what all of them do


@pytest.mark.parametrize("objective", ["teacher_forcing", "self_normalized", "scheduled_sampling", "beam_nll"])
def test_partial_labels_are_refused_with_a_reason(objective: str) -> None:
    partial = TAGS.clone()
    partial[2, 1] = -1
    with pytest.raises(em.EnergyError, match="step 1 of example 2 of `y` has none"):
        losses(made("tagger"), "tagger", objective, y=partial)
    unended = ENDED.clone()
    unended[0, 2] = 1
    with pytest.raises(em.EnergyError, match="example 0 of `y` has no end label `stop`"):
        losses(made("translator"), "translator", objective, y=unended)


def test_unknown_labels_cost_nothing() -> None:
    partial = TAGS.clone()
    partial[:, 1:] = -1
    for objective, using in (("minimum_risk(count: 90)", "enumerate"), ("direct_loss", RELAXED)):
        found = losses(made("tagger", "global"), "tagger", objective, using, y=partial)
        assert found.isfinite().all() and (found >= 0).all() and (found <= 1).all()


@pytest.mark.parametrize("objective", ["teacher_forcing", "self_normalized", "beam_nll", "beam_hinge"])
def test_forbidden_labels_cost_inf(objective: str) -> None:
    forbidden = TAGS.clone()
    forbidden[0, :2] = 0  # A A
    model = made("tagger", "global", beside=True)
    found = losses(model, "tagger", objective, RELAXED, y=forbidden)
    assert found.isinf().tolist() == [True, False, False] and (found > 0).all()
    found[1:].sum().backward()
    assert all(not p.grad.isnan().any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", [*OBJECTIVES, *ON_BEAMS])
def test_gradients_are_finite_and_examples_apart(kind: str, objective: str) -> None:
    using = RELAXED if objective in ON_BEAMS else "beam(width: 3)"
    for normalize in ("local", "global"):
        model = made(kind, normalize, beside=True)
        torch.manual_seed(1)
        found = losses(model, kind, objective, using)
        assert found.isfinite().all() and (found >= -1e-12).all()
        found.sum().backward()
        assert all(not p.grad.isnan().any() for p in model.parameters() if p.grad is not None)
        if "sampl" in objective or "distill" in objective:
            continue
        for example in range(3):
            here = slice(example, example + 1)
            lengths = inputs(kind)["lengths"]
            some = {dim: one[here] for dim, one in lengths.items()} if isinstance(lengths, dict) else lengths[here]
            alone = losses(model, kind, objective, using, x=inputs(kind)["x"][here], lengths=some, y=gold(kind)[here])
            torch.testing.assert_close(alone[0], found[example])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "objective", ["teacher_forcing", "self_normalized", "beam_nll(width: 2)", "minimum_risk(count: 3)", *ON_BEAMS]
)
def test_gradients_are_those_of_the_loss(kind: str, objective: str) -> None:
    using = RELAXED if objective in ON_BEAMS else "enumerate" if "risk" in objective else "beam(width: 3)"
    model = made(kind, "global")

    class Loss(torch.nn.Module):
        """The losses as a module, so that a parameter can be replaced."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return losses(self.model, kind, objective, using)

    def loss(bias: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(Loss(), {"model.d.readout.bias": bias}, ())
        return found

    assert torch.autograd.gradcheck(loss, (model.d.readout.bias.detach().clone().requires_grad_(),), atol=1e-6)


def test_gaps_are_left_out() -> None:
    model = made("tagger", "local", beside=True, decoder=GRU)
    x = torch.randn(1, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True, False, True, True, False, True]])
    labels = torch.tensor([[1, -1, 0, 2, -1, 1]])
    for objective in ("teacher_forcing", "self_normalized", "beam_nll(width: 2)", "minimum_risk(count: 90)", *ON_BEAMS):
        using = RELAXED if objective in ON_BEAMS else "beam(width: 90)"
        found = model.loss(objective=objective, using=using, x=x, y=labels, mask=mask)
        dense = model.loss(objective=objective, using=using, x=x[:, mask[0]], y=labels[:, mask[0]])
        torch.testing.assert_close(found, dense)


def test_chains_are_sequences_too() -> None:
    text = "dim T\nlabels L = {A, B, C}\ninput u : real[T, L]\noutput y : L[T]\nparam w : real[from: L, to: L]\n"
    chain = em.compile(text + "chain y { unary: u, pair: w }\n", seed=0).double()
    given = {"u": torch.randn(2, 4, 3, dtype=torch.float64), "y": torch.randint(0, 3, (2, 4))}
    exact = chain.loss(objective="nll", using="exact", **given)
    torch.testing.assert_close(chain.loss(objective="beam_nll(width: 81)", using="exact", **given), exact)
    assert chain.loss(objective="teacher_forcing", using="exact", **given).isfinite()


def test_single_precision() -> None:
    for kind in KINDS:
        model = made(kind, "global", beside=True).float()
        for objective in ("teacher_forcing", "beam_nll(width: 2)", "minimum_risk(count: 3)", *ON_BEAMS):
            using = RELAXED if objective in ON_BEAMS else "beam(width: 3)"
            found = losses(model, kind, objective, using, x=inputs(kind)["x"].float())
            double = losses(made(kind, "global", beside=True), kind, objective, using)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), double, atol=1e-3, rtol=1e-3)

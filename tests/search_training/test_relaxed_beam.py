"""Relaxed beams: the printed recurrence, the hard beam as their limit, masks and lengths, gradients, memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.backends.beam.relaxed import relaxed_beam
from energyml.bind.steps import Steps
from energyml.energy_model import EnergyModel
from energyml.queries import Quality
from energyml.training_state import TrainingState
from tests.search_training.models import (
    ENDED,
    GRU,
    LENGTHS,
    LSTM,
    STOP,
    TAGS,
    TRANSFORMER,
    every_answer,
    tagged,
    tagger,
    translated,
    translator,
)

torch.set_num_threads(1)
DECODERS = (LSTM, GRU, TRANSFORMER)


def steps_of(model: EnergyModel, given: dict[str, Any]) -> Steps:
    return model.problem(**given).steps()


def printed(steps: Steps, width: int, alpha: float, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3 of one example, word by word, from one row: the loss, and the scores of the hypotheses."""
    state, score, total = steps.start(), torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    previous = None
    for t in range(int(steps.lengths[0])):
        scores, state = steps.advance(state, previous, t)
        candidates = score.unsqueeze(1) + scores
        peaks = candidates.flatten().sort(descending=True).values[:width]
        p = torch.stack([torch.softmax(-alpha * (candidates - m).flatten() ** 2, 0) for m in peaks])
        p = p.reshape(len(peaks), *candidates.shape)
        pointers, labels = p.sum(2), p.sum(1)
        total = labels @ cost[t] + pointers @ total
        score = (p * candidates).sum((1, 2))
        state, previous = steps.blend(state, pointers.unsqueeze(0)), labels
    return torch.softmax(alpha * score, 0) @ total, score


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("beside", [False, True])
def test_the_loss_is_that_of_the_printed_algorithm(decoder: str, beside: bool) -> None:
    model, given = tagger("local", decoder), tagged()
    if beside:
        model = em.compile(
            model.compiled.source.text + "param w : real[from: Tag, to: Tag]\nchain y { pair: w }\n", seed=0
        ).double()
    cost = torch.rand(3, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for example in range(3):
        one = {"x": given["x"][example : example + 1], "lengths": given["lengths"][example : example + 1]}
        wanted, score = printed(steps_of(model, one), 3, 0.8, cost[example])
        found = relaxed_beam(steps_of(model, given), width=3, alpha=0.8)
        labels = found.soft_labels()[example]
        torch.testing.assert_close((labels * cost[example]).sum(), wanted)
        torch.testing.assert_close(found.score[example], score)


@pytest.mark.parametrize("normalize", ["local", "global"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_peaked_beam_is_the_hard_beam(decoder: str, beside: bool, normalize: str) -> None:
    model, given = tagger(normalize, decoder, beside), tagged()
    steps = steps_of(model, given)
    for width in (1, 3):
        soft, hard = relaxed_beam(steps, width=width, alpha=1e7), relaxed_beam(steps, width=width, alpha=math.inf)
        torch.testing.assert_close(soft.score, hard.score, atol=1e-9, rtol=0)
        torch.testing.assert_close(soft.soft_labels(), hard.soft_labels(), atol=1e-9, rtol=0)
        torch.testing.assert_close(soft.hard_labels(), hard.hard_labels())
        beam = model.infer(using=f"beam(width: {width})", **given).map()
        torch.testing.assert_close(steps.place(hard.hard_labels().unsqueeze(1)).squeeze(1), beam["y"])
        torch.testing.assert_close(hard.score.amax(1), beam.score)


@torch.no_grad()
def test_the_error_shrinks_as_alpha_grows() -> None:
    model, given = tagger(), tagged()
    steps = steps_of(model, given)
    hard = relaxed_beam(steps, width=3, alpha=math.inf).soft_labels()
    errors = [
        float((relaxed_beam(steps, width=3, alpha=alpha).soft_labels() - hard).abs().max())
        for alpha in (1.0, 1e2, 1e4, 1e6)
    ]
    assert errors[0] > errors[2] >= errors[3] and errors[3] < 1e-6


@pytest.mark.parametrize("beside", [False, True])
def test_a_beam_of_full_width_finds_the_best_answer(beside: bool) -> None:
    for model, given in (
        (tagger("global", LSTM, beside), tagged()),
        (translator("global", LSTM, beside), translated()),
    ):
        every = every_answer(model, given)
        found = model.infer(using="relaxed_beam(width: 90, alpha: 1e8)", **given).map()
        torch.testing.assert_close(found.score, every.score[:, 0])
        torch.testing.assert_close(found["y"], every.labels[:, 0])


def test_several_hypotheses_differ_from_the_first_step_on() -> None:
    steps = steps_of(tagger(), tagged())
    found = relaxed_beam(steps, width=3, alpha=1e7)
    assert (found.choices[0].label.sort(1).values == torch.arange(3)).all()
    assert found.choices[0].pointers.shape == (3, 3, 1)
    for first, second in ((0, 1), (1, 2)):
        assert (found.score[:, first] - found.score[:, second] > 1e-6).all()


@pytest.mark.parametrize("alpha", [0.5, 5.0])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("normalize", ["local", "global"])
def test_map_has_its_true_score_and_breaks_no_rule(normalize: str, beside: bool, alpha: float) -> None:
    for model, given in (
        (tagger(normalize, LSTM, beside), tagged()),
        (translator(normalize, LSTM, beside), translated()),
    ):
        result = model.infer(using=f"relaxed_beam(width: 3, alpha: {alpha})", **given).ask("map")
        found, every = result.value, every_answer(model, given)
        at = every.index(found["y"])
        torch.testing.assert_close(found.score, every.score.gather(1, at.unsqueeze(1)).squeeze(1))
        assert found.score.isfinite().all() and result.quality is Quality.LOWER


def test_examples_do_not_see_each_other() -> None:
    for model, given in ((tagger("global", LSTM, True), tagged()), (tagger("local", TRANSFORMER), tagged())):
        together = model.infer(using="relaxed_beam(width: 3, alpha: 2)", **given).ask("soft_decode").value["y"]
        for example, length in enumerate(LENGTHS):
            alone = model.infer(using="relaxed_beam(width: 3, alpha: 2)", x=given["x"][example : example + 1, :length])
            torch.testing.assert_close(together[example, :length], alone.ask("soft_decode").value["y"][0])
            assert together[example, length:].eq(0).all()


def test_gaps_are_left_out() -> None:
    model = tagger("local", GRU, True)
    x = torch.randn(1, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True, False, True, True, False, True]])
    found = model.infer(using="relaxed_beam(width: 2, alpha: 3)", x=x, mask=mask)
    dense = model.infer(using="relaxed_beam(width: 2, alpha: 3)", x=x[:, mask[0]])
    soft = found.ask("soft_decode").value["y"]
    torch.testing.assert_close(soft[mask], dense.ask("soft_decode").value["y"][0])
    assert soft[~mask].eq(0).all() and found.map()["y"][~mask].eq(-1).all()
    torch.testing.assert_close(found.map()["y"][mask], dense.map()["y"][0])


def test_evidence_holds_and_what_is_impossible_is_said() -> None:
    model, given = tagger("global", LSTM, True), tagged()
    allowed = torch.ones(3, 4, 3, dtype=torch.bool)
    allowed[0, 1], allowed[2, 0] = torch.tensor([False, False, True]), False
    posterior = model.infer(using="relaxed_beam(width: 3, alpha: 1)", evidence={"y": allowed}, **given)
    soft = posterior.ask("soft_decode").value["y"]
    with pytest.warns(UserWarning, match=r"no hypothesis of 1 examples \(the first: 2\) could be completed"):
        best = posterior.map()
    torch.testing.assert_close(soft[0, 1], torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    assert soft[2].eq(0).all() and not soft.isnan().any()
    assert best["y"][0, 1] == STOP and best["y"][2].eq(-1).all() and best.score[2].isneginf()
    soft.square().sum().backward()
    assert all(not p.grad.isnan().any() for p in model.parameters() if p.grad is not None)


def test_fewer_labels_than_hypotheses_and_no_cells() -> None:
    model = tagger()
    wide = model.infer(using="relaxed_beam(width: 7, alpha: 1)", **tagged()).ask("soft_decode").value["y"]
    assert not wide.isnan().any()
    torch.testing.assert_close(wide.sum(2), (torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)).double())
    none = model.infer(using="relaxed_beam", x=torch.zeros(2, 0, 2, dtype=torch.float64))
    assert none.ask("soft_decode").value["y"].shape == (2, 0, 3) and none.map().score.tolist() == [0, 0]
    some = model.infer(using="relaxed_beam", **{**tagged(), "lengths": torch.tensor([0, 4, 1])})
    assert some.ask("soft_decode").value["y"][0].eq(0).all() and some.map()["y"][0].eq(-1).all()


def test_free_lengths_end_and_the_end_label_fills_the_rest() -> None:
    model, given = translator("local"), translated()
    posterior = model.infer(using="relaxed_beam(width: 3, alpha: 2)", **given)
    soft = posterior.ask("soft_decode").value["y"]
    torch.testing.assert_close(soft.sum(2), torch.ones(3, 4, dtype=torch.float64))
    torch.testing.assert_close(soft[:, -1, STOP], torch.ones(3, dtype=torch.float64))
    # a query that brings an answer goes as far as that answer
    known = posterior.ask("soft_decode", answer={"y": ENDED}).value["y"]
    assert (known.sum(2) > 0.5).tolist() == (ENDED >= 0).tolist()
    torch.testing.assert_close(known[1, 0], relaxed_beam(steps_of(model, given), width=3, alpha=2.0,
                               lengths=torch.tensor([3, 1, 4])).soft_labels()[1, 0])  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS)
def test_computing_again_changes_nothing(decoder: str) -> None:
    model, given = tagger("global", decoder, True), tagged()
    gradients = []
    for recompute in ("false", "true"):
        model.zero_grad()
        using = f"relaxed_beam(width: 3, alpha: 1, recompute: {recompute})"
        model.loss(objective="direct_loss", using=using, y=TAGS, **given).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def saved(model: EnergyModel, length: int, recompute: bool) -> int:
    """The numbers that are kept for the gradients of a relaxed search, each storage once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.zeros(2, length, 2, dtype=torch.float64)
    steps = model.problem(x=x).steps()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = relaxed_beam(steps, width=4, alpha=1.0, recompute=recompute)
    assert found.score.requires_grad
    return sum(kept.values())


def test_memory_grows_with_the_length_and_less_when_computed_again() -> None:
    model = tagger("local", GRU)
    short, long = saved(model, 10, False), saved(model, 20, False)
    assert long < 2.2 * short
    assert saved(model, 20, True) < long / 3


@pytest.mark.parametrize("normalize", ["local", "global"])
def test_gradients(normalize: str) -> None:
    model, x = tagger(normalize, LSTM, True), torch.randn(1, 3, 2, dtype=torch.float64)
    names = ("w", "d.readout.bias")

    def labels(*values: Tensor) -> Tensor:
        given = {"x": x, "using": "relaxed_beam(width: 2, alpha: 1)"}
        made = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (), given)
        relaxed: Tensor = made.ask("soft_decode").value["y"]
        return relaxed

    parameters = dict(model.named_parameters())
    assert torch.autograd.gradcheck(labels, tuple(parameters[name] for name in names), atol=1e-6)


def test_hard_back_pointers_keep_one_history() -> None:
    model, given = tagger("local", LSTM), tagged()
    soft = relaxed_beam(steps_of(model, given), width=3, alpha=0.5)
    hard = relaxed_beam(steps_of(model, given), width=3, alpha=0.5, soft_pointers=False)
    assert (hard.choices[1].pointers.amax(2) == 1).all() and (soft.choices[1].pointers.amax(2) < 1).all()
    assert "soft_decode" in model.infer(using="relaxed_beam(soft_backpointers: false)", **given).answers


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("alpha: 3", [3, 3, 3]),
        ("alpha: 1 -> 9", [1, 5, 9]),
        ("alpha: 1 -> 9, anneal: exponential", [1, 3, 9]),
    ],
)
def test_alpha_moves_by_epoch(written: str, wanted: list[float]) -> None:
    model, given = tagger(), tagged()
    using = f"relaxed_beam(width: 2, {written})"
    for epoch, alpha in enumerate(wanted):
        state = TrainingState(epoch, 3)
        have = model.loss(objective="direct_loss", using=using, training_state=state, y=TAGS, **given)
        want = model.loss(objective="direct_loss", using=f"relaxed_beam(width: 2, alpha: {alpha})", y=TAGS, **given)
        torch.testing.assert_close(have, want)
    assert model.infer(using=using, **given).ask("soft_decode").statistics["alpha"] == pytest.approx(wanted[-1])


def test_models_without_one_sequence_are_refused() -> None:
    grid = em.compile("labels L = {A, B}\ndim H\ndim W\noutput y : L[H, W]\nparam u : real[L]\n"
                      "factor f [i in H, j in W] (y[i, j]) = u\n", seed=0)  # fmt: skip
    with pytest.raises(em.EnergyError, match="decides a sequence"):
        grid.infer(using="relaxed_beam", lengths={"H": torch.tensor([2]), "W": torch.tensor([2])}).ask("soft_decode")

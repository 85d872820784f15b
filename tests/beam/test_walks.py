"""Beam search by native code finds what the search on tensors finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import energyml as em
from energyml.backends.beam import search as searching
from energyml.backends.beam.search import Found, Plan, Search
from energyml.backends.beam.walks import walk_of
from energyml.bind.steps import Steps
from energyml.native import beam as native
from tests.beam.models import features, sharp

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the native extension was not built")

DECODERS = {
    "lstm": "lstm_decoder(hidden: 9, embed: 5, attention: none)",
    "lstm aligned": "lstm_decoder(hidden: 9, embed: 5, attention: aligned)",
    "lstm dot": "lstm_decoder(hidden: 17, embed: 5, layers: 2, attention: dot)",
    "lstm bahdanau": "lstm_decoder(hidden: 8, embed: 5, layers: 2, attention: bahdanau)",
    "transformer": "transformer_decoder(hidden: 24, heads: 2, layers: 2)",
}
SPEC = """
labels Word = {{{words}}}
dim S
dim T{free}
input x : real[{over}, 3]
input c : real[2]
output y : Word[T]
net decoder = {decoder}
sequence y {{ step: decoder, given: {{ words: x, all: c }}, normalize: {normalize}{end} }}
infer beam
"""
WORDS = [f"w{number}" for number in range(36)]


def steps_of(decoder: str, *, free: bool = True, normalize: str = "local", dtype: torch.dtype = torch.float64) -> Steps:
    """Five examples of a model of 37 words: a count that is no whole number of vectors."""
    aligned = "aligned" in decoder
    text = SPEC.format(
        words=", ".join([*WORDS, "stop"]), free=" free <= 7" if free else "", decoder=DECODERS[decoder],
        over="T" if aligned else "S", normalize=normalize, end=", end: stop" if free else "",
    )  # fmt: skip
    model: Any = sharp(em.compile(text, seed=1), 3.0).to(dtype)
    with torch.no_grad():
        model.get_submodule("decoder").readout.bias[-1] += 2
    lengths = {} if aligned else {"S": torch.tensor([4, 1, 3, 0, 4])}
    if not free:
        lengths["T"] = torch.tensor([7, 0, 3, 5, 1])
    context = torch.randn(5, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    arguments = {"x": features(5, 7 if aligned else 4, dtype), "c": context}
    return model.problem(lengths=lengths, evidence=None, **arguments).steps()


def on_tensors(steps: Steps, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Found:
    with monkeypatch.context() as patch:
        patch.setattr(searching, "walk_of", lambda *_: None)
        return Search(steps, plan).run()


def same(found: Found, wanted: Found, count: int, tolerance: float = 1e-9) -> None:
    """The first `count` answers are the same; there may be fewer."""
    have = min(count, wanted.score.shape[1])
    torch.testing.assert_close(found.score[:, :have], wanted.score[:, :have], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.rank[:, :have], wanted.rank[:, :have], rtol=tolerance, atol=tolerance)
    there = ~wanted.score[:, :have].isneginf()
    assert torch.equal(found.labels[:, :have][there], wanted.labels[:, :have][there])


PLANS = {
    "map": Plan(4, wanted=1),
    "all": Plan(3),
    "penalty": Plan(4, length_penalty=0.8, wanted=2),
    "within": Plan(4, beside=False, length_penalty=0.5),
    "greedy": Plan(1, beside=False),
    "wide": Plan(50, wanted=5),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("normalize", ["local", "global"])
def test_they_find_the_same(decoder: str, normalize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for free in (False,) if "aligned" in decoder else (True, False):
        steps = steps_of(decoder, free=free, normalize=normalize)
        with torch.no_grad():
            assert walk_of(steps, 4) is not None
            for plan in PLANS.values():
                found = Search(steps, plan).run()
                same(found, on_tensors(steps, plan, monkeypatch), plan.wanted or plan.width)


@pytest.mark.parametrize("decoder", DECODERS)
def test_single_precision_is_close(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(decoder, free="aligned" not in decoder, dtype=torch.float32)
    same(Search(steps, PLANS["map"]).run(), on_tensors(steps, PLANS["map"], monkeypatch), 1, 1e-4)


def test_scores_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for search in (lambda one: Search(one, PLANS["map"]).run(), lambda one: on_tensors(one, PLANS["map"], monkeypatch)):
        steps = steps_of("transformer")
        decoder: Any = steps.env.module.get_submodule("decoder")
        with torch.no_grad():
            decoder.readout.bias[3] = float("nan")
        with pytest.raises(em.EnergyError, match="E0515"):
            search(steps)


def test_where_tensors_serve() -> None:
    """Gradients, costs, tables and unusual networks."""
    steps = steps_of("lstm")
    assert walk_of(steps, 4) is None  # gradients are on
    with torch.no_grad():
        decoder: Any = steps.env.module.get_submodule("decoder")
        decoder.cell = "gru"
        assert walk_of(steps, 4) is None
        decoder.cell = "lstm"
        steps.allowed = torch.ones(5, 7, 37, dtype=torch.bool)
        assert walk_of(steps, 4) is None


def test_many_labels_make_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of("lstm dot")
    wanted = Search(steps, PLANS["all"]).run()
    monkeypatch.setattr("energyml.backends.beam.walks.LARGEST_TABLE", 0)
    same(Search(steps, PLANS["all"]).run(), wanted, 3)


def test_caches_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of("transformer", normalize="global")
    wanted = Search(steps, PLANS["all"]).run()
    monkeypatch.setattr("energyml.backends.beam.walks.FIRST_STEPS", 1)
    same(Search(steps, PLANS["all"]).run(), wanted, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "wide"), [(5, 5), (16, 16), (32, 32), (64, 64), (128, 128), (32, 11)])
def test_attention_over_lists(size: int, wide: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    query, keys, values = (
        torch.randn(rows, 2, width, generator=generator, dtype=dtype)
        for rows, width in ((3, size), (9, size), (9, wide))
    )
    bias = torch.randn(2, size, generator=generator, dtype=dtype)
    lists = torch.tensor([[0, 8, 3, 3, 5, 1, 7, 2, 4, 6], [6, 2, 0, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    which, counts = torch.tensor([1, 0, 1]), torch.tensor([10, 2], dtype=torch.int32)
    found = native.attend(query.flatten(1), bias.flatten(), keys.flatten(1), values.flatten(1), 2, lists, which, counts)
    for row, number in enumerate(which.tolist()):
        own = lists[number, : counts[number]].long()
        scores = ((query[row] + bias).unsqueeze(0) * keys[own]).sum(-1) * size**-0.5
        wanted = (scores.softmax(0).unsqueeze(-1) * values[own]).sum(0)
        torch.testing.assert_close(found[row], wanted.flatten(), rtol=1e-5, atol=1e-6)
    none = native.attend(
        query.flatten(1), bias.flatten(), keys.flatten(1), values.flatten(1), 2, lists, which, counts * 0
    )
    assert not none.any()


def test_equal_scores_go_by_their_place() -> None:
    chosen = native.Choosing(
        torch.tensor([2]), 2, 20, None, width=3, wanted=3, local=True, within=False, penalty=0.0, dtype=torch.float32
    )
    chosen.start()
    bias = torch.zeros(20)
    rows = chosen.step(torch.zeros(1, 20), bias, 0)
    assert rows is not None and rows.label.tolist() == [0, 1, 2]
    rows = chosen.step(torch.zeros(3, 20), bias, 1)
    assert rows is not None and len(rows) == 0
    assert chosen.answers()[0].tolist() == [[0, 0], [0, 1], [0, 2]]
    torch.testing.assert_close(chosen.score[0], torch.full((3,), 2 * -torch.tensor(20.0).log().item()))

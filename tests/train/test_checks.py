"""What is found before the first epoch, what is noted, and what a run remembers of how it was asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import energyml as em
from energyml.diagnostics import EnergyError
from energyml.train.display import JsonLines
from energyml.train.report import evaluation, predicted_lines
from energyml.train.run import Request, train
from energyml.train.settings import Progress
from tests.train.small import STAGE, write_task


class Told(Progress):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def trained(spec: Path, progress: Progress | None = None, **asked: object) -> em.EnergyModel:
    from energyml.driver import compile_source, read_source

    return train(compile_source(read_source(str(spec))), Request(**asked), progress).model  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("ssvm(cost: hamming(weights: {Q: 2}))", "labels of an output, found `Q`|weighs `Q`"),
        ("nll(balance: offline(scale: y.unary, against: y.unary))", "on both sides"),
        ("nll(stop: plateau(f1))", "`f1` cannot judge these labels"),
        ("kl_projection", "no `masked` score"),
        ("nce(noise: sampler, run: 'nowhere')", "nowhere: no such file"),
    ],
)
def test_mistakes_of_a_later_stage_cost_no_epoch(tmp_path: Path, second: str, message: str) -> None:
    spec = write_task(tmp_path)
    with pytest.raises(EnergyError, match=message):
        trained(spec, out=tmp_path / "run", train=f"nll(epochs: 1) then {second}")
    assert not (tmp_path / "run").exists()


def test_negative_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnergyError, match="at least 0"):
        trained(write_task(tmp_path), train="ssvm(cost: hamming({A: -2}))")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("infer=mean_field(steps: 1)", "best weights by `mean_field(steps: 1)`; `eval` and `predict` are by `exact`"),
        ("without=y.pair", "has no use for its `balance`"),
    ],
)  # fmt: skip
def test_what_is_seldom_meant_is_noted(tmp_path: Path, change: str, note: str) -> None:
    told = Told()
    stage = "optimizer: adam(lr: 1e-2), balance: constant(alpha: 2)"
    trained(write_task(tmp_path, stage), told, changes=[change], limit=1)
    assert any(note in one for one in told.notes), told.notes


def test_stop_rules_without_validation_data_are_noted(tmp_path: Path) -> None:
    told = Told()
    spec = write_task(tmp_path, "stop: plateau(accuracy)")
    trained(spec, told, data="jsonl('train.jsonl', validation: 0)", limit=1)
    assert "there is no validation data: stop rules look at the training loss instead of accuracy" in told.notes


def test_evaluation_is_by_the_stop_rules_of_the_run(tmp_path: Path) -> None:
    spec = write_task(tmp_path, "stop: plateau(accuracy)")
    trained(spec, out=tmp_path / "run", limit=1, changes=["stop.metric=word_accuracy"])
    assert set(evaluation(tmp_path / "run").values) == {"word_accuracy", "accuracy"}


def test_one_more_metric_does_not_decide(tmp_path: Path) -> None:
    """Without a stop rule the best epoch is by accuracy, whatever else is looked at."""
    spec = write_task(tmp_path, "optimizer: adam(lr: 5e-2)")
    plain, watched = (trained(spec, limit=6, metrics=metrics).state_dict() for metrics in ((), ("word_accuracy",)))
    assert all(bool((plain[name] == watched[name]).all()) for name in plain)


def test_the_ratio_knows_the_gains_of_the_stage_before(tmp_path: Path) -> None:
    from energyml.driver import compile_source, read_source

    spec = write_task(tmp_path)
    stages = "nll(balance: constant(alpha: 4), epochs: 1) then nll(optimizer: sgd(lr: 1e-12), epochs: 1, balance: none)"
    kept = stages.replace(", balance: none", "")
    bare = STAGE.partition("{")[0].strip()
    spec.write_text(spec.read_text().replace(STAGE, bare))
    for written, same in ((kept, True), (stages, False)):
        first, second = train(compile_source(read_source(str(spec))), Request(train=written)).history
        assert (second["ratio"] == pytest.approx(first["ratio"], rel=1e-4)) == same


def test_another_number_of_epochs_is_another_run(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    trained(spec, out=tmp_path / "run", limit=1)
    with pytest.raises(EnergyError, match="`--epochs` was `1`, is `None`"):
        trained(spec, out=tmp_path / "run", resume=True)


def test_what_is_no_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().epoch({"epoch": 1, "validation.accuracy": math.nan, "alphas": [math.inf, 2.0]})
    assert json.loads(capsys.readouterr().out) == {
        "event": "epoch", "epoch": 1, "validation.accuracy": None, "alphas": [None, 2.0],
    }  # fmt: skip


@pytest.mark.parametrize("decoder", ["n_best(count: 3)", "sample(count: 4)"])
def test_a_decoder_of_several_answers_predicts_all_of_them(tmp_path: Path, decoder: str) -> None:
    spec = write_task(tmp_path)
    spec.write_text(spec.read_text().replace("infer exact", f"infer exact\ndecode {decoder}"))
    trained(spec, out=tmp_path / "run", limit=1)
    for line in predicted_lines(tmp_path / "run", [str(tmp_path / "test.jsonl")]):
        found = json.loads(line)
        answers = found[decoder.partition("(")[0]]
        assert found["y"] == answers[0]["y"] and all(len(one["y"]) == len(found["y"]) for one in answers)
        if decoder.startswith("n_best"):
            assert len({tuple(one["y"]) for one in answers}) == min(3, 3 ** len(found["y"])) == len(answers)
            assert [one["score"] for one in answers] == sorted((one["score"] for one in answers), reverse=True)
        else:
            assert len(answers) == 4


class Flat(nn.Module):
    """Gives [B, T, 1], whatever it is declared to give."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., :1]


def test_networks_of_ones_own_give_what_they_are_declared_to_give(tmp_path: Path) -> None:
    """A result that would broadcast trains something else without a word."""
    spec = write_task(tmp_path)
    own = "net f : (real[T, 4]) -> real[T, Tag] = python('tests.train.test_checks:Flat')"
    spec.write_text(spec.read_text().replace("net f = mlp(out: Tag, hidden: 8, dropout: 0.3)", own))
    with pytest.raises(EnergyError, match=r"and is declared to give \[B, T, 3\]"):
        trained(spec)


def write_sequence(folder: Path, train: str) -> Path:
    """The small task as a sequence that a greedy search decodes."""
    spec = write_task(folder)
    changes = {
        "chain y { unary: f(x), pair: W }": "sequence y { step: decoder, given: f(x) }",
        "param W : real[from: Tag, to: Tag] = normal(0.1)": "net decoder = lstm_decoder(hidden: 4, attention: aligned)",
        "infer exact": "infer greedy",
        f"train marginal_ce {{ {STAGE} }}": f"train {train}",
    }
    text = spec.read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    spec.write_text(text)
    return spec


@pytest.mark.parametrize("objective", ["beam_hinge { relax: false }", "minimum_risk { over: samples }"])
def test_objectives_that_search_on_their_own_ask_nothing_of_the_backend(tmp_path: Path, objective: str) -> None:
    trained(write_sequence(tmp_path, objective), limit=1)


def test_a_batch_without_cells_moves_nothing(tmp_path: Path) -> None:
    spec = write_sequence(tmp_path, "teacher_forcing { epochs: 1, batch: 1 }")
    lines = (tmp_path / "train.jsonl").read_text().splitlines()[:6]
    (tmp_path / "train.jsonl").write_text("\n".join([*lines, json.dumps({"x": [], "y": []})]) + "\n")
    trained(spec, data="jsonl('train.jsonl', validation: 0)")

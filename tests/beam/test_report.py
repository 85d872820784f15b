"""Reports on gold answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.backends.beam.report import sequence_report
from energyml.diagnostics import EnergyError
from tests.beam.models import tagger, translation
from tests.train.test_commands import energyml


def gold_of(example, using: str = "greedy") -> torch.Tensor:
    with torch.no_grad():
        return example.infer(using).map()["y"]


def test_normalizers_are_those_of_gold_prefixes() -> None:
    example = tagger(kind="ragged")
    gold = torch.zeros(3, 4, dtype=torch.long)
    report = sequence_report(example.model, y=gold, **example.arguments)
    net, problem = example.model.get_submodule("decoder"), example.infer("beam").problem
    with torch.no_grad():
        given = problem.env.module.get_submodule("encoder")(
            problem.env.batch.tensors["x"], masks=problem.env.batch.exists
        )
        log_z = net.forced(gold, (given,), problem.env.batch.exists).logsumexp(-1)
    kept = torch.cat([log_z[0], log_z[1, :2]])
    assert report.steps == 6 and report.examples == 3
    assert report.normalizer_mean == pytest.approx(float(kept.mean()))
    assert report.normalizer_variance == pytest.approx(float(kept.var(unbiased=False)))


@pytest.mark.parametrize("make", [tagger, translation])
def test_what_a_beam_finds_never_leaves_it(make) -> None:
    example = make()
    for using, width in (("greedy", 1), ("beam(width: 3, finished: within)", 3)):
        report = sequence_report(example.model, width=width, y=gold_of(example, using), **example.arguments)
        assert sum(report.left) == 0 and report.share_left == 0
        assert report.length_ratio == 1


def test_the_step_at_which_gold_leaves() -> None:
    example = tagger(kind="plain")
    gold = gold_of(example)
    gold[1, 2] = (gold[1, 2] + 1) % 3
    report = sequence_report(example.model, width=1, y=gold, **example.arguments)
    assert report.left == (0, 0, 1, 0)
    both = report + report
    assert both.left == (0, 0, 2, 0) and both.share_left == pytest.approx(1 / 3)
    assert "1 of 3 (1 at step 2)" in str(report)
    with pytest.raises(EnergyError, match="widths 1 and 2"):
        report + sequence_report(example.model, width=2, y=gold, **example.arguments)


@pytest.mark.parametrize("decoder", ["lstm", "gru"])
def test_what_the_search_alone_gets_wrong(decoder: str) -> None:
    """An exact answer that a narrow beam loses scores above the beam's own; an answer that is worse does not."""
    example = translation(decoder)
    with torch.no_grad():
        exact, found = example.infer("enumerate").map(), example.infer("greedy").map()
        others = example.infer("enumerate").n_best(15)
    errors = int((exact.score > found.score + 1e-9).sum())
    report = sequence_report(example.model, width=1, y=exact["y"], **example.arguments)
    assert report.better == sum(report.left) == errors > 0
    assert f"score above the beam's answer: {errors} of {errors}" in str(report)
    assert (others.score[:, -1] < found.score).all()
    worse = sequence_report(example.model, width=1, y=others["y"][:, -1], **example.arguments)
    assert worse.better == 0 and sum(worse.left) == 2


def test_tables_have_no_log_normaliser_of_a_step() -> None:
    chain = em.compile(CHAIN, seed=0)
    x = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    report = sequence_report(chain, width=2, x=x, y=torch.tensor([[0, 1, 2], [2, 1, 0]]))
    assert "log-normaliser" not in str(report) and "gold leaves the beam" in str(report)
    assert not [key for key in report.plain() if "normalizer" in key]
    both = report + report
    assert not both.normalizes and both.examples == 4


def test_every_line_says_what_it_means() -> None:
    example = tagger(kind="plain")
    lines = str(sequence_report(example.model, y=gold_of(example), **example.arguments)).splitlines()
    titles = [number for number, line in enumerate(lines) if not line.startswith("  ")]
    assert len(titles) == 4 and all(lines[number + 1].startswith("  ") for number in titles)


def test_lengths() -> None:
    example = translation()
    gold = torch.tensor([[0, 1, 2, -1], [0, 0, 1, 2]])
    with torch.no_grad():
        found = (example.infer("beam(width: 5, finished: within)").map()["y"] >= 0).sum()
    report = sequence_report(example.model, y=gold, **example.arguments)
    assert report.gold == 7 and report.length_ratio == pytest.approx(int(found) / 7)


def test_gold_must_be_whole() -> None:
    example = tagger(kind="plain")
    with pytest.raises(EnergyError, match="unknown"):
        sequence_report(example.model, y=torch.full((3, 4), -1), **example.arguments)
    with pytest.raises(EnergyError, match="pass `y="):
        sequence_report(example.model, **example.arguments)
    with pytest.raises(EnergyError, match="ends with the end label"):
        sequence_report(translation().model, y=torch.zeros(2, 4, dtype=torch.long), **translation().arguments)


CHAIN = """
labels Tag = {a, b, c}
dim T
input x : real[T, 2]
output y : Tag[T]
net scores = linear(out: Tag)
param next : real[from: Tag, to: Tag]
factor here [t in T] (y[t]) = scores(x)[t]
factor pair [t in T-1] (from: y[t], to: y[t+1]) = next
infer beam(width: 2)
"""
TINY = """\
labels Tag from data
labels Word from data(unknown: '<unk>')
dim T
input word : Word[T]
output y : Tag[T]
net encoder = lstm(hidden: 3, embed: 3)
net decoder = lstm_decoder(hidden: 3, embed: 2, attention: aligned)
sequence y { step: decoder, given: encoder(word), normalize: local }
infer beam(width: 2)
train teacher_forcing { epochs: 1 }
data conll('train.txt', columns: 'word y', validation: 'train.txt', test: 'test.txt', unknown: count_wrong)
"""


def test_the_report_is_reached_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.energy").write_text(TINY, encoding="utf-8")
    (tmp_path / "train.txt").write_text("a X\nb Y\n\nc Z\n\nb Y\na X\nc Z\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a X\nb X\n\nc NEW\na X\n\nc Z\n", encoding="utf-8")
    run = tmp_path / "run"
    made = energyml("train", tmp_path / "tiny.energy", "--root", tmp_path, "--out", run, "--quiet")
    assert made.returncode == 0, made.stderr
    told = energyml("eval", run, "--root", tmp_path, "--report", "beam", "--json")
    beam = json.loads(told.stdout)["beam"]
    # one sentence has a label that training never had; the width is the run's
    assert (beam["width"], beam["examples"], beam["steps"], beam["length_ratio"]) == (2, 2, 3, 1.0)
    assert beam["gold_left"] == sum(beam["left_at_step"]) / 2 and beam["log_normalizer_variance"] >= 0
    wide = energyml("eval", run, "--root", tmp_path, "--report", "beam(width: 9)")
    assert "gold leaves the beam of width 9: 0 of 2 (none)" in wide.stdout
    assert "note: beam: 1 examples with labels that the model cannot give" in wide.stdout
    wrong = energyml("eval", run, "--root", tmp_path, "--report", "greedy")
    assert wrong.returncode != 0 and "has no report on gold answers" in wrong.stderr


def test_backends_are_compared_on_a_stepwise_model(tmp_path: Path) -> None:
    (tmp_path / "tiny.energy").write_text(TINY, encoding="utf-8")
    (tmp_path / "train.txt").write_text("a X\nb Y\n\nc Z\n\nb Y\na X\nc Z\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a X\nb X\n\nc Z\n", encoding="utf-8")
    told = energyml(
        "compare", tmp_path / "tiny.energy", "--root", tmp_path, "--infer", "greedy, beam(width: 2), best_first",
        "--repeats", 1, "--json",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    rows = {row["backend"]: row for row in json.loads(told.stdout)["rows"]}
    assert rows["best_first"]["search_error"] == pytest.approx(0)
    assert all(row["reason"] is None and row["search_error"] >= -1e-6 for row in rows.values())

"""Reports on gold answers."""

from __future__ import annotations

import pytest
import torch

from energyml.backends.beam.report import sequence_report
from energyml.diagnostics import EnergyError
from tests.beam.models import tagger, translation


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

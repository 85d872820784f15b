"""Runs with more labels than a table of confusions has room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyml.metrics import confusion
from energyml.train import report
from tests.train.test_commands import energyml

SPEC = """\
labels Word = {a, b}
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net f = embedding(out: Tag)
factor unary [t in T] (y[t]) = f(word)[t]
infer exact
train nll { epochs: 1, batch: 64 }
data conll('t.txt', columns: 'word y', validation: 't.txt', test: 't.txt')
"""


def test_evaluation_leaves_the_table_out_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.energy").write_text(SPEC, encoding="utf-8")
    (tmp_path / "t.txt").write_text("a X\nb Y\n\na X\nb Z\n", encoding="utf-8")
    done = energyml("train", tmp_path / "s.energy", "--root", tmp_path, "--out", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert report.evaluation(tmp_path / "run", root=tmp_path).confusions
    for module in (confusion, report):
        monkeypatch.setattr(module, "MOST_LABELS", 2)
    found = report.evaluation(tmp_path / "run", root=tmp_path)
    assert 0 <= found.values["accuracy"] <= 1 and not found.confusions
    assert "y: no table of what is confused, as 2 labels fit into one and there are 3" in found.text(10)
    assert found.plain()["confused"] == {}

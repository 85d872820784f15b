"""The example of phonemes from the command line: trained by each objective of masked energies, and sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.train.test_commands import energyml

torch.set_num_threads(1)
EXAMPLE = Path(__file__).parents[2] / "examples" / "phonemes.energy"
WORDS = ("K AE T", "D AO G", "B AE T", "AH", "T UW", "S IH T")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cmudict").mkdir()
    (tmp_path / "cmudict" / "phonemes.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return tmp_path


def log(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "objective",
    [
        None,
        "mlm(epochs: 1), kl_projection(weight: 1)",
        "nce(count: 3)",
        "contrastive_divergence(persistent: true, infer: metropolis)",
    ],
)
def test_the_example_trains(root: Path, objective: str | None) -> None:
    chosen = () if objective is None else ("--train", objective)
    done = energyml("train", EXAMPLE, "--root", root, "--out", root / "run", "--epochs", 2, *chosen)
    assert done.returncode == 0, done.stderr
    records = log(root / "run")
    assert len(records) == (3 if objective and "), " in objective else 2)
    if objective is None:
        assert records[1]["loss"] < records[0]["loss"]  # type: ignore[operator]
        drawn = energyml("sample", root / "run", "-n", 8, "--chains", 2, "--burn-in", 1, "--size", "N=3", "--json")
        assert drawn.returncode == 0, drawn.stderr
        assert json.loads(drawn.stdout)["valid"] is True
        judged = energyml("eval", root / "run", "--root", root, "--split", "train")
        assert judged.returncode == 1 and "the model has no inputs" in judged.stderr

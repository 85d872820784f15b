"""`energyml compare`, as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from energyml.docpages import run_command
from tests.compare.small import write_task

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the spec, its data and a run."""
    made = tmp_path_factory.mktemp("compare")
    spec = write_task(made)
    code, text = run_command(["energyml", "train", str(spec), "--out", str(made / "run"), "--quiet"])
    assert code == 0, text
    return made


def energyml(*arguments: object) -> tuple[int, str]:
    return run_command(["energyml", "compare", *map(str, arguments)])


def test_a_run(folder: Path) -> None:
    out, picture = folder / "found.json", folder / "found.svg"
    code, text = energyml(
        folder / "run", "--infer", "exact, mean_field(steps: 1); cg", "--repeats", 2, "--out", out, "--plot", picture
    )
    assert code == 0, text
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["backend", "accuracy", "energy"] and lines[1].startswith("gold labels")
    assert " ± " in lines[2] and "100.0%" in lines[2] and "`cg` cannot serve this model" in text
    assert "random" not in text and "% of the time after loading" in text
    assert json.loads(out.read_text())["rows"][0]["backend"] == "exact" and picture.stat().st_size > 1000


def test_a_spec_has_random_weights(folder: Path) -> None:
    code, text = energyml(folder / "task.energy", "--infer", "bp", "--repeats", 1, "--seed", 4)
    assert code == 0 and "the weights are random (seed 4)" in text, text


def test_json(folder: Path) -> None:
    code, text = energyml(folder / "run", "--infer", "exact", "--repeats", 1, "--json", "--likelihood", "bigram")
    found = json.loads(text)
    assert code == 0 and found["reference"] == "exact" and found["rows"][0]["solved"] == 1.0
    assert {"rho.word", "rho.y"} <= set(found["rows"][0])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--infer", "exakt"], 1, "did you mean `exact`"),
        (["--infer", "exact", "--data", "jsonl('train.jsonl', test: 'missing.jsonl')"], 1, "missing.jsonl"),
        (["--infer", "exact", "--data", "jsonl('train.jsonl')"], 1, "no test split"),
        (["--infer", "exact", "--out", "nowhere/found.csv"], 2, "there is no folder"),
        (["--infer", "exact", "--out", "found.txt"], 1, "must end in .csv or .json"),
        (["--infer", "exact", "--plot", "found.txt"], 1, "must end in .svg"),
        (["--infer", "exact", "--device", "gpu"], 1, "gpu"),
        ([], 2, "--infer"),
    ],
)
def test_wrong_requests(folder: Path, arguments: list[str], code: int, message: str) -> None:
    found, text = energyml(folder / "run", *arguments)
    assert found == code and message in text and "Traceback" not in text, text


def test_a_missing_run() -> None:
    code, text = energyml("nowhere", "--infer", "exact")
    assert code == 2 and "nowhere: no such file or directory" in text


def test_inputs_without_examples(folder: Path) -> None:
    empty = folder / "empty.jsonl"
    empty.touch()
    code, text = energyml(folder / "run", "--infer", "exact", "--inputs", empty)
    assert code == 1 and "`--inputs` have no examples" in text and "--split" not in text, text

"""`energyml sample`: draws in a file, and a summary that is plain about convergence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from energyml import cli_sample
from energyml.starters import STARTERS
from tests.mcmc.models import PAIR

APP = typer.Typer()
cli_sample.register(APP)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(APP, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


@pytest.mark.parametrize("family", ["chain", "grid", "sequence", "masked"])
def test_every_family_of_labels(family: str, tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.energy", tmp_path / "draws.jsonl"
    spec.write_text(STARTERS[family])
    said = run(str(spec), "-n", "6", "--chains", "2", "--burn-in", "1", "--out", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 6 and {row["chain"] for row in rows} == {0, 1} and all("energy" in row for row in rows)
    assert "HAVE NOT MIXED" in said and "do not use these draws" in said  # three sweeps show nothing


def test_fields_are_drawn_independently(tmp_path: Path) -> None:
    spec = tmp_path / "spec.energy"
    spec.write_text("dim T\ninput u : real[T]\nfield s : real[T]\ngaussian s { unary: u }\n")
    assert "independent draws" in run(str(spec), "-n", "3", "--out", str(tmp_path / "draws.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "draws.jsonl").read_text().splitlines()]
    assert [len(row["s"]) for row in rows] == [4, 4, 4]


def test_the_summary_as_json_and_the_same_seed(tmp_path: Path) -> None:
    spec = tmp_path / "spec.energy"
    spec.write_text(PAIR)
    arguments = (str(spec), "-n", "200", "--burn-in", "5", "--seed", "3", "--json")
    one, two = (json.loads(run(*arguments)) for _ in range(2))
    assert one == two and one["mixed"] and one["valid"] and one["chains"] == 4 and one["sweeps"] == 50

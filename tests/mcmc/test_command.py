"""`energyml sample`: draws in a file, and a summary that is plain about convergence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import energyml as em
from energyml import cli_sample
from energyml.diagnostics import EnergyError
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


def failure(*arguments: str) -> str:
    """What a command says that is refused."""
    with pytest.raises(EnergyError) as refused:
        CliRunner().invoke(APP, list(arguments), catch_exceptions=False)
    return str(refused.value)


def test_what_cannot_be_written_is_told_before_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.energy"
    spec.write_text(PAIR)

    def never(*_: object) -> None:
        raise AssertionError("draws that will be lost")

    monkeypatch.setattr("energyml.sampling.run.draw", never)
    assert "there is no folder" in failure(str(spec), "--out", str(tmp_path / "missing" / "draws.jsonl"))
    assert "is a directory" in failure(str(spec), "--out", str(tmp_path))
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert "needs ArviZ" in failure(str(spec), "--out", str(tmp_path / "draws.nc"))


def test_numbers_that_json_has_not_are_left_out(tmp_path: Path) -> None:
    spec = tmp_path / "spec.energy"
    spec.write_text(PAIR)
    found = json.loads(run(str(spec), "-n", "1", "--burn-in", "1", "--json"), parse_constant=pytest.fail)
    assert found["rhat"]["energy"] is None and not found["mixed"]
    assert "the weights are random (seed 0)" in found["notes"][0]


def test_a_field_beside_labels_is_refused(tmp_path: Path) -> None:
    spec = tmp_path / "spec.energy"
    spec.write_text(PAIR + "input u : real[T]\nfield s : real[T]\ngaussian s { unary: u }\n")
    assert "cannot serve" in failure(str(spec))
    assert "labels beside them" in failure(str(spec), "--infer", "nuts")


def test_nan_is_named(tmp_path: Path) -> None:
    spec, inputs = tmp_path / "spec.energy", tmp_path / "inputs.json"
    spec.write_text(
        "labels L = {a, b}\ndim T\ninput u : real[T, L]\noutput y : L[T]\nfactor one [t in T] (y[t]) = u[t]\n"
    )
    for value, name in (("NaN", "NaN"), ("Infinity", "inf")):
        inputs.write_text(f'{{"u": [[[{value}, 0.0]]]}}')
        assert f"`u` holds {name}" in failure(str(spec), "--inputs", str(inputs))
    model = em.compile(
        "labels L = {a, b}\ndim T = 2\noutput y : L[T]\nparam w : real[L]\nfactor one [t in T] (y[t]) = w\n"
    )
    with torch.no_grad():
        model.w.fill_(float("nan"))
        with pytest.raises(EnergyError, match="E0515"):
            model.infer(using="gibbs(sweeps: 2, burn_in: 0)").trace()

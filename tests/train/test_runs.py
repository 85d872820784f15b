"""Runs: the same whatever happens to them on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from energyml.diagnostics import EnergyError
from energyml.driver import compile_source, read_source
from energyml.train.checkpoint import CheckpointError, read_checkpoint
from energyml.train.evaluate import decoder_for
from energyml.train.folder import load_run
from energyml.train.loop import NotFinite
from energyml.train.run import Request, train
from tests.train.small import STAGE, write_task

STAGED = f"{STAGE}, procedure: staged(), stop: plateau(accuracy, patience: 2, reduce: 1)"
ONLINE = f"{STAGE}, balance: online(subset: 20, grid: 2^-2..2^2)"


def run(spec: Path, out: Path, **more: object):
    return train(compile_source(read_source(spec)), Request(out=out, **more))  # type: ignore[arg-type]


def weights(out: Path, name: str = "last.safetensors") -> dict[str, torch.Tensor]:
    return read_checkpoint(out / name).part("model")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_times(history: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in record.items() if "seconds" not in key} for record in history]


@pytest.mark.parametrize("stage", [STAGE, STAGED, ONLINE], ids=["joint", "staged", "online"])
def test_a_run_that_is_stopped_anywhere_ends_as_if_it_had_not_been(tmp_path: Path, stage: str) -> None:
    """Killed after any number of written files: what is there is whole, and resuming gives the same weights."""
    spec = write_task(tmp_path, stage)
    whole = run(spec, tmp_path / "whole")
    for number in range(1, 8):
        out = tmp_path / f"cut{number}"
        with pytest.raises(_Killed):
            _killed_after(number, lambda out=out: run(spec, out))
        again = run(spec, out, resume=True)
        assert same(weights(out), weights(tmp_path / "whole"))
        assert without_times(again.history) == without_times(whole.history)
        assert same(weights(out, "best.safetensors"), weights(tmp_path / "whole", "best.safetensors"))


class _Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def _killed_after(writes: int, work) -> None:
    import energyml.train.checkpoint as module

    count, original = 0, Path.replace

    def counting(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count > writes:
            raise _Killed
        return original(self, target)

    module.Path.replace = counting  # type: ignore[method-assign]
    try:
        work()
    finally:
        module.Path.replace = original  # type: ignore[method-assign]


def test_an_interrupted_run_saves_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    run(spec, tmp_path / "whole")
    command = [sys.executable, "-m", "energyml.cli", "train", str(spec), "--out", str(tmp_path / "cut"), "--quiet"]
    process = subprocess.Popen(
        [*command, "--set", "epochs=400"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "cut" / "last.safetensors").exists():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err
    state = read_checkpoint(tmp_path / "cut" / "last.safetensors").state
    assert state["history"] and not state["finished"]


def test_the_folder_holds_what_a_model_needs(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    done = run(spec, tmp_path / "run", train_metrics=True)
    model, checkpoint = load_run(tmp_path / "run")
    assert checkpoint.state["request"]["labels"] == {"Tag": ["A", "B", "C"]}
    assert same(dict(model.state_dict()), dict(done.model.state_dict()))
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert all({"loss", "ratio", "validation.accuracy", "train.accuracy", "lr"} <= record.keys() for record in records)
    assert "epoch   3, loss" in (tmp_path / "run" / "log.txt").read_text()


def test_another_spec_or_other_choices_do_not_continue_a_run(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    run(spec, tmp_path / "run")
    with pytest.raises(EnergyError, match="holds a run already; go on with `--resume`"):
        run(spec, tmp_path / "run")
    with pytest.raises(EnergyError, match="was begun with other choices"):
        run(spec, tmp_path / "run", resume=True, changes=("optimizer.lr=0.5",))
    spec.write_text(spec.read_text().replace("hidden: 8", "hidden: 9"))
    with pytest.raises(EnergyError, match="was begun with another spec"):
        run(spec, tmp_path / "run", resume=True)


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    run(spec, tmp_path / "run")
    best = tmp_path / "run" / "best.safetensors"
    best.write_bytes(best.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"best\.safetensors: not a whole checkpoint"):
        load_run(tmp_path / "run")
    with pytest.raises(EnergyError, match="no run: there is neither"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        load_run(tmp_path / "nothing.safetensors")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_task(tmp_path)
    run(spec, tmp_path / "run", limit=1)
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    import energyml.train.checkpoint as module

    def full(stream: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(CheckpointError, match="no space left on device; what was there before is untouched"):
        run(spec, tmp_path / "other")
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before
    assert not list((tmp_path / "other").glob(".*.partial"))


def test_a_loss_that_is_no_number_names_the_culprit_and_the_batch(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    where = (
        r"the loss is nan in epoch 1, batch 2 \(its first example: .*train.jsonl:\d+\): the (parameter|term) `\S+` h"
    )
    with pytest.raises(NotFinite, match=where):
        run(spec, tmp_path / "run", changes=("optimizer.lr=1e30",))


def test_a_checkpoint_imports_nothing_that_is_not_named(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    text = spec.read_text().replace(
        "net f = mlp(out: Tag, hidden: 8, dropout: 0.3)",
        'net f : (real[T, 4]) -> real[T, Tag] = python("torch.nn:Linear", in_features: 4, out_features: 3)',
    )
    spec.write_text(text)
    run(spec, tmp_path / "run")
    with pytest.raises(EnergyError, match="pass `--allow-import torch`"):
        load_run(tmp_path / "run")
    load_run(tmp_path / "run", allow_import=["torch"])


@pytest.mark.filterwarnings("ignore:.*CHAINS HAVE NOT MIXED")
def test_a_backend_that_knows_no_best_answer_is_validated_by_its_marginals(tmp_path: Path) -> None:
    """Prediction follows the objective, here `map`; a sampler does not answer it."""
    spec = write_task(tmp_path, "epochs: 1")
    done = run(spec, tmp_path / "run", infer="gibbs(sweeps: 4)", train="contrastive_divergence")
    assert "validation.accuracy" in done.history[-1]
    assert str(decoder_for(done.model, "nll", "gibbs")).startswith("marginal_argmax")
    assert str(decoder_for(done.model, "nll", "exact")).startswith("map")


@pytest.mark.parametrize(("objective", "noted"), [("ssvm", True), ("nll", False)])
def test_marginals_of_a_model_that_trains_none_are_doubted(tmp_path: Path, objective: str, noted: bool) -> None:
    spec = write_task(tmp_path, "epochs: 1")
    spec.write_text(spec.read_text().replace("infer exact", "infer exact\ndecode marginal_argmax"))
    done = run(spec, tmp_path / "run", train=objective)
    assert any("`ssvm` does not train" in note for note in done.data.notes) == noted

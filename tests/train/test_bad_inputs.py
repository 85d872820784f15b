"""What the commands of training say about bad inputs: a message, an exit code, never a traceback."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from energyml import cli, cli_training
from energyml.driver import compile_source, read_source
from energyml.train.checkpoint import read_checkpoint, write_checkpoint
from energyml.train.run import Request, train
from tests.train.small import write_task

APP = typer.Typer()
cli_training.register(APP)
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def energyml(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process: exit code and standard error."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["energyml", *map(str, arguments)])
        code = cli._guarded(APP)
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return code, said.err

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    spec = compile_source(read_source(write_task(tmp_path)))
    train(spec, Request(out=tmp_path / "run", limit=1))
    return tmp_path / "run"


def test_a_truncated_gzip_file(tmp_path: Path, energyml: Command) -> None:
    spec = write_task(tmp_path)
    packed = gzip.compress((tmp_path / "train.jsonl").read_bytes())
    (tmp_path / "train.jsonl").write_bytes(packed[:-20])
    code, said = energyml("train", spec, "--out", tmp_path / "run", "--quiet")
    assert code == 1 and "E0802" in said and "ends too early" in said and "train.jsonl" in said
    assert not (tmp_path / "run" / "last.safetensors").exists()


def test_an_image_without_a_mask(tmp_path: Path, energyml: Command) -> None:
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.new("RGB", (4, 4)).save(made, "png")
    for name in ("i/a.png", "i/b.png", "m/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(made.getvalue())
    horses = Path(__file__).parents[2] / "examples" / "horses.energy"
    code, said = energyml("train", horses, "--data", "images('i', 'm', validation: 0)", "--root", tmp_path,
                          "--out", tmp_path / "run", "--quiet")  # fmt: skip
    assert code == 1 and "E0810" in said and "b.png` has no mask" in said


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_a_spec_is_no_run(tmp_path: Path, energyml: Command, command: str) -> None:
    spec = write_task(tmp_path)
    code, said = energyml(command, spec, *([tmp_path / "test.jsonl"] if command == "predict" else []))
    assert code == 1 and f"{spec} is a spec, which has no weights; train it with `energyml train {spec}" in said


def test_devices(run_folder: Path, energyml: Command) -> None:
    new = run_folder.parent / "test.jsonl"
    for command in (["eval", run_folder], ["predict", run_folder, new]):
        assert energyml(*command, "--device", "cpu")[0] == 0
        code, said = energyml(*command, "--device", "gpu")
        assert code == 1 and "`--device gpu` cannot be used here; there is cpu" in said


def test_a_picture_in_a_folder_that_is_not_there(run_folder: Path, energyml: Command) -> None:
    code, said = energyml("plot", run_folder, "--out", run_folder / "none" / "curves.svg")
    assert code == 1 and f"there is no folder {run_folder / 'none'}; make it, or choose another `--out`" in said


def test_weights_that_are_no_numbers(run_folder: Path, energyml: Command) -> None:
    for name in ("best.safetensors", "last.safetensors"):
        kept = read_checkpoint(run_folder / name)
        first = next(key for key, one in kept.tensors.items() if key.startswith("model.") and one.is_floating_point())
        kept.tensors[first].fill_(float("nan"))
        write_checkpoint(run_folder / name, kept)
    code, said = energyml("eval", run_folder)
    assert code == 1 and "hold NaN" in said and "train again" in said


@pytest.mark.parametrize("objective", ["infnet_loss", "direct_loss"])
def test_an_objective_that_the_backend_cannot_serve_leaves_no_folder(
    tmp_path: Path, energyml: Command, objective: str
) -> None:
    spec = write_task(tmp_path)
    code, said = energyml("train", spec, "--train", objective, "--out", tmp_path / "run", "--set", "epochs=1")
    assert code == 1 and "cannot train this model" in said and not (tmp_path / "run").exists()

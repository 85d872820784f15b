"""The commands of training, as people type them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from energyml.cli import main
from energyml.diagnostics import EnergyError
from energyml.train.checkpoint import read_checkpoint
from energyml.train.sweep import points, read_grid, table
from tests.train.small import STAGE, write_task


def energyml(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has torch loaded already."""
    out, err = io.StringIO(), io.StringIO()
    folder = contextlib.nullcontext() if cwd is None else contextlib.chdir(cwd)
    command = ["energyml", *map(str, arguments)]
    before, sys.argv = sys.argv, command
    try:
        with folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    code = end.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a program of its own."""
    command = [sys.executable, "-m", "energyml.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_train_evaluate_predict(tmp_path: Path) -> None:
    """Each of the three once as a program of its own: a run is all that they share."""
    spec = write_task(tmp_path)
    done = program("train", spec, "--out", tmp_path / "run", "--set", "epochs=2")
    assert done.returncode == 0 and "epoch   2, loss" in done.stdout, done.stderr
    judged = program("eval", tmp_path / "run", "--root", tmp_path, "--confusion", 2)
    assert judged.returncode == 0 and "test: 16 examples" in judged.stdout and "gold \\ predicted" in judged.stdout
    as_json = json.loads(energyml("eval", tmp_path / "run", "--root", tmp_path, "--json").stdout)
    assert 0 <= as_json["metrics"]["accuracy"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"x": one["x"]}) + "\n" for one in lines))
    told = program("predict", tmp_path / "run", tmp_path / "new.jsonl")
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [len(one["y"]) for one in found] == [len(one["x"]) for one in lines], told.stderr
    assert all(0 <= p <= 1 for one in found for p in one["probability"]["y"])
    right = sum(
        a == b for one, gold in zip(found, lines, strict=True) for a, b in zip(one["y"], gold["y"], strict=True)
    )
    assert right / sum(len(one["y"]) for one in lines) == pytest.approx(as_json["metrics"]["accuracy"])
    to_file = energyml("predict", tmp_path / "run", tmp_path / "new.jsonl", "--out", tmp_path / "found.jsonl")
    assert to_file.returncode == 0 and (tmp_path / "found.jsonl").read_text() == told.stdout


def test_predictions_from_pipes_and_for_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input as `-` and as a path, packed or not, several files in a row, and files under a name for gzip."""
    spec, new = write_task(tmp_path), tmp_path / "test.jsonl"
    with spec.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        done = energyml("train", "-", "--out", "run", "--epochs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = energyml("predict", tmp_path / "run", new)
    assert plain.returncode == 0 and len(plain.stdout.splitlines()) == 16, plain.stderr
    assert energyml("predict", tmp_path / "run", new, new).stdout == 2 * plain.stdout
    for content in (new.read_bytes(), gzip.compress(new.read_bytes())):
        for name in ("-", None):
            end, start = os.pipe()
            writer = threading.Thread(target=_write_and_close, args=(start, content))
            writer.start()
            with os.fdopen(end) as stream:
                monkeypatch.setattr(sys, "stdin", stream)
                piped = energyml("predict", tmp_path / "run", name or f"/dev/fd/{end}")
            writer.join()
            assert piped.stdout == plain.stdout, piped.stderr
    packed = tmp_path / "found.jsonl.gz"
    assert energyml("predict", tmp_path / "run", new, "--out", packed).returncode == 0
    assert gzip.decompress(packed.read_bytes()).decode() == plain.stdout


def test_predictions_for_images_name_their_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for folder, mode in (("i", "RGB"), ("m", "L")):
        (tmp_path / folder).mkdir()
        for name in "ab":
            image.new(mode, (4, 4)).save(tmp_path / folder / f"{name}.png")
    (tmp_path / "task.energy").write_text(
        "labels Seg = {back, front}\ndim H, W\ninput rgb : real[3, H, W]\noutput y : Seg[H, W]\n"
        "net f = unet(out: Seg, channels: 2)\nfactor unary [h in H, w in W] (y[h, w]) = f(rgb)[h, w]\n"
        "infer exact\ntrain nll { epochs: 1 }\ndata images('i', 'm', validation: 0)\n"
    )
    done = energyml("train", "task.energy", "--out", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for files in (["i"], ["i/a.png", "i/b.png"]):
        told = energyml("predict", "run", *files, cwd=tmp_path)
        assert [json.loads(line)["file"] for line in told.stdout.splitlines()] == ["i/a.png", "i/b.png"], told.stderr


def _write_and_close(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def test_json_lines_and_quiet(tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    events = energyml("train", spec, "--out", tmp_path / "a", "--set", "epochs=1", "--json").stdout.splitlines()
    kinds = [json.loads(line)["event"] for line in events]
    assert kinds[-2:] == ["stage", "epoch"]
    assert energyml("train", spec, "--out", tmp_path / "b", "--set", "epochs=1", "--quiet").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "optimizer.rate=1"], "no option `rate`"),
        (["--train", "nil"], "did you mean `nll`"),
        (["--infer", "cg"], "cannot serve this model"),
        (["--root", "nowhere"], "train.jsonl"),
        (["--data", "jsonl('missing.jsonl')"], "missing.jsonl"),
        (["--device", "gpu"], "`--device gpu` cannot be used here; there is cpu"),
        (["--metric", "nope"], "unknown metric `nope`"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: list[str], message: str) -> None:
    spec = write_task(tmp_path)
    done = energyml("train", spec, "--out", tmp_path / "run", *arguments)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr


def test_a_run_knows_where_its_data_lay(tmp_path: Path) -> None:
    """Evaluating and sweeping need no `--root` on the machine that trained."""
    write_task(tmp_path)
    done = energyml("sweep", "task.energy", "--out", "sweep", "--epochs", 1, cwd=tmp_path)
    assert done.returncode == 0 and "as it is" in done.stdout, done.stderr
    judged = energyml("eval", "sweep/plain/seed0", cwd=tmp_path)
    assert judged.returncode == 0 and "test: 16 examples" in judged.stdout, judged.stderr
    other = energyml("sweep", "task.energy", "--out", "sweep", "--epochs", 2, cwd=tmp_path)
    assert other.returncode == 1 and "holds a run made with arguments `--seed 0 --epochs 1`" in other.stdout


def test_going_on_says_what_it_finds(tmp_path: Path) -> None:
    write_task(tmp_path)
    arguments = ["train", "task.energy", "--out", "run", "--resume", "--epochs", 1]
    assert "there is no checkpoint in run yet; a new run begins" in energyml(*arguments, cwd=tmp_path).stdout
    arguments[1] = "./task.energy"
    assert "there is nothing left to do" in energyml(*arguments, cwd=tmp_path).stdout
    other = energyml(*arguments, "--seed", 5, cwd=tmp_path)
    assert other.returncode == 1 and "run was begun with another seed (it was 0, is 5)" in other.stderr


def test_a_sweep_runs_once_and_shows_means(tmp_path: Path) -> None:
    spec = write_task(tmp_path, f"{STAGE}, seed: 0")
    arguments = ["sweep", spec, "--out", tmp_path / "sweep", "--grid", "train=nll,ssvm", "--seeds", 2, "--epochs", 1]
    done = energyml(*arguments, "--root", tmp_path)
    assert done.returncode == 0 and "train=nll" in done.stdout and "±" in done.stdout, done.stderr + done.stdout
    kept = sorted((tmp_path / "sweep").rglob("last.safetensors"))
    assert len(kept) == 4
    before = [path.stat().st_mtime_ns for path in kept]
    assert energyml(*arguments, "--root", tmp_path).returncode == 0
    assert before == [path.stat().st_mtime_ns for path in kept]


def test_grids_split_at_commas_outside_of_brackets() -> None:
    axes = read_grid(["balance=none,online(subset: 5, grid: 2^-1..2^1)", "optimizer.lr=1e-3,1e-2"])
    assert axes[0] == ("balance", ["none", "online(subset: 5, grid: 2^-1..2^1)"])
    assert len(list(points(axes, 3))) == 12
    rows = table([{"values": {"a": "1"}, "seed": 0, "metrics": {"m": 0.5}, "minutes": 1.0},
                  {"values": {"a": "1"}, "seed": 1, "error": "no"}])  # fmt: skip
    assert "0.5000" in rows and "±" not in rows and "1 (1 failed)" in rows  # one value has no deviation
    rows = table([{"values": {}, "seed": n, "metrics": {"m": 0.5 + n / 10}, "minutes": 1.0} for n in range(2)])
    assert "0.5500 ± 0.0707" in rows and "1.0000 ± 0.0000" in rows


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["train=nll,ssvm,nll"], "`train=nll,ssvm,nll` has `nll` twice"),
        (["train=nll", "epochs=1", "train=ssvm"], "there are two axes `train`; join their values"),
        (["train"], "expected KEY=VALUE"),
    ],
)
def test_grids_whose_runs_could_not_be_told_apart(axes: list[str], message: str) -> None:
    with pytest.raises(EnergyError, match=message):
        read_grid(axes)


def test_folders_of_long_values() -> None:
    short, *long = points(read_grid([f"data=jsonl('a'),{','.join(chr(248) * 300 + one for one in 'xyz')}"]), 1)
    assert short.folder == "data=jsonl__a__/seed0"
    assert all(len(one.folder.partition("/")[0].encode()) <= 200 for one in long)
    assert len({one.folder for one in long}) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "nope"], "unknown metric `nope`"),
        (["--split", "tset"], "unknown split `tset`; there are train, validation, test"),
        (
            ["--split", "validation", "--grid", "data=jsonl('train.jsonl', validation: 0)"],
            "has no validation split to evaluate on",
        ),
        (["--grid", "epochs=1,2", "--set", "epochs=3"], "`epochs` is an axis of the grid and an option of all runs"),
        (["--grid", "data=jsonl('a.b'),jsonl['a.b']"], "would share the folder data=jsonl__a.b__/seed0"),
    ],
)
def test_a_sweep_that_could_not_be_evaluated_trains_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = energyml("sweep", write_task(tmp_path), "--out", tmp_path / "sweep", *arguments, "--epochs", 1)
    assert done.returncode == 1 and message in done.stderr and not (tmp_path / "sweep").exists(), done.stderr


def test_plots_of_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spec = write_task(tmp_path)
    energyml("train", spec, "--out", tmp_path / "run", "--set", "epochs=2", "--train-metrics")
    done = energyml("plot", tmp_path / "run", "--out", tmp_path / "curves.svg")
    assert done.returncode == 0 and (tmp_path / "curves.svg").stat().st_size > 1000
    for name, problem in (("curves", "the name has no ending"), ("curves.txt", "`.txt` is no format of pictures")):
        done = energyml("plot", tmp_path / "run", "--out", tmp_path / name)
        assert done.returncode == 1 and f"{problem}; it must end in .svg, .png or .pdf" in done.stderr
    assert [one.name for one in tmp_path.glob("curves*")] == ["curves.svg"]
    assert "is this the folder of a run?" in energyml("plot", tmp_path, "--out", tmp_path / "x.svg").stderr


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """The same global batches: weights agree within what the order of additions allows."""
    spec = write_task(tmp_path, STAGE)
    spec.write_text(spec.read_text().replace(", dropout: 0.3", ""))
    assert energyml("train", spec, "--out", tmp_path / "one", "--quiet").returncode == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m",
               "energyml.cli", "train", str(spec), "--out", str(tmp_path / "two"), "--quiet"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    one, two = (read_checkpoint(tmp_path / name / "last.safetensors") for name in ("one", "two"))
    for name, value in one.part("model").items():
        assert torch.allclose(value, two.part("model")[name], atol=2e-5)
    for a, b in zip(one.state["history"], two.state["history"], strict=True):
        assert a["validation.accuracy"] == pytest.approx(b["validation.accuracy"], abs=0.02)
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert again.returncode != 0 and "internal error" not in again.stderr
    assert again.stderr.count("holds a run already") == 1  # the process that writes says so, the other one is silent


def test_two_processes_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Dropout in each process: all of their random numbers are kept, and all of them stop at the same step."""
    spec = write_task(tmp_path, STAGE, count=256)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
               str(Path(__file__).with_name("stopping.py")), str(spec)]  # fmt: skip
    for out, stop in (("whole", "0"), ("cut", "11"), ("cut", "0")):
        done = subprocess.run(
            [*command, str(tmp_path / out), stop],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        state = read_checkpoint(tmp_path / out / "last.safetensors").state
        assert state["finished"] == (stop == "0")
    whole, cut = (read_checkpoint(tmp_path / name / "last.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(value, cut.part("model")[name]) for name, value in whole.part("model").items())
    assert [one["loss"] for one in whole.state["history"]] == [one["loss"] for one in cut.state["history"]]

"""Sweeps on a cluster: handed over through Ray's own calls, which a stand-in records."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from energyml.diagnostics import EnergyError
from energyml.train.engines import make_engine
from energyml.train.sweep import read_grid, sweep
from tests.train.small import write_task


class RayError(Exception):
    """Stands for `ray.exceptions.RayError`."""


def stand_in(monkeypatch: pytest.MonkeyPatch, *, cluster: bool = True, lost: bool = False) -> list[Any]:
    """A module `ray` that carries tasks out at once, in this process; what was asked of it."""
    asked: list[Any] = []
    module = ModuleType("ray")

    def init(**options: object) -> None:
        asked.append(("init", options))
        if not cluster:
            raise ConnectionError("Could not find any running Ray instance.\nmore")

    def remote(**options: object) -> Any:
        asked.append(("remote", options))
        return lambda function: SimpleNamespace(remote=lambda *given: (function, given))

    def get(reference: Any) -> Any:
        if lost:
            raise RayError("the node died\nmore")
        _, given = reference
        asked.append(("task", *given))
        return in_this_process(*given)

    module.init, module.remote, module.get = init, remote, get  # type: ignore[attr-defined]
    module.is_initialized = lambda: False  # type: ignore[attr-defined]
    module.exceptions = SimpleNamespace(RayError=RayError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    return asked


def in_this_process(arguments: list[str]) -> tuple[int, str]:
    """Train as the command would, without the second that a process takes to start."""
    from energyml.driver import compile_source, read_source
    from energyml.train.run import Request, train

    options = dict(zip(arguments[2::2], arguments[3::2], strict=False))
    assert arguments[0] == "train" and Path(arguments[1]).is_absolute()
    changes = [arguments[place + 1] for place, one in enumerate(arguments) if one == "--train"]
    train(compile_source(read_source(arguments[1])), Request(out=Path(options["--out"]), train=changes[0], limit=1))
    return 0, ""


def test_runs_are_handed_to_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch)
    spec = write_task(tmp_path, count=16)
    records = sweep(spec, read_grid(["train=nll,ssvm"]), 1, tmp_path / "sweep", engine="ray", jobs=1)
    assert asked[:2] == [("init", {"address": "auto", "log_to_driver": False}), ("remote", {"num_cpus": 1})]
    tasks = [one[1] for one in asked if one[0] == "task"]
    assert sorted(one[one.index("--train") + 1] for one in tasks) == ["nll", "ssvm"]
    assert all("accuracy" in one["metrics"] for one in records)
    again = sweep(spec, read_grid(["train=nll,ssvm"]), 1, tmp_path / "sweep", engine="ray", jobs=1)
    assert [one["metrics"] for one in again] == [one["metrics"] for one in records]
    assert sum(one[0] == "task" for one in asked) == 2  # what is done is not run again


def test_a_lost_run_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lost=True)
    records = sweep(write_task(tmp_path, count=16), [], 1, tmp_path / "sweep", engine="ray")
    assert "the cluster lost this run: the node died" in records[0]["error"]


def test_engines_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnergyError, match="unknown engine `slurm`; there are processes, ray"):
        make_engine("slurm", 2)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnergyError, match=r"needs Ray: `pip install 'energyml\[ray\]'`"):
        make_engine("ray", 2)
    stand_in(monkeypatch, cluster=False)
    with pytest.raises(EnergyError, match="no Ray cluster answers: start one with `ray start --head`"):
        make_engine("ray", 2)

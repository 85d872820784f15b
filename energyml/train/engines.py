"""Where the runs of a sweep are carried out: processes of this machine, or an existing Ray cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from energyml.diagnostics import EnergyError

ENGINES = ("processes", "ray")

# The exit code of a command and what it wrote to standard error.
Outcome: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class Engine:
    """A way to carry out commands.

    Attributes:
        run: carries out `python -m energyml.cli` with some arguments, and waits for its end.
        at_once: how many may wait at a time; as many as there are when `None`.
    """

    run: Callable[[Sequence[str]], Outcome]
    at_once: int | None


def command_line(arguments: Sequence[str]) -> Outcome:
    """The command in a process of its own, by the interpreter of the machine that this is called on."""
    command = [sys.executable, "-m", "energyml.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def make_engine(name: str, jobs: int) -> Engine:
    """The engine of that name.

    Args:
        name: `processes` or `ray`.
        jobs: how many processes of this machine run at a time; a cluster has its own limits.
    """
    if name == "processes":
        return Engine(command_line, jobs)
    if name == "ray":
        return Engine(_on_cluster(), None)
    raise EnergyError(f"unknown engine `{name}`; there are {', '.join(ENGINES)}")


def _on_cluster() -> Callable[[Sequence[str]], Outcome]:
    """Join the cluster that RAY_ADDRESS names, or that runs on this machine; each run takes one of its cores.

    Its machines need energyml, and the spec, the data and the folder of the sweep under the same paths.
    """
    try:
        import ray
    except ImportError as problem:
        raise EnergyError("`--engine ray` needs Ray: `pip install 'energyml[ray]'`") from problem
    cluster: Any = ray
    try:
        if not cluster.is_initialized():
            cluster.init(address="auto", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        raise EnergyError(
            "no Ray cluster answers: start one with `ray start --head`, or name one in RAY_ADDRESS; "
            f"without a cluster, leave out `--engine ray` ({str(problem).splitlines()[0]})"
        ) from problem
    task = cluster.remote(num_cpus=1)(command_line)

    def run(arguments: Sequence[str]) -> Outcome:
        try:
            code, said = cluster.get(task.remote(list(arguments)))
        except cluster.exceptions.RayError as problem:  # a machine went away: the run can go on later
            return 1, f"energyml: the cluster lost this run: {str(problem).splitlines()[0]}"
        return int(code), str(said)

    return run


__all__ = ["ENGINES", "Engine", "Outcome", "command_line", "make_engine"]

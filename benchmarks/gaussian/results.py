"""Measured figures as JSON under `results/`, in the form of the exact benchmarks."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.exact import results as stored
from benchmarks.exact.results import figure
from benchmarks.exact.timing import Ratio

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "numpy", "scipy", "linear_operator")


def load(name: str) -> dict[str, Any]:
    """A stored result, or an empty one."""
    return stored.load(str(FOLDER / name))


def store(name: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    """Write rows; rows of an earlier run stay where the key of no new row is theirs."""
    FOLDER.mkdir(exist_ok=True)
    machine = {**stored.machine(), "versions": {package: version(package) for package in PACKAGES}}
    stored.store(str(FOLDER / name), rows, key, machine=machine)


def ratio(found: Ratio) -> list[float]:
    """Quartiles of peer over ours, milliseconds of ours and of the peer, and how many pairs."""
    times = (1e3 * found.ours, 1e3 * found.peer)
    return [*map(figure, (found.low, found.middle, found.high, *times)), found.pairs]


__all__ = ["FOLDER", "figure", "load", "ratio", "store"]

"""Measured figures as JSON under `results/`, in the form of the exact benchmarks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.exact import results as stored
from benchmarks.exact.results import figure

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "jax", "thrml", "numpyro", "pgmpy", "pgmax", "arviz")


def load(name: str) -> dict[str, Any]:
    """A stored result, or an empty one."""
    return stored.load(str(FOLDER / name))


def store(name: str, rows: list[dict[str, Any]], key: tuple[str, ...], **more: Any) -> None:
    """Write rows; rows of an earlier run stay where the key of no new row is theirs."""
    FOLDER.mkdir(exist_ok=True)
    machine = {**stored.machine(), "versions": {package: _version(package) for package in PACKAGES}}
    stored.store(str(FOLDER / name), rows, key, machine=machine, **more)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


__all__ = ["FOLDER", "figure", "load", "store"]

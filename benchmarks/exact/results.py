"""Measured figures as JSON under `results/`, from which the tables are rendered."""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
PACKAGES = (
    "torch", "pytorch-crf", "TorchCRF", "torch-struct", "pomegranate", "hmmlearn", "dynamax", "jax", "synjax",
    "pyro-ppl", "python-crfsuite", "pgmpy",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """When and on what the figures were made."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else ""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": date.today().isoformat(), "python": platform.python_version(), "processor": model,
        "cores": os.cpu_count(), "clock": clock(), "versions": versions,
    }  # fmt: skip


def clock() -> str:
    """Which time is counted: `wall`, or `cpu` for a look on a busy machine."""
    return os.environ.get("BENCH_CLOCK", "wall")


def figure(value: float) -> float:
    """A number with four digits: no more of it repeats."""
    return float(f"{value:.4g}")


def load(name: str) -> dict[str, Any]:
    """A stored result, or an empty one."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {"machine": {}, "rows": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def store(name: str, rows: list[dict[str, Any]], key: tuple[str, ...], **more: Any) -> None:
    """Write rows, one on a line; rows of an earlier run stay where the key of no new row is theirs."""

    def identity(row: dict[str, Any]) -> str:
        return json.dumps([row.get(one) for one in key])

    fresh = {identity(row): row for row in rows}
    kept = {identity(row): row for row in load(name)["rows"]}
    merged = {**kept, **fresh}
    head = {"machine": machine(), **more}
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in merged.values())
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]},\n"rows": [\n{lines}\n]}}\n'
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")

"""Curves of runs: loss, metrics, the ratio of potentials and the scale, epoch by epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energyml.diagnostics import EnergyError
from energyml.pictures import check_ending, drawing, save


def read_history(run: Path) -> list[dict[str, Any]]:
    """The records of a run's epochs."""
    log = run / "log.jsonl"
    try:
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    except OSError as problem:
        raise EnergyError(
            f"{log}: {(problem.strerror or str(problem)).lower()}; is this the folder of a run?"
        ) from problem


def plot(runs: Sequence[Path], out: Path) -> None:
    """One figure for one run or several: a panel for each kind of curve that their logs hold."""
    if not out.parent.is_dir():
        raise EnergyError(f"{out}: there is no folder {out.parent}; make it, or choose another `--out`")
    check_ending(out)
    pyplot = drawing()
    histories = {run.name or str(run): read_history(run) for run in runs}
    kept = [record for history in histories.values() for record in history]
    if not kept:
        raise EnergyError("there are no epochs to draw yet")
    metrics = list(dict.fromkeys(key for record in kept for key in record if key.startswith("validation.")))
    panels = ["loss", *metrics, *(key for key in ("ratio", "alpha") if any(key in record for record in kept))]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.4 * len(panels), 2.9), squeeze=False)
    for axis, key in zip(axes[0], panels, strict=True):
        for name, history in histories.items():
            pairs = [(number, record[key]) for number, record in enumerate(history, start=1) if key in record]
            axis.plot([x for x, _ in pairs], [y for _, y in pairs], label=name, marker=".", markersize=3)
            train = [(n, r[key.replace("validation", "train")]) for n, r in enumerate(history, start=1)
                     if key.startswith("validation.") and key.replace("validation", "train") in r]  # fmt: skip
            if train:
                axis.plot([x for x, _ in train], [y for _, y in train], linestyle=":", label=f"{name} (train)")
        if key in ("ratio", "alpha"):
            axis.set_yscale("log")
        axis.set(title=key, xlabel="epoch")
    if len(histories) > 1 or any(len(axis.lines) > 1 for axis in axes[0]):
        axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    save(figure, out)


__all__ = ["plot", "read_history"]

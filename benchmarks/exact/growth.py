"""Time against length and against batch, as a plot with fitted slopes."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.exact import results
from benchmarks.exact.contestants import Contestant, peers
from benchmarks.exact.contestants.ours import Ours
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, VITERBI, Size, make_case
from benchmarks.exact.timing import median_seconds

PLOT = Path(__file__).parents[2] / "docs" / "performance-growth.svg"
LENGTHS: tuple[Size, ...] = tuple((8, 2**power, 23) for power in range(5, 14))
BATCHES: tuple[Size, ...] = tuple((2**power, 50, 23) for power in range(11))
AXES = {"length": (LENGTHS, 1), "batch": (BATCHES, 0)}
PATIENCE = 0.3  # seconds
LINES = {"energyml": "-", "dynamax": "-.", "pytorch-crf": ":"}
COLOURS = {LOG_PARTITION: "#1b6ca8", NLL: "#c0392b", VITERBI: "#2e8b57", MARGINALS: "#8e6c8a"}


def slope(counts: list[int], times: list[float]) -> float:
    """The exponent of growth over the upper half of the range, where what a call costs by itself is small."""
    half = len(counts) // 2
    return float(np.polyfit(np.log(counts[half:]), np.log(times[half:]), 1)[0])


def curve(contestant: Contestant, sizes: tuple[Size, ...], task: str, budget: float) -> list[float]:
    """Microseconds at each size, up to the first that takes longer than `PATIENCE`."""
    times: list[float] = []
    for size in sizes:
        took = median_seconds(contestant.prepare(make_case(size, False), task).run, budget, 20)
        times.append(results.figure(1e6 * took))
        if took > PATIENCE:
            break
    return times


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Both curves side by side, on logarithmic axes; a dashed line grows linearly."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "energyml", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for axis, (name, (sizes, at)) in zip(axes, AXES.items(), strict=True):
        fixed = {"length": "8 chains", "batch": "chains of 50 cells"}[name]
        for row in (row for row in rows if row["axis"] == name):
            mine = row["name"] == "energyml"
            label = f"{row['task']}, slope {row['slope']:.2f}" if mine else f"{row['name']} {row['task']}"
            axis.plot(
                row["counts"], [time / 1e3 for time in row["times"]], marker="o" if mine else None, markersize=2.5,
                linewidth=1.4 if mine else 0.9, linestyle=LINES.get(row["name"], ":"), color=COLOURS[row["task"]],
                label=label,
            )  # fmt: skip
        counts = np.array([size[at] for size in sizes], dtype=float)
        axis.plot(counts, counts / counts[-1] * 3, "--", color="grey", linewidth=0.7, label="linear")
        axis.set(xscale="log", yscale="log", xlabel=name, title=f"{fixed}, 23 labels, one thread")
        axis.grid(alpha=0.25, linewidth=0.4)
        axis.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    axes[0].set_ylabel("milliseconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    others = {one.name: one for one in peers(("dynamax", "pytorch-crf"))[0]}
    wanted: list[tuple[Contestant, str]] = [(Ours(), task) for task in COLOURS]
    wanted += [(one, NLL) for one in others.values()]
    rows = []
    for name, (sizes, at) in AXES.items():
        sizes = sizes[:5] if options.quick else sizes
        counts = [size[at] for size in sizes]
        for contestant, task in wanted:
            times = curve(contestant, sizes, task, 0.05 if options.quick else 0.2)
            rows.append(
                {"axis": name, "name": contestant.name, "task": task, "counts": counts[: len(times)], "times": times,
                 "slope": results.figure(slope(counts[: len(times)], times))}
            )  # fmt: skip
            print(f"{contestant.name} {task} against {name}: slope {rows[-1]['slope']:.2f}", flush=True)
    results.store("growth-quick" if options.quick else "growth", rows, ("axis", "name", "task"))
    if not options.quick:
        draw(rows, PLOT)


if __name__ == "__main__":
    main()

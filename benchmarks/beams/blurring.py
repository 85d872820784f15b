"""Why a soft beam ends answers of raw scores where a hard beam does not: its hypotheses are nearly the same one.

    python -m benchmarks.beams.blurring --runs runs/beams     # runs of benchmarks.beams.translation, seed 0

Raw scores add about 10 for every word, so a hypothesis that goes on outgrows one that has ended, and a hard beam writes
until it may not go on.  The weights of the regular start and of the global row that starts from it are decoded by their
raw scores: greedily, by soft beams of different alpha, and by hard beams.  For each soft beam (and the hard beam as its
limit) two more numbers are kept, over the first test sentences:

- `overlap`: how much probability the labels of the first hypothesis share with those of the two others, at steps before
  any has ended;
- `until`: steps from the first hypothesis that ends to the last one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.beams.study import RESULTS, Cell, judged, vocabularies, weighted
from benchmarks.beams.translation import TRANSLATION
from energyml.backends.beam.relaxed import RelaxedBeam, relaxed_beam
from energyml.bind.steps import Steps
from energyml.data.load import load_data
from energyml.train.checkpoint import read_checkpoint
from energyml.train.folder import BEST

ROWS = ("ce", "global_ce")
WIDTH = 3
ALPHAS = (1.0, 10.0, 100.0, 10_000.0, math.inf)
LOOKED_AT = 64
WAYS = {
    "greedy": "greedy",
    **{f"soft, alpha {alpha:g}": f"relaxed_beam(width: {WIDTH}, alpha: {alpha:g})" for alpha in ALPHAS[:-1]},
    "hard, finished within": f"beam(width: {WIDTH}, finished: within)",
    "hard": f"beam(width: {WIDTH})",
}
STORED = RESULTS / "blurring.jsonl"


def likeness(steps: Steps, found: RelaxedBeam) -> tuple[float, float]:
    """The mean overlap of hypotheses before any ends, and the mean number of steps from the first end to the last."""
    labels = torch.stack([choice.labels for choice in found.choices], 1)  # [B, T, k, C]
    hard = torch.stack([choice.label for choice in found.choices], 1)  # [B, T, k]
    rows = torch.stack([choice.row for choice in found.choices], 1)
    ended = torch.zeros_like(hard[:, 0], dtype=torch.bool)
    flags = []
    for t in range(hard.shape[1]):
        before = ended.gather(1, rows[:, t].clamp(max=ended.shape[1] - 1)) if t else ended
        ended = before | (hard[:, t] == steps.end)
        flags.append(ended)
    every = torch.stack(flags, 1)
    going = ~every.any(2)
    going[:, 0] = False  # one row is expanded there
    shared = torch.minimum(labels[:, :, :1], labels[:, :, 1:]).sum(3).mean(2)
    first = every.any(2).int().argmax(1)
    last = torch.where(every.all(2).any(1), every.all(2).int().argmax(1), hard.shape[1])
    return float(shared[going].mean()), float((last - first).float().mean())


def measured(row: str, runs: Path) -> list[dict[str, Any]]:
    """A line for each way to decode."""
    cell = Cell(TRANSLATION, "bahdanau", row, 0)
    best = read_checkpoint(runs / cell.name / BEST)
    data = load_data(
        cell.study.compiled("bahdanau", row), root=runs / "data", vocabularies=vocabularies(best), splits=["test"]
    )
    assert data.test is not None
    model = weighted(cell, best, data, "global")
    batch = data.test.batch(range(LOOKED_AT))
    steps = model.problem(lengths=batch.lengths or None, evidence=None, **batch.inputs).steps()
    alike = {alpha: likeness(steps, relaxed_beam(steps, width=WIDTH, alpha=alpha)) for alpha in ALPHAS}
    lines = []
    for name, backend in WAYS.items():
        bleu = judged(model, data.test, "bleu", backend)
        line: dict[str, Any] = {
            "row": row, "way": name, "bleu": round(bleu.value(), 5),
            "length_ratio": round(bleu.details()["length_ratio"], 4), "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        alpha = math.inf if name == "hard, finished within" else next(
            (one for one in ALPHAS if name == f"soft, alpha {one:g}"), None
        )  # fmt: skip
        if alpha is not None:
            line["overlap"], line["until"] = (round(one, 3) for one in alike[alpha])
        print(line, flush=True)
        lines.append(line)
    return lines


def table() -> list[str]:
    """The stored lines, for the page of results."""
    if not STORED.exists():
        return []
    lines = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
    found = [
        "| raw scores of | decoded by | BLEU | length ratio | overlap of hypotheses | steps from the first end to the "
        "last |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        alike = f"{line['overlap']:.2f} | {line['until']:.1f}" if "overlap" in line else " | "
        found.append(
            f"| {line['row']} | {line['way']} | {100 * line['bleu']:.2f} | {line['length_ratio']:.2f} | {alike} |"
        )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/beams"), help="where the studies keep their runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    lines = [line for row in ROWS for line in measured(row, options.runs / TRANSLATION.name)]
    STORED.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The OCR block of Table 2: objectives x procedures x seeds; resumable, one line of results for each run.

A run that was interrupted goes on where it stopped; one that is done is not run again.  `--only` picks cells, as in
`--only 'marginal_ce/(joint|online)/0'`.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from energyml.driver import compile_source, read_source
from energyml.train.checkpoint import read_checkpoint
from energyml.train.display import Lines
from energyml.train.folder import LAST
from energyml.train.report import evaluation
from energyml.train.run import Request, train

SPEC = Path(__file__).parents[2] / "examples" / "ocr.energy"
RESULTS = Path(__file__).with_name("results")
PROCEDURES = {
    "unary": ("balance=none", "without=y.pair"),
    "joint": ("balance=none",),
    "stage": ("balance=none", "procedure=staged()"),
    "online": ("balance=online(subset: 2000)",),
    "offline": ("balance=offline(alpha: {alpha})",),
    "offline_reg": ("balance=offline(alpha: {alpha}, regularized: true, weight: 0.1)",),
}
# objective, backend: the rows of the table
ROWS = {
    "marginal_ce": ("marginal_ce", "exact"),
    "ssvm": ("ssvm", "exact"),
    "nll": ("nll", "exact"),
    "marginal_ce_mf": ("marginal_ce", "mean_field"),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    row: str
    procedure: str
    seed: int
    lr: float
    alpha: float
    epochs: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.row}/{self.procedure}/{self.seed}"

    def request(self, root: Path, out: Path) -> Request:
        objective, backend = ROWS[self.row]
        changes = [one.format(alpha=self.alpha) for one in PROCEDURES[self.procedure]]
        changes += [f"optimizer=adam(lr: {self.lr})", f"epochs={self.epochs}", f"batch={self.batch}"]
        changes += ["stop=plateau(averaged_accuracy, patience: 7, reduce: 3, threshold: 1e-3)"]
        return Request(
            out=out, root=root, infer=backend, train=objective, changes=changes, seed=self.seed, resume=True,
            threads=1, train_metrics=True, metrics=("averaged_accuracy",),
        )  # fmt: skip


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for row in ROWS:
            for procedure in PROCEDURES:
                cell = Cell(row, procedure, seed, options.lr, options.alpha, options.epochs, options.batch)
                if re.fullmatch(options.only, cell.name):
                    yield cell


def run(cell: Cell, options: argparse.Namespace) -> dict[str, object]:
    """Train, or go on, and evaluate; the record of the run."""
    out = options.runs / cell.name
    compiled = compile_source(read_source(SPEC))
    began = time.perf_counter()
    done = train(compiled, cell.request(options.root, out), Lines())
    if done.interrupted:
        raise SystemExit(130)
    elapsed = float(read_checkpoint(out / LAST).state["elapsed"])
    test = evaluation(out, root=options.root, metrics=("averaged_accuracy",))
    best = max(done.history, key=lambda record: (record["stage"], record["validation.averaged_accuracy"]))
    return {
        "row": cell.row, "procedure": cell.procedure, "seed": cell.seed, "lr": cell.lr, "alpha": cell.alpha,
        "batch": cell.batch, "epochs": len(done.history), "minutes": round(elapsed / 60, 2),
        "test": test.values["averaged_accuracy"], "test_accuracy": test.values["accuracy"],
        "validation": best["validation.averaged_accuracy"], "train": best["train.averaged_accuracy"],
        "ratios": [record["ratio"] for record in done.history if "ratio" in record],
        "alphas": [record["alpha"] for record in done.history if "alpha" in record],
        "date": time.strftime("%Y-%m-%d"), "wall": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder of letter.data")
    parser.add_argument("--runs", type=Path, default=Path("runs/ocr"), help="where runs are kept")
    parser.add_argument("--only", default=".*", help="a regular expression over ROW/PROCEDURE/SEED")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "ocr.jsonl"
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    keys = {(one["row"], one["procedure"], one["seed"], one["lr"], one["alpha"], one["batch"]) for one in known}
    for cell in cells(options):
        if (cell.row, cell.procedure, cell.seed, cell.lr, cell.alpha, cell.batch) in keys:
            continue
        print(f"== {cell.name}", flush=True)
        record = run(cell, options)
        with kept.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        print(f"== {cell.name}: test {record['test']:.4f}, {record['epochs']} epochs", flush=True)


if __name__ == "__main__":
    main()

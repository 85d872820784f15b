"""Runs of one task: rows (objective and backend) x procedures x seeds; resumable, one line of results for each run.

A run that was interrupted goes on where it stopped; one that is done is not run again.  `--only` picks cells, as in
`--only 'marginal_ce/(joint|online)/0'`.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energyml.diagnostics import Source
from energyml.driver import compile_source, read_source
from energyml.train.checkpoint import read_checkpoint
from energyml.train.display import Lines
from energyml.train.folder import LAST
from energyml.train.report import evaluation
from energyml.train.run import Request, train

RESULTS = Path(__file__).with_name("results")
EXAMPLES = Path(__file__).parents[2] / "examples"
# The table of pairs as ten times a smaller one: it moves ten times as fast.
FASTER_PAIRS = (("pair: W }", "pair: 10 * W }"), ("= normal(0.1)", "= normal(0.01)"))


@dataclass(frozen=True)
class Study:
    """A task and everything that varies.

    Attributes:
        name: of its file of results.
        spec: the file of its spec.
        metric: what decides.
        rows: by name: the objective and the backend.
        procedures: by name: changes to the stages, after all others; `{alpha}` is filled in.
        stages: by procedure: the objectives of its stages, where there is more than one; `{objective}` is filled in.
        stop: the stop rule.
        epochs: at most.
        batch: examples in a batch.
        lr: learning rate.
        changes: to the stage, in every run.
        edits: by procedure: pieces of the spec's text that are replaced, (before, after).
        text: edits of every run.
    """

    name: str
    spec: Path
    metric: str
    rows: Mapping[str, tuple[str, str]]
    procedures: Mapping[str, tuple[str, ...]]
    stop: str
    epochs: int
    batch: int
    lr: float = 1e-3
    changes: tuple[str, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    text: tuple[tuple[str, str], ...] = ()

    @property
    def results(self) -> Path:
        return RESULTS / f"{self.name}.jsonl"

    def records(self) -> list[dict[str, Any]]:
        """What was run, in the order in which it ended."""
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]

    def source(self, procedure: str) -> Source:
        """The spec with its edits."""
        source = read_source(str(self.spec))
        text = source.text
        for before, after in (*self.text, *self.edits.get(procedure, ())):
            if before not in text:
                raise SystemExit(f"{self.spec} has no `{before}` that could become `{after}`")
            text = text.replace(before, after)
        return Source(source.name, text)


@dataclass(frozen=True)
class Cell:
    """One run."""

    study: Study
    row: str
    procedure: str
    seed: int
    lr: float
    alpha: float
    epochs: int
    batch: int
    optimizer: str = "adam"

    @property
    def name(self) -> str:
        return f"{self.row}/{self.procedure}/{self.seed}"

    @property
    def key(self) -> tuple[object, ...]:
        return self.row, self.procedure, self.seed, self.lr, self.alpha, self.batch, self.optimizer

    @property
    def folder(self) -> str:
        """Runs with other settings than the study's own have folders of their own."""
        study = self.study
        own = (self.lr, self.alpha, self.batch, self.optimizer) == (study.lr, 1.0, study.batch, "adam")
        return self.name if own else f"{self.name}-{self.optimizer}-{self.lr:g}-{self.alpha:g}-{self.batch}"

    def request(self, root: Path, out: Path) -> Request:
        objective, backend = self.study.rows[self.row]
        changes = [f"optimizer={self.optimizer}(lr: {self.lr})", f"epochs={self.epochs}", f"batch={self.batch}"]
        changes += [f"stop={self.study.stop}", *self.study.changes]
        changes += [one.format(alpha=self.alpha) for one in self.study.procedures[self.procedure]]
        stages = self.study.stages.get(self.procedure, "{objective}").format(objective=objective)
        return Request(
            out=out, root=root, infer=backend, train=stages, changes=changes, seed=self.seed, resume=True,
            threads=1, metrics=(self.study.metric,),
        )  # fmt: skip


def cells(study: Study, options: argparse.Namespace) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for row in study.rows:
            for procedure in study.procedures:
                cell = Cell(study, row, procedure, seed, options.lr, options.alpha, options.epochs, options.batch,
                            options.optimizer)  # fmt: skip
                if re.fullmatch(options.only, cell.name):
                    yield cell


def run(cell: Cell, options: argparse.Namespace) -> dict[str, object]:
    """Train, or go on, and evaluate; the record of the run."""
    study, out = cell.study, options.runs / cell.folder
    whole, began, spent = not (out / LAST).exists(), time.perf_counter(), time.process_time()
    done = train(compile_source(study.source(cell.procedure)), cell.request(options.root, out), Lines())
    if done.interrupted:
        raise SystemExit(130)
    spent = time.process_time() - spent
    elapsed = float(read_checkpoint(out / LAST).state["elapsed"])
    test = evaluation(out, root=options.root, metrics=(study.metric,))
    seen = evaluation(out, root=options.root, metrics=(study.metric,), split="train")
    best = max(done.history, key=lambda record: (record["stage"], record[f"validation.{study.metric}"]))
    return {
        "row": cell.row, "procedure": cell.procedure, "seed": cell.seed, "lr": cell.lr, "alpha": cell.alpha,
        "batch": cell.batch, "optimizer": cell.optimizer, "epochs": len(done.history),
        "minutes": round(elapsed / 60, 2), "processor_minutes": round(spent / 60, 2) if whole else None,
        "test": test.values[study.metric],
        "test_accuracy": test.values.get("accuracy"), "validation": best[f"validation.{study.metric}"],
        "train": seen.values[study.metric],
        "ratios": [record["ratio"] for record in done.history if "ratio" in record],
        "alphas": [record["alpha"] for record in done.history if "alpha" in record],
        "date": time.strftime("%Y-%m-%d"), "wall": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main(study: Study) -> None:
    """The command line of a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the data")
    parser.add_argument("--runs", type=Path, default=Path("runs") / study.name, help="where runs are kept")
    parser.add_argument("--only", default=".*", help="a regular expression over ROW/PROCEDURE/SEED")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=study.lr)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=study.epochs)
    parser.add_argument("--batch", type=int, default=study.batch)
    parser.add_argument("--optimizer", default="adam", choices=("adam", "sgd"))
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    known = {
        (one["row"], one["procedure"], one["seed"], one["lr"], one["alpha"], one["batch"], one.get("optimizer", "adam"))
        for one in study.records()
    }
    for cell in cells(study, options):
        if cell.key in known:
            continue
        print(f"== {cell.name}", flush=True)
        record = run(cell, options)
        with study.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        print(f"== {cell.name}: test {record['test']:.4f}, {record['epochs']} epochs", flush=True)

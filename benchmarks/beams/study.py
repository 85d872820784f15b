"""Runs of one task: variants of the model x rows x seeds; resumable, one line of results for each run.

A row is one stage of training, which starts from random weights or from the best weights of another row of the same
variant and seed: starts are trained once.  Every run is decoded in several ways.  A run that was interrupted goes on
where it stopped; one that is done is not run again.  `--only` picks runs, as in `--only 'forward/(ce|local)/0'`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from energyml.backends.beam.report import SequenceReport, dataset_report
from energyml.data.dataset import Dataset
from energyml.data.load import Data, load_data
from energyml.data.vocabulary import Vocabulary
from energyml.diagnostics import Source
from energyml.driver import Compiled, compile_source
from energyml.energy_model import EnergyModel
from energyml.loading import bind
from energyml.metrics import Metric
from energyml.train.checkpoint import Checkpoint, read_checkpoint
from energyml.train.display import Lines
from energyml.train.evaluate import decoder_for, predictions
from energyml.train.folder import BEST, LAST, Folder, make_request
from energyml.train.loop import Trainer
from energyml.train.run import interruptible
from energyml.train.settings import Interrupted, Settings
from energyml.train.stages import plan_stages

RESULTS = Path(__file__).with_name("results")
Sentences = Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Row:
    """One way to train.

    Attributes:
        train: the stage, in the words of a spec.
        start: the row whose best weights it starts from; random weights when `None`.
        normalize: `local` or `global`.
        only: the variants that it is run for; all when empty.
        data: the `data` line, where it differs from the study's.
    """

    train: str
    start: str | None = None
    normalize: str = "local"
    only: tuple[str, ...] = ()
    data: str | None = None


@dataclass(frozen=True)
class Way:
    """One way to decode: a backend, and `normalize` where it is not that of training."""

    backend: str
    normalize: str | None = None
    rows: str = ".*"


@dataclass(frozen=True)
class Study:
    """A task and everything that varies.

    Attributes:
        name: of its file of results.
        spec: the spec, with `{normalize}`, `{train}`, `{data}` and the names of the variants' values in braces.
        data: the `data` line.
        variants: by name: values for the spec.
        rows: by name.
        ways: by name: how every run is decoded.
        metric: what decides.
        prepare: writes the files of the data, from the folder of all data sets to a folder.
        width: of the beam whose report is kept.
        tried: training examples that the report looks at.
    """

    name: str
    spec: str
    data: str
    variants: Mapping[str, Mapping[str, str]]
    rows: Mapping[str, Row]
    ways: Mapping[str, Way]
    metric: str
    prepare: Callable[[Path, Path], None]
    width: int = 3
    tried: int = 500

    @property
    def results(self) -> Path:
        return RESULTS / f"{self.name}.jsonl"

    def records(self) -> list[dict[str, Any]]:
        """What was run, in the order in which it ended."""
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]

    def compiled(self, variant: str, row: str, normalize: str | None = None) -> Compiled:
        """The spec of a row."""
        chosen = self.rows[row]
        text = self.spec.format(
            normalize=normalize or chosen.normalize, train=chosen.train, data=chosen.data or self.data,
            **self.variants[variant],
        )  # fmt: skip
        return compile_source(Source(f"{self.name}.energy", text))


@dataclass(frozen=True)
class Cell:
    """One run."""

    study: Study
    variant: str
    row: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant}/{self.row}/{self.seed}"

    def before(self) -> Cell | None:
        """The run whose best weights this one starts from."""
        start = self.study.rows[self.row].start
        return None if start is None else Cell(self.study, self.variant, start, self.seed)


def cells(study: Study, seeds: Sequence[int], only: str) -> Iterator[Cell]:
    for seed in seeds:
        for row, chosen in study.rows.items():
            for variant in chosen.only or study.variants:
                cell = Cell(study, variant, row, seed)
                if re.fullmatch(only, cell.name):
                    yield cell


# -------------------------------------------------------------------------------------------------------------- train


def fit(cell: Cell, runs: Path, root: Path) -> tuple[list[dict[str, Any]], Data]:
    """Train, or go on; the records of epochs."""
    compiled, before, out = cell.study.compiled(cell.variant, cell.row), cell.before(), runs / cell.name
    started = None if before is None else read_checkpoint(runs / before.name / BEST)
    data = load_data(compiled, root=root, vocabularies=None if started is None else vocabularies(started))
    assert data.train is not None
    model = bind(compiled, labels=data.labels, seed=cell.seed)
    if started is not None:
        model.load_state_dict(started.part("model"))
    chosen = compiled.model.choices
    choices = {
        "train": [str(one) for one in chosen.train], "infer": str(chosen.infer), "decode": str(chosen.decode),
        "data": str(chosen.data), "start": None if before is None else before.name,
    }  # fmt: skip
    folder = Folder.create(out, make_request(model, choices, data.vocabularies, cell.seed, str(root)), resume=True)
    try:
        with interruptible() as stopping:
            settings = Settings(metrics=(cell.study.metric,), seed=cell.seed, stopping=stopping)
            trainer = Trainer(model, data.train, data.validation, plan_stages(chosen.train, model.graph), settings,
                              save=folder.save, progress=Lines())  # fmt: skip
            if (out / LAST).exists():
                trainer.resume(read_checkpoint(out / LAST))
            try:
                trainer.fit()
            except Interrupted:
                raise SystemExit(130) from None
    finally:
        folder.release()
    return trainer.history, data


def vocabularies(checkpoint: Checkpoint) -> dict[str, Vocabulary]:
    saved = checkpoint.state["request"]["vocabularies"]
    return {name: Vocabulary.from_json(one) for name, one in saved.items()}


# ------------------------------------------------------------------------------------------------------------- measure


def run(cell: Cell, runs: Path, root: Path) -> dict[str, object]:
    """Train, or go on, and decode; the record of the run."""
    study = cell.study
    history, data = fit(cell, runs, root)
    best = read_checkpoint(runs / cell.name / BEST)
    assert data.train is not None and data.validation is not None and data.test is not None
    scores: dict[str, dict[str, float]] = {"validation": {}, "test": {}}
    details: dict[str, object] = {}
    for name, way in study.ways.items():
        if not re.fullmatch(way.rows, cell.row):
            continue
        model = weighted(cell, best, data, way.normalize)
        for split, dataset in (("validation", data.validation), ("test", data.test)):
            metric = judged(model, dataset, study.metric, way.backend)
            scores[split][name] = round(metric.value(), 6)
        details[name] = {key: round(value, 5) for key, value in metric.details().items()}
    model = weighted(cell, best, data, None)
    looks = {"train": data.train.sample(min(study.tried, len(data.train)), 0), "validation": data.validation}
    reports = {split: plain(reported(model, dataset, study.width)) for split, dataset in looks.items()}
    values = [record[f"validation.{study.metric}"] for record in history]
    return {
        "variant": cell.variant, "row": cell.row, "seed": cell.seed, "start": study.rows[cell.row].start,
        "normalize": study.rows[cell.row].normalize, "train": study.rows[cell.row].train.split("\n"),
        "epochs": len(history), "best_epoch": values.index(max(values)) + 1,
        "by_epoch": [round(one, 4) for one in values], "losses": [round(one["loss"], 5) for one in history],
        "seconds_an_epoch": round(sum(one["seconds"] for one in history) / len(history), 1),
        "sentences": len(data.train), "scores": scores, "reports": reports,
        "details": {name: one for name, one in details.items() if one},
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def judged(model: EnergyModel, dataset: Dataset, metric: str, backend: str) -> Metric:
    """A metric of what a backend finds."""
    (output,) = dataset.batch([0]).gold
    made = dataset.metric(metric, output)
    for batch, labels in predictions(model, dataset, decoder_for(model), using=backend):
        made.update(labels[output], batch.gold[output])
    return made


def weighted(cell: Cell, checkpoint: Checkpoint, data: Data, normalize: str | None) -> EnergyModel:
    """The model of a run with the weights of a checkpoint, perhaps read with another normalisation."""
    model = bind(cell.study.compiled(cell.variant, cell.row, normalize), labels=data.labels, pretrained=False)
    model.load_state_dict(checkpoint.part("model"))
    return model.eval()


def reported(model: EnergyModel, dataset: Dataset, width: int) -> SequenceReport:
    """Log-normalisers after gold prefixes, and where the gold leaves the beam."""
    found, _ = dataset_report(model, dataset, width=width)
    assert found is not None
    return found


def plain(report: SequenceReport) -> dict[str, float | list[int]]:
    return {
        "log_z_mean": round(report.normalizer_mean, 5), "log_z_variance": round(report.normalizer_variance, 5),
        "gold_left": round(report.share_left, 5), "left_at": list(report.left),
        "length_ratio": round(report.length_ratio, 5),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- data


def shortened(sentences: Sentences, longest: int, count: int | None) -> Sentences:
    """Those of at most so many tokens, and of these a fixed random choice."""
    short = [one for one in sentences if len(one) <= longest]
    return short if count is None or count >= len(short) else random.Random(0).sample(short, count)


def write_columns(path: Path, sentences: Sentences) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join("".join(f"{word} {label}\n" for word, label in one) for one in sentences)
    path.write_text(text, encoding="utf-8")


# -------------------------------------------------------------------------------------------------------- command line


def main(study: Study) -> None:
    """The command line of a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/beams"), help="where runs are kept")
    parser.add_argument("--only", default=".*", help="a regular expression over VARIANT/ROW/SEED")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    runs, data = options.runs / study.name, options.runs / study.name / "data"
    study.prepare(options.root, data)
    for cell in cells(study, options.seeds, options.only):
        if any((one["variant"], one["row"], one["seed"]) == (cell.variant, cell.row, cell.seed)
               for one in study.records()):  # fmt: skip
            continue
        print(f"== {cell.name}", flush=True)
        record = run(cell, runs, data)
        with study.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        print(f"== {cell.name}: {record['scores']}", flush=True)

"""What `energyml eval` and `energyml predict` do with a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energyml import cards
from energyml.cards.card import Selection
from energyml.data.load import ROOT_VARIABLE, load_data, stream_data
from energyml.data.vocabulary import Vocabulary
from energyml.diagnostics import EnergyError
from energyml.driver import read_choice
from energyml.metrics.confusion import MOST_LABELS
from energyml.train.checkpoint import Checkpoint
from energyml.train.checks import stop_metrics
from energyml.train.evaluate import decoded, decoder_for, default_metrics, predictions
from energyml.train.folder import load_run
from energyml.train.run import check_device

if TYPE_CHECKING:
    from energyml.backend import Backend, GoldReport
    from energyml.data.dataset import Dataset
    from energyml.energy_model import EnergyModel
    from energyml.metrics import Confusion
    from energyml.posterior import Posterior

SPLITS = ("train", "validation", "test")


@dataclass
class Evaluation:
    """How good a model is on a data set.

    Attributes:
        split: which data.
        examples: how many.
        values: the metrics.
        confusions: by output: which label is taken for which.
        details: by metric: what it is made of, where it has more to say.
        beam: how a beam treats the gold answers, where that was asked for.
        notes: for people.
    """

    split: str
    examples: int
    values: dict[str, float]
    confusions: dict[str, Confusion] = field(default_factory=dict)
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    beam: GoldReport | None = None
    notes: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As data."""
        confused = {name: [list(one) for one in table.worst(50)] for name, table in self.confusions.items()}
        found = {"split": self.split, "examples": self.examples, "metrics": self.values, "confused": confused}
        if self.details:
            found["details"] = self.details
        if self.beam is not None:
            found["beam"] = self.beam.plain()
        return found

    def text(self, rows: int) -> str:
        """For people."""
        lines = [f"{self.split}: {self.examples} examples"]
        width = max((len(name) for name in self.values), default=0)
        for name, value in self.values.items():
            lines.append(f"  {name:<{width}}  {value:.4f}")
            part = self.details.get(name, {})
            inner = max((len(one) for one in part), default=0)
            lines += [f"    {one:<{inner}}  {number:.4f}" for one, number in part.items()]
        if self.beam is not None:
            lines += ["", *(f"  {line}" for line in str(self.beam).splitlines())]
        for name, table in self.confusions.items():
            if rows:
                lines += ["", f"{name}: what is confused most"]
                lines += [f"  {line}" for line in table.table(rows).splitlines()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def evaluation(
    run: str | Path,
    *,
    root: Path | None = None,
    data: str | None = None,
    infer: str | None = None,
    split: str = "test",
    metrics: Sequence[str] = (),
    report: str | None = None,
    allow: Sequence[str] = (),
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a run on a split of its data, or of other data in the same format.

    Args:
        run: its folder, or a checkpoint.
        root: where the data's paths start; where they started while training when left out.
        data: a reader in place of the run's.
        infer: a backend in place of the run's.
        split: train, validation or test.
        metrics: more of them.
        report: a beam, as in `beam(width: 5)`, whose treatment of the gold answers is looked at too.
        allow: packages whose networks the checkpoint may import.
        device: where to evaluate.
    """
    if split not in SPLITS:
        raise EnergyError(f"unknown split `{split}`; there are {', '.join(SPLITS)}")
    check_device(device)
    model, checkpoint = load_run(run, allow_import=allow)
    model.to(device)
    loaded = load_data(
        model.compiled, root=root or _root(checkpoint), using=data or _reader(checkpoint),
        vocabularies=_vocabularies(checkpoint), splits=[split], judged=True,  # type: ignore[list-item]
    )  # fmt: skip
    dataset = getattr(loaded, split)
    if dataset is None or not len(dataset):
        raise EnergyError(f"the data has no {split} split; choose another `--split`, or pass `--data`")
    named = stop_metrics(_stages(model, checkpoint))
    outputs = list(dataset.batch([0]).gold)
    wanted = [*dict.fromkeys([*metrics, *default_metrics(model, named)])]
    if not wanted:
        raise EnergyError(
            "the model has no inputs, so what it predicts says nothing about an example; draw from it with "
            "`energyml sample`, or name a metric with `--metric`"
        )
    tallies = {(name, output): dataset.metric(name, output) for name in wanted for output in outputs}
    # of answers with a length of their own, places say nothing about which label stands for which
    placed = [output for output in outputs if dataset.vocabularies[output].end is None]
    wide = {output: size for output in placed if (size := len(dataset.vocabularies[output])) > MOST_LABELS}
    confusions = {output: dataset.confusion(output) for output in placed if output not in wide}
    using = _backend(model, checkpoint, infer)
    notes = list(loaded.notes)
    notes += [
        f"{output}: no table of what is confused, as {MOST_LABELS:,} labels fit into one and there are {size:,}"
        for output, size in wide.items()
    ]
    beam = None if report is None else _beam_report(model, dataset, report, using, notes)
    for batch, labels in predictions(model, dataset, _decoder(model, checkpoint, using), using=using):
        for (_, output), metric in tallies.items():
            metric.update(labels[output].cpu(), batch.gold[output])
        for output, table in confusions.items():
            table.update(labels[output].cpu(), batch.gold[output])
    titled = {(name if len(outputs) == 1 else f"{name}.{output}"): one for (name, output), one in tallies.items()}
    values = {name: metric.value() for name, metric in titled.items()}
    details = {name: found for name, metric in titled.items() if (found := metric.details())}
    return Evaluation(split, len(dataset), values, confusions, details, beam, notes)


def _beam_report(
    model: EnergyModel, dataset: Dataset, report: str, using: Selection | None, notes: list[str]
) -> GoldReport | None:
    """How a beam treats the gold answers; its width is that of the run's backend where the report names none."""
    chosen = read_choice("backend", report)
    own = using is not None and "width" not in chosen.options and using.card.option("width") is not None
    if using is not None and own and chosen.card.option("width") is not None:
        chosen = Selection(chosen.card, {**chosen.options, "width": using["width"]})
    backend: Backend = cards.implementation(chosen.card)(chosen)
    found, told = backend.report(model, dataset)
    notes += told
    return found


def _vocabularies(checkpoint: Checkpoint) -> dict[str, Vocabulary]:
    saved = checkpoint.state["request"]["vocabularies"]
    return {name: Vocabulary.from_json(one) for name, one in saved.items()}


def _root(checkpoint: Checkpoint) -> Path | None:
    """Where the data lay while training, unless the environment says otherwise or it is gone."""
    saved = checkpoint.state["request"].get("root")
    if saved is None or os.environ.get(ROOT_VARIABLE) or not Path(saved).is_dir():
        return None
    return Path(saved)


def _reader(checkpoint: Checkpoint) -> str | None:
    chosen = checkpoint.state["request"]["choices"]["data"]
    return None if chosen in (None, "None") else str(chosen)


def _backend(model: EnergyModel, checkpoint: Checkpoint, infer: str | None) -> Selection | None:
    wanted = infer or checkpoint.state["request"]["choices"]["infer"]
    return read_choice("backend", str(wanted), model.compiled.model)


def _stages(model: EnergyModel, checkpoint: Checkpoint) -> list[Selection]:
    """The stages of the run, which need not be those of its spec."""
    written: Sequence[str] = checkpoint.state["request"]["choices"]["train"]
    return [read_choice("objective", one, model.compiled.model) for one in written]


def _decoder(model: EnergyModel, checkpoint: Checkpoint, using: Selection | None) -> Selection:
    return decoder_for(model, _stages(model, checkpoint)[-1].name, using)


def predicted_lines(
    run: str | Path,
    files: Sequence[str],
    *,
    data: str | None = None,
    infer: str | None = None,
    size: int = 32,
    allow: Sequence[str] = (),
    device: str = "cpu",
) -> Iterator[str]:
    """One JSON object for each example of some files, in their order, as they are read.

    Labels by output, pieces of words joined to words; `probability` holds the probability of each label that was
    chosen, where the backend answers `marginals`.  A decoder of several answers adds all of them, `n_best` with their
    scores or `sample`; the first one stands for the example.  Examples that are files of their own (images) say
    which in `file`.
    """
    check_device(device)
    model, checkpoint = load_run(run, allow_import=allow)
    model.to(device)
    using = _backend(model, checkpoint, infer)
    decoder = _decoder(model, checkpoint, using)
    vocabularies = _vocabularies(checkpoint)
    stream = stream_data(model.compiled, list(files), vocabularies, using=data or _reader(checkpoint), size=size)
    spelling = _Spelling(model, vocabularies)
    for part in stream:
        batch = part.batch().to(device)
        given: dict[str, Any] = dict(batch.inputs)
        with torch.no_grad():
            posterior = model.infer(using=using, lengths=batch.lengths or None, **given)
            several = _several(posterior, decoder)
            labels = decoded(posterior, decoder) if several is None else {n: one[:, 0] for n, one in several[0].items()}
            known = posterior.marginals if "marginals" in posterior.answers else {}
            picked = {
                name: known[name].gather(-1, one.clamp(min=0).unsqueeze(-1)).squeeze(-1)
                for name, one in labels.items()
                if name in known
            }
        for row, example in enumerate(part.examples or ()):
            found: dict[str, Any] = {} if example.line else {"file": example.file}
            found |= spelling.answer(labels, row)
            if several is not None:
                all_labels, scores = several
                found[decoder.name] = [
                    spelling.answer(all_labels, row, k)
                    | ({} if scores is None else {"score": round(float(scores[row, k]), 6)})
                    for k in range(next(iter(all_labels.values())).shape[1])
                    if scores is None or bool(scores[row, k].isfinite())
                ]
            if picked:
                found["probability"] = {
                    name: _kept(one[row].tolist(), labels[name][row].tolist()) for name, one in picked.items()
                }
            yield json.dumps(found, ensure_ascii=False)


class _Spelling:
    """Answers in words: labels by name, pieces of words joined to words."""

    def __init__(self, model: EnergyModel, vocabularies: Mapping[str, Vocabulary]) -> None:
        elements = {v.name: v.type.element for v in model.graph.variables.values() if v.kind != "field"}
        self.names = {name: model.graph.label_sets[element].labels or () for name, element in elements.items()}
        known = {name: vocabularies.get(element) for name, element in elements.items()}
        self.pieces = {name: one for name, one in known.items() if one is not None and one.merges is not None}

    def answer(self, labels: Mapping[str, Tensor], *at: int) -> dict[str, Any]:
        """One of the answers [B, *dims] or [B, k, *dims]."""
        found = {name: _spelled(one[at].tolist(), self.names[name]) for name, one in labels.items()}
        return found | {name: whole.joined(found[name]) for name, whole in self.pieces.items() if name in found}


def _several(posterior: Posterior, decoder: Selection) -> tuple[dict[str, Tensor], Tensor | None] | None:
    """The answers [B, k, *dims] of a decoder that gives several, and their scores [B, k] where it orders them."""
    if decoder.name == "n_best":
        best = posterior.n_best(int(decoder["count"]))
        return dict(best.labels), best.score
    if decoder.name == "sample":
        drawn = posterior.sample(int(decoder["count"]))
        return {name: one.transpose(0, 1) for name, one in drawn.labels.items()}, None
    return None


def _spelled(numbers: Any, names: Sequence[str]) -> Any:
    """Labels by name; cells that do not exist are left out of the last axis."""
    if isinstance(numbers, list):
        made = [_spelled(one, names) for one in numbers]
        return [one for one in made if one is not None and one != []]
    return names[numbers] if numbers >= 0 else None


def _kept(values: Any, numbers: Any) -> Any:
    if isinstance(values, list):
        made = [_kept(value, number) for value, number in zip(values, numbers, strict=True)]
        return [one for one in made if one is not None and one != []]
    return round(float(values), 6) if numbers >= 0 else None


__all__ = ["Evaluation", "evaluation", "predicted_lines"]

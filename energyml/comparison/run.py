"""Running a comparison: every backend on the same batches, judged and timed in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.certificates import rounding
from energyml.comparison.likelihood import MODELS, checked_column, perplexities, read_column, spearman
from energyml.comparison.memory import what_is_measured
from energyml.comparison.result import Comparison, Row
from energyml.comparison.subject import Subject, Wanted, device_of, from_model, from_path
from energyml.comparison.trial import Stopwatch, Trial
from energyml.data.batches import Batches
from energyml.data.dataset import Batch, Dataset
from energyml.data.load import Data
from energyml.diagnostics import EnergyError
from energyml.driver import read_choice, read_choices
from energyml.energy_model import EnergyModel
from energyml.metrics import Metric
from energyml.posterior import Posterior
from energyml.queries import Quality
from energyml.train.evaluate import default_metrics

if TYPE_CHECKING:
    from energyml.model.declared import CheckedModel

# As in the paper: Tu & Gimpel 2019, section 6.1.
BATCH = 10
REPEATS = 3
REFERENCE = "exact"


def compare(
    what: EnergyModel | str | Path,
    infer: str | Sequence[str],
    *,
    data: Dataset | Data | str | None = None,
    root: str | Path | None = None,
    split: str = "test",
    inputs: Sequence[str] = (),
    metrics: Sequence[str] = (),
    batch: int = BATCH,
    repeats: int = REPEATS,
    limit: int | None = None,
    likelihood: str | Path | Sequence[float] | Tensor | None = None,
    decode: str = "map",
    seed: int = 0,
    device: str | None = None,
    allow: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """The same energy under several backends: metrics, energy, search error, speed, memory.

    Args:
        what: a model, the folder of a run, a checkpoint, or a spec file (whose weights are then random).
        infer: backends in the spec's words, as a list or separated by commas or semicolons outside of brackets.
        data: a data set, loaded data, or a reader in place of the spec's `data` line.
        root: where the paths of the data start.
        split: `train`, `validation` or `test`.
        inputs: files without gold labels, as `energyml predict` takes them, in place of a split.
        metrics: more metrics; those of stop rules and accuracy are always there.
        batch: how many examples are asked at a time; the paper's 10.
        repeats: timed passes over the data, after a warm-up.
        limit: compare on a random choice of so many examples only.
        likelihood: adds Spearman's rho of search errors and perplexities: `bigram` or `lstm` fits a language model on
            the training split; or a log-likelihood for each example, as numbers or a file of them.
        decode: how labels are read off; `map` unless told otherwise.
        seed: of random weights and of random numbers.
        device: where to compute; where the model is when left out.
        allow: packages that a checkpoint may import.
        tell: hears which backend is at work.

    A backend that cannot take part has a row with the reason.  Cost: for each backend, one batch of warm-up, one pass
    whose answers are judged, and the timed passes.
    """
    begin = time.perf_counter()
    fitted = isinstance(likelihood, str) and likelihood in MODELS
    place = None if root is None else Path(root)
    reader = data if isinstance(data, str) else None
    wanted = Wanted(reader, place, split, tuple(inputs), fitted, tuple(allow), seed)
    subject = from_model(what, data, wanted) if isinstance(what, EnergyModel) else _from_path(what, data, wanted)
    dataset = subject.dataset if limit is None else subject.dataset.sample(limit, seed)
    model = subject.model if device is None else subject.model.to(device)
    selections = read_backends(infer, model.compiled.model)
    decoder = read_choice("decoder", decode, model.compiled.model)
    columns = _columns(likelihood, subject, dataset, limit, seed)
    torch.broadcast_shapes((1,), (1,))  # imports a large library when it is first called
    loading = time.perf_counter() - begin

    was_training = model.training
    model.eval()
    try:
        made = _Comparing(subject, dataset, model, selections, decoder, batch, repeats, metrics, seed, tell)
        return made.run(columns, loading)
    finally:
        model.train(was_training)


def _from_path(what: str | Path, data: Dataset | Data | str | None, wanted: Wanted) -> Subject:
    if data is not None and not isinstance(data, str):
        raise EnergyError(
            f"`data` must be a reader in the spec's words where a path is compared, found {type(data).__name__}; "
            "load the model, and pass both"
        )
    return from_path(what, wanted)


def read_backends(infer: str | Sequence[str], model: CheckedModel | None = None) -> list[Selection]:
    """The backends of a comparison: choices separated by commas or semicolons outside of brackets."""
    parts = [infer] if isinstance(infer, str) else list(infer)
    found: list[Selection] = []
    for part in parts:
        for piece in _pieces(part):
            found += read_choices("backend", piece, model)
    if not found:
        raise EnergyError("no backend is named; as in `--infer 'exact, mean_field(steps: 20)'`")
    unique: dict[str, Selection] = {str(one): one for one in found}
    return list(unique.values())


def _pieces(text: str) -> list[str]:
    """A text cut at the semicolons outside of brackets and strings."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if letter == ";" and not quote and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece for piece in pieces if piece.strip()]


def _columns(
    likelihood: str | Path | Sequence[float] | Tensor | None,
    subject: Subject,
    dataset: Dataset,
    limit: int | None,
    seed: int,
) -> dict[str, Tensor]:
    """[N] by column: how unlikely each example is."""
    if likelihood is None:
        return {}
    if isinstance(likelihood, str) and likelihood in MODELS:
        if subject.train is None:
            raise EnergyError(f"`likelihood` `{likelihood}` is fitted on the training split, and there is none")
        found = perplexities(likelihood, subject.train, dataset, subject.model, seed)
        if not found:
            raise EnergyError("the model has no sequence of labels, as an input or with gold, to be likely or not")
        return found
    whole = len(subject.dataset)
    if isinstance(likelihood, str | Path):
        column = read_column(Path(likelihood), whole)
    else:
        column = checked_column(likelihood, whole)
    if limit is not None:
        column = column[torch.from_numpy(dataset.rows)]
    return {"likelihood": -column}


class _Comparing:
    """One comparison under way."""

    def __init__(
        self,
        subject: Subject,
        dataset: Dataset,
        model: EnergyModel,
        selections: Sequence[Selection],
        decoder: Selection,
        batch: int,
        repeats: int,
        metrics: Sequence[str],
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        self.subject, self.dataset, self.model, self.tell = subject, dataset, model, tell
        self.batch, self.repeats, self.seed, self.watch = batch, repeats, seed, Stopwatch()
        self.decoder, self.device = decoder, device_of(model)
        dataset.insist_on_labels(model.graph)
        self.begin = time.perf_counter()
        self.batches = [one.to(self.device) for one in Batches(dataset, batch, shuffle=False)]
        self.outputs = list(self.batches[0].gold)
        self.notes = list(subject.notes)
        self.wanted = self._metrics(metrics)
        self.trials = [self._trial(one) for one in selections]
        self.tallies: dict[int, dict[str, Metric]] = {}

    def _metrics(self, more: Sequence[str]) -> list[str]:
        if not self.outputs:
            self.notes.append("the data has no gold labels, so that metrics are left out")
            return []
        stages = self.model.compiled.model.choices.train
        named = [str(stage["stop"]["metric"]) for stage in stages if stage["stop"] is not None]
        return [*dict.fromkeys([*more, *default_metrics(self.model, named)])]

    def _trial(self, selection: Selection) -> Trial:
        return Trial(selection, self.model, self.batches, self.decoder, self.watch, self.device, self.seed)

    # ----------------------------------------------------------------------------------------------------------- passes

    def run(self, columns: Mapping[str, Tensor], loading: float) -> Comparison:
        gold: float | None = None
        scored = False
        for trial in self.trials:
            self.tell(f"{trial.name}: answers")
            trial.golden = self._gold if self._gold_is_whole and not scored else None
            self._evaluate(trial)
            if trial.answered is not None and trial.answered.gold is not None:
                scored = True
                finite = trial.answered.gold[trial.answered.gold.isfinite()]
                gold = -float(finite.mean()) if len(finite) else None
                left_out = len(self.dataset) - len(finite)
                if left_out:
                    self.notes.append(
                        f"gold labels of {left_out} examples are incomplete or forbidden: not in their mean"
                    )
        reference = self._reference()
        for number in range(self.repeats):
            # Pass by pass and not backend by backend: what slows the machine for a while slows all of them.
            for trial in self.trials:
                self.tell(f"{trial.name}: timed pass {number + 1} of {self.repeats}")
                trial.time()
        every = [*self.trials, *([reference] if reference is not None else [])]
        best, proven = self._best(every)
        judges = [one for one in every if one.answered is not None and bool(one.answered.exact.any())]
        exact = torch.zeros(len(self.dataset), dtype=torch.bool)
        for one in judges:
            exact |= one.answered.exact  # type: ignore[union-attr]
        rows = [self._row(trial, best, columns) for trial in self.trials]
        share = float(proven.double().mean())
        if any(row.memory is not None for row in rows):
            self.notes.append(f"memory: {what_is_measured(self.device)}")
        if columns:
            self.notes.append(
                "rho: Spearman's, of search error and perplexity; above 0, likely examples have less search error"
            )
        other = time.perf_counter() - self.begin - self.watch.inside
        seconds = {"loading": loading, "inference": self.watch.inside, "other": other}
        return Comparison(
            self.subject.name, self.subject.split, len(self.dataset), self.batch, self.repeats, rows, gold,
            "exact" if bool(exact.all()) else "proven" if share == 1 else "best known",
            share, seconds, self.notes, list(dict.fromkeys(one.name for one in judges)),
        )  # fmt: skip

    def _evaluate(self, trial: Trial) -> None:
        tallies = {
            (name if len(self.outputs) == 1 else f"{name}.{output}"): (self.dataset.metric(name, output), output)
            for name in self.wanted
            for output in self.outputs
        }

        def judge(batch: Batch, labels: Mapping[str, Tensor]) -> None:
            for metric, output in tallies.values():
                metric.update(labels[output], batch.gold[output].cpu())

        trial.warm_up()
        trial.evaluate(judge)
        self.tallies[id(trial)] = {name: metric for name, (metric, _) in tallies.items()}

    def _reference(self) -> Trial | None:
        """The exact answers, where none of the backends has them and `exact` serves the model."""
        if any(one.answered is not None and bool(one.answered.exact.all()) for one in self.trials):
            return None
        selection = read_choice("backend", REFERENCE)
        verdict = self.model.plan(selection).verdict
        if not verdict.serves or verdict.answers.get("map") is not Quality.EXACT:
            return None
        self.tell(f"{REFERENCE}: answers that search errors are measured against")
        trial = Trial(
            selection, self.model, self.batches, read_choice("decoder", "map"), self.watch, self.device, self.seed
        )
        trial.evaluate(lambda batch, labels: None)
        if trial.answered is not None:
            self.notes.append(f"`{REFERENCE}` was asked once for the answers that search errors are measured against")
        return trial

    def _best(self, trials: Sequence[Trial]) -> tuple[Tensor, Tensor]:
        """[N] the largest score that anybody found, and whether it is proven to be the best."""
        best = torch.full((len(self.dataset),), float("-inf"), dtype=torch.float64)
        bound = torch.full_like(best, float("inf"))
        proven = torch.zeros(len(best), dtype=torch.bool)
        for trial in trials:
            if trial.answered is not None:
                best = torch.maximum(best, trial.answered.scores)
                bound = torch.minimum(bound, trial.answered.bounds)
                proven = proven | trial.answered.exact
        return best, proven | (best >= bound - self._rounding(best))

    def _rounding(self, scores: Tensor) -> Tensor:
        reference = next(self.model.parameters(), None)
        dtype = torch.float32 if reference is None else reference.dtype
        return rounding(scores.to(dtype)).double()

    def _row(self, trial: Trial, best: Tensor, columns: Mapping[str, Tensor]) -> Row:
        answered = trial.answered
        if trial.reason is not None or answered is None:
            return Row(trial.name, trial.reason or "no answers")
        found = ~answered.scores.isneginf()
        error = (best - answered.scores).clamp(min=0)
        solved = (answered.scores >= best - self._rounding(best)) | best.isneginf()
        rounded = torch.where(solved, 0.0, error)
        self.notes += [f"`{trial.name}`: {warning}" for warning in answered.warnings]
        speeds = torch.tensor([len(self.dataset) / max(one, 1e-9) for one in trial.seconds], dtype=torch.float64)
        relaxed = None if answered.relaxed is None else -float(answered.relaxed.nanmean())
        return Row(
            trial.name,
            quality=answered.quality.value,
            metrics={name: metric.value() for name, metric in self.tallies[id(trial)].items()},
            energy=-float(answered.scores[found].mean()) if bool(found.any()) else None,
            relaxed_energy=relaxed,
            search_error=float(error[found].mean()) if bool(found.any()) else None,
            solved=float(solved.double().mean()),
            missing=int((~found).sum()),
            speed=float(speeds.mean()) if len(speeds) else None,
            spread=float(speeds.std()) if len(speeds) > 1 else None,
            seconds=sum(trial.seconds) / len(trial.seconds) if trial.seconds else None,
            memory=answered.memory,
            correlations={name: spearman(rounded, column) for name, column in columns.items()},
            energies=-answered.scores,
            errors=error,
        )

    @property
    def _gold_is_whole(self) -> bool:
        """Whether gold labels are full answers: no latents, no fields."""
        outputs = [v.name for v in self.model.graph.discrete if v.kind == "output"]
        return bool(outputs) and set(outputs) == {v.name for v in self.model.graph.variables.values()} == set(
            self.outputs
        )

    def _gold(self, posterior: Posterior, batch: Batch) -> Tensor:
        """[B]: the scores of gold labels; NaN for examples that lack one.  What networks gave the backend is shared."""
        problem = posterior.problem
        score = problem.score({name: batch.tensors[name].clamp(min=0) for name in self.outputs})
        ends = problem.ends()
        for name in self.outputs:
            lacks, cells = batch.tensors[name] < 0, problem.env.batch.cells(name, self.model.graph.variables[name].dims)
            lacks = lacks if cells is None else lacks & cells
            if name in ends:  # there are no cells behind the label that ends an answer
                lacks &= (batch.tensors[name] == ends[name]).cumsum(1) == 0
            score = score.masked_fill(lacks.reshape(len(batch), -1).any(1), float("nan"))
        return score


__all__ = ["compare", "read_backends"]

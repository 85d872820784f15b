"""One backend at work on all batches: its answers, and the time of each pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.certificates import rounding
from energyml.comparison.memory import peak_memory
from energyml.data.dataset import Batch
from energyml.diagnostics import EnergyError
from energyml.posterior import Posterior
from energyml.queries import Quality
from energyml.train.evaluate import decoded

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# A pass of fewer seconds is made several times: the time of one would be noise.
SHORT = 0.05
# Answers are as good as the worst of their batches.
_ORDER = (Quality.EXACT, Quality.LOWER, Quality.UPPER, Quality.ESTIMATE, Quality.READOUT)


class Stopwatch:
    """The seconds that were spent inside of inference."""

    def __init__(self) -> None:
        self.inside = 0.0

    def run(self, work: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
        """A value and the seconds that it took; waits for an accelerator before and after."""
        _wait(device)
        start = time.perf_counter()
        try:
            value = work()
            _wait(device)
        finally:
            took = time.perf_counter() - start
            self.inside += took
        return value, took


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass
class Answered:
    """What a backend found, example by example in the order of the data set.

    Attributes:
        scores: [N], on the host in 64 bits; -inf where no answer was found.
        relaxed: [N] the scores of relaxed answers, where the backend reports them.
        bounds: [N] upper bounds of the best scores, where the backend reports them; inf elsewhere.
        exact: [N] whether the answer is promised to be the best.
        quality: of the worst batch.
        memory: the largest memory in MB; `None` where it cannot be told.
        warnings: what statuses say.
        gold: [N] the scores of gold labels, where they were asked for; NaN where they lack one.
    """

    scores: Tensor
    relaxed: Tensor | None
    bounds: Tensor
    exact: Tensor
    quality: Quality
    memory: float | None
    warnings: list[str]
    gold: Tensor | None = None


@dataclass(eq=False)
class Trial:
    """One backend of a comparison.

    Attributes:
        selection: the backend.
        model: the energy.
        batches: all examples, on the model's device.
        decoder: how labels are read off.
        watch: adds up the seconds inside of inference.
        device: where the model is.
        seed: of random numbers, the same for each pass.
        reason: why it takes no part, once that is known.
        answered: its answers, once it was evaluated.
        seconds: of each timed pass.
        golden: scores the gold labels of a batch, on what the backend's posterior has computed already.
    """

    selection: Selection
    model: EnergyModel
    batches: Sequence[Batch]
    decoder: Selection
    watch: Stopwatch
    device: torch.device
    seed: int = 0
    reason: str | None = None
    answered: Answered | None = None
    seconds: list[float] = field(default_factory=list)
    golden: Callable[[Posterior, Batch], Tensor] | None = None

    @property
    def name(self) -> str:
        """The backend as it was written."""
        return str(self.selection)

    def attempt(self, work: Callable[[], None]) -> None:
        """Do something; a backend that cannot is out of the comparison, with the reason."""
        if self.reason is not None:
            return
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                work()
        except EnergyError as problem:
            self.reason = str(problem)
        except Exception as problem:
            if os.environ.get("ENERGYML_DEBUG"):
                raise
            self.reason = f"{type(problem).__name__}: {problem}"

    def warm_up(self, batches: int = 1) -> None:
        """Plans, imports and caches, before anything is measured: the first batches are the longest ones."""

        def work() -> None:
            for batch in self.batches[:batches]:
                self._ask(batch)

        self.attempt(work)

    def time(self) -> None:
        """One more pass over all batches, timed; the mean of several where one is too short for a clock."""

        def work() -> None:
            total, passes = 0.0, 0
            while total < SHORT:
                total += sum(self._ask(batch)[1] for batch in self.batches)
                passes += 1
            self.seconds.append(total / passes)

        self.attempt(work)

    def evaluate(self, judge: Callable[[Batch, Mapping[str, Tensor]], None]) -> None:
        """One pass over all batches whose answers are judged and kept."""
        self.attempt(lambda: self._evaluate(judge))

    def _ask(self, batch: Batch) -> tuple[Any, float]:
        """The posterior of a batch with its answer, and the seconds that it took."""

        def work() -> tuple[Posterior, Any]:
            given: dict[str, Any] = dict(batch.inputs)
            posterior = self.model.infer(using=self.selection, lengths=batch.lengths or None, **given)
            if self.decoder.name == "map":
                return posterior, posterior.ask("map")
            return posterior, decoded(posterior, self.decoder)

        return self.watch.run(work, self.device)

    def _evaluate(self, judge: Callable[[Batch, Mapping[str, Tensor]], None]) -> None:
        count = sum(len(batch) for batch in self.batches)
        scores = torch.full((count,), float("-inf"), dtype=torch.float64)
        relaxed, bounds = torch.full_like(scores, float("nan")), torch.full_like(scores, float("inf"))
        exact, gold = torch.zeros(count, dtype=torch.bool), torch.full_like(scores, float("nan"))
        worst, warnings = Quality.EXACT, []
        trusted: bool | None = None
        kept: list[tuple[Batch, Mapping[str, Tensor]]] = []
        with peak_memory(self.device) as peak:
            for batch in self.batches:
                (posterior, found), _ = self._ask(batch)
                if self.decoder.name == "map":
                    labels, own, quality = found.value.labels, found.value.score, found.quality
                    told = found.statistics
                    if not found.status.ok:
                        warnings.append(found.status.message)
                    if trusted is None:
                        trusted = _is_score_of(posterior, labels, own)
                        if not trusted:
                            warnings.append("the scores that it reports are not those of its labels; they are computed")
                    if not trusted:
                        own = posterior.problem.score(labels)
                else:
                    labels, own, told = found, posterior.problem.score(found), {}
                    quality = Quality.LOWER
                kept.append((batch, {name: one.cpu() for name, one in labels.items()}))
                rows = batch.rows
                scores[rows] = own.detach().double().cpu()
                exact[rows] = quality is Quality.EXACT
                for name, into in (("relaxed_score", relaxed), ("bound", bounds)):
                    value = told.get(name)
                    if isinstance(value, Tensor) and value.shape == own.shape:
                        into[rows] = value.detach().double().cpu()
                worst = max(worst, quality, key=_ORDER.index)
                if self.golden is not None:
                    gold[rows] = self.golden(posterior, batch).detach().double().cpu()
        for batch, labels in kept:
            judge(batch, labels)
        self.answered = Answered(
            scores, None if bool(relaxed.isnan().all()) else relaxed, bounds, exact, worst, peak(),
            list(dict.fromkeys(warnings)), None if self.golden is None else gold,
        )  # fmt: skip


def _is_score_of(posterior: Posterior, labels: Mapping[str, Tensor], score: Tensor) -> bool:
    """Whether scores are those of the labels that they come with; latents and fields are taken at their word."""
    graph = posterior.problem.graph
    if graph.fields or any(v.kind == "latent" for v in graph.discrete):
        return True
    found = ~score.isneginf()
    own = posterior.problem.score(labels)
    return bool(((own - score)[found].abs() <= 10 * rounding(own)[found]).all())


__all__ = ["Answered", "Stopwatch", "Trial"]

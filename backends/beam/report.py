"""How a stepwise model and a beam behave on gold answers: log-normalisers, where the gold leaves the beam, lengths.

report = sequence_report(model, width=5, word=..., lengths=..., y=gold)
for batch in more: report = report + sequence_report(model, width=5, **batch)
print(report)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energyml.backends.beam.search import Plan, Search
from energyml.bind.maker import LengthsLike, MaskLike
from energyml.bind.steps import Steps
from energyml.data.batches import Batches
from energyml.data.dataset import Batch, Dataset
from energyml.diagnostics import EnergyError
from energyml.energy_model import EnergyModel


@dataclass(frozen=True)
class SequenceReport:
    """What was counted over some examples; reports of batches are added up.

    Attributes:
        examples: how many examples.
        steps: how many steps of gold answers.
        normalizer_sum: the sum over these steps of the log-normaliser after the gold prefix.
        normalizer_squares: the sum of its squares.
        left: by step: how many gold answers leave the beam there; their prefixes before it were all in the beam.
        better: how many of these score above the beam's best answer.
        predicted: the summed lengths of the beam's best answers.
        gold: the summed lengths of the gold answers.
        width: the width of the beam.
        normalizes: whether a step network scores the sequence; tables have no log-normaliser of a step.
    """

    examples: int
    steps: int
    normalizer_sum: float
    normalizer_squares: float
    left: tuple[int, ...]
    better: int
    predicted: int
    gold: int
    width: int
    normalizes: bool = True

    @property
    def normalizer_mean(self) -> float:
        """The mean log-normaliser of a step after a gold prefix (Goyal et al. 2019, table 1); 0 without a network."""
        return self.normalizer_sum / max(1, self.steps)

    @property
    def normalizer_variance(self) -> float:
        """The variance of the log-normaliser over the same steps."""
        return max(0.0, self.normalizer_squares / max(1, self.steps) - self.normalizer_mean**2)

    @property
    def share_left(self) -> float:
        """The share of the gold answers that a beam of this width loses on the way."""
        return sum(self.left) / max(1, self.examples)

    @property
    def length_ratio(self) -> float:
        """How long the beam's answers are beside the gold ones; 1 where lengths are given."""
        return self.predicted / self.gold if self.gold else 1.0

    def __add__(self, other: SequenceReport) -> SequenceReport:
        if self.width != other.width:
            raise EnergyError(f"reports of beams of widths {self.width} and {other.width} do not add up")
        longest = max(len(self.left), len(other.left))
        padded = ((*one.left, *[0] * (longest - len(one.left))) for one in (self, other))
        return SequenceReport(
            self.examples + other.examples,
            self.steps + other.steps,
            self.normalizer_sum + other.normalizer_sum,
            self.normalizer_squares + other.normalizer_squares,
            tuple(a + b for a, b in zip(*padded, strict=True)),
            self.better + other.better,
            self.predicted + other.predicted,
            self.gold + other.gold,
            self.width,
            self.normalizes and other.normalizes,
        )

    def plain(self) -> dict[str, Any]:
        """As data; without a step network there is no log-normaliser."""
        found: dict[str, Any] = {"width": self.width, "examples": self.examples, "steps": self.steps}
        if self.normalizes:
            found["log_normalizer_mean"] = self.normalizer_mean
            found["log_normalizer_variance"] = self.normalizer_variance
        return found | {
            "gold_left": self.share_left, "left_at_step": list(self.left), "search_errors": self.better,
            "length_ratio": self.length_ratio,
        }  # fmt: skip

    def __str__(self) -> str:
        lost = ", ".join(f"{count} at step {t}" for t, count in enumerate(self.left) if count) or "none"
        lines: list[str] = []
        if self.normalizes:
            lines += [
                f"log-normaliser after gold prefixes: mean {self.normalizer_mean:.4f}, "
                f"variance {self.normalizer_variance:.4f} over {self.steps} steps",
                "  how far the network's raw scores are from log-probabilities, at each step; a high variance means "
                "that raw and",
                "  normalised scores rank answers differently, a high mean that raw scores favour long answers",
            ]
        lines += [
            f"gold leaves the beam of width {self.width}: {sum(self.left)} of {self.examples} ({lost})",
            "  gold answers that no hypothesis spells out to the end, by the step that loses them; many in the first "
            "steps hint at label",
            "  bias (ruled out before the evidence comes), many later ones at prefixes that training never showed "
            "(exposure)",
            f"of these, score above the beam's answer: {self.better} of {sum(self.left)}",
            "  search errors: a high share asks for a wider beam, a low one for a better model, which prefers its own "
            "answer",
            f"length ratio: {self.length_ratio:.3f}",
            "  length of the beam's answers over that of gold ones; above 1 they end too late, below 1 too early",
        ]
        return "\n".join(lines)


@torch.no_grad()
def sequence_report(
    model: EnergyModel,
    *,
    width: int = 5,
    lengths: LengthsLike | None = None,
    mask: MaskLike | None = None,
    **tensors: Tensor,
) -> SequenceReport:
    """Look at one batch with gold answers.

    Args:
        model: a model of one sequence; stepwise networks, tables or both.
        width: of the beam.
        lengths: as in `model.infer`.
        mask: as in `model.infer`.
        **tensors: inputs, and the gold labels of the sequence by name, without unknown ones.

    Cost: two passes over the steps, one of them with `width` hypotheses.
    """
    gold = {name: one for name, one in tensors.items() if name in model.graph.variables}
    inputs = {name: one for name, one in tensors.items() if name not in gold}
    problem = model.problem(lengths=lengths, mask=mask, evidence=None, **inputs)
    steps = problem.steps()
    if steps.variable not in gold:
        raise EnergyError(f"a report needs gold labels: pass `{steps.variable}=...`")
    labels = steps.by_step(problem.answers.labels(gold, problem.env.batch)[steps.variable])
    labels, counted = _whole(steps, labels)
    normalizers, possible, total = _along_gold(steps, labels)
    search = Search(steps, Plan(width, beside=False), narrows=False)
    found = search.run()
    left, lost = _left_at(steps, search, labels, possible, counted)
    taken = torch.where(counted, normalizers, 0).double()
    ratio = _lengths(steps, found.labels[:, 0], labels, counted)
    return SequenceReport(
        examples=labels.shape[0], steps=int(counted.sum()), normalizer_sum=float(taken.sum()),
        normalizer_squares=float(taken.square().sum()), left=tuple(left.tolist()), predicted=ratio[0], gold=ratio[1],
        width=width, better=int((lost & (total > found.score[:, 0])).sum()), normalizes=bool(steps.nets),
    )  # fmt: skip


def dataset_report(
    model: EnergyModel, dataset: Dataset, *, width: int = 5, size: int = 64
) -> tuple[SequenceReport | None, int]:
    """Look at a data set; what `energyml eval --report beam` prints.

    Args:
        model: as in `sequence_report`; it is looked at in evaluation mode.
        dataset: the examples.
        width: of the beam.
        size: examples in a batch.

    Returns:
        The report, `None` of no examples, and how many examples were left out since the model cannot give their labels.
    """
    rows: list[int] = []
    for batch in Batches(dataset, size, shuffle=False):
        rows += batch.rows[_can_be_given(batch)].tolist()
    if not rows:
        return None, len(dataset)
    total: SequenceReport | None = None
    reference, was_training = next(model.parameters(), None), model.training
    model.eval()
    try:
        for batch in Batches(dataset.subset(sorted(rows)), size, shuffle=False):
            moved = batch if reference is None else batch.to(reference.device)
            tensors: dict[str, Any] = dict(moved.tensors)
            found = sequence_report(model, width=width, lengths=moved.lengths or None, **tensors)
            total = found if total is None else total + found
    finally:
        model.train(was_training)
    return total, len(dataset) - len(rows)


def _can_be_given(batch: Batch) -> Tensor:
    """[B]: whether a model knows every gold label of an example; a word that counts as unknown is one it can give."""
    whole = torch.ones(len(batch), dtype=torch.bool)
    for name, gold in batch.gold.items():
        whole &= ((batch.tensors[name] >= 0) | (gold < 0)).flatten(1).all(1)
    return whole


def _whole(steps: Steps, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gold labels [B, T] with something to step over behind the end, and [B, T] which steps are gold."""
    counted = torch.arange(steps.size, device=labels.device) < steps.lengths.unsqueeze(1)
    if steps.end is not None:
        ends = labels == steps.end
        counted = ends.cumsum(1) - ends.long() == 0
        if not bool(ends.any(1).all()):
            raise EnergyError("a gold answer of a free length ends with the end label; at least one has none")
    if bool((counted & (labels < 0)).any()):
        raise EnergyError("a report follows gold prefixes, and some gold labels are unknown (-1)")
    filler = 0 if steps.end is None else steps.end
    return labels.masked_fill(~counted, filler), counted


def _along_gold(steps: Steps, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T] log-normalisers after gold prefixes, [B, T] whether the prefix up to the step is possible, [B] scores."""
    state, total = steps.start(), torch.zeros(labels.shape[0], device=labels.device, dtype=steps.batch.dtype)
    found, possible = [], []
    for t in range(steps.size):
        scores, state = steps.advance(state, labels[:, t - 1] if t else None, t)
        total = total + scores.gather(1, labels[:, t : t + 1]).squeeze(1)
        found.append(state.normalizer)
        possible.append(~total.isneginf())
    if not found:
        empty = total.unsqueeze(1)[:, :0]
        return empty, empty.bool(), total
    return torch.stack(found, 1), torch.stack(possible, 1), total


def _left_at(steps: Steps, search: Search, labels: Tensor, possible: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """[T]: how many gold answers leave the beam at each step, and [B]: which do."""
    inside = torch.ones(labels.shape[0], dtype=torch.bool, device=labels.device)
    row = torch.zeros(labels.shape[0], dtype=torch.long, device=labels.device)
    left = torch.zeros(steps.size, dtype=torch.long, device=labels.device)
    for t, (label, parent) in enumerate(zip(search.trace.labels, search.trace.parents, strict=True)):
        match = (parent == row.unsqueeze(1)) & (label == labels[:, t : t + 1])
        stays = match.any(1) & possible[:, t]
        left[t] = (inside & ~stays & counted[:, t]).sum()
        inside = inside & (stays | ~counted[:, t])
        row = torch.where(match.any(1), match.long().argmax(1), -1)
    return left, ~inside


def _lengths(steps: Steps, predicted: Tensor, gold: Tensor, counted: Tensor) -> tuple[int, int]:
    """The summed lengths of predicted and gold answers."""
    wanted = int(counted.sum())
    if steps.end is None:
        return wanted, wanted
    ends = predicted == steps.end
    return int((ends.cumsum(1) - ends.long() == 0).sum()), wanted


__all__ = ["SequenceReport", "dataset_report", "sequence_report"]

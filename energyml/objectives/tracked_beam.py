"""A hard beam that knows the gold sequence: which hypotheses it keeps, and when the gold one leaves it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.steps import Steps
from energyml.objectives.sequences import Gold

_NINF = float("-inf")
# Whether all examples are done is looked at this often: looking waits for a device.
_LOOK = 8


@dataclass(frozen=True)
class Tracked:
    """The hypotheses of a beam where it stopped.

    Attributes:
        labels: [B, k, T] by step.
        counts: [B, k, T] which steps belong to a hypothesis.
        exists: [B, k] whether there is a hypothesis.
        is_gold: [B, k] whether it is the gold sequence (or its prefix).
        stopped: [B] how many steps were made.
        kept: [B] whether the gold sequence was in the beam to the end.
    """

    labels: Tensor
    counts: Tensor
    exists: Tensor
    is_gold: Tensor
    stopped: Tensor
    kept: Tensor


@torch.no_grad()
def tracked_beam(
    gold: Gold, width: int, *, early: bool, cost: Tensor | None = None, lengths: Tensor | None = None
) -> Tracked:
    """Beam search (Goyal et al. 2018, algorithm 1) beside a gold sequence.

    Args:
        gold: the gold labels and what scores them.
        width: hypotheses kept.
        early: stop an example at the step at which the gold prefix leaves the beam (Collins & Roark 2004).
        cost: [B, size, C] added to the scores.
        lengths: [B] where to stop, where the length is part of the answer; hypotheses that have ended repeat the end
            label until then.

    Cost: T steps of k rows.  Nothing is recorded for gradients: the hypotheses that were found are scored again.
    """
    steps = gold.steps
    size = gold.size if steps.end is None or lengths is not None else steps.size
    batch, device = gold.labels.shape[0], gold.labels.device
    is_told, lengths = lengths is not None, steps.lengths if lengths is None else lengths
    target = extended(gold, size)
    labels = torch.zeros(batch, 1, 0, dtype=torch.long, device=device)
    score = torch.zeros(batch, 1, dtype=steps.batch.dtype, device=device)
    on_gold = torch.ones(batch, 1, dtype=torch.bool, device=device)
    running, stopped = lengths > 0, torch.zeros(batch, dtype=torch.long, device=device)
    state, previous = steps.start(), None
    for t in range(size):
        scores, state = steps.advance(state, previous, t)
        candidates = score.unsqueeze(2) + scores.reshape(batch, score.shape[1], steps.count)
        if cost is not None:
            candidates = candidates + cost[:, t].unsqueeze(1)
        best, row, label = _best(candidates, width)
        row, best, label = _unless(running, row, best, label, score)
        score = best
        labels = torch.cat([labels.gather(1, row.unsqueeze(2).expand(-1, -1, t)), label.unsqueeze(2)], 2)
        same = on_gold.gather(1, row) & ((label == target[:, t].unsqueeze(1)) | ~running.unsqueeze(1))
        on_gold = same & ~score.isneginf()
        stopped = stopped + running
        running = running & (t + 1 < lengths)
        if early:
            running = running & on_gold.any(1)
        if steps.end is not None and not is_told:
            ended = (labels == steps.end).any(2) | score.isneginf()
            running = running & ~ended.all(1)
            if t % _LOOK == _LOOK - 1 and not bool(running.any()):
                break
        state, previous = steps.select(state, row), label.flatten()
    counts = _counted(steps, labels, stopped)
    return Tracked(labels, counts, ~score.isneginf(), on_gold, stopped, on_gold.any(1))


def _best(candidates: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best of candidates [B, n, C]: their scores, rows and labels, each [B, k] with k at most n * C."""
    flat = candidates.flatten(1)
    best, index = flat.topk(min(width, flat.shape[1]), 1)
    return best, index // candidates.shape[2], index % candidates.shape[2]


def _unless(running: Tensor, row: Tensor, best: Tensor, label: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Examples that stopped keep their hypotheses; places that they have no hypothesis for stay empty."""
    made, old = row.shape[1], score.shape[1]
    number = torch.arange(made, device=row.device)
    kept = F.pad(score, (0, max(0, made - old)), value=_NINF)[:, :made]
    here = running.unsqueeze(1)
    return torch.where(here, row, number.clamp(max=old - 1)), torch.where(here, best, kept), torch.where(here, label, 0)


def extended(gold: Gold, size: int) -> Tensor:
    """[B, size]: the gold labels; behind a gold end label more of it."""
    beyond = size - gold.labels.shape[1]
    return F.pad(gold.labels, (0, beyond), value=0 if gold.steps.end is None else gold.steps.end)


def _counted(steps: Steps, labels: Tensor, stopped: Tensor) -> Tensor:
    """[B, k, T]: the steps up to where the search stopped, and up to the end label."""
    time = torch.arange(labels.shape[2], device=labels.device)
    counts = (time < stopped.unsqueeze(1)).unsqueeze(1).expand(labels.shape)
    if steps.end is None:
        return counts
    ends = labels == steps.end
    return counts & (ends.cumsum(2) - ends.long() == 0)


__all__ = ["Tracked", "extended", "tracked_beam"]

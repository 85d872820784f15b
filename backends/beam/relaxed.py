"""Relaxed beam search: a beam whose selections are peaked softmaxes, so that gradients flow through the search.

Source: Goyal, Neubig, Dyer & Berg-Kirkpatrick 2018, "A continuous relaxation of beam search for end-to-end training of
neural sequence models", algorithms 2 and 3, sections 2.4 and 2.5.  Two things differ from the printed algorithm: the
first step expands a single row (k equal rows would stay equal, and the beam greedy), and there are exactly as many
steps as cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from energyml.bind.steps import State, Steps
from energyml.inference.precision import full_precision

_NINF = float("-inf")
# Whether every hypothesis has ended is looked at this often: looking waits for a device.
_LOOK = 8


class Selected(NamedTuple):
    """k selections among n rows times C labels, as distributions and as the hard choices that they are peaked at.

    Attributes:
        labels: [B, k, C] each selection's distribution over labels; zero where there are fewer than k candidates.
        pointers: [B, k, n] that over rows: soft back-pointers.
        score: [B, k] the expected candidate score, -inf where there is no candidate.
        row: [B, k] the row of the i-th best candidate.
        label: [B, k] its label.
    """

    labels: Tensor
    pointers: Tensor
    score: Tensor
    row: Tensor
    label: Tensor


def continuous_top_k(scores: Tensor, width: int, alpha: float) -> Selected:
    """The k best candidates, each as a softmax of the squared distance to its score (algorithm 2).

    Selection i is `softmax(-alpha * (scores - m[i])^2)` with m[i] the i-th largest score.  It converges to the i-th
    best candidate where alpha is much larger than 1 / gap^2, gap being the distance to the nearest other score; exact
    ties split evenly for ever.  Candidates at -inf have no weight and no gradient.

    Args:
        scores: [B, n, C]; -inf for what is ruled out.
        width: k.
        alpha: peakedness; `math.inf` gives the hard choices themselves.

    Cost: k * n * C for each example.
    """
    rows, count = scores.shape[1:]
    # squares need the range of single precision at least
    flat = scores.flatten(1).to(torch.promote_types(scores.dtype, torch.float32))
    best, index = flat.topk(min(width, rows * count), 1)
    if best.shape[1] < width:
        beyond = (0, width - best.shape[1])
        best, index = F.pad(best, beyond, value=_NINF), F.pad(index, beyond)
    alive = ~best.isneginf()
    # Far below every score, and still with a finite square: weights there are 0, and so are gradients.
    lowest = -(torch.finfo(flat.dtype).max ** 0.5) / 4
    finite = flat.clamp(min=lowest)
    if math.isinf(alpha):
        weights = F.one_hot(index, rows * count).to(flat.dtype)
    else:
        peak = torch.where(alive, best, finite.amax(1, keepdim=True).detach())
        weights = torch.softmax((finite.unsqueeze(1) - peak.unsqueeze(2)).square() * -alpha, 2)
    with full_precision(scores.device):
        score = (weights @ finite.unsqueeze(2)).squeeze(2).masked_fill(~alive, _NINF)
    placed, there = weights.unflatten(2, (rows, count)), alive.unsqueeze(2)
    labels, pointers = (placed.sum(2) * there).to(scores.dtype), (placed.sum(3) * there).to(scores.dtype)
    return Selected(labels, pointers, score.to(scores.dtype), index // count, index % count)


class _Beam(NamedTuple):
    """The beam between two steps.

    Attributes:
        state: of the steps, a row for each hypothesis.
        labels: [B, k, C] the relaxed labels of the step before; `None` before the first step.
        score: [B, k] cumulative; -inf for a hypothesis that does not exist.
        ended: [B, k] whether the hypothesis ended, by its hard choices.
    """

    state: State
    labels: Tensor | None
    score: Tensor
    ended: Tensor


class _Choices(NamedTuple):
    """What a step chose: relaxed labels [B, k, C] and back-pointers [B, k, n], hard rows [B, k] and labels [B, k]."""

    labels: Tensor
    pointers: Tensor
    row: Tensor
    label: Tensor


@dataclass(frozen=True)
class RelaxedBeam:
    """A relaxed search that came to its end.

    Attributes:
        score: [B, k] the hypotheses' relaxed scores, costs included; -inf where there is none.
        choices: what each step chose, at least one.
        alpha: peakedness of the final choice among hypotheses.
        size: how many steps the sequence may have; not all of them may have been taken.
        filler: the label of steps that were not taken, as all hypotheses have ended; none when `None`.
    """

    score: Tensor
    choices: list[_Choices]
    alpha: float
    size: int
    filler: int | None = None

    def best_score(self) -> Tensor:
        """[B]: the peaked mean of the hypotheses' scores, close to the best; -inf where there is none (section 2.5)."""
        none = self.score.isneginf()
        mean = (self._share() * self.score.masked_fill(none, 0)).sum(1)
        return mean.masked_fill(none.all(1), _NINF)

    def soft_labels(self) -> Tensor:
        """[B, size, C]: the relaxed labels of the peaked mean of hypotheses; zero behind the end of a sequence.

        Where the length is part of the answer, the end label is repeated behind it: an answer that ends too early is
        wrong in all the cells that it leaves out.  Any decomposable cost of these labels is the loss of algorithm 3:
        its D is linear in what each step adds, so that following soft back-pointers from the end finds each step's
        share once for all costs.
        """
        share, found = self._share(), []
        with full_precision(share.device):
            for step in reversed(self.choices):
                found.append((share.unsqueeze(1) @ step.labels).squeeze(1))
                share = (share.unsqueeze(1) @ step.pointers).squeeze(1)
        labels = F.pad(torch.stack(found[::-1], 1), (0, 0, 0, self.size - len(found)))
        if self.filler is not None and len(found) < self.size:
            labels[:, len(found) :, self.filler] = share.sum(1, keepdim=True).detach()
        return labels

    def hard_labels(self) -> Tensor:
        """[B, size]: the labels along the hard back-pointers from the best hypothesis (section 2.4); -1 for none."""
        at, found = self.score.argmax(1, keepdim=True), []
        for step in reversed(self.choices):
            found.append(step.label.gather(1, at))
            at = step.row.gather(1, at)
        return F.pad(torch.cat(found[::-1], 1), (0, self.size - len(found)), value=-1)

    def _share(self) -> Tensor:
        """[B, k]: the peaked softmax of the scores; zero where there is no hypothesis."""
        if math.isinf(self.alpha):
            best = F.one_hot(self.score.argmax(1), self.score.shape[1]).to(self.score.dtype)
            return best.masked_fill(self.score.isneginf(), 0)
        none = self.score.isneginf().all(1, keepdim=True)
        # scores are large where sequences are long: less their largest, not less the log of their sum
        return torch.softmax(self.alpha * self.score.masked_fill(none, 0), 1).masked_fill(none, 0)


@dataclass(frozen=True)
class _Search:
    """The settings of a search; see `relaxed_beam`."""

    steps: Steps
    width: int
    alpha: float
    lengths: Tensor
    cost: Tensor | None
    soft_pointers: bool

    def step(self, beam: _Beam, t: int) -> tuple[_Beam, _Choices]:
        """Lines 3 to 18 of algorithm 3."""
        before = None if beam.labels is None else beam.labels.flatten(0, 1)
        scores, state = self.steps.advance(beam.state, before, t)
        candidates = scores.reshape(*beam.score.shape, self.steps.count) + beam.score.unsqueeze(2)
        if self.cost is not None:
            candidates = candidates + self.cost[:, t].unsqueeze(1)
        found = continuous_top_k(candidates, self.width, self.alpha)
        labels, pointers = found.labels, found.pointers
        if not self.soft_pointers:
            exists = ~found.score.isneginf()
            pointers = F.one_hot(found.row, beam.score.shape[1]) * exists.unsqueeze(2)
            pointers = pointers.to(labels.dtype)
        # What is at its end stays as it is: selecting once more would mix its hypotheses.
        old = beam.score.shape[1]
        going = ((t < self.lengths) & ~beam.ended.all(1)).unsqueeze(1)
        same = torch.eye(self.width, old, dtype=labels.dtype, device=labels.device)
        kept = F.pad(beam.score, (0, self.width - old), value=_NINF)
        number = torch.arange(self.width, device=labels.device).clamp(max=old - 1)
        row, label = torch.where(going, found.row, number), found.label.masked_fill(~going, -1)
        pointers, labels = torch.where(going.unsqueeze(2), pointers, same), labels * going.unsqueeze(2)
        score, ended = torch.where(going, found.score, kept), beam.ended.gather(1, row)
        end = self.steps.end
        if end is not None:
            ended = ended | (label == end) | score.isneginf()
            # the end label is what a hypothesis that ended has to say about the cells that are left
            waits = ~going & (t < self.lengths).unsqueeze(1)
            label = label.masked_fill(waits, end)
            labels = torch.where(waits.unsqueeze(2), F.one_hot(label.clamp(min=0), labels.shape[2]), labels)
        chosen = _Choices(labels, pointers, row, label)
        return _Beam(self.steps.blend(state, pointers), labels, score, ended), chosen


def relaxed_beam(
    steps: Steps,
    *,
    width: int,
    alpha: float,
    lengths: Tensor | None = None,
    cost: Tensor | None = None,
    soft_pointers: bool = True,
    recompute: bool = False,
) -> RelaxedBeam:
    """Search by algorithm 3.

    Where the length is part of the answer, the end label is absorbing: what follows it adds nothing.  An example is
    done when the hard choices of all its hypotheses have ended.

    Args:
        steps: scores each label after a prefix; at least one step.
        width: k, hypotheses kept.
        alpha: peakedness of all selections; `math.inf` is the hard beam (algorithm 1).
        lengths: [B] how many steps each example takes, where the length is part of the answer and one is known.
        cost: [B, size, C] added to the scores (section 2.5).
        soft_pointers: blend the states of all hypotheses, or take the state of the hard choice.
        recompute: keep no more than the states between steps, and compute the rest again for the gradients.

    Cost: T steps of k rows, and T * k^2 * C for the selections.  Memory for gradients: T times what a step of k rows
    and its selections hold; with `recompute` T times k states and k * C.  A state of fixed size makes that linear in T;
    the caches of a Transformer grow, and blending them makes it quadratic.
    """
    known = steps.lengths if lengths is None else torch.minimum(lengths, steps.lengths)
    search = _Search(steps, width, alpha, known, cost, soft_pointers)
    size = steps.size if lengths is None else max(1, int(known.max())) if known.numel() else 1
    score = torch.zeros(steps.batch.size, 1, dtype=steps.batch.dtype, device=steps.batch.device)
    beam = _Beam(steps.start(), None, score, torch.zeros_like(score, dtype=torch.bool))
    choices: list[_Choices] = []
    for t in range(size):
        if recompute and torch.is_grad_enabled():
            beam, chosen = checkpoint(search.step, beam, t, use_reentrant=False)
        else:
            beam, chosen = search.step(beam, t)
        choices.append(chosen)
        if steps.end is not None and t % _LOOK == _LOOK - 1 and bool(beam.ended.all()):
            break
    return RelaxedBeam(beam.score, choices, alpha, steps.size, steps.end if lengths is None else None)


__all__ = ["RelaxedBeam", "Selected", "continuous_top_k", "relaxed_beam"]

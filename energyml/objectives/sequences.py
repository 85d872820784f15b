"""What the objectives of sequences share: gold labels by step, and the scores of given prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.bind.batch import accumulated
from energyml.bind.problem import Problem
from energyml.bind.steps import State, Steps
from energyml.diagnostics import EnergyError
from energyml.execution import is_host_readable
from energyml.objectives.log_shares import log_shares


@dataclass(frozen=True)
class Gold:
    """The gold labels of a batch of sequences, by step.

    Attributes:
        steps: scores each label after a prefix.
        labels: [B, T]; behind the end of an example the label that `Steps` goes on with, which adds nothing.
        counts: [B, T] which steps belong to an example.
        size: T, how many steps the longest gold sequence has; where the length is part of the answer, the end label is
            its last.
    """

    steps: Steps
    labels: Tensor
    counts: Tensor
    size: int

    @property
    def lengths(self) -> Tensor:
        """[B]: how many steps belong to each example."""
        return self.counts.sum(1)


def gold_of(problem: Problem, answer: Mapping[str, Tensor], objective: str) -> Gold:
    """The gold sequence of an objective that scores it from left to right: every label must be known.

    Args:
        problem: the batch.
        answer: labels [B, *dims] by variable, -1 where there is none.
        objective: its name, for messages.
    """
    steps = problem.steps()
    name = steps.variable
    if name not in answer:
        raise EnergyError(f"`{objective}` needs gold labels of `{name}`; pass `{name}=...`")
    labels = steps.by_step(answer[name])
    time = torch.arange(steps.size, device=labels.device)
    if steps.end is None:
        counts = time < steps.lengths.unsqueeze(1)
        size, filler = steps.size, 0
    else:
        ends = labels == steps.end
        counts, filler = ends.cumsum(1) - ends.long() == 0, steps.end
        if is_host_readable(labels) and not bool(ends.any(1).all()):
            number = int((~ends.any(1)).nonzero()[0])
            spelling = problem.label_names()[name][steps.end]
            raise EnergyError(
                f"`{objective}` needs whole sequences, and example {number} of `{name}` has no end label "
                f"`{spelling}`; write it behind the last label"
            )
        size = int(counts.sum(1).max()) if labels.numel() else 0
    missing = counts & (labels < 0)
    if is_host_readable(labels) and bool(missing.any()):
        number, place = missing.nonzero()[0].tolist()
        raise EnergyError(
            f"`{objective}` needs every label, since each step is given those before it, and step {place} of example "
            f"{number} of `{name}` has none; leave such examples out, or train by `nll`, which sums unknown labels out"
        )
    counts = counts[:, :size]
    return Gold(steps, labels[:, :size].masked_fill(~counts, filler), counts, size)


def forced(steps: Steps, labels: Tensor, copies: int = 1) -> Iterator[tuple[int, Tensor, State]]:
    """Each step after given labels [B * copies, T]: (t, scores [B * copies, C], the state with the normaliser)."""
    state = steps.start(copies)
    for t in range(labels.shape[1]):
        scores, state = steps.advance(state, labels[:, t - 1] if t else None, t)
        yield t, scores, state


def prefix_scores(steps: Steps, labels: Tensor, counts: Tensor) -> Tensor:
    """[B, n]: the scores of prefixes, differentiable; -inf where something rules one out.

    Half precision is added up in float32, and stays that: scores of prefixes are about to be subtracted.

    Args:
        steps: scores each label after a prefix.
        labels: [B, n, T], the prefixes of an example; any label where nothing counts.
        counts: [B, n, T] which steps count; none behind one that does not.

    Cost: T steps of B * n rows.
    """
    batch, several, size = labels.shape
    flat, counted = labels.reshape(batch * several, size), counts.reshape(batch * several, size)
    total = torch.zeros(batch * several, dtype=accumulated(steps.batch.dtype), device=labels.device)
    for t, scores, _ in forced(steps, flat, several):
        total = total + torch.where(counted[:, t], chosen(scores, flat[:, t]), 0)
    return total.reshape(batch, several)


def total_cost(labels: Tensor, cost: Tensor) -> Tensor:
    """[B, n]: what answers [B, n, *dims] cost, added up over cells; cost is [B, *dims, C], and -1 costs nothing."""
    every = cost.unsqueeze(1).expand(*labels.shape, cost.shape[-1])
    picked = every.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    picked = torch.where(labels >= 0, picked, 0)
    return picked.flatten(2).sum(2) if picked.dim() > 2 else picked


def chosen(scores: Tensor, labels: Tensor) -> Tensor:
    """[R]: the scores [R, C] of labels [R]."""
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1)


@torch.no_grad()
def drawn(steps: Steps, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws from left to right, each step normalised over its labels: by torch's own random numbers.

    Returns:
        labels [B, count, T] by step; [B, count, T] which steps count; [B, count] the log-probability of the draw, -inf
        where a prefix could not go on.

    Cost: T steps of B * count rows.
    """
    batch = steps.batch.size
    labels = torch.zeros(batch * count, steps.size, dtype=torch.long, device=steps.batch.device)
    total = torch.zeros(batch * count, dtype=accumulated(steps.batch.dtype), device=steps.batch.device)
    state, previous = steps.start(count), None
    for t in range(steps.size):
        scores, state = steps.advance(state, previous, t)
        previous = (scores + gumbel(scores)).argmax(1)
        # behind the end of an example there is one label, whose log-probability is 0
        total = total + chosen(log_shares(scores), previous)
        labels[:, t] = previous
    labels = labels.reshape(batch, count, steps.size)
    time = torch.arange(steps.size, device=labels.device)
    counts = (time < steps.lengths.unsqueeze(1)).unsqueeze(1).expand(labels.shape)
    if steps.end is not None:
        ends = labels == steps.end
        counts = counts & (ends.cumsum(2) - ends.long() == 0)
    return labels, counts, total.reshape(batch, count)


def gumbel(like: Tensor) -> Tensor:
    """Noise -log(-log U) of the shape of a tensor: the best of scores plus noise is a sample of their softmax."""
    uniform = torch.rand(like.shape, dtype=like.dtype, device=like.device)
    tiny = torch.finfo(like.dtype).tiny
    return -(-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()


def first_of_each(labels: Tensor) -> Tensor:
    """[B, n]: which of the answers [B, n, ...] of an example are not there before; n^2 comparisons."""
    flat = labels.flatten(2)
    same = (flat.unsqueeze(2) == flat.unsqueeze(1)).all(3)
    before = torch.ones(same.shape[1:], dtype=torch.bool, device=labels.device).tril(-1)
    return ~(same & before).any(2)


__all__ = ["Gold", "chosen", "drawn", "first_of_each", "forced", "gold_of", "gumbel", "prefix_scores", "total_cost"]

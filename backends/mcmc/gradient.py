"""Proposals that follow the differences of scores: Gibbs with gradients, and discrete Langevin.

Both ask how the score would change with each label at each cell.  Tables answer exactly, in one look; other terms by
the gradient of their relaxed score, a first-order guess.  Metropolis-Hastings corrects what is wrong about it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.backends.mcmc.factor_target import PENALTY, FactorTarget
from energyml.backends.mcmc.kernel import Current, Kernel, accepted
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import Labels, ScoreTarget, Target
from energyml.result import ABSENT

NINF = float("-inf")


def differences(target: Target, labels: Labels) -> dict[str, Tensor]:
    """[B, C, cells, labels] by variable: by how much the score grows with each label; -inf for what is ruled out.

    Cost: one look at the tables, or a forward and a backward pass of the networks.
    """
    local = target.local_scores(labels) if isinstance(target, FactorTarget) else _slopes(target, labels)
    made = {}
    for name, scores in local.items():
        held = scores.gather(-1, labels[name].unsqueeze(-1))
        made[name] = torch.where(scores.isneginf(), scores, scores - held.masked_fill(held.isneginf(), 0))
    return made


def _slopes(target: Target, labels: Labels) -> dict[str, Tensor]:
    """The gradient of the relaxed score at the corners, plus what evidence allows."""
    assert isinstance(target, ScoreTarget)
    copies = next(iter(labels.values())).shape[1]
    placed = target.outward(labels)
    relaxed = {}
    with torch.enable_grad():
        for name, one in placed.items():
            flat = one.flatten(0, 1)
            corner = F.one_hot(flat.clamp(min=0), target.counts[name]).to(target.dtype)
            relaxed[name] = (corner * (flat != ABSENT).unsqueeze(-1)).requires_grad_()
        score = target.problem.soft_score(relaxed, copies, penalty=PENALTY)
        # A sequence without cells has a score that depends on nothing.
        slopes: tuple[Tensor | None, ...] = (None,) * len(relaxed)
        if score.requires_grad:
            slopes = torch.autograd.grad(score.sum(), list(relaxed.values()), allow_unused=True)
    made = {}
    for name, slope in zip(relaxed, slopes, strict=True):
        shape = (target.size, copies, target.cells[name], target.counts[name])
        found = torch.zeros(shape, device=target.device, dtype=target.dtype)
        if slope is not None:  # a slope that is no number guides nothing; the scores themselves are checked
            found = slope.reshape(shape)
            found = torch.where(found.isfinite(), found, 0)
        made[name] = found + target.permitted(name)
    return made


class GradientGibbs(Kernel):
    """One cell at a time: which cell and which label are drawn from the differences of scores.

    Source: Grathwohl et al. 2021, algorithm 1, with categorical cells.  Cost of a move: differences at the proposed
    answer.
    """

    def plan(self, current: Current, random: Randomness) -> Iterable[int]:
        """As many moves as there are cells."""
        return range(sum(self.target.cells.values()))

    def move(self, current: Current, move: int, random: Randomness) -> None:
        """Change one cell of each chain, or none."""
        log_q = self._log_q(current.labels, current.beta)
        choice = random.categorical(log_q)
        forward = log_q.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
        labels, back, first = {}, torch.zeros_like(choice), 0
        for name, one in current.labels.items():
            count = self.target.counts[name]
            inside = (choice >= first) & (choice < first + one.shape[2] * count)
            cell = torch.where(inside, (choice - first) // count, 0)
            label = torch.where(inside, (choice - first) % count, 0)
            old = _held(one, cell) if one.shape[2] else torch.zeros_like(choice)
            back = torch.where(inside, first + cell * count + old, back)
            new = torch.where(inside, label, old).unsqueeze(-1)
            labels[name] = one.scatter(2, cell.unsqueeze(-1), new) if one.shape[2] else one
            first += one.shape[2] * count
        score = self.target.score(labels)
        backward = self._log_q(labels, current.beta).gather(-1, back.unsqueeze(-1)).squeeze(-1)
        ratio = current.beta * (score - current.score) + backward - forward
        _settle(current, labels, score, accepted(ratio, random) & ~log_q.isneginf().all(-1))

    def _log_q(self, labels: Labels, beta: Tensor) -> Tensor:
        """[B, C, all labels of all cells]: the log-probabilities of changes; a label that is there is no change."""
        parts = []
        for name, one in differences(self.target, labels).items():
            same = F.one_hot(labels[name], one.shape[-1]).bool()
            parts.append((one * beta.reshape(1, -1, 1, 1) / 2).masked_fill(same, NINF).flatten(2))
        joined = torch.cat(parts, -1)
        possible = ~joined.isneginf().all(-1, keepdim=True)
        return torch.where(possible, F.log_softmax(torch.where(possible, joined, 0), -1), NINF)


class DiscreteLangevin(Kernel):
    """All cells at once, each drawn near its label and towards higher scores.

    Source: Zhang, Liu & Liu 2022, eq. 4 and algorithm 1 (DMALA with the correction, DULA without).  Cost of a move:
    differences at the proposed answer.

    Args:
        target: what is sampled.
        step_size: alpha: larger steps change more cells.
        adjusted: whether moves are accepted or rejected; without, the draws are only near the target's.
    """

    def __init__(self, target: Target, step_size: float, adjusted: bool = True) -> None:
        super().__init__(target)
        self.step_size, self.valid = step_size, adjusted

    @property
    def warning(self) -> str | None:
        """Without the correction."""
        return None if self.valid else "moves are never rejected: the draws are only near the model's distribution"

    def plan(self, current: Current, random: Randomness) -> Iterable[int]:
        """One move of all cells."""
        return range(1)

    def move(self, current: Current, move: int, random: Randomness) -> None:
        """Propose all cells at once."""
        ahead = self._log_q(current.labels, current.beta)
        labels = {name: random.categorical(log_q) for name, log_q in ahead.items()}
        forward = _joint(ahead, labels)
        score = self.target.score(labels)
        if self.valid:
            backward = _joint(self._log_q(labels, current.beta), current.labels)
            taken = accepted(current.beta * (score - current.score) + backward - forward, random)
        else:
            taken = ~score.isneginf()
        _settle(current, labels, score, taken)

    def _log_q(self, labels: Labels, beta: Tensor) -> dict[str, Tensor]:
        made = {}
        for name, one in differences(self.target, labels).items():
            # Two one-hot vectors that differ have the squared distance 2, and the exponent is -2 / (2 alpha).
            away = (1 - F.one_hot(labels[name], one.shape[-1])) / self.step_size
            made[name] = F.log_softmax(one * beta.reshape(1, -1, 1, 1) / 2 - away, -1)
        return made


def _held(labels: Tensor, cell: Tensor) -> Tensor:
    return labels.gather(2, cell.unsqueeze(-1)).squeeze(-1)


def _joint(log_q: dict[str, Tensor], labels: Labels) -> Tensor:
    """[B, C]: the log-probability of labels under independent cells."""
    parts = [one.gather(-1, labels[name].unsqueeze(-1)).squeeze(-1).sum(-1) for name, one in log_q.items()]
    return torch.stack(parts).sum(0)


def _settle(current: Current, labels: Labels, score: Tensor, taken: Tensor) -> None:
    changed = torch.zeros_like(taken)
    for name, one in labels.items():
        changed = changed | (one != current.labels[name]).any(-1)
        current.labels[name] = torch.where(taken.unsqueeze(-1), one, current.labels[name])
    kind = score.dtype
    current.count(torch.ones_like(score), taken.to(kind), (taken & changed).to(kind))
    current.score = torch.where(taken, score, current.score)


__all__ = ["DiscreteLangevin", "GradientGibbs"]

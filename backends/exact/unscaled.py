"""The log-partition of first-order chains in log space: right for scores of any size, and slower than exp space.

Everything is computed in float64, whatever the scores are: where scores are large, a marginal is the exponential of a
small difference of large sums, which float32 no longer holds.  No value is read back, so that it serves accelerators,
compiled code and derivatives of derivatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.bind.batch import wide
from energyml.grounded.logspace import softmax, tracked_logsumexp


def cleared(scores: Tensor, exists: Tensor | None) -> Tensor:
    """The scores [B, T, C], with 0 where there is no cell."""
    return scores if exists is None else scores.masked_fill(~exists.unsqueeze(-1), 0)


def taped_log_partition(scores: Tensor, steps: Tensor, exists: Tensor | None) -> Tensor:
    """[B]: the log-partition by operations that autograd records: differentiable in every way, any number of times."""
    dtype = wide(scores.device)
    unary = cleared(scores, exists).to(dtype)
    pairs = steps.to(dtype).expand(-1, scores.shape[1] - 1, -1, -1).unbind(1)
    cells = unary.unbind(1)
    here = None if exists is None else exists.unsqueeze(-1).unbind(1)
    ahead = cells[0]
    for t, pair in enumerate(pairs, 1):
        step = tracked_logsumexp(ahead.unsqueeze(2) + pair, 1) + cells[t]
        ahead = step if here is None else torch.where(here[t], step, ahead)
    total = tracked_logsumexp(ahead, 1)
    total = total if exists is None else torch.where(exists[:, 0], total, 0)
    return total.to(torch.promote_types(scores.dtype, steps.dtype))


class LogSpace:
    """One run of forward-backward over chains in log space, without a tape.  O(B T C²) time, O(B (T + C) C) memory.

    Attributes:
        log_z: [B] the log-partitions, in float64.
    """

    def __init__(self, scores: Tensor, steps: Tensor, exists: Tensor | None) -> None:
        dtype = wide(scores.device)
        self._unary = cleared(scores, exists).to(dtype).unbind(1)
        self._pair = steps.to(dtype)
        self._exists = None if exists is None else exists.unsqueeze(-1).unbind(1)
        self._ahead = self._forward()
        total = torch.logsumexp(self._ahead[-1], 1)
        self.log_z = total if exists is None else torch.where(exists[:, 0], total, 0)

    def _step(self, t: int) -> Tensor:
        """[B or 1, C, C]: the pair scores of the step to cell t."""
        return self._pair[:, 0 if self._pair.shape[1] == 1 else t - 1]

    def _forward(self) -> list[Tensor]:
        ahead = [self._unary[0]]
        for t in range(1, len(self._unary)):
            step = torch.logsumexp(ahead[-1].unsqueeze(2) + self._step(t), 1) + self._unary[t]
            ahead.append(step if self._exists is None else torch.where(self._exists[t], step, ahead[-1]))
        return ahead

    def beginnings(self) -> Tensor:
        """[B, T, C]: the log-partitions of what comes before each label of each cell."""
        return torch.stack(self._ahead, 1)

    def moments(self, weight: Tensor, pairs: bool = True, each: bool = False) -> tuple[Tensor, Tensor | None]:
        """The gradients of the weighted sum of log-partitions, of cells [B, T, C] and, if asked for, of steps.

        They are zero where every answer is forbidden.  Steps are those that were given, or `each` one [B, T-1, C, C].
        """
        if each:
            self._pair = self._pair.expand(weight.shape[0], len(self._unary) - 1, -1, -1)
        gone = self.log_z.isneginf()
        weight = weight.to(self.log_z.dtype).masked_fill(gone, 0).unsqueeze(1)
        behind = torch.zeros_like(self._ahead[0])
        by_cell: list[Tensor] = []
        by_pair = torch.zeros_like(self._pair, memory_format=torch.contiguous_format) if pairs else None
        for t in range(len(self._unary) - 1, -1, -1):
            ahead = self._ahead[t]
            # Of large scores the total is rounded by more than the labels of a cell differ.
            cell = softmax(ahead + behind, 1) * weight
            by_cell.append(cell if self._exists is None else torch.where(self._exists[t], cell, 0))
            if t == 0:
                break
            onward = (self._unary[t] + behind).unsqueeze(1) + self._step(t)
            if by_pair is not None:
                self._add_pair(by_pair, t, onward + self._ahead[t - 1].unsqueeze(2), weight)
            step = torch.logsumexp(onward, 2)
            behind = step if self._exists is None else torch.where(self._exists[t], step, behind)
        return torch.stack(by_cell[::-1], 1), by_pair

    def _add_pair(self, by_pair: Tensor, t: int, log: Tensor, weight: Tensor) -> None:
        """Add the marginals of the step to cell t; `log` [B, C, C] are log-probabilities up to a constant."""
        found = softmax(log.flatten(1), 1).view_as(log) * weight.unsqueeze(2)
        if self._exists is not None:
            found = torch.where(self._exists[t].unsqueeze(2), found, 0)
        if by_pair.shape[0] == 1:
            found = found.sum(0, keepdim=True)
        by_pair[:, 0 if by_pair.shape[1] == 1 else t - 1] += found

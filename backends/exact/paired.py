"""The log-partition of small first-order chains: forward and backward vectors side by side, as one row of each chain.

Where a step of a chain is little work, its time goes into calling operations.  So the forward vectors from the first
cell on and the backward vectors from the last cell back are one row [2 C], which one product with a table of two blocks
takes a step further.  There chains that end earlier get one more label, which nothing but the cells behind their end
takes: what they weigh stays.  Without moments the forward vectors alone are taken, in float64.

This serves scores that lie close to each other only, none of them -inf.  Then the range of all vectors is known
beforehand, nothing has to be measured on the way, and scalings are as rare as that range allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.execution import without_autograd

# Up to how much work a step is small: labels, and entries of the vectors of all chains.
LABELS, ENTRIES = 48, 2048
# How many steps must be allowed to go between two scalings.
LEAST = 2
# Up to how many entries float64, which needs scaling a tenth as often, costs no more than float32.
WIDENED = 256


def forward_log_z(scores: Tensor, steps: Tensor, count: Tensor | None) -> Tensor | None:
    """[B]: the log-partitions of chains of at least two cells, on the CPU, in float64; `None` where it does not serve.

    The forward vectors alone, two operations a step.  What comes behind the end of a chain is not read.

    Args:
        scores: [B, T, C] in float32 or float64.
        steps: [B or 1, T-1 or 1, C, C] of the same type.
        count: [B] how many cells each chain has; `None` when all have T.
    """
    with without_autograd():
        fit = _fit(scores, steps, torch.float64)
        if fit is None:
            return None
        size = scores.shape[1]
        cells = (scores - fit.cell).exp_().to(torch.float64)
        table = (steps[0, 0].to(torch.float64) - fit.step).exp_()
        last = None if count is None else count.clamp(1, size).sub_(1)
        rows, scales = cells.unbind(1), []
        spare = torch.empty_like(rows[0])
        for step in range(1, size):
            row = rows[step].mul_(torch.mm(rows[step - 1], table, out=spare))
            if step % fit.every == 0:
                weight = row.sum(-1)
                row.div_(weight.unsqueeze(-1))
                scales.append(weight if last is None else weight.masked_fill_(last < step, 1))
        if last is None:
            total = rows[-1].sum(-1).log_().add_(size * fit.cell + (size - 1) * fit.step)
        else:
            total = cells.sum(-1).gather(1, last.unsqueeze(1)).squeeze(1).log_()
            total.add_(last, alpha=fit.cell + fit.step).add_(fit.cell)
        if scales:
            total += torch.stack(scales).log_().sum(0)
    return total.clone() if count is None else total.masked_fill(count < 1, 0)


def paired(scores: Tensor, steps: Tensor, exists: Tensor | None) -> Paired | None:
    """Forward-backward over chains of at least two cells, on the CPU; `None` where it does not serve.

    Args:
        scores: [B, T, C] in float32 or float64.
        steps: [B or 1, T-1 or 1, C, C] of the same type.
        exists: [B, T] which cells exist; `None` when all do.
    """
    with without_autograd():
        small = scores.shape[0] * scores.shape[2] <= WIDENED
        fit = _fit(scores, steps, torch.float64 if small else scores.dtype)
        if fit is None:
            return None
        found = Paired(scores.to(fit.dtype), steps[0, 0].to(fit.dtype), exists, fit)
    found.log_z = found.log_z.clone()
    return found


@dataclass(frozen=True)
class Fit:
    """How scores are taken that lie close to each other.

    Attributes:
        dtype: the type to compute in.
        cell: what is taken out of the scores of each cell.
        step: what is taken out of those of each step.
        every: how many steps may go between two scalings.
    """

    dtype: torch.dtype
    cell: float
    step: float
    every: int


def _fit(scores: Tensor, steps: Tensor, dtype: torch.dtype) -> Fit | None:
    """How to take the scores for vectors of a type; `None` where there are too many, or far apart."""
    batch, size, labels = scores.shape
    if steps.shape[:2] != (1, 1) or labels > LABELS or batch * labels > ENTRIES:
        return None
    low, high = (one.item() for one in torch.aminmax(scores))
    lowest, highest = (one.item() for one in torch.aminmax(steps))
    # With scores and steps centred, a step multiplies what a vector weighs by e^growth at most, and by e^-growth at
    # least.  Its entries span twice that beside, and some more between the labels.
    growth = (high - low + highest - lowest) / 2
    used = 2 * growth + 2 * math.log(labels + 1) + 3
    room, given = (-math.log(torch.finfo(one).tiny) - used for one in (dtype, scores.dtype))
    if not LEAST * growth <= given:  # also where one is no number
        return None
    every = min(size, int(room / growth)) if growth > 0 else size
    return Fit(dtype, (high + low) / 2, (highest + lowest) / 2 + math.log(labels), every)


class Paired:
    """Forward-backward over chains of which `paired` has found that they are fit for it.

    O(B T C²) time, O(B T C) memory.

    Attributes:
        log_z: [B] the log-partitions, in float64.
    """

    def __init__(self, scores: Tensor, steps: Tensor, exists: Tensor | None, fit: Fit) -> None:
        size, labels = scores.shape[1:]
        self._labels, self._width = labels, labels + (exists is not None)
        self._table = (steps - fit.step).exp_()
        # [T, B, 2, C]: the emissions of cells from both ends, of which the loop makes the vectors.
        self._vectors = self._emissions((scores - fit.cell).exp_(), exists)
        self._rows = self._vectors.flatten(2)
        self._before = torch.empty_like(self._rows)
        blocks, scales = self._blocks(exists is not None), []
        rows, before = self._rows.unbind(0), self._before.unbind(0)
        for step in range(1, size):
            torch.mm(rows[step - 1], blocks, out=before[step])
            rows[step].mul_(before[step])
            if step % fit.every == 0:
                pair = self._vectors[step]
                weight = pair.sum(-1, keepdim=True)
                pair.div_(weight)
                scales.append(weight[:, :1])
        weight = self._vectors[-1, :, :1].sum(-1, keepdim=True)
        total = torch.cat([weight, *scales], 1).double().log_().sum((1, 2))
        if exists is None:
            self.log_z = total.add_(size * fit.cell + (size - 1) * fit.step)
        else:
            count = exists.sum(1)
            self.log_z = total.add_(count, alpha=fit.cell + fit.step).sub_(fit.step).masked_fill_(count < 1, 0)

    def _blocks(self, ended: bool) -> Tensor:
        """[2 C, 2 C]: the table, and below it the same turned round; behind the end nothing but the end follows."""
        labels, width = self._labels, self._width
        blocks = self._table.new_zeros(2 * width, 2 * width)
        blocks[:labels, :labels] = self._table
        blocks[width : width + labels, width : width + labels] = self._table.t()
        if ended:
            blocks[:width, labels] = 1
            blocks[-1, width:] = 1
        return blocks

    def _emissions(self, cells: Tensor, exists: Tensor | None) -> Tensor:
        batch, size, labels = cells.shape
        found = cells.new_empty(size, batch, 2, self._width)
        front, back = found.unbind(2)
        if exists is None:
            front.copy_(cells.transpose(0, 1))
        else:
            front[..., :labels].copy_(cells.mul_(exists.unsqueeze(-1)).transpose(0, 1))
            front[..., labels].copy_(exists.t().logical_not())
        back.copy_(front.flip(0))
        return found

    def beginnings(self) -> Tensor:
        """[B, T, C]: the logarithms of the forward vectors, each up to a constant; -inf behind the end."""
        return self._vectors[:, :, 0, : self._labels].transpose(0, 1).log()

    def moments(self, weight: Tensor, pairs: bool = True, each: bool = False) -> tuple[Tensor, Tensor | None]:
        """The gradients of the weighted sum of log-partitions, of cells [B, T, C] and of steps.

        Steps are the one that was given, or `each` one [B, T-1, C, C].
        """
        labels = self._labels
        with without_autograd():
            ahead = self._vectors[:, :, 0]
            ahead = ahead / ahead.sum(-1, keepdim=True)
            # [T, B, C]: the backward vectors; what is multiplied with the table to make those of the cell before.
            self._before[0] = 1
            behind = self._before.view(self._vectors.shape)[:, :, 1].flip(0)
            cells = behind.mul_(ahead)
            total, weight = cells.sum(-1, keepdim=True), weight.to(cells.dtype).unsqueeze(-1)
            share = weight / total
            if pairs:
                left = ahead[:-1, :, :labels] * share[:-1]
                right = self._vectors[:-1, :, 1, :labels].flip(0)
                outer = (
                    left.unsqueeze(-1) * right.unsqueeze(-2) if each else left.flatten(0, 1).t() @ right.flatten(0, 1)
                )
        # What is made out here is what autograd takes.
        by_cell = (cells * share)[..., :labels].transpose(0, 1)
        if not pairs:
            return by_cell, None
        by_pair = outer * self._table
        return by_cell, by_pair.transpose(0, 1) if each else by_pair.view(1, 1, labels, labels)

"""The log-partition of small first-order chains: forward and backward vectors side by side, as one row of each chain.

Where a step of a chain is little work, its time goes into calling operations.  So the forward vectors from the first
cell on and the backward vectors from the last cell back are one row [2 C], which one product with a table of two blocks
takes a step further.  Without moments the two meet in the middle, after half as many steps.

Chains that end earlier get one more label, which nothing but the cells behind their end takes: what they weigh stays.

This serves scores that lie close to each other only, none of them -inf.  Then the range of all vectors is known
beforehand, nothing has to be measured on the way, and scalings are as rare as that range allows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from energyml.backends.exact.recording import untaped

# Up to how much work a step is small: labels, and entries of the vectors of all chains.
LABELS, ENTRIES = 48, 2048
# How many steps must be allowed to go between two scalings.
LEAST = 2
# Up to how many entries float64, which needs scaling a tenth as often, costs no more than float32.
WIDENED = 256


def paired(scores: Tensor, steps: Tensor, exists: Tensor | None, keep: bool) -> Paired | None:
    """Forward-backward over chains of at least two cells, on the CPU; `None` where it does not serve.

    Args:
        scores: [B, T, C] in float32 or float64.
        steps: [B or 1, T-1 or 1, C, C] of the same type.
        exists: [B, T] which cells exist; `None` when all do.
        keep: whether the moments will be asked for.
    """
    batch, _, labels = scores.shape
    if steps.shape[:2] != (1, 1) or labels > LABELS or batch * labels > ENTRIES:
        return None
    with untaped():
        found = _paired(scores, steps[0, 0], exists, keep)
    if found is not None:
        found.log_z = found.log_z.clone()
    return found


def _paired(scores: Tensor, steps: Tensor, exists: Tensor | None, keep: bool) -> Paired | None:
    batch, size, labels = scores.shape
    low, high = (one.item() for one in torch.aminmax(scores))
    lowest, highest = (one.item() for one in torch.aminmax(steps))
    # With scores and steps centred, a step multiplies what a vector weighs by e^growth at most, and by e^-growth at
    # least.  Its entries span twice that beside, and some more between the labels.
    growth = (high - low + highest - lowest) / 2
    used = 2 * growth + 2 * math.log(labels + 1) + 3
    room = -math.log(torch.finfo(scores.dtype).tiny) - used
    if not LEAST * growth <= room:  # also where one is no number
        return None
    if batch * labels <= WIDENED and size * growth > room:
        scores, steps = scores.double(), steps.double()
        room = -math.log(torch.finfo(torch.float64).tiny) - used
    every = min(size, int(room / growth)) if growth > 0 else size
    return Paired(scores, steps, exists, keep, ((high + low) / 2, (highest + lowest) / 2), every)


class Paired:
    """Forward-backward over chains of which `paired` has found that they are fit for it.

    O(B T C²) time, O(B T C) memory.

    Attributes:
        log_z: [B] the log-partitions, in float64.
    """

    def __init__(
        self, scores: Tensor, steps: Tensor, exists: Tensor | None, keep: bool, centre: tuple[float, float], every: int
    ) -> None:
        batch, size, labels = scores.shape
        half, odd = divmod(size, 2)
        self._labels, self._width, self._every = labels, labels + (exists is not None), every
        taken = centre[1] + math.log(labels)
        self._table = (steps - taken).exp_()
        # [T or the half, B, 2, C]: the emissions of cells from both ends, of which the loop makes the vectors.
        self._vectors = self._emissions((scores - centre[0]).exp_(), exists, size if keep else half + odd)
        self._rows = self._vectors.flatten(2)
        self._before = torch.empty_like(self._rows if keep else self._rows[:1])
        blocks, scales = self._blocks(exists is not None), []
        rows, before = self._rows.unbind(0), self._before.unbind(0)
        before = before if keep else before * size
        for step in range(1, size if keep else half):
            torch.mm(rows[step - 1], blocks, out=before[step])
            rows[step].mul_(before[step])
            if step % every == 0 or (step == half - 1 and not keep):
                pair = self._vectors[step]
                scales.append(pair.sum(-1, keepdim=True))
                pair.div_(scales[-1])
        if keep:
            weight = self._vectors[-1, :, :1].sum(-1, keepdim=True)
            scales = [one[:, :1] for one in scales]
        else:
            onward = torch.mm(rows[half - 1], blocks).view(batch, 2, self._width)
            behind = onward[:, 1:] * self._vectors[half, :, 1:] if odd else self._vectors[half - 1, :, 1:]
            weight = (onward[:, :1] * behind).sum(-1, keepdim=True)
        total = torch.cat([weight, *scales], 1).double().log_().sum((1, 2))
        if exists is None:
            self.log_z = total + (size * centre[0] + (size - 1) * taken)
        else:
            count = exists.sum(1, dtype=torch.float64)
            self.log_z = total + count * centre[0] + (count - 1).clamp_(min=0) * taken

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

    def _emissions(self, cells: Tensor, exists: Tensor | None, length: int) -> Tensor:
        batch, size, labels = cells.shape
        front = cells.transpose(0, 1)
        if exists is not None:
            here = exists.t().to(cells.dtype)
            front = cells.new_empty(size, batch, self._width)
            torch.mul(cells.transpose(0, 1), here.unsqueeze(-1), out=front[..., :labels])
            torch.sub(1, here, out=front[..., labels])
        found = cells.new_empty(length, batch, 2, self._width)
        found[:, :, 0] = front[:length]
        found[:, :, 1] = front[size - length :].flip(0)
        return found

    def beginnings(self) -> Tensor:
        """[B, T, C]: the logarithms of the forward vectors, each up to a constant; -inf behind the end."""
        return self._vectors[:, :, 0, : self._labels].transpose(0, 1).log()

    def moments(self, weight: Tensor, pairs: bool = True, each: bool = False) -> tuple[Tensor, Tensor | None]:
        """The gradients of the weighted sum of log-partitions, of cells [B, T, C] and of steps.

        Steps are the one that was given, or `each` one [B, T-1, C, C].
        """
        labels = self._labels
        with untaped():
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

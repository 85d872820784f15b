"""The best answer of long chains whose steps share a table: blocks that are worked on side by side, on the CPU.

The best ways that lead to the labels of a cell have mostly merged a few cells before it.  So each block starts a few
cells early, from all labels alike: where the ways have merged, its maxima then differ from the true ones by a number.
On the way back each block starts a few cells behind its end, and arrives at the true label there if ways have merged.
Both are compared at every border between blocks, and where they do not agree another recursion is asked instead.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from energyml.backends.exact.scan import Blocks
from energyml.backends.exact.unscaled import cleared

# How many cells a block starts early.
EARLY = 40
# Calling the operations of a step forward and back, in additions with a maximum of one thread that take as long.
STEP = 90_000
# What blocks must save, beside both ends, to be tried.
WORTH = 0.4


@lru_cache
def cut_for_merging(batch: int, steps: int, labels: int) -> Blocks:
    """One block, or as many as make a chain of so many steps faster."""
    work = batch * labels**2
    number = max(1, round(math.sqrt(steps * STEP / (EARLY * work))))
    length = -(-steps // number)
    number = -(-steps // length)
    faster = (length + EARLY) * (STEP + number * work) < WORTH * steps * (STEP + work)
    return Blocks(number, length) if faster and length > 1 else Blocks(1, steps)


def best_in_blocks(
    scores: Tensor, steps: Tensor, exists: Tensor | None, blocks: Blocks
) -> tuple[Tensor, Tensor] | None:
    """Labels [B, T] and score [B] of the best answer, for scores [B, T, C] and steps [1, 1, C, C]; `None` if in doubt.

    Labels are arbitrary where there is no cell.  O(B T C²) time and O(B T C) memory.
    """
    batch, size, labels = scores.shape
    cells, table = cleared(scores, exists), steps[0, 0]
    if not math.isfinite(float(cells.sum()) + float(table.sum())):
        return None
    last = cells.new_full((batch,), size - 1, dtype=torch.long)
    if exists is not None:
        last = (exists.sum(1) - 1).clamp_(min=0)
    states = _states(cells, table, last, blocks)
    found = None if states is None else _labels(states, table, last, blocks)
    if found is None:
        return None
    found = found[:, :size]
    pairs = table.flatten()[found[:, :-1] * labels + found[:, 1:]]
    pairs = pairs if exists is None else pairs * exists[:, 1:]
    alone = cells.gather(2, found.unsqueeze(-1))
    score = alone.sum((1, 2), dtype=torch.float64) + pairs.sum(1, dtype=torch.float64)
    return found, score.to(scores.dtype)


def _states(cells: Tensor, table: Tensor, last: Tensor, blocks: Blocks) -> Tensor | None:
    """[K L + 1, B, C]: the maxima at each cell, those of a block up to a number; `None` where ways have not merged."""
    batch, size, labels = cells.shape
    number, length = blocks.number, blocks.length
    onward = cells.new_zeros(batch, EARLY + number * length, labels)
    onward[:, EARLY : EARLY + size - 1] = cells[:, 1:]
    windows = onward.unfold(1, EARLY + length, length)  # [B, K, C, EARLY + L]
    across = number * batch >= labels
    if across:  # the innermost axis is the longest
        rows = windows.permute(3, 2, 1, 0).contiguous().flatten(2)
        ahead, spare = torch.zeros_like(rows[0]), cells.new_empty(labels, labels, number * batch)
        table = table.unsqueeze(-1)
    else:
        rows = windows.permute(3, 1, 0, 2).contiguous().flatten(1, 2)
        ahead, spare = torch.zeros_like(rows[0]), cells.new_empty(labels, number * batch, labels)
        table = table.unsqueeze(1)
    found = []
    for step, cell in enumerate(rows.unbind(0)):
        if step == EARLY:
            first = ahead[:, :batch] if across else ahead[:batch]
            first.copy_(cells[:, 0].t() if across else cells[:, 0])
        if step >= EARLY:
            found.append(ahead)
        start = ahead.unsqueeze(1) if across else ahead.t().unsqueeze(-1)
        ahead = torch.add(start, table, out=spare).amax(0).add_(cell)
    found.append(ahead)
    states = torch.stack(found)
    states = (states.mT if across else states).unflatten(1, (number, batch))  # [L + 1, K, B, C]
    # The end of each block beside the start of the next.
    reached = states[-1, :-1]
    apart = reached - states[0, 1:]
    error = 16 * torch.finfo(cells.dtype).eps * float(reached.abs().amax())
    unlike = (apart.amax(-1) - apart.amin(-1)) > error
    borders = torch.arange(1, number, device=cells.device).unsqueeze(1) * length
    if bool((unlike & (borders < last)).any()):
        return None
    return torch.cat([states[:-1].transpose(0, 1).flatten(0, 1), states[-1, -1:]])


def _labels(states: Tensor, table: Tensor, last: Tensor, blocks: Blocks) -> Tensor | None:
    """[B, K L + 1]: the labels that lead to the best at the end; `None` where ways have not merged."""
    batch, labels = states.shape[1:]
    number, length = blocks.number, blocks.length
    # [K, B]: the cell where each block starts on the way back.
    ends = (torch.arange(1, number + 1, device=last.device) * length + EARLY).unsqueeze(1)
    start = torch.minimum(ends, last)
    each = torch.arange(batch, device=last.device)
    label = states[start, each].argmax(-1)
    before = torch.cat([states[:-1], states.new_zeros(EARLY, batch, labels)])
    before = before.unfold(0, length + EARLY, length).permute(3, 0, 1, 2).contiguous()  # [L + EARLY, K, B, C]
    # Behind its start a way stays where it is: that label beats all others.
    steps = ends - EARLY - length + torch.arange(length + EARLY, device=last.device).view(-1, 1, 1)
    stay = (steps >= start).unsqueeze(-1) & (torch.arange(labels, device=last.device) == label.unsqueeze(-1))
    before = before.masked_fill_(stay, float("inf")).flatten(1, 2)
    label = label.flatten()
    turned, path = table.t().contiguous(), [label]
    for ahead in before.flip(0).unbind(0):
        label = turned.index_select(0, label).add_(ahead).argmax(-1)
        path.append(label)
    found = torch.stack(path[EARLY:][::-1]).view(length + 1, number, batch)
    borders = torch.arange(1, number, device=last.device).unsqueeze(1) * length
    if bool(((found[-1, :-1] != found[0, 1:]) & (borders <= last)).any()):
        return None
    return torch.cat([found[:-1].transpose(0, 1).flatten(0, 1), found[-1, -1:]]).t()

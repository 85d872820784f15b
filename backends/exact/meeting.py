"""The best answer of each chain whose steps share a table: from both ends at once, with torch operations.

Maxima run from the first cell on and from the last cell back, side by side, until they meet in the middle.  From there
the way back runs to both ends, side by side again.  That is half as many operations in a row as from one end, each with
twice the work.  Chains that end earlier get one more label, which nothing but the cells behind their end takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# How many steps to the middle are worth being cut for the way back, and how many steps early its blocks start.
LONG, EARLY = 64, 20
# Up to how many sums for one step the tables are repeated for each chain, which is faster to read.
REPEATED = 100_000


def best_from_both_ends(scores: Tensor, steps: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """Labels [B, T] and score [B] of the best answer, for scores [B, T, C] of T > 1 cells and steps [B or 1, 1, C, C].

    The score is -inf where every answer is forbidden, 0 for a chain without cells; labels are arbitrary there, and
    where there is no cell.  O(B T C²) time, O(B (T + C) C) memory.
    """
    table = steps[:, 0]
    if exists is not None:
        # Behind the end nothing but the end can follow.
        table = torch.nn.functional.pad(table, (0, 1, 0, 1))
        table[:, -1, :-1] = float("-inf")
    size = scores.shape[1]
    middle, half = (size - 1) // 2, size // 2
    # [2, B or 1, C, C]: tables (before, behind) in the direction of each end.
    tables = torch.stack([table, table.mT])
    cells = _cells(scores, exists, half)
    states = _maxima(cells, tables)
    score, label = (states[middle, : len(scores)] + states[half, len(scores) :]).max(-1)
    found = _ways(states, tables, label, middle, half)
    return found if exists is None else found.clamp(max=scores.shape[2] - 1), score


def _wide(scores: Tensor) -> bool:
    """Whether the innermost axis runs over chains, and not over labels: the longer of the two."""
    return 2 * scores.shape[0] >= scores.shape[2]


def _cells(scores: Tensor, exists: Tensor | None, half: int) -> Tensor:
    """[T/2+1, 2, B, C]: the scores of cells from each end to the middle, which counts from the front only.

    Where cells are missing there is one more label, the end, which these take and no others.
    """
    batch, size, labels = scores.shape
    more = labels + (exists is not None)
    if _wide(scores):
        cells = scores.new_empty(half + 1, more, 2, batch).permute(0, 2, 3, 1)
    else:
        cells = scores.new_empty(half + 1, 2, batch, more)
    front = torch.arange(half + 1, device=scores.device)
    order = torch.cat([front, size - 1 - front])
    known = scores.index_select(1, order).view(batch, 2, half + 1, labels).permute(2, 1, 0, 3)
    if exists is None:
        cells.copy_(known)
    else:
        here = exists.index_select(1, order).view(batch, 2, half + 1).permute(2, 1, 0)
        cells[..., labels] = torch.where(here, float("-inf"), 0)
        if may_read_back(scores) and not math.isnan(float(scores.sum())):  # the fastest, which keeps what is no number
            most = torch.where(here, float("inf"), float("-inf")).unsqueeze(-1)
            torch.minimum(known, most, out=cells[..., :labels])
        else:
            cells[..., :labels] = torch.where(here.unsqueeze(-1), known, float("-inf"))
    cells[half, 1] = 0
    return cells


def _maxima(cells: Tensor, tables: Tensor) -> Tensor:
    """[T/2+1, 2 B, C]: the scores of the best ways from each end to the labels of each cell; made of the cells.

    O(B T C²), as the sums of all labels with all are taken at every step.
    """
    _, _, batch, labels = cells.shape
    if torch._C._are_functorch_transforms_active():
        cells = cells + tables.new_zeros(())  # mapped where the tables are, as all that is written there will be
    if cells.is_contiguous():
        table = tables.permute(2, 0, 1, 3)
        if 2 * batch * labels**2 <= REPEATED:
            table = table.expand(labels, 2, batch, labels)
        onward, before = cells, cells.permute(0, 3, 1, 2).unsqueeze(-1)
        table = table.contiguous()
    else:
        table = tables.permute(2, 3, 0, 1).expand(labels, labels, 2, batch).reshape(labels, labels, 2 * batch)
        onward = cells.permute(0, 3, 1, 2).flatten(2)
        before = onward.unsqueeze(2)
    spare = buffer(labels, *onward.shape[1:], like=cells)
    for ahead, cell in zip(before.unbind(0), onward.unbind(0)[1:], strict=False):
        cell.add_(torch.add(ahead, table, out=spare).amax(0))
    return cells.flatten(1, 2) if cells.is_contiguous() else onward.mT.contiguous()


def _ways(states: Tensor, tables: Tensor, label: Tensor, middle: int, half: int) -> Tensor:
    """[B, T]: the labels that lead from those in the middle [B] to both ends."""
    batch, labels = len(label), tables.shape[-1]
    # Rows are what may lead to a label; those of each chain and direction begin at its offset.
    rows = tables.mT.reshape(-1, labels)
    offset = torch.arange(0, len(rows), labels, device=label.device).view(2, -1).expand(2, batch).flatten()
    label = torch.cat([label, label]).add_(offset)
    if half > middle:  # one more step behind the middle than before it
        onward = rows.index_select(0, label[batch:]).add_(states[middle, batch:]).argmax(-1)
        label = torch.cat([label[:batch], onward.add_(offset[batch:])])
    before = states[:middle].flip(0)
    path = _merged(before, rows, label, offset) if middle >= LONG and may_read_back(states) else None
    if path is None:
        path = torch.stack(_follow(before, rows, label, offset))
    found = path - offset
    return torch.cat([found[:, :batch].flip(0), found[1 - (half - middle) :, batch:]]).t()


def _follow(before: Tensor, rows: Tensor, label: Tensor, offset: Tensor) -> list[Tensor]:
    """The label, and those that lead to it at each step back."""
    path = [label]
    for ahead in before.unbind(0):
        label = rows.index_select(0, label).add_(ahead).argmax(-1).add_(offset)
        path.append(label)
    return path


def _merged(before: Tensor, rows: Tensor, label: Tensor, offset: Tensor) -> Tensor | None:
    """[N+1, 2 B]: the same as a tensor, with the way back cut into blocks that are followed side by side.

    Each block starts a few steps early, from a guess: by its own beginning the way has mostly merged with the best one.
    `None` where it has not.
    """
    steps, lanes, labels = before.shape
    number = round(math.sqrt(steps / EARLY))
    length = -(-steps // number)
    more = before.new_zeros(EARLY + number * length, lanes, labels)
    more[EARLY : EARLY + steps] = before
    windows = more.unfold(0, EARLY + length, length).permute(3, 0, 1, 2).flatten(1, 2)
    guess = more[length - 1 :: length][: number - 1].argmax(-1)
    offsets = offset.repeat(number)
    guess = torch.cat([label, guess.flatten() + offsets[lanes:]])
    begun = _follow(windows[:EARLY], rows, guess, offsets)[-1]
    begun[:lanes] = label
    path = torch.stack(_follow(windows[EARLY:], rows, begun, offsets)).view(length + 1, number, lanes)
    if not torch.equal(path[-1, :-1], path[0, 1:]):
        return None
    return torch.cat([label.unsqueeze(0), path[1:].transpose(0, 1).flatten(0, 1)[:steps]])


def may_read_back(tensor: Tensor) -> bool:
    """Whether the course of things may depend on values: on the CPU, where nothing is recorded."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()


def buffer(*shape: int, like: Tensor) -> Tensor | None:
    """A buffer that all steps use, where none is recorded."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    return like.new_empty(shape)

"""The best answer of each chain whose steps share a table: from both ends at once, with torch operations.

Maxima run from the first cell on and from the last cell back, side by side, until they meet in the middle.  From there
the way back runs to both ends, side by side again.  That is half as many operations in a row as from one end, each with
twice the work.

Every chain is entered at its own two ends and met at its own middle.  So chains that end earlier need no mask: what is
computed beyond their middle depends on nothing but itself, and is not read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from energyml.backends.exact.recording import buffer, may_read_back

# How many steps early the blocks of the way back start, and what cutting it must save to be done.
EARLY, WORTH = 20, 0.8
# Seconds, measured on one thread: a step of the way back beside its arithmetic, a chain in it, and a label of that.
ASK, LANE, LABEL = 7e-6, 6e-8, 1.5e-9
# Up to how many sums for one step the tables are repeated for each chain, which is faster to read.
REPEATED = 100_000


def best_from_both_ends(scores: Tensor, steps: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Labels [B, T] and score [B] of the best answer, for scores [B, T, C] of T > 1 cells and steps [B or 1, 1, C, C].

    `count` [B] is how many cells each chain has; `None` when all have T.  The score is -inf where every answer is
    forbidden, 0 for a chain without cells; labels are arbitrary there, and where there is no cell.
    O(B T C²) time, O(B (T + C) C) memory.
    """
    batch, size, labels = scores.shape
    device, lanes, half = scores.device, 2 * batch, size // 2
    length = torch.full((batch,), size, device=device) if count is None else count.clamp(1, size)
    # Rows are cells of chains, those from the front [B] and those from the back [B] side by side in each step to the
    # middle, which counts from the front only.
    lane, step = torch.arange(lanes, device=device), torch.arange(half + 1, device=device).unsqueeze(1)
    first = lane[:batch] * size
    behind = (first + length).sub_(1) - step
    place = torch.cat([first + step, behind.clamp_(min=0)], 1).flatten()
    turn = torch.cat([length - 1, length]) >> 1
    middle = torch.add(lane, turn, alpha=lanes)
    cells = scores.reshape(-1, labels).index_select(0, place).index_fill(0, middle[batch:], 0)
    # [2, B or 1, C, C]: tables (before, behind) in the direction of each end.
    table = steps[:, 0]
    tables = torch.stack([table, table.mT])
    states = _maxima(cells.view(-1, 2, batch, labels), tables)
    score, label = states.index_select(0, middle).view(2, batch, labels).sum(0).max(-1)
    back = torch.sub(middle, step[1:], alpha=lanes).clamp_(min=0)
    before = states.index_select(0, back.view(-1)).view(half, lanes, labels)
    path = _ask(before, tables, label, turn)
    # Where the label of each cell stands among those that were passed: as many steps from the middle as it is away.
    away = torch.arange(size, device=device) - turn[:batch].unsqueeze(1)
    passed = torch.add(lane[:batch].unsqueeze(1), away.abs(), alpha=lanes).add_(away > 0, alpha=batch)
    found = path.index_select(0, passed.clamp_(max=len(path) - 1).flatten()) % labels
    return found.view(batch, size), score if count is None else score.masked_fill(count < 1, 0)


def _maxima(cells: Tensor, tables: Tensor) -> Tensor:
    """[(N+1) 2 B, C]: the scores of the best ways from each end to the labels of each cell; may use up the cells.

    O(B T C²), as the sums of all labels with all are taken at every step.  Cells are [N+1, 2, B, C].
    """
    _, _, batch, labels = cells.shape
    if torch._C._are_functorch_transforms_active():
        cells = cells + tables.new_zeros(())  # mapped where the tables are, as all that is written there will be
    wide = _wide(cells)
    if wide:
        table = tables.permute(2, 3, 0, 1).expand(labels, labels, 2, batch).reshape(labels, labels, 2 * batch)
        onward = cells.flatten(1, 2).mT.contiguous()
        before = onward.unsqueeze(2)
    else:
        table = tables.permute(2, 0, 1, 3)
        if 2 * batch * labels**2 <= REPEATED:
            table = table.expand(labels, 2, batch, labels)
        table = table.contiguous()
        onward, before = cells, cells.permute(0, 3, 1, 2).unsqueeze(-1)
    spare = buffer(labels, *onward.shape[1:], like=cells)
    for ahead, cell in zip(before.unbind(0), onward.unbind(0)[1:], strict=False):
        cell.add_(torch.add(ahead, table, out=spare).amax(0))
    return (onward.mT if wide else onward).reshape(-1, labels)


def _wide(cells: Tensor) -> bool:
    """Whether the innermost axis is to run over chains, and not over labels: the longer of the two."""
    return 2 * cells.shape[2] >= cells.shape[3]


def _ask(before: Tensor, tables: Tensor, label: Tensor, turn: Tensor) -> Tensor:
    """[(N+1) 2 B]: the labels from those in the middle [B] to both ends, by asking at each step where one comes from.

    Labels are counted on from table to table.

    Args:
        before: [N, 2 B, C] the maxima before each step on the way back.
        tables: [2, B or 1, C, C] those of each end.
        label: [B] in the middle.
        turn: [2 B] how many of the steps there are; what comes behind is arbitrary.
    """
    lanes, labels = before.shape[1:]
    # Rows are what may lead to a label; those of each chain and direction begin at its offset.
    rows = tables.mT.reshape(-1, labels)
    offset = torch.arange(0, len(rows), labels, device=label.device).view(2, -1).expand(2, lanes // 2).flatten()
    label = label.repeat(2).add_(offset)
    path = _merged(before, rows, label, offset, turn) if may_read_back(before) else None
    return torch.cat(_asked(before, rows, label, offset)) if path is None else path


def _asked(before: Tensor, rows: Tensor, label: Tensor, offset: Tensor) -> list[Tensor]:
    """The label, and those that lead to it at each step back."""
    path = [label]
    for ahead in before.unbind(0):
        label = rows.index_select(0, label).add_(ahead).argmax(-1).add_(offset)
        path.append(label)
    return path


def _merged(before: Tensor, rows: Tensor, label: Tensor, offset: Tensor, turn: Tensor) -> Tensor | None:
    """[(N+1) 2 B]: the same, with the way back cut into blocks that are followed side by side.

    Each block starts a few steps early, from a guess: by its own beginning the way has mostly merged with the best one.
    `None` where it has not, or where this is no faster.
    """
    steps, lanes, labels = before.shape
    work = lanes * (LANE + labels * LABEL)
    number = max(1, round(math.sqrt(steps * ASK / (EARLY * work))))
    length = max(EARLY, -(-steps // number))
    number = -(-steps // length)
    if (length + EARLY) * (ASK + number * work) > WORTH * steps * (ASK + work):
        return None
    more = before.new_zeros(EARLY + number * length, lanes, labels)
    more[EARLY : EARLY + steps] = before
    windows = more.unfold(0, EARLY + length, length).permute(3, 0, 1, 2).flatten(1, 2)
    guess = more[length - 1 :: length][: number - 1].argmax(-1)
    offsets = offset.repeat(number)
    guess = torch.cat([label, guess.flatten() + offsets[lanes:]])
    begun = _asked(windows[:EARLY], rows, guess, offsets)[-1]
    begun[:lanes] = label
    path = torch.stack(_asked(windows[EARLY:], rows, begun, offsets)).view(length + 1, number, lanes)
    borders = torch.arange(length, number * length, length, device=label.device).unsqueeze(1)
    if bool(((path[-1, :-1] != path[0, 1:]) & (borders <= turn)).any()):
        return None
    return torch.cat([label, path[1:].transpose(0, 1).flatten()[: steps * lanes]])

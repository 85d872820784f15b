"""The best answer of each chain: Viterbi with torch operations, on any device.

Both ends of short chains of few labels, and of others where all steps share a table, are worked on at once, and so are
blocks of long ones.  This is what serves elsewhere: going forward only the maxima are kept.  Which label they came from
is asked again on the way back: with many labels by one column of a table for each step, with few for all labels and
many steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from energyml.backends.exact.meeting import best_from_both_ends, holds
from energyml.backends.exact.merging import best_in_blocks, cut_for_merging
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.scan import Blocks, cut_maxima
from energyml.backends.exact.threads import for_small_steps, worth_spreading
from energyml.backends.exact.unscaled import cleared
from energyml.execution import is_functional, is_recording

# Up to how many sums for one step the way back takes many steps at once, and how many sums it then holds.
FEW = 1 << 11
HELD = 1 << 18
# Up to how many labels both ends are worked on at once: their two tables must stay in the cache.
BOTH = 256


def viterbi(potentials: Potentials) -> tuple[Tensor, Tensor]:
    """Labels [B, T] and score [B] of the best answer.

    The score is -inf where every answer is forbidden; labels are arbitrary there, and where there is no cell.
    O(B T C²) time and O(B T C) memory.
    """
    scores = potentials.scores
    batch, size, labels = scores.shape
    if size == 0:
        return torch.zeros(batch, 0, dtype=torch.long, device=scores.device), scores.sum((1, 2))
    if size == 1 or batch == 0:
        best = cleared(scores, potentials.exists).max(-1)
        return best.indices, best.values[:, 0]
    if potentials.steps.shape[1] == 1 and worth_spreading(scores, 2 * batch * labels**2):
        return best_from_both_ends(scores, potentials.steps, potentials.count, spread=True)
    with for_small_steps(scores):
        return _best(potentials)


def _best(potentials: Potentials) -> tuple[Tensor, Tensor]:
    """The same, of two cells or more."""
    scores, steps = potentials.scores, potentials.steps
    batch, _, labels = scores.shape
    found = _short_cut(potentials)
    if found is not None:
        return found
    exists = potentials.exists
    cells = cleared(scores, exists)
    before, last = _maxima(cells, steps, exists)
    score, label = last.max(-1, keepdim=True)
    way_back = _follow if batch * labels * labels <= FEW else _ask
    return way_back(before, steps, exists, label), score.squeeze(1)


def _short_cut(potentials: Potentials) -> tuple[Tensor, Tensor] | None:
    """The best answer of T > 1 cells where there is a faster recursion; `None` elsewhere."""
    scores, steps = potentials.scores, potentials.steps
    batch, size, labels = scores.shape
    if steps.shape[:2] == (1, 1) and scores.is_cpu and not is_functional():
        blocks = cut_for_merging(batch, size - 1, labels)
        found = best_in_blocks(scores, steps, potentials.exists, blocks) if blocks.number > 1 else None
        if found is not None:
            return found
    if _cut(scores).number > 1:
        return None
    if holds(scores) or (steps.shape[1] == 1 and labels <= BOTH):
        return best_from_both_ends(scores, steps, potentials.count)
    return None


def _cut(scores: Tensor) -> Blocks:
    batch, size, labels = scores.shape
    return Blocks(1, size - 1) if is_recording() else cut_maxima(batch, size - 1, labels)


# ------------------------------------------------------------------------------------------------------------- forward


def _buffer(*shape: int, like: Tensor) -> Tensor | None:
    """A buffer that all steps overwrite; `None` where they may not."""
    return None if is_functional() else like.new_empty(shape)


def _maxima(cells: Tensor, steps: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scores of the best beginnings that end in each label: before each step [T-1, B, C], and at the end [B, C]."""
    batch, size, labels = cells.shape
    blocks = _cut(cells)
    number, length = blocks.number, blocks.length
    # [C, K, B] for each step, and tables [C, C, K or 1, B or 1] (earlier, later): the innermost axes are the longest.
    onward = blocks.rows(cells[:, 1:], apart=True).permute(0, 3, 1, 2).contiguous().unbind(0)
    if steps.shape[1] > 1:
        tables: Sequence[Tensor] = blocks.rows(steps, apart=True).permute(0, 3, 4, 1, 2).unbind(0)
    else:
        tables = [steps.permute(2, 3, 1, 0)] * length
    first = cells[:, 0].t().unsqueeze(1)
    if number > 1:
        first = _borders(first, onward, tables)
    sweep = _sweep_narrow if number * batch < labels else _sweep
    states = torch.stack(sweep(first, onward, tables))
    before = states[:-1].permute(2, 0, 3, 1).contiguous().flatten(0, 1)[: size - 1]
    if exists is None:
        block, row = divmod(size - 2, length)
        return before, states[row + 1, :, block].t()
    # What comes behind the end of a chain is left out here; on the way back it is skipped.
    last = (exists.sum(1) - 1).clamp(min=0)
    blocked = (last - 1).clamp(min=0) // length
    return before, states[last - blocked * length, :, blocked, torch.arange(batch, device=cells.device)]


def _borders(first: Tensor, cells: Sequence[Tensor], tables: Sequence[Tensor]) -> Tensor:
    """[C, K, B]: the maxima before each block, from those between all labels before and behind it."""
    labels, number, batch = cells[0].shape
    same = torch.eye(labels, dtype=torch.bool, device=first.device)
    start = torch.where(same, 0, float("-inf")).to(first.dtype).view(labels, 1, 1, labels)
    start = start.expand(labels, number, batch, labels).contiguous()
    through = _sweep(start, [one.unsqueeze(-1) for one in cells], [one.unsqueeze(-1) for one in tables])[-1]
    found = [first[:, 0]]
    for one in through.unbind(1)[:-1]:
        found.append((found[-1].t() + one).amax(-1))
    return torch.stack(found, 1)


def _sweep(ahead: Tensor, cells: Sequence[Tensor], tables: Sequence[Tensor]) -> list[Tensor]:
    """The maxima [C, ...] at the start and after each step."""
    found, spare = [ahead], _buffer(ahead.shape[0], *ahead.shape, like=ahead)
    for step, cell in enumerate(cells):
        ahead = torch.add(ahead.unsqueeze(1), tables[step], out=spare).amax(0).add_(cell)
        found.append(ahead)
    return found


def _sweep_narrow(ahead: Tensor, cells: Sequence[Tensor], tables: Sequence[Tensor]) -> list[Tensor]:
    """The same, with the later label innermost: for fewer chains than labels."""
    labels, *rows = ahead.shape
    found, spare = [ahead], _buffer(labels, *rows, labels, like=ahead)
    table = tables[0].movedim(1, -1).contiguous()
    for step, cell in enumerate(cells):
        if tables[step] is not tables[0]:
            table = tables[step].movedim(1, -1)
        ahead = torch.add(ahead.unsqueeze(-1), table, out=spare).amax(0).movedim(-1, 0) + cell
        found.append(ahead)
    return found


# ------------------------------------------------------------------------------------------------------------ way back


def _follow(before: Tensor, steps: Tensor, exists: Tensor | None, last: Tensor) -> Tensor:
    """[B, T]: the labels that lead to the last ones [B, 1], by asking for the origin of every label.

    Origins are joined in pairs, log T times: each then names the label that its own label at the end comes from.
    """
    length, batch, labels = before.shape
    ahead = before.permute(2, 0, 1).contiguous().unsqueeze(1)
    down = torch.arange(labels - 1, -1, -1, dtype=torch.int32, device=before.device).view(-1, 1, 1, 1)
    chunk = max(1, HELD // (batch * labels * labels))
    origins = []
    for start in range(0, length, chunk):
        table = steps[:, start : start + chunk] if steps.shape[1] > 1 else steps
        some = ahead[:, :, start : start + chunk]
        sums = torch.add(some, table.permute(2, 3, 1, 0), out=_buffer(labels, labels, *some.shape[2:], like=before))
        # The first of the largest; `argmax` is not vectorised.
        origins.append(labels - 1 - torch.where(sums == sums.amax(0), down, 0).amax(0))
    origin = torch.cat(origins, 1).long()
    if exists is not None:
        same = torch.arange(labels, device=before.device).view(-1, 1, 1)
        origin = torch.where(exists.t()[1:], origin, same)
    joined = 1
    while joined < length:
        origin = torch.cat([origin[:, :-joined].gather(0, origin[:, joined:]), origin[:, -joined:]], 1)
        joined *= 2
    path = origin.gather(0, last.t().unsqueeze(1).expand(1, length, batch)).squeeze(0)
    return torch.cat([path.t(), last], 1)


def _ask(before: Tensor, steps: Tensor, exists: Tensor | None, last: Tensor) -> Tensor:
    """The same, by asking for the origin of one label at each step."""
    length, batch, _ = before.shape
    label = last[:, 0]
    path = [label]
    # Tables (later, earlier): the scores of what may lead to a label are a row.
    shared = steps.shape[0] == 1
    turned = (steps[0] if shared else steps.transpose(0, 1)).mT
    tables = turned.unbind(0) if steps.shape[1] > 1 else [turned[0].contiguous()] * length
    if exists is not None:
        # Behind the end of a chain its last label leads to itself: it beats all others there, forbidden or not.
        same = torch.arange(before.shape[2], device=before.device) == last
        before = before.masked_fill(same & ~exists.t()[1:].unsqueeze(-1), float("inf"))
    ahead = before.unbind(0)
    each = torch.arange(batch, device=before.device)
    for step in range(length - 1, -1, -1):
        row = tables[step].index_select(0, label) if shared else tables[step][each, label]
        label = row.add_(ahead[step]).argmax(-1)
        path.append(label)
    return torch.stack(path[::-1], 1)

"""The best answer of each chain: from both ends at once, with torch operations.

Maxima run from the first cell on and from the last cell back, side by side, until they meet in the middle.  From there
the way back runs to both ends, side by side again.  That is half as many operations in a row as from one end, each with
twice the work.

The middle is one cell, as far from the first as from the last.  So chains that end earlier, and even numbers of cells,
are filled up with cells that score nothing.

With many labels each step of the way back asks where one label comes from.  Cells that were filled up take one more
label, which nothing else takes.  With few, where a step is little work and its time goes into calling operations, the
sums of all steps are held: what cells and tables add up to is known beforehand, where all maxima come from is found for
all steps at once, and the way back is a walk along pointers.  Cells that were filled up behind the last one take the
first label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from energyml.backends.exact.scan import Blocks
from energyml.execution import is_functional, may_cache, under_transform

# Up to how many sums for one step, and for all of them, they are held.  A sum that is held costs a little more than
# one that is not, and saves the way back as much as calling an operation for thousands of sums.
FEW, HELD = 1 << 10, 1 << 18
# How many steps early the blocks of the way back start, and what cutting it must save to be done.
EARLY, WORTH = 20, 0.8
# Calling the operations of a step of the way back, and a chain in it, in labels of one that take as long.
ASK, LANE = 5_000, 40
# Up to how many sums for one step the tables are repeated for each chain, which is faster to read.
REPEATED = 100_000
# Rows of sums that threads share are filled up to a multiple of this: torch adds 32 of them at once in its widest
# vectors, and what is left of a row one by one.  So many sums are held at once.
ROW, SHARED = 32, 1 << 22

# A position beyond every length.
NEVER = 1 << 62

# The cells [B, N+1, C] from each end to the middle.
Ends = tuple[Tensor, Tensor]


def holds(scores: Tensor) -> bool:
    """Whether scores [B, T, C] have so few sums that holding them is faster, and buffers may be overwritten."""
    batch, size, labels = scores.shape
    sums = batch * labels**2
    few = sums <= FEW and sums * (size - 1) <= HELD
    return few and scores.dtype in (torch.float32, torch.float64) and not is_functional()


def best_from_both_ends(
    scores: Tensor, steps: Tensor, count: Tensor | None, spread: bool = False
) -> tuple[Tensor, Tensor]:
    """Labels [B, T] and score [B] of the best answer, for scores [B, T, C] and steps [B or 1, T-1 or 1, C, C]; T > 1.

    The steps of a chain share a table, unless the sums are held.  `count` [B] is how many cells each chain has; `None`
    when all have T.  The score is -inf where every answer is forbidden, 0 for a chain without cells; labels are
    arbitrary there, and where there is no cell.  `spread` lays steps out for several threads.  O(B T C²) time,
    O(B (T + C) C) memory.
    """
    if holds(scores):
        return _recalled(scores, steps, count)
    batch, size, labels = scores.shape
    scores, steps = _filled_up(scores, steps, count)
    half = scores.shape[1] // 2
    score, path = _asked((scores[:, : half + 1], scores[:, half:].flip(1)), steps, labels, count, spread)
    front, back = path.view(half + 1, 2, batch).unbind(1)
    found = torch.cat([front[1:].flip(0).t(), back[: size - half].t()], 1)
    return found if scores.shape[2] == labels else found.clamp(max=labels - 1), score


def _filled_up(scores: Tensor, steps: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores [B, T, C] and shared steps of chains of an odd number of cells, all of which exist: as given, or more."""
    size, labels = scores.shape[1:]
    missing = 1 - size % 2
    if count is None and not missing:
        return scores, steps
    known: Tensor | int = size
    if count is not None:
        known = (count.clamp(max=size) if missing else count).unsqueeze(1)
    here = (torch.arange(size + missing, device=scores.device) < known).unsqueeze(-1)
    ended = pad(scores.new_zeros(1), (labels, 0), value=float("-inf"))
    scores = torch.where(here, pad(scores, (0, 1, 0, missing), value=float("-inf")), ended)
    return scores, pad(steps, (0, 1, 0, 1))


def _cells_abreast(ends: Ends) -> Tensor:
    """[N+1, C, 2 B]: the cells of both ends, the innermost axis running over chains.

    The middle counts from the front only.
    """
    cells = torch.cat([one.permute(1, 2, 0) for one in ends], 2)
    cells[-1, :, len(ends[0]) :].zero_()
    return cells


def _cells_in_rows(ends: Ends) -> Tensor:
    """[N+1, 2, B, C]: the cells of both ends, the innermost axis running over labels.

    The middle counts from the front only.
    """
    cells = torch.stack([one.transpose(0, 1) for one in ends], 1)
    cells[-1, 1].zero_()
    return cells


def _tables_abreast(steps: Tensor, batch: int) -> Tensor:
    """[C, C, 2 B]: the table (before, behind) of the steps [B or 1, 1, C, C] from both ends."""
    tables = steps[:, 0].permute(1, 2, 0), steps[:, 0].permute(2, 1, 0)
    return torch.cat([one.expand(-1, -1, batch) for one in tables], 2)


# ---------------------------------------------------------------------------------------------------------- few labels


def _recalled(scores: Tensor, steps: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """The best answer as `best_from_both_ends` has it: the sums are held.

    Of equal answers one of later labels is taken.
    """
    batch, size, labels = scores.shape
    lanes, half = 2 * batch, size // 2
    # What is no plain tensor may be the stand-in of one, of which nothing must be kept.
    known = _shape_of if type(scores) is Tensor and may_cache() else _shape_of.__wrapped__
    shape = known(batch, size, labels, torch.promote_types(scores.dtype, steps.dtype), scores.device)
    # [N+1, 2, B]: where there is no cell, of those that the maxima start with and then of those that each step counts.
    gone = shape.bounds >= (size if count is None else count)
    sums = _sums(scores, steps, shape)
    if count is not None:
        sums = torch.where(gone[1:].view(half, 1, 1, lanes), shape.beyond, sums)
    elif size % 2 == 0:
        sums[0, :, :, batch:].zero_()
    most = sums.new_empty(half + 1, labels, lanes)
    most[0].view(labels, 2, batch).copy_(scores[:, 0].t().unsqueeze(1)).masked_fill_(gone[0], 0)
    for some, ahead, onward in zip(sums.unbind(0), most.unsqueeze(2).unbind(0), most.unbind(0)[1:], strict=False):
        torch.amax(some.add_(ahead), 0, out=onward)
    # Where the maxima come from, as pointers into the row before, [C, 2 B].  Numbers of one type are compared and
    # multiplied in vectors; `argmax` is not.
    leads = sums.eq_(most[1:].unsqueeze(1)).mul_(shape.pointers).amax(1).flatten(1).long()
    score, label = most[-1].view(labels, 2, batch).sum(1).max(0)
    path = leads.new_empty(half + 1, lanes)
    here, *behind = path.unbind(0)
    torch.add(shape.lanes, label, alpha=lanes, out=here.view(2, batch))
    for row, onward in zip(reversed(leads.unbind(0)), behind, strict=True):
        here = torch.index_select(row, 0, here, out=onward)
    return path.take(shape.places).div_(lanes, rounding_mode="floor"), score.to(scores.dtype)


def _sums(scores: Tensor, steps: Tensor, shape: _Shape) -> Tensor:
    """[N, C, C, 2 B]: what the steps from both ends add to the labels before and behind them.

    From the front that is the cell behind and from the back the one before, so that the middle counts once.  What the
    first step from the back has where there is no such cell is arbitrary.
    """
    batch, size, labels = scores.shape
    half = size // 2
    sums = torch.empty(half, labels, labels, 2, batch, dtype=shape.beyond.dtype, device=scores.device)
    front, back = sums.unbind(3)
    tables = (steps, steps) if steps.shape[1] == 1 else (steps[:, :half], steps[:, half:].flip(1))
    torch.add(tables[0].permute(1, 2, 3, 0), scores[:, 1 : half + 1].permute(1, 2, 0).unsqueeze(1), out=front)
    cells = scores[:, half + 1 :].flip(1).permute(1, 2, 0).unsqueeze(2)
    torch.add(tables[1].permute(1, 3, 2, 0), cells, out=back[half - len(cells) :])
    return sums.flatten(3)


class _Shape(NamedTuple):
    """What follows from the sizes of a batch.

    Attributes:
        bounds: [N+1, 2, 1] the positions of the first cell, and of the cell that each step from each end counts;
            `NEVER` where no chain has one.
        beyond: [C, C, 2 B] what steps add that count no cell: from the front any label leads to the first alone.
        pointers: [C, 1, 2 B] places in a row [C, 2 B].
        lanes: [2, B] the places of the first label.
        places: [B, T] where each cell stands in [N+1, 2 B], from the middle to both ends.
    """

    bounds: Tensor
    beyond: Tensor
    pointers: Tensor
    lanes: Tensor
    places: Tensor


@lru_cache(maxsize=64)
def _shape_of(batch: int, size: int, labels: int, dtype: torch.dtype, device: torch.device) -> _Shape:
    """Kept, as making it takes a fifth of the time."""
    with torch.inference_mode(False):
        half = size // 2
        front = torch.arange(half + 1, device=device)
        back = 2 * half + 1 - front
        bounds = torch.stack([front, back.masked_fill(back >= size, NEVER)], 1).unsqueeze(-1)
        beyond = torch.zeros(labels, labels, 2 * batch, dtype=dtype, device=device)
        beyond[:, 1:, :batch] = float("-inf")
        pointers = torch.arange(labels * 2 * batch, dtype=dtype, device=device).view(labels, 1, 2 * batch)
        lanes = torch.arange(2 * batch, device=device).view(2, batch)
        apart = torch.arange(-half, size - half, device=device)
        places = (2 * apart.abs() + (apart > 0)) * batch + torch.arange(batch, device=device).unsqueeze(1)
        return _Shape(bounds, beyond, pointers, lanes, places)


# --------------------------------------------------------------------------------------------------------- many labels


def _asked(ends: Ends, steps: Tensor, labels: int, count: Tensor | None, spread: bool) -> tuple[Tensor, Tensor]:
    """The score [B] of the best answer, and its labels [(N+1) 2 B] from the middle to both ends: each is asked for.

    Some cells may have one more than the labels.
    """
    batch, rows, most = ends[0].shape
    # The innermost axis runs over chains or over labels, the longer of the two.
    wide = 2 * batch >= labels and not spread
    states = _maxima_by_rows(ends, steps, labels) if spread else _maxima(ends, steps, labels, wide)
    met = states[-1].view(2, batch, most)
    score, label = met.sum(0).max(-1)
    if count is not None and not wide:
        # What leads to the label of missing cells is not known: chains that end before the middle are met there.
        last = count.clamp(1, rows).sub_(1)
        score = (states[last, torch.arange(batch, device=last.device)] + met[1]).amax(-1)
    # Rows are what may lead to a label; labels are counted on from table to table, of each end and chain.
    leads = torch.stack([steps.mT, steps]).view(-1, most)
    offset = torch.arange(0, len(leads), most, device=label.device).view(2, -1)
    label, offset = (label + offset).view(-1), offset.expand(2, batch).reshape(-1)
    path = _merged(states[:-1], leads, label, offset) if states.is_cpu and not is_functional() else None
    if path is None:
        path = torch.cat(_walked(reversed(states[:-1].unbind(0)), leads, label, offset))
    return score, path % most


def _maxima(ends: Ends, steps: Tensor, labels: int, wide: bool) -> Tensor:
    """[N+1, 2 B, C or C+1]: the scores of the best ways from each end to the labels of each cell.

    O(B T C²), as the sums of all labels with all are taken at every step.  What leads to the label of missing cells is
    left out unless it costs nothing: in vectors over chains.
    """
    batch, _, most = ends[0].shape
    if wide:
        states, table = _cells_abreast(ends), _tables_abreast(steps, batch)
    else:
        states = _cells_in_rows(ends)
        table = torch.stack([steps[:, 0], steps[:, 0].mT])[..., :labels].permute(2, 0, 1, 3)
        if 2 * batch * labels**2 <= REPEATED:
            table = table.expand(most, 2, batch, labels)
        table = table.contiguous()
    if under_transform():
        states = states + table.new_zeros(())  # mapped where the tables are, as all that is written there will be
    before = states.unsqueeze(2) if wide else states.permute(0, 3, 1, 2).unsqueeze(-1)
    behind = (states if wide else states[..., :labels]).unbind(0)
    spare = None if is_functional() else states.new_empty(most, *behind[0].shape)
    for ahead, cell in zip(before.unbind(0), behind[1:], strict=False):
        cell.add_(torch.add(ahead, table, out=spare).amax(0))
    return states.mT.contiguous() if wide else states.flatten(1, 2)


def _maxima_by_rows(ends: Ends, steps: Tensor, labels: int) -> Tensor:
    """The same, with ends and chains outermost: their sums and maxima are handed out to threads alike.

    Each of two threads then has the table of one end to itself.
    """
    batch, _, most = ends[0].shape
    filling = -most % ROW
    states = pad(_cells_in_rows(ends), (0, filling))
    tables = pad(torch.stack([steps[:, 0], steps[:, 0].mT]), (0, filling)).expand(2, batch, -1, -1)
    at_once = max(1, SHARED // (2 * most * (most + filling)))
    spare = states.new_empty(2, min(batch, at_once), most, most + filling)
    for some, table in zip(states.split(at_once, 2), tables.split(at_once, 1), strict=True):
        sums = spare[:, : some.shape[2]]
        before, behind = some[..., :most].unsqueeze(-1), some[..., :labels]
        for ahead, cell in zip(before.unbind(0), behind.unbind(0)[1:], strict=False):
            cell.add_(torch.add(ahead, table, out=sums).amax(2)[..., :labels])
    return states[..., :most].flatten(1, 2)


def _walked(before: Iterable[Tensor], leads: Tensor, label: Tensor, offset: Tensor) -> list[Tensor]:
    """The labels [2 B], and those that lead to them at each step back, where the maxima before it are [2 B, C]."""
    path = [label]
    for ahead in before:
        label = leads.index_select(0, label).add_(ahead).argmax(-1).add_(offset)
        path.append(label)
    return path


@lru_cache
def _cut(steps: int, lanes: int, labels: int) -> Blocks:
    """One block, or as many as make a way back of so many steps faster."""
    work = lanes * (LANE + labels)
    number = max(1, round(math.sqrt(steps * ASK / (EARLY * work))))
    length = max(EARLY, -(-steps // number))
    number = -(-steps // length)
    faster = (length + EARLY) * (ASK + number * work) <= WORTH * steps * (ASK + work)
    return Blocks(number, length) if faster else Blocks(1, steps)


def _merged(before: Tensor, leads: Tensor, label: Tensor, offset: Tensor) -> Tensor | None:
    """[(N+1) 2 B]: what `_walked` finds, with the way back cut into blocks that are followed side by side.

    Each block starts a few steps early, from a guess: by its own beginning the way has mostly merged with the best one.
    `None` where it has not, or where this is no faster.
    """
    steps, lanes, labels = before.shape
    blocks = _cut(steps, lanes, labels)
    number, length = blocks.number, blocks.length
    if number == 1:
        return None
    more = before.new_zeros(EARLY + number * length, lanes, labels)
    more[EARLY : EARLY + steps] = before.flip(0)
    windows = more.unfold(0, EARLY + length, length).permute(3, 0, 1, 2).flatten(1, 2)
    guess = more[length - 1 :: length][: number - 1].argmax(-1)
    offsets = offset.repeat(number)
    guess = torch.cat([label, guess.flatten() + offsets[lanes:]])
    begun = _walked(windows[:EARLY], leads, guess, offsets)[-1]
    begun[:lanes] = label
    path = torch.stack(_walked(windows[EARLY:], leads, begun, offsets)).view(length + 1, number, lanes)
    if not torch.equal(path[-1, :-1], path[0, 1:]):
        return None
    return torch.cat([label, path[1:].transpose(0, 1).flatten()[: steps * lanes]])

"""The best answer of short chains of few labels: the sums of all steps are held, and asked together.

Where a step of a chain is little work, its time goes into calling operations.  So every step has two of them: what its
cells and tables add up to is known beforehand, and the labels that maxima come from are found for all steps at once.
The way back then is a walk along pointers.  A chain that ends earlier is entered at its own end; what comes behind that
is not read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.exact.recording import overwritable

# Up to how many sums for one step, and for all of them, they are held.  A sum takes some two nanoseconds more than
# where it is forgotten, and a question that a step of the way back need not ask saves some five microseconds.
FEW, HELD = 1 << 10, 1 << 18


def holds(batch: int, size: int, labels: int) -> bool:
    """Whether there are so few sums that holding them is faster, and nobody minds that they are overwritten."""
    sums = batch * labels**2
    return sums <= FEW and sums * (size - 1) <= HELD and overwritable()


def best_of_few(scores: Tensor, steps: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """Labels [B, T] and score [B] of the best answer, for scores [B, T, C] and steps [B or 1, T-1 or 1, C, C]; T > 1.

    `count` [B] is how many cells each chain has; `None` when all have T.  The score is -inf where every answer is
    forbidden, 0 for a chain without cells; labels are arbitrary there, and where there is no cell.
    O(B T C²) time and memory.
    """
    batch, size, labels = scores.shape
    device, width = scores.device, labels * batch
    # The innermost axis runs over chains: [T, C, B], and [T-1, C, C, B] (earlier, later).
    cells = scores.permute(1, 2, 0).contiguous()
    sums = cells[:-1].unsqueeze(2) + steps.permute(1, 2, 3, 0)
    most = sums.new_zeros(cells.shape)
    for some, ahead, onward in zip(sums.unbind(0), most.unsqueeze(2).unbind(0), most.unbind(0)[1:], strict=False):
        torch.amax(some.add_(ahead), 0, out=onward)
    # Where the maxima come from; `argmax` is not vectorised, and short numbers are: a step has no more than `FEW`.
    origin = torch.arange(0, width, batch, dtype=torch.int16, device=device).view(-1, 1, 1)
    origin = torch.mul(sums == most[1:].unsqueeze(1), origin).amax(1)
    # Labels as pointers into [T, C, B], each to the one before it; before the first cell there is nothing.
    each = torch.arange(batch, device=device)
    start = torch.arange(0, (size - 1) * width, width, device=device).view(-1, 1, 1) + each
    leads = torch.zeros(cells.shape, dtype=torch.long, device=device)
    torch.add(origin, start, out=leads[1:])
    most += cells
    if count is None:
        last: Tensor | int = size - 1
        behind = torch.arange(size - 1, -1, -1, device=device)
        score, label = most[-1].max(0)
    else:
        last = count.clamp(1, size).sub_(1)
        behind = (last.unsqueeze(1) - torch.arange(size, device=device)).clamp_(min=0)
        score, label = most.gather(0, last.expand(1, labels, batch))[0].max(0)
        score.masked_fill_(count < 1, 0)
    path = [torch.add(each, label, alpha=batch).add_(last, alpha=width)]
    leads = leads.view(-1)
    for _ in range(size - 1):
        path.append(leads.index_select(0, path[-1]))
    found = torch.cat(path).index_select(0, torch.add(each.unsqueeze(1), behind, alpha=batch).view(-1))
    return found.div_(batch, rounding_mode="floor").remainder_(labels).view(batch, size), score.to(scores.dtype)

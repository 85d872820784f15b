"""Elimination programs as torch operations: any device, any order of derivative, and the k best answers.

The twin of native code (energyml/native/elimination), which it agrees with to rounding.  Cliques are held as tensors
[R, labels of the cell, labels of the message's cells]: R is the number of examples of one structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.grounded.logspace import logsumexp, softmax
from energyml.plan.elimination import Program, Scope


@dataclass(frozen=True)
class Piece:
    """A factor or a message: values [R or 1, *labels of its cells]."""

    value: Tensor
    cells: Scope


def piece(value: Tensor, scope: Scope, program: Program, labels: Tensor) -> Piece:
    """A factor [R or 1, *labels of its scope] without its known cells, and with the diagonal of repeated ones.

    Args:
        value: the factor's table.
        scope: its cells.
        program: says which cells are known.
        labels: [R, cells] the labels of known cells.
    """
    axes = list(scope)
    while len(set(axes)) < len(axes):
        twice = next(cell for cell in axes if axes.count(cell) > 1)
        first, second = [axis for axis, cell in enumerate(axes) if cell == twice][:2]
        value = value.diagonal(dim1=1 + first, dim2=1 + second)
        axes = [cell for axis, cell in enumerate(axes) if axis not in (first, second)] + [twice]
    for cell in [cell for cell in axes if cell in program.known]:
        axis = 1 + axes.index(cell)
        chosen = labels[:, cell].reshape(-1, *([1] * len(axes)))
        shape = [labels.shape[0], *value.shape[1:]]
        value = value.expand(shape)
        shape[axis] = 1
        value = value.gather(axis, chosen.expand(shape)).squeeze(axis)
        axes.remove(cell)
    return Piece(value, tuple(axes))


def _aligned(one: Piece, cells: Scope) -> Tensor:
    """A piece's values with one axis for each of the cells, of size 1 where it does not mention one."""
    order = sorted(range(len(one.cells)), key=lambda axis: cells.index(one.cells[axis]))
    value = one.value
    if order != list(range(len(order))):  # an operation that does nothing takes as long as one that does
        value = value.permute(0, *(1 + axis for axis in order))
    if len(order) == len(cells):
        return value
    shape = iter(value.shape[1:])
    return value.reshape(value.shape[0], *(next(shape) if cell in one.cells else 1 for cell in cells))


@dataclass
class Contracted:
    """A finished pass.

    Attributes:
        total: [R] log Z, or the best score.
        cliques: for each step [R or 1, labels of the cell, *labels of the message].
        messages: for each step [R or 1, *labels of the message].
    """

    total: Tensor
    cliques: list[Tensor]
    messages: list[Tensor]


def contract(program: Program, factors: Sequence[Piece], nothing: Tensor, *, sums: int | None = None) -> Contracted:
    """Run a program: the first `sums` steps sum their cell out (all of them when `None`), the others take the best.

    Cost: the entries of all cliques, which stay in memory.

    Args:
        program: the eliminations.
        factors: its factors.
        nothing: [R] zeros, to which the answer is added.
        sums: how many steps sum.
    """
    pieces = list(factors)
    cliques: list[Tensor] = []
    for number, step in enumerate(program.steps):
        cells = (step.cell, *step.kept)
        total = _aligned(pieces[step.inputs[0]], cells)
        for table in step.inputs[1:]:
            total = total + _aligned(pieces[table], cells)
        cliques.append(total)
        summed = sums is None or number < sums
        pieces.append(Piece(logsumexp(total, 1) if summed else total.amax(1), step.kept))
    total = nothing
    for table in program.loose:
        total = total + pieces[table].value
    return Contracted(total, cliques, [one.value for one in pieces[len(factors) :]])


def best_through(program: Program, factors: Sequence[Piece], done: Contracted, sums: int) -> dict[int, Tensor]:
    """For each factor over cells that are maximised: [R, *its cells], the best score through each of its entries.

    The way back of `contract(..., sums=sums)`: what is best beyond a message is added to its clique.  Differentiable.
    """
    best: dict[int, Tensor] = dict.fromkeys(program.loose, done.total)
    for number in reversed(range(sums, len(program.steps))):
        step, message = program.steps[number], done.messages[number]
        gone = message.isneginf()
        beyond = (best.pop(len(factors) + number) - message.masked_fill(gone, 0)).masked_fill(gone, float("-inf"))
        through = done.cliques[number] + beyond.unsqueeze(1)
        cells = (step.cell, *step.kept)
        for table in step.inputs:
            own = factors[table].cells if table < len(factors) else program.steps[table - len(factors)].kept
            best[table] = _narrowed(through, cells, own, torch.amax)
    return best


def _narrowed(values: Tensor, cells: Scope, own: Scope, reduce: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
    """Values [R, *cells] reduced to some of the cells, in their order."""
    others = tuple(1 + axis for axis, cell in enumerate(cells) if cell not in own)
    values = reduce(values, others) if others else values
    left = [cell for cell in cells if cell in own]
    return values.permute(0, *(1 + left.index(cell) for cell in own))


def entropy_of(program: Program, factors: Sequence[Piece], done: Contracted, weight: Tensor, sums: int) -> Tensor:
    """[R]: the entropy of the cells behind the first `sums` steps, times a weight [R]; differentiable in every way.

    The sum over cells of -E[log p(cell | cells eliminated later)], from the last cell to the first: the probabilities
    of a clique are those of its message's cells times the conditional ones.  Scores never enter but in small
    differences, and no gradient is taken.  Cost: the entries of all cliques.
    """
    ahead: dict[int, Tensor] = dict.fromkeys(program.loose, weight)
    total = torch.zeros_like(weight)
    for number in reversed(range(sums, len(program.steps))):
        step, message = program.steps[number], done.messages[number]
        log = done.cliques[number] - message.masked_fill(message.isneginf(), 0).unsqueeze(1)
        never = log.isneginf()
        joint = log.exp() * ahead.pop(len(factors) + number).unsqueeze(1)
        total = total - (joint * log.masked_fill(never, 0)).flatten(1).sum(1)
        for table in step.inputs:
            if table >= len(factors) + sums:
                kept = program.steps[table - len(factors)].kept
                ahead[table] = _narrowed(joint, (step.cell, *step.kept), kept, torch.sum)
    return total


def walk(program: Program, done: Contracted, draws: int, generator: torch.Generator | None, labels: Tensor) -> Tensor:
    """[R, draws, cells]: draws, from the last eliminated cell to the first.

    Args:
        program: what was run.
        done: its cliques.
        draws: how many answers.
        generator: for draws.
        labels: [R, cells] the labels of known cells; others are filled in.
    """
    examples = labels.shape[0]
    drawn = labels.unsqueeze(1).repeat(1, draws, 1)
    for step, clique in zip(reversed(program.steps), reversed(done.cliques), strict=True):
        rows = clique.expand(examples, *clique.shape[1:]).flatten(2) if step.kept else clique.unsqueeze(2)
        rows = rows.expand(examples, *rows.shape[1:])
        place = torch.zeros_like(drawn[:, :, 0])
        for cell in step.kept:
            place = place * program.sizes[cell] + drawn[:, :, cell]
        chosen = rows.gather(2, place.unsqueeze(1).expand(-1, rows.shape[1], -1)).transpose(1, 2)
        weights = softmax(chosen.to(torch.float64), 2)
        weights = torch.where(weights.sum(2, keepdim=True) > 0, weights, 1)
        if weights.numel():
            picked = torch.multinomial(weights.flatten(0, 1), 1, generator=generator)
            drawn[:, :, step.cell] = picked.reshape(examples, draws)
    return drawn


# ------------------------------------------------------------------------------------------------------------ k best


@dataclass
class _Merge:
    """How the k best sums of two lists were found: for each of them its place in the first and in the second list."""

    table: int
    left: Tensor
    right: Tensor


def best_answers(
    program: Program, factors: Sequence[Piece], nothing: Tensor, labels: Tensor, count: int, sums: int = 0
) -> tuple[Tensor, Tensor]:
    """The k best answers: labels [R, k, cells] and scores [R, k], -inf for none.

    Every message holds its k best values in place of one (Flerova, Marinescu & Dechter 2016).  Cost: k log k times
    that of the best answer.

    Args:
        program: the eliminations.
        factors: its factors.
        nothing: [R] zeros of the scores' type.
        labels: [R, cells] the labels of known cells.
        count: k.
        sums: how many steps sum out cells that are no part of an answer.
    """
    examples, device = labels.shape[0], labels.device
    lists: list[tuple[Tensor, Scope]] = [(one.value.unsqueeze(-1), one.cells) for one in factors]
    merges: list[list[_Merge]] = []
    origins: list[Tensor] = []
    for number, step in enumerate(program.steps):
        cells = (step.cell, *step.kept)
        total, merged = _merged(lists, step.inputs, cells, count)
        if number < sums:
            lists.append((logsumexp(total, 1), step.kept))
            merges.append([])
            origins.append(total)
            continue
        shape = (examples, *(program.sizes[cell] for cell in cells), total.shape[-1])
        rows = total.expand(shape).movedim(1, -2).flatten(-2)  # [R, *kept, labels of the cell * slots]
        best = rows.topk(min(count, rows.shape[-1]), -1)
        merges.append(merged)
        origins.append(best.indices)
        lists.append((best.values, step.kept))
    total, last = _merged(lists, program.loose, (), count) if program.loose else (nothing.unsqueeze(1), [])
    scores = total.expand(examples, -1)
    found = scores.shape[1]
    slots = {table: torch.zeros(examples, found, dtype=torch.long, device=device) for table in range(len(lists))}
    answers = list(labels.unsqueeze(1).expand(-1, found, -1).unbind(2))  # by cell: [R, found]
    order = torch.arange(found, device=device).expand(examples, found)
    _unwind(last, (), order, answers, slots, program.loose)
    for number in reversed(range(sums, len(program.steps))):
        step, origin = program.steps[number], origins[number]
        slot = _looked_up(origin, step.kept, answers, slots[len(factors) + number])
        width = merges[number][-1].left.shape[-1] if merges[number] else lists[step.inputs[0]][0].shape[-1]
        answers[step.cell] = slot // width
        _unwind(merges[number], (step.cell, *step.kept), slot % width, answers, slots, step.inputs)
    missing = count - found
    return (
        torch.nn.functional.pad(
            torch.stack(answers, 2) if answers else labels.new_zeros(examples, found, 0), (0, 0, 0, missing)
        ),
        torch.nn.functional.pad(scores, (0, missing), value=float("-inf")),
    )


def _merged(
    lists: Sequence[tuple[Tensor, Scope]], inputs: Sequence[int], cells: Scope, count: int
) -> tuple[Tensor, list[_Merge]]:
    """The k best sums over one entry of each list: [R or 1, *cells, k], and how each was found."""
    total = _aligned_list(lists[inputs[0]], cells)
    merges: list[_Merge] = []
    for table in inputs[1:]:
        other = _aligned_list(lists[table], cells)
        sums = (total.unsqueeze(-1) + other.unsqueeze(-2)).flatten(-2)
        best = sums.topk(min(count, sums.shape[-1]), -1)
        merges.append(_Merge(table, best.indices // other.shape[-1], best.indices % other.shape[-1]))
        total = best.values
    return total, merges


def _aligned_list(one: tuple[Tensor, Scope], cells: Scope) -> Tensor:
    """[R or 1, *cells, k] from values [R or 1, *own cells, k]."""
    value, own = one
    slots = value.movedim(-1, 1)
    order = sorted(range(len(own)), key=lambda axis: cells.index(own[axis]))
    slots = slots.permute(0, 1, *(2 + axis for axis in order))
    shape = iter(slots.shape[2:])
    return slots.reshape(*slots.shape[:2], *(next(shape) if cell in own else 1 for cell in cells)).movedim(1, -1)


def _looked_up(values: Tensor, cells: Scope, answers: Sequence[Tensor], slot: Tensor) -> Tensor:
    """[R, n]: entries of values [R or 1, *cells (1 where shared), k] at the answers' labels and the given slots."""
    rows = torch.arange(slot.shape[0], device=slot.device).unsqueeze(1) if values.shape[0] > 1 else 0
    places = [answers[cell] if values.shape[1 + axis] > 1 else 0 for axis, cell in enumerate(cells)]
    return values[(rows, *places, slot)]


def _unwind(
    merges: list[_Merge],
    cells: Scope,
    slot: Tensor,
    answers: Sequence[Tensor],
    slots: dict[int, Tensor],
    inputs: Sequence[int],
) -> None:
    """From the slot of a sum to the slots of what it is a sum of."""
    for merge in reversed(merges):
        slots[merge.table] = _looked_up(merge.right, cells, answers, slot)
        slot = _looked_up(merge.left, cells, answers, slot)
    if inputs:
        slots[inputs[0]] = slot

"""Elimination programs on the CPU: torch tensors around the native kernel, which works in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from energyml.backends.native import graphs as kernels
from energyml.plan.elimination import Program

# Entries of all cliques of a batch below which a second thread costs more than it brings.
WORTH_A_THREAD = 1_000_000


@dataclass(frozen=True)
class Place:
    """Where a factor stands in its table: the table's number, an offset, and a stride for each cell of its scope."""

    source: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Encoded:
    """A program as the kernel holds it, for tables of given shapes.

    Attributes:
        program: the kernel's own object.
        cells: how many cells there are.
        steps: how many eliminations there are.
        known: the known cells, in the order of their labels.
    """

    program: object
    cells: int
    steps: int
    known: tuple[int, ...]


def encoded(program: Program, places: Sequence[Place]) -> Encoded:
    """The program as the kernel reads it.  Cost: linear in the scopes of all inputs."""
    known = tuple(sorted(program.known))
    rank = {cell: number for number, cell in enumerate(known)}
    factors = [_strides(scope, place.strides) for scope, place in zip(program.scopes, places, strict=True)]
    count = len(factors)
    offsets: list[int] = []
    total = 0
    layouts: list[dict[int, int]] = []
    for step in program.steps:
        offsets.append(total)
        stride, layout = 1, {}
        for cell in reversed(step.kept):
            layout[cell] = stride
            stride *= program.sizes[cell]
        layouts.append(layout)
        total += stride

    def head(table: int) -> tuple[tuple[int, int, int], dict[int, int]]:
        """Where a table stands and how many entries it has if it is a factor; its strides by cell."""
        if table < count:
            size = prod(program.sizes[cell] for cell in program.scopes[table])
            return (places[table].source, places[table].offset, size), factors[table]
        return (-1 - (table - count), offsets[table - count], 0), layouts[table - count]

    numbers = [len(program.sizes), len(known), total, len(program.steps), len(program.loose)]
    for step, offset in zip(program.steps, offsets, strict=True):
        numbers += [step.cell, program.sizes[step.cell], offset, len(step.kept)]
        for cell in step.kept:
            numbers += [cell, program.sizes[cell]]
        numbers.append(len(step.inputs))
        for table in step.inputs:
            start, strides = head(table)
            numbers += [*start, strides.get(step.cell, 0), *(strides.get(cell, 0) for cell in step.kept)]
            numbers += _known_strides(strides, rank)
    for table in program.loose:
        start, strides = head(table)
        numbers += [*start, *_known_strides(strides, rank)]
    assert kernels is not None
    array = np.array(numbers, dtype=np.int64)
    return Encoded(kernels.read_program(array.ctypes.data), len(program.sizes), len(program.steps), known)


def _strides(scope: Sequence[int], strides: Sequence[int]) -> dict[int, int]:
    """Strides by cell; a cell that stands in a scope twice moves along the diagonal."""
    found: dict[int, int] = {}
    for cell, stride in zip(scope, strides, strict=True):
        found[cell] = found.get(cell, 0) + stride
    return found


def _known_strides(strides: dict[int, int], rank: dict[int, int]) -> list[int]:
    pairs = [number for cell, stride in strides.items() if cell in rank for number in (rank[cell], stride)]
    return [len(pairs) // 2, *pairs]


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        total: [R] log Z, or the best score.
        entropy: [R], where gradients of a sum were asked for.
        labels: [R, draws, cells] of best answers or draws; 0 for cells that were not walked to.
    """

    total: Tensor
    entropy: Tensor | None
    labels: Tensor | None


def run(
    code: Encoded,
    rows: np.ndarray,
    tables: Sequence[Tensor | None],
    labels: Tensor,
    *,
    maximise: bool = False,
    products: bool = False,
    first: int = 0,
    weights: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (),
    draws: int = 0,
    uniforms: Tensor | None = None,
    threads: int = 1,
) -> Outcome:
    """Run a program on some examples of a batch.

    Args:
        code: the program.
        rows: [R] the examples.
        tables: float64, contiguous, [B or 1, ...] each; `None` for a table of zeros.
        labels: [R, known] int64: the labels of the known cells.
        maximise: the best answer in place of the sum over all.
        products: sum in exp space where no product can vanish: faster, but without entropies.
        first: how many steps sum out cells that are no part of an answer: they are summed when maximising too, and do
            not count for the entropy.
        weights: [R] float64: weights of the gradients; without them there are none.
        gradients: one for each table, of its shape or `None`: shares of the probability are added, or best scores
            (maximising) put in where they are higher.
        draws: how many answers are walked back to: 1 for the best one.
        uniforms: [R, draws, steps] float64 in [0, 1) for draws.
        threads: at most so many.

    Cost: one pass over the entries of all cliques, two with gradients; memory for the messages only.
    """
    assert kernels is not None
    count = len(rows)
    threads = max(1, min(threads, count))
    total = torch.empty(count, dtype=torch.float64)
    strides = np.zeros((3, len(tables)), dtype=np.int64)
    pointers = np.zeros((2, len(tables)), dtype=np.int64)
    copies: list[tuple[Tensor, Tensor]] = []
    for number, table in enumerate(tables):
        if table is None:
            continue
        pointers[0, number] = table.data_ptr()
        strides[0, number] = table.stride(0) if table.shape[0] > 1 else 0
        gradient = gradients[number] if weights is not None else None
        if gradient is not None:
            if table.shape[0] > 1:
                strides[1, number] = table.stride(0)
            elif threads > 1:  # a table for all examples: each thread adds up its own
                copy = gradient.repeat(threads, *([1] * (gradient.dim() - 1)))
                copies.append((gradient, copy))
                gradient, strides[2, number] = copy, copy.stride(0)
            pointers[1, number] = gradient.data_ptr()
    entropy = torch.empty(count, dtype=torch.float64) if weights is not None and not (maximise or products) else None
    drawn = torch.zeros(count, draws, code.cells, dtype=torch.int64) if draws else None
    examples, known = np.ascontiguousarray(rows, dtype=np.int64), labels.contiguous()
    kernels.eliminate(
        int(maximise), int(products), first if maximise else code.steps, first, code.program, examples.ctypes.data,
        count, pointers[0].ctypes.data, strides[0].ctypes.data, len(tables), known.data_ptr(), total.data_ptr(),
        _pointer(weights), pointers[1].ctypes.data, strides[1].ctypes.data, strides[2].ctypes.data, _pointer(entropy),
        _pointer(uniforms), _pointer(drawn), draws, threads,
    )  # fmt: skip
    for gradient, copy in copies:
        if maximise:
            torch.amax(copy, 0, keepdim=True, out=gradient)
        else:
            gradient += (copy - gradient).sum(0, keepdim=True)
    return Outcome(total, entropy, drawn)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

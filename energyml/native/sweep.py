"""Gibbs sweeps on the CPU: torch tensors around the native kernel.

Every draw has a number of its own, which follows from the sweep's key, the cell and the chain (Threefry, Salmon et al.
2011): the draws are the same for any number of threads, and depend on nothing but the labels and the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.execution import is_addressable
from energyml.native import gibbs as kernels

# Draws below which a second thread costs more than it brings (measured with two), of cells of two labels and of others.
PAIRS_WORTH_A_THREAD = 20_000
TABLES_WORTH_A_THREAD = 1_000
# Numbers in a vector: tables are padded to whole ones.
LANES = {torch.float32: 8, torch.float64: 4}


@dataclass(frozen=True, eq=False)
class Order:
    """Which cells are drawn one after another; cells are numbered over all variables of a row.

    Attributes:
        cells: int32: the order; cells that are not in it are not drawn.
        examples: [cells] int32: which of the examples of a row each cell belongs to; `None` where a row is one.
        each: by variable: how many cells an example has.
        joined: how many examples a row has.
    """

    cells: np.ndarray
    examples: np.ndarray | None
    each: Mapping[str, int]
    joined: int


@dataclass(frozen=True, eq=False)
class PairGraph:
    """Cells of two labels, joined in pairs: label 1 of cell i is worth linear_i + sum of weight_ij over j with label 1.

    Attributes:
        order: the order.
        start: [places + 1] int32: where the entries of each place of the order begin.
        earlier: [places] int32: how many of them join it to cells before it; they stand first.
        neighbour, edge: [entries] int32: the cell at the other end, and which weight.
        linear: [R, cells]; infinite where evidence leaves one label.
        scored: [R, cells]: the same with finite numbers, for the score.
        weights: [R or 1, edges].
        constant: [B] float64: the score of all cells with label 0.
    """

    order: Order
    start: np.ndarray
    earlier: np.ndarray
    neighbour: np.ndarray
    edge: np.ndarray
    linear: Tensor
    scored: Tensor
    weights: Tensor
    constant: Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """What the factors of a block say about the labels at one of their slots.

    Attributes:
        table: [R or 1, E or 1, joint labels of the other slots, labels, padded with -inf].
        valid: [R or 1, E] which factors exist; `None` when all do.
    """

    table: Tensor
    valid: Tensor | None


@dataclass(frozen=True, eq=False)
class Scopes:
    """Who hears from whom, for cells of any number of labels and factors of any number of cells.

    Attributes:
        start: [places + 1] int32: where the entries of each place of the order begin.
        settled: [places] int32: how many of them have all their other cells before it; they stand first.
        lookup, element: [entries] int32: which of the tables, and which of its factors.
        others: [entries + 1] int32: where the other cells of each entry begin.
        cell, stride: int32: the other cells, and by how many rows of the table a step of their labels moves.
        variable, rank: [cells] int32: each cell's variable, and its number there.
    """

    start: np.ndarray
    settled: np.ndarray
    lookup: np.ndarray
    element: np.ndarray
    others: np.ndarray
    cell: np.ndarray
    stride: np.ndarray
    variable: np.ndarray
    rank: np.ndarray


@dataclass(frozen=True, eq=False)
class TableGraph:
    """Cells of any number of labels.

    Attributes:
        order: the order.
        scopes: who hears from whom.
        counts: by variable: how many labels.
        unary: by variable: [R, cells, labels, padded with -inf].
        rows: the tables that `scopes.lookup` numbers.
    """

    order: Order
    scopes: Scopes
    counts: Mapping[str, int]
    unary: Mapping[str, Tensor]
    rows: Sequence[Rows]


@dataclass(frozen=True, eq=False)
class Drawn:
    """What sweeps did.

    Attributes:
        labels: by variable: [B, C, cells] int64.
        score: [B, C] float64: the score of the labels, where all cells were drawn.
        novel: [B, C] int64: draws that changed a label.
        chance: [B, C] float64: the probability of having drawn the labels that were given; else `None`.
    """

    labels: dict[str, Tensor]
    score: Tensor
    novel: Tensor
    chance: Tensor | None


def serves(*tensors: Tensor) -> bool:
    """Whether the kernel can run on these tensors: all on the CPU, all float32 or all float64."""
    if kernels is None or not tensors:
        return False
    dtype = tensors[0].dtype
    return dtype in LANES and all(one.dtype is dtype for one in tensors) and is_addressable(*tensors)


def padded(rows: Tensor) -> Tensor:
    """Rows [..., labels] of scores, padded with -inf to whole vectors."""
    return torch.nn.functional.pad(rows, (0, -rows.shape[-1] % LANES[rows.dtype]), value=float("-inf")).contiguous()


def swept(
    graph: PairGraph | TableGraph,
    labels: Mapping[str, Tensor],
    beta: Tensor,
    keys: Sequence[int],
    span: tuple[int, int] | None = None,
    given: Mapping[str, Tensor] | None = None,
) -> Drawn:
    """Draw cell after cell from their conditionals.

    Cost: for each draw the entries of its cell, and the exponential of a score for each of its labels but one.

    Args:
        graph: the order and the scores.
        labels: by variable: [B, C, cells] int64.
        beta: [C]: inverse temperatures.
        keys: of each sweep, 64 bits.
        span: the places of the order that are drawn; all when left out.
        given: by variable: labels that are taken in place of draws; their probability is then found.
    """
    assert kernels is not None
    order, names = graph.order, list(graph.order.each)
    inward = [labels[name].long().contiguous() for name in names]
    outward = [torch.empty_like(one) for one in inward]
    if given is not None:
        for one, name in zip(outward, names, strict=True):
            one.copy_(given[name])
    size, chains = inward[0].shape[:2]
    scale = beta.detach().to(torch.float64).contiguous()
    score = torch.empty(size, chains, dtype=torch.float64, device="cpu")
    novel = torch.empty(size, chains, dtype=torch.int64, device="cpu")
    chance = None if given is None else torch.empty(size, chains, dtype=torch.float64, device="cpu")
    key = np.array(keys, dtype=np.uint64)
    each = np.array(list(order.each.values()), dtype=np.int64)
    pointers = [np.array([one.data_ptr() for one in tensors], dtype=np.uintp) for tensors in (inward, outward)]
    first, last = (0, len(order.cells)) if span is None else span
    cells = int(each.sum()) * order.joined
    places = (size // order.joined, chains, cells, order.joined, len(names), *map(_at, (*pointers, each)))
    request = (
        _at(key), len(key), first, last, scale.data_ptr(), score.data_ptr(), novel.data_ptr(),
        0 if chance is None else chance.data_ptr(),
    )  # fmt: skip
    work = (last - first) * size // order.joined * chains
    if isinstance(graph, PairGraph):
        double, arguments = graph.linear.dtype is torch.float64, _pair_arguments(graph)
        kernels.pairs(int(double), *places, *request, *arguments, _threads(work, PAIRS_WORTH_A_THREAD))
        score += graph.constant.unsqueeze(1)
    else:
        double, (arguments, held) = next(iter(graph.unary.values())).dtype is torch.float64, _table_arguments(graph)
        kernels.tables(int(double), *places, *request, *arguments, _threads(work, TABLES_WORTH_A_THREAD))
        del held
    return Drawn(dict(zip(names, outward, strict=True)), score, novel, chance)


def _pair_arguments(graph: PairGraph) -> tuple[int, ...]:
    weights_row = 0 if graph.weights.shape[0] == 1 else graph.weights.shape[1]
    arrays = (graph.order.cells, graph.start, graph.earlier, graph.neighbour, graph.edge, graph.order.examples)
    tensors = (graph.linear, graph.scored, graph.weights)
    return (*map(_at, arrays), *(one.data_ptr() for one in tensors), weights_row)


def _table_arguments(graph: TableGraph) -> tuple[tuple[int, ...], list[Any]]:
    """Arguments, and what has to live as long as the call."""
    scopes, order = graph.scopes, graph.order
    unary = list(graph.unary.values())
    pointers = np.array([one.data_ptr() for one in unary], dtype=np.uintp)
    strides = np.array([one.shape[1] * one.shape[2] for one in unary], dtype=np.int64)
    counts = np.array(list(graph.counts.values()), dtype=np.int64)
    widths = np.array([one.shape[2] for one in unary], dtype=np.int64)
    tables = np.array([_described(one) for one in graph.rows], dtype=np.int64).reshape(len(graph.rows), 5)
    arrays = (
        order.cells, scopes.start, scopes.settled, scopes.lookup, scopes.element, scopes.others, scopes.cell,
        scopes.stride, scopes.variable, scopes.rank, order.examples, pointers, strides, counts, widths, tables,
    )  # fmt: skip
    sizes = (len(tables), int(widths.max(initial=0)), int(np.diff(scopes.start).max(initial=0)))
    return (*map(_at, arrays), *sizes), [pointers, strides, counts, widths, tables]


def _described(rows: Rows) -> tuple[int, int, int, int, int]:
    table, valid = rows.table, rows.valid
    row = 0 if table.shape[0] == 1 else table.stride(0)
    element = 0 if table.shape[1] == 1 else table.stride(1)
    if valid is None:
        return table.data_ptr(), row, element, 0, 0
    return table.data_ptr(), row, element, valid.data_ptr(), 0 if valid.shape[0] == 1 else valid.stride(0)


def _at(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def _threads(work: int, worth: int) -> int:
    return max(1, min(torch.get_num_threads(), work // worth))


__all__ = ["Drawn", "Order", "PairGraph", "Rows", "Scopes", "TableGraph", "padded", "serves", "swept"]

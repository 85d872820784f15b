"""Factor graphs as native sweeps read them: the order of cells, and who hears from whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from energyml.backends.mcmc.factor_target import FactorTarget
from energyml.native.sweep import Order, PairGraph, Rows, Scopes, TableGraph, padded

Made = TypeVar("Made")


def paired(target: FactorTarget) -> bool:
    """Whether differences of scores tell all: two labels everywhere, factors of two cells, no hard constraints."""
    two = all(count == 2 for count in target.counts.values())
    pairs = all(len(factors.block.variables) == 2 for factors in target.potentials.factors)
    return two and pairs and not target.hard and target.subtractable


def levels_of(target: FactorTarget, order: str) -> np.ndarray:
    """[cells of a row]."""
    levels = target.schedule(order).levels
    return np.concatenate([levels[name] for name in target.graph.skeleton.counts])


def _kept(target: FactorTarget, what: tuple[str, str], make: Callable[[], Made]) -> Made:
    """What follows from the structure alone, made once."""
    kept = target.graph.skeleton.kept
    key = ("native sweep", *what, tuple(target.cells.items()))
    if key not in kept:
        kept[key] = make()
    made: Made = kept[key]
    return made


def _order(target: FactorTarget, order: str) -> Order:
    """The cells level after level."""
    skeleton, each = target.graph.skeleton, dict(target.cells)
    joined = target.size if target.graph.union else 1
    examples = None
    if joined > 1:
        parts = [np.repeat(np.arange(joined, dtype=np.int32), each[name]) for name in skeleton.counts]
        examples = np.concatenate(parts)
    cells = np.argsort(levels_of(target, order), kind="stable").astype(np.int32)
    return Order(cells, examples, {name: each[name] for name in skeleton.counts}, joined)


def _ranks(order: Order) -> np.ndarray:
    """[cells]: the place of each cell in the order."""
    ranks = np.empty(len(order.cells), dtype=np.int64)
    ranks[order.cells] = np.arange(len(order.cells))
    return ranks


def _starts(owners: np.ndarray, count: int) -> np.ndarray:
    """[count + 1] int32: where the entries of each place begin, when they are sorted by it."""
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)


# ----------------------------------------------------------------------------------------------------------- two labels


def _joined(target: FactorTarget, order: str) -> tuple[Order, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The order; start, earlier, neighbour and edge of `PairGraph`."""
    skeleton, made = target.graph.skeleton, _order(target, order)
    ranks, count = _ranks(made), len(made.cells)
    ends = [skeleton.numbered(block) for block in skeleton.blocks]
    pairs = np.concatenate([*ends, np.zeros((0, 2), dtype=np.int64)])
    own, other = np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])
    edge = np.tile(np.arange(len(pairs)), 2)
    place, late = ranks[own], ranks[other] > ranks[own]
    by = np.lexsort((late, place))
    earlier = np.bincount(place[~late], minlength=count).astype(np.int32)
    return made, _starts(place, count), earlier, other[by].astype(np.int32), edge[by].astype(np.int32)


def pair_graph(target: FactorTarget, order: str) -> PairGraph:
    """Two labels: differences of scores, in double precision until they are added up."""
    graph, potentials = target.graph, target.potentials
    made, start, earlier, neighbour, edge = _kept(target, ("pairs", order), lambda: _joined(target, order))
    constant = torch.zeros(target.size, dtype=torch.float64, device="cpu")
    free, unary = [], []
    for name in graph.skeleton.counts:
        low, high = potentials.unary[name].double().unbind(-1)
        # A cell that evidence fixes has its score in the constant.
        constant += graph.by_example(name, torch.where(low.isneginf(), high, low))
        unary.append(high - low)
        free.append(torch.where(unary[-1].isinf(), 0, unary[-1]))
    linear, scored = torch.cat(unary, 1), torch.cat(free, 1)
    weights = []
    for factors in potentials.factors:
        table, block = factors.table.double(), factors.block
        elements = len(block.scope)
        corner = table[..., 0, 0].expand(-1, elements)
        constant += graph.factor_sums(factors, corner)
        cells = graph.placed(graph.skeleton.numbered(block))
        gains = [table[..., 1, 0].expand(-1, elements) - corner, table[..., 0, 1].expand(-1, elements) - corner]
        weight = table[..., 1, 1].expand(-1, elements) - corner - gains[0] - gains[1]
        if factors.valid is not None:
            weight, *gains = (torch.where(factors.valid, one, 0) for one in (weight, *gains))
        weights.append(weight)
        for slot, gain in enumerate(gains):
            linear.index_add_(1, cells[:, slot], gain.expand(linear.shape[0], -1))
            scored.index_add_(1, cells[:, slot], gain.expand(linear.shape[0], -1))
    rows = max((one.shape[0] for one in weights), default=1)
    whole = torch.cat(
        [torch.zeros(rows, 0, dtype=torch.float64, device="cpu"), *(one.expand(rows, -1) for one in weights)], 1
    )
    linear, scored, whole = (one.to(target.dtype).contiguous() for one in (linear, scored, whole))
    return PairGraph(made, start, earlier, neighbour, edge, linear, scored, whole, constant)


# ----------------------------------------------------------------------------------------------------------- any labels


def _scopes(target: FactorTarget, order: Order) -> Scopes:
    """Who hears from whom; table number 2 b + slot is block b's for factors of two cells, and so on for more."""
    skeleton, ranks = target.graph.skeleton, _ranks(order)
    widest = max((len(block.variables) for block in skeleton.blocks), default=1)
    columns: list[list[np.ndarray]] = [[] for _ in range(4)]  # own cell, table, element, settled
    others, strides = [], []
    number = 0
    for block in skeleton.blocks:
        cells = skeleton.numbered(block)
        count, slots = cells.shape
        for slot in range(slots):
            rest = [one for one in range(slots) if one != slot]
            steps = np.cumprod([1, *(target.counts[block.variables[one]] for one in rest[:0:-1])])[::-1]
            here = np.full((count, widest - 1), -1, dtype=np.int64)
            here[:, : slots - 1] = cells[:, rest]
            step = np.zeros((count, widest - 1), dtype=np.int64)
            step[:, : slots - 1] = steps
            settled = (ranks[cells[:, rest]] < ranks[cells[:, [slot]]]).all(1)
            entries = (cells[:, slot], np.full(count, number), np.arange(count), settled)
            for column, values in zip(columns, entries, strict=True):
                column.append(values)
            others.append(here)
            strides.append(step)
            number += 1
    nothing = np.zeros(0, dtype=np.int64)
    own, lookup, element, settled = (np.concatenate([nothing, *column]) for column in columns)
    place = ranks[own]
    by = np.lexsort((settled == 0, place))
    here = np.concatenate([np.zeros((0, widest - 1), dtype=np.int64), *others])[by]
    step = np.concatenate([np.zeros((0, widest - 1), dtype=np.int64), *strides])[by]
    drawn = len(order.cells)
    names = {name: at for at, name in enumerate(skeleton.counts)}
    return Scopes(
        start=_starts(place, drawn),
        settled=np.bincount(place[settled != 0], minlength=drawn).astype(np.int32),
        lookup=lookup[by].astype(np.int32),
        element=element[by].astype(np.int32),
        others=np.concatenate([[0], np.cumsum((here >= 0).sum(1))]).astype(np.int32),
        cell=here[here >= 0].astype(np.int32),
        stride=step[here >= 0].astype(np.int32),
        variable=np.concatenate([np.full(n, names[name], np.int32) for name, n in skeleton.counts.items()]),
        rank=np.concatenate([np.arange(n, dtype=np.int32) for n in skeleton.counts.values()]),
    )


def table_graph(target: FactorTarget, order: str) -> TableGraph:
    """Any labels: rows of tables for each slot."""

    def structure() -> tuple[Order, Scopes]:
        made = _order(target, order)
        return made, _scopes(target, made)

    made, scopes = _kept(target, ("tables", order), structure)
    names = list(target.graph.skeleton.counts)
    rows = []
    for number, factors in enumerate(target.potentials.factors):
        valid = None if factors.valid is None else factors.valid.contiguous()
        for slot in range(len(factors.block.variables)):
            flat, joint = target.lookup(number, slot)
            rows.append(Rows(padded(flat.reshape(*factors.table.shape[:2], joint, flat.shape[1])), valid))
    unary = {name: padded(target.potentials.unary[name]) for name in names}
    return TableGraph(made, scopes, {name: target.counts[name] for name in names}, unary, rows)


__all__ = ["levels_of", "pair_graph", "paired", "table_graph"]

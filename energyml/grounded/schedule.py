"""The order of updates: which cells are updated together, and which factors they read.

Sequential updates go through the cells in their order.  Cells are sorted into *levels*: a cell's level is one above
those of its neighbours that come before it.  Cells of one level are no neighbours, and whoever comes first in the order
has the lower level: updating level after level gives exactly what updating cell after cell gives.  A chain has as many
levels as cells, a grid of H x W cells has H + W - 1.

Sweeps overlap.  Where neighbours' levels differ by at most d, sweep s may update level l at the time l + s (d + 1): all
that it reads is then as the plain order leaves it (time skewing, as for Gauss-Seidel iterations).  So n sweeps of a
chain of T cells take T + 2 (n - 1) steps instead of n T, with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from energyml.grounded.skeleton import Skeleton, on_device

Pick: TypeAlias = "slice | Tensor"


@dataclass(frozen=True, eq=False)
class Entry:
    """Factors of one block that speak to cells of a step.

    Attributes:
        block: the number of the block.
        slot: where the cells stand in the scope.
        elements: which factors.
        targets: which of the step's cells they speak to.
        others: for every slot: the cells there.
    """

    block: int
    slot: int
    elements: Pick
    targets: Pick
    others: tuple[Pick, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """Cells that are updated at once, by variable, and the factors that they read."""

    cells: dict[str, Pick]
    entries: dict[str, list[Entry]]


class Schedule:
    """Steps of a skeleton.

    Args:
        skeleton: the factors.
        order: `sequential`, `coloured` (classes of a greedy colouring in turn) or `parallel` (all cells at once).
        device: where index tensors live.
    """

    def __init__(self, skeleton: Skeleton, order: str, device: torch.device) -> None:
        self.skeleton, self.device = skeleton, device
        edges = _edges(skeleton)
        count = sum(skeleton.counts.values())
        if order == "parallel":
            levels = np.zeros(count, dtype=np.int64)
        elif order == "coloured":
            levels = _colours(edges, count)
        else:
            levels = _levels(edges, count)
        self.depth = int(levels.max(initial=-1)) + 1
        self.reach = int(np.abs(levels[edges[:, 0]] - levels[edges[:, 1]]).max(initial=0))
        starts = skeleton.starts
        self.levels = {name: levels[starts[name] : starts[name] + n] for name, n in skeleton.counts.items()}
        self._steps: dict[tuple[int, ...], Step] = {}
        self._scopes: dict[int, tuple[Pick, ...]] = {}

    def scope(self, number: int) -> tuple[Pick, ...]:
        """For every slot of a block: the cells of all its factors."""
        found = self._scopes.get(number)
        if found is None:
            block = self.skeleton.blocks[number]
            found = tuple(self._pick(block.scope[:, slot]) for slot in range(len(block.variables)))
            self._scopes[number] = found
        return found

    def sweeps(self, count: int) -> list[Step]:
        """The steps of a number of sweeps, each through all levels upwards."""
        period, found = self.reach + 1, []
        for time in range(self.depth + (count - 1) * period if self.depth else 0):
            active = range(time, max(-1, time - count * period), -period)
            found.append(self._step(tuple(level for level in active if level < self.depth)))
        return found

    def there_and_back(self) -> list[Step]:
        """The steps of one sweep upwards and one downwards: what makes belief propagation exact on chains at once."""
        return [self._step((level,)) for level in (*range(self.depth), *range(self.depth - 2, -1, -1))]

    def everything(self) -> Step:
        """All cells at once."""
        return self._step(tuple(range(self.depth)))

    def _step(self, levels: tuple[int, ...]) -> Step:
        found = self._steps.get(levels)
        if found is None:
            found = self._steps[levels] = self._made(levels)
        return found

    def _made(self, levels: tuple[int, ...]) -> Step:
        active = np.zeros(self.depth, dtype=bool)
        active[list(levels)] = True
        cells = {name: np.flatnonzero(active[one]) for name, one in self.levels.items()}
        cells = {name: one for name, one in cells.items() if len(one)}
        entries: dict[str, list[Entry]] = {name: [] for name in cells}
        for number, block in enumerate(self.skeleton.blocks):
            for slot, name in enumerate(block.variables):
                here = np.flatnonzero(active[self.levels[name][block.scope[:, slot]]])
                if not len(here):
                    continue
                targets = np.searchsorted(cells[name], block.scope[here, slot])
                entries[name].append(
                    Entry(
                        number, slot, self._pick(here), self._pick(targets),
                        tuple(self._pick(block.scope[here, other]) for other in range(len(block.variables))),
                    )
                )  # fmt: skip
        return Step({name: self._pick(one) for name, one in cells.items()}, entries)

    def _pick(self, places: np.ndarray) -> Pick:
        """Places that are evenly spaced as a slice, so that taking them copies nothing."""
        if len(places) == 1:
            return slice(int(places[0]), int(places[0]) + 1, 1)
        step = int(places[1] - places[0])
        if step > 0 and (np.diff(places) == step).all():
            return slice(int(places[0]), int(places[-1]) + 1, step)
        return on_device(places, self.device)


def take(values: Tensor, pick: Pick) -> Tensor:
    """[R, n, ...]: the picked cells or factors of values [R, N, ...]."""
    return values[:, pick] if isinstance(pick, slice) else values.index_select(1, pick)


def put(values: Tensor, pick: Pick, new: Tensor, in_place: bool) -> Tensor:
    """Values [R, N, ...] with the picked ones replaced; a copy unless `in_place`."""
    if isinstance(pick, slice):
        if in_place:
            values[:, pick] = new
            return values
        if pick.start == 0 and pick.stop == values.shape[1] and pick.step == 1:
            return new
        return torch.slice_scatter(values, new, 1, pick.start, pick.stop, pick.step)
    return values.index_copy_(1, pick, new) if in_place else values.index_copy(1, pick, new)


def add(values: Tensor, entry: Entry, new: Tensor) -> Tensor:
    """Values [R, n, ...] of a step's cells plus what an entry's factors say."""
    pick = entry.targets
    if not isinstance(pick, slice):
        return values.index_add(1, pick, new.expand(values.shape[0], *new.shape[1:]))
    if pick.stop - pick.start == values.shape[1] and pick.step == 1:
        return values + new
    values = values.clone()
    values[:, pick] += new
    return values


def _edges(skeleton: Skeleton) -> np.ndarray:
    """[E, 2]: all pairs of cells that share a factor, numbered over all variables, the earlier cell first."""
    pairs = []
    for block in skeleton.blocks:
        cells = skeleton.numbered(block)
        slots = cells.shape[1]
        pairs += [cells[:, [one, two]] for one in range(slots) for two in range(one + 1, slots)]
    if not pairs:
        return np.zeros((0, 2), dtype=np.int64)
    return np.unique(np.sort(np.concatenate(pairs), 1), axis=0)


def _levels(edges: np.ndarray, count: int) -> np.ndarray:
    """[cells]: one above the levels of the neighbours that come before."""
    levels = [0] * count
    for early, late in edges[np.argsort(edges[:, 1], kind="stable")].tolist():
        # Edges sorted by their later end: when it is looked at, its earlier neighbours are settled.
        if levels[early] >= levels[late]:
            levels[late] = levels[early] + 1
    return np.array(levels, dtype=np.int64)


def _colours(edges: np.ndarray, count: int) -> np.ndarray:
    """[cells]: the classes of a greedy colouring, the cells with the most neighbours first."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for one, two in edges.tolist():
        neighbours[one].append(two)
        neighbours[two].append(one)
    degrees = np.array([len(one) for one in neighbours], dtype=np.int64)
    colours = [-1] * count
    for cell in np.lexsort((np.arange(count), -degrees)).tolist():
        taken = {colours[other] for other in neighbours[cell]}
        colours[cell] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
    return np.array(colours, dtype=np.int64)

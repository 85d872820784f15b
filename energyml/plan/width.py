"""Elimination orders and their widths on a grounded instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Elimination:
    """An order of cells and its width: the largest number of neighbours that a cell has when it is eliminated."""

    order: tuple[int, ...]
    width: int


def min_fill(neighbours: Sequence[set[int]], limit: int | None = None) -> Elimination | None:
    """Greedy min-fill order (ties by degree, then by index); `None` once the width passes `limit`.

    Cost: O(n · d²) for each step on n cells of degree d; fill counts change only around the eliminated cell.
    """
    adjacent = [set(other) for other in neighbours]
    fill = [_fill(adjacent, cell) for cell in range(len(adjacent))]
    remaining = set(range(len(adjacent)))
    order: list[int] = []
    width = 0
    while remaining:
        cell = min(remaining, key=lambda c: (fill[c], len(adjacent[c]), c))
        around = adjacent[cell]
        width = max(width, len(around))
        if limit is not None and width > limit:
            return None
        touched = set(around)
        for one in around:
            adjacent[one].discard(cell)
            new = around - adjacent[one] - {one}
            if new:
                adjacent[one] |= new
        for one in around:
            touched |= adjacent[one]
        remaining.discard(cell)
        order.append(cell)
        for one in touched & remaining:
            fill[one] = _fill(adjacent, one)
    return Elimination(tuple(order), width)


def _fill(adjacent: list[set[int]], cell: int) -> int:
    around = adjacent[cell]
    missing = sum(len(around) - 1 - len(adjacent[one] & around) for one in around)
    return missing // 2


def is_forest(neighbours: Sequence[set[int]]) -> bool:
    """Whether the primal graph has no cycle: as many edges as cells less components."""
    edges = sum(len(around) for around in neighbours) // 2
    seen: set[int] = set()
    components = 0
    for start in range(len(neighbours)):
        if start in seen:
            continue
        components += 1
        stack = [start]
        while stack:
            cell = stack.pop()
            if cell not in seen:
                seen.add(cell)
                stack.extend(neighbours[cell] - seen)
    return edges == len(neighbours) - components

"""Where the factors of a grounded drawing stand, once its cells have their places."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from energyml.ir.figure import SQUARE, Box, PlacedNode, Point, border
from energyml.ir.ground import GroundGraph

STEP = 78.0
RISE = 50.0
ASIDE = SQUARE + 6
FARTHEST = 12

# Where a factor of one cell may stand, from its favourite on: above, at the upper corners, below, ...
_DIRECTIONS = ((0, -1), (-0.8, -0.6), (0.8, -0.6), (0, 1), (0.8, 0.6), (-0.8, 0.6), (1, 0), (-1, 0))


def place_factors(ground: GroundGraph, cells: list[PlacedNode]) -> list[Point]:
    """A place for each factor, in order: among its cells, or beside its only one; two squares never meet."""
    taken = _Taken(cells)
    free = _free_sides(ground, cells)
    places: dict[int, Point] = {}
    several = [number for number, factor in enumerate(ground.factors) if len(set(factor.cells)) > 1]
    single = [number for number, factor in enumerate(ground.factors) if len(set(factor.cells)) == 1]
    for number in several:
        points = [(cells[cell].x, cells[cell].y) for cell in ground.factors[number].cells]
        places[number] = taken.claim(_middle(points), _across(points))
    for number in single:
        cell = cells[ground.factors[number].cells[0]]
        dx, dy = free[ground.factors[number].cells[0]]
        edge = border(cell, (cell.x + 1000 * dx, cell.y + 1000 * dy))
        places[number] = taken.claim((edge[0] + 14 * dx, edge[1] + 14 * dy), (-dy, dx) if dy else (0.0, 1.0))
    return [places[number] for number in range(len(ground.factors))]


def _middle(points: list[Point]) -> Point:
    """The middle of a factor's cells; above the row when others stand between them."""
    x = sum(point[0] for point in points) / len(points)
    y = sum(point[1] for point in points) / len(points)
    apart = max(abs(a[0] - b[0]) for a in points for b in points)
    level = all(abs(point[1] - points[0][1]) < 1 for point in points)
    return (x, y - RISE - 14 * (apart / STEP - 1)) if level and apart > 1.5 * STEP else (x, y)


def _across(points: list[Point]) -> Point:
    """The direction across the line between the first and the last cell."""
    dx, dy = points[-1][0] - points[0][0], points[-1][1] - points[0][1]
    length = math.hypot(dx, dy) or 1.0
    return dy / length, -dx / length


def _free_sides(ground: GroundGraph, cells: list[PlacedNode]) -> list[Point]:
    """For each cell the direction that is farthest from its neighbours; in a grid a corner, the same for all."""
    sides: list[Point] = []
    for number, others in enumerate(ground.neighbours()):
        if len(ground.cells[number].position) > 1:
            sides.append(_DIRECTIONS[1])
            continue
        here = cells[number]
        ways = [_unit(cells[other].x - here.x, cells[other].y - here.y) for other in sorted(others)]
        closeness = [max((dx * wx + dy * wy for wx, wy in ways), default=-1.0) for dx, dy in _DIRECTIONS]
        best = min(range(len(_DIRECTIONS)), key=lambda place: (round(max(closeness[place], 0.3), 2), place))
        sides.append(_DIRECTIONS[best])
    return sides


def _unit(dx: float, dy: float) -> Point:
    length = math.hypot(dx, dy) or 1.0
    return dx / length, dy / length


class _Taken:
    """Which parts of the paper are taken, in buckets so that looking is cheap."""

    SIZE = 60.0

    def __init__(self, cells: list[PlacedNode]) -> None:
        self.buckets: dict[tuple[int, int], list[Box]] = defaultdict(list)
        for cell in cells:
            self.add(cell.box)

    def add(self, box: Box) -> None:
        for key in self.keys(box):
            self.buckets[key].append(box)

    def keys(self, box: Box) -> Iterator[tuple[int, int]]:
        for column in range(int(box.left // self.SIZE), int(box.right // self.SIZE) + 1):
            for row in range(int(box.top // self.SIZE), int(box.bottom // self.SIZE) + 1):
                yield column, row

    def claim(self, wish: Point, aside: Point) -> Point:
        """The wish, or the nearest free place to its sides."""
        for turn in range(2 * FARTHEST):
            by = (turn + 1) // 2 * ASIDE * (1 if turn % 2 else -1)
            x, y = wish[0] + by * aside[0], wish[1] + by * aside[1]
            half = SQUARE / 2 + 1.5
            box = Box(x - half, y - half, x + half, y + half)
            if not any(box.overlaps(other) for key in self.keys(box) for other in self.buckets[key]):
                self.add(box)
                return x, y
        return wish

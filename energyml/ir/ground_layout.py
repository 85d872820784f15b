"""Layout of grounded drawings: sequences as rows, grids as grids, trees as trees, anything else by springs.

Cells are placed first, variables of one shape together; a factor then stands among its cells, moved aside where several
meet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from energyml.diagnostics import EnergyError
from energyml.ir.factor_layout import RISE, STEP, place_factors
from energyml.ir.figure import SQUARE, Figure, PlacedEdge, PlacedNode, Point, border, bowed, node_size
from energyml.ir.ground import GroundGraph
from energyml.ir.sketch import Sketch

ROW = 84.0
LONGEST_SKIP = 3
MOST_CELLS = 1500
MOST_FACTORS = 6000
MOST_SPRINGS = 150

Places = dict[int, Point]


def grounded_layout(ground: GroundGraph, sketch: Sketch) -> Figure:
    """Place the cells and factors of one example; refuses more than `MOST_CELLS` cells and `MOST_FACTORS` factors."""
    check_extent(len(ground.cells), len(ground.factors))
    cells = _cell_places(ground)
    placed = {
        node.id: PlacedNode(node, *cells[number], *node_size(node))
        for number, node in enumerate(sketch.nodes[: len(ground.cells)])
    }
    factors = place_factors(ground, list(placed.values()))
    for node, (x, y) in zip(sketch.nodes[len(ground.cells) :], factors, strict=True):
        placed[node.id] = PlacedNode(node, x, y, *node_size(node))
    lines = [PlacedEdge(edge, _line(placed[edge.source], placed[edge.target], ground)) for edge in sketch.edges]
    legend = {node.term: node for node in reversed(sketch.nodes) if node.term}
    order = dict.fromkeys(node.term for node in sketch.nodes if node.term)
    return Figure(tuple(placed.values()), tuple(lines), (), tuple(legend[term] for term in order))


def check_extent(cells: float, factors: float) -> None:
    """Refuse a drawing of too many cells or factors, before or after they are grounded."""
    for count, most, word in ((cells, MOST_CELLS, "cells"), (factors, MOST_FACTORS, "factors")):
        if most < count < math.inf:
            raise EnergyError(
                f"a drawing of {count:.0f} {word} would show nothing; draw at most {most}, with smaller sizes"
            )


def _line(factor: PlacedNode, cell: PlacedNode, ground: GroundGraph) -> tuple[Point, ...]:
    """From a factor to a cell: straight, or an arc where the factor stands high above a row."""
    scope = ground.factors[int(factor.node.id.split()[1])].cells
    start = (factor.x, factor.y)
    if len(scope) > 1 and cell.y - factor.y > RISE and abs(cell.x - factor.x) > STEP * 0.6:
        side = 7.0 if factor.x > cell.x else -7.0
        end = (cell.x + side, cell.box.top + 1)
        start = (factor.x - math.copysign(SQUARE / 2, side), factor.y)
        return (start, (factor.x + 0.6 * (end[0] - factor.x), factor.y), (end[0], end[1] - 0.6 * RISE), end)
    return bowed(border(factor, (cell.x, cell.y)), border(cell, start), 0.0)


# ---------------------------------------------------------------------------------------------------------------- cells


def _cell_places(ground: GroundGraph) -> Places:
    """Blocks of cells under each other: all sequences together, then each grid; single cells stand at the left."""
    blocks: dict[object, list[int]] = defaultdict(list)
    singles = [number for number, cell in enumerate(ground.cells) if not cell.position]
    for number, cell in enumerate(ground.cells):
        if cell.position:
            blocks["lines" if len(cell.position) == 1 else cell.variable].append(number)
    places: Places = {}
    top = 0.0
    for name, numbers in blocks.items():
        block = _line_block(ground, numbers) if name == "lines" else _grid_block(ground, numbers)
        shift = top - min(y for _, y in block.values())
        places |= {number: (x, y + shift) for number, (x, y) in block.items()}
        top = max(y for _, y in places.values()) + ROW + 20
    left = min((x for x, _ in places.values()), default=0.0) - 1.6 * STEP
    middle = max((y for _, y in places.values()), default=0.0) / 2 - (len(singles) - 1) * ROW / 2
    return places | {number: (left, middle + ROW * place) for place, number in enumerate(singles)}


def _grid_block(ground: GroundGraph, numbers: list[int]) -> Places:
    """Rows and columns; the leading axes of a higher grid are laid side by side."""
    widest = 1 + max(ground.cells[number].position[-1] for number in numbers)
    panels = dict.fromkeys(ground.cells[number].position[:-2] for number in numbers)
    panel = {key: place for place, key in enumerate(panels)}
    places: Places = {}
    for number in numbers:
        *front, row, column = ground.cells[number].position
        places[number] = ((column + panel[tuple(front)] * (widest + 1)) * STEP, row * STEP)
    return places


def _line_block(ground: GroundGraph, numbers: list[int]) -> Places:
    inside = set(numbers)
    links = {
        (a, b)
        for factor in ground.factors
        for a in factor.cells
        for b in factor.cells
        if a < b and a in inside and b in inside
    }
    if all(abs(ground.cells[a].position[0] - ground.cells[b].position[0]) <= LONGEST_SKIP for a, b in links):
        return _rows(ground, numbers, links)
    neighbours: dict[int, list[int]] = {number: [] for number in numbers}
    for a, b in sorted(links):
        neighbours[a].append(b)
        neighbours[b].append(a)
    order = _forest(neighbours)
    return _tree(neighbours, order) if order is not None else _springs(neighbours)


def _rows(ground: GroundGraph, numbers: list[int], links: Iterable[tuple[int, int]]) -> Places:
    """One row a variable, positions from left to right; rows stand apart where long links pass over them."""
    reach: dict[str, int] = defaultdict(int)
    for a, b in links:
        first, second = ground.cells[a], ground.cells[b]
        if first.variable == second.variable:
            distance = abs(first.position[0] - second.position[0])
            reach[first.variable] = max(reach[first.variable], distance)
    tops: dict[str, float] = {}
    y = 0.0
    for variable in dict.fromkeys(ground.cells[number].variable for number in numbers):
        y += max(0, reach[variable] - 1) * 30.0 if tops else 0.0
        tops[variable] = y
        y += ROW
    return {n: (ground.cells[n].position[0] * STEP, tops[ground.cells[n].variable]) for n in numbers}


def _forest(neighbours: dict[int, list[int]]) -> list[tuple[int, int | None]] | None:
    """Every cell with its parent, parents first, or `None` where there is a cycle."""
    order: list[tuple[int, int | None]] = []
    seen: set[int] = set()
    for root in neighbours:
        if root in seen:
            continue
        waiting: list[tuple[int, int | None]] = [(root, None)]
        while waiting:
            cell, parent = waiting.pop()
            if cell in seen:
                return None
            seen.add(cell)
            order.append((cell, parent))
            waiting += [(other, cell) for other in reversed(neighbours[cell]) if other != parent]
    return order


def _tree(neighbours: dict[int, list[int]], order: list[tuple[int, int | None]]) -> Places:
    """Leaves side by side, every parent above the middle of its children."""
    depth: dict[int, int] = {}
    children: dict[int, list[int]] = {cell: [] for cell in neighbours}
    for cell, parent in order:
        depth[cell] = 0 if parent is None else depth[parent] + 1
        if parent is not None:
            children[parent].append(cell)
    x: dict[int, float] = {}
    leaves = 0
    for cell, _ in order:
        if not children[cell]:
            x[cell] = leaves * STEP
            leaves += 1
    for cell, _ in reversed(order):
        if children[cell]:
            x[cell] = (x[children[cell][0]] + x[children[cell][-1]]) / 2
    return {cell: (x[cell], depth[cell] * ROW) for cell in neighbours}


def _springs(neighbours: dict[int, list[int]]) -> Places:
    """Cells on a circle, then moved by springs (Fruchterman & Reingold 1991); large graphs stay on the circle.

    Cost: quadratic in the cells for each of 120 rounds.
    """
    cells = list(neighbours)
    radius = max(STEP, STEP * len(cells) / (2 * math.pi))
    angles = {cell: 2 * math.pi * place / len(cells) - math.pi / 2 for place, cell in enumerate(cells)}
    at = {cell: (radius * math.cos(angle), radius * math.sin(angle)) for cell, angle in angles.items()}
    rounds = 120 if len(cells) <= MOST_SPRINGS else 0
    for number in range(rounds):
        heat = STEP * (1 - number / rounds) ** 2
        forces = {cell: _force(cell, at, neighbours[cell]) for cell in cells}
        for cell, (fx, fy) in forces.items():
            length = math.hypot(fx, fy) or 1.0
            step = min(length, heat) / length
            at[cell] = (at[cell][0] + fx * step, at[cell][1] + fy * step)
    return at


def _force(cell: int, at: Places, joined: list[int]) -> Point:
    """Repulsion from all cells, attraction to neighbours; they balance at about `1.2 STEP`."""
    rest = 1.2 * STEP
    x, y = at[cell]
    fx = fy = 0.0
    for other, (ox, oy) in at.items():
        if other == cell:
            continue
        dx, dy = x - ox, y - oy
        distance = math.hypot(dx, dy) or 1.0
        push = rest * rest / distance
        if other in joined:
            push -= distance * distance / rest
        fx, fy = fx + dx / distance * push, fy + dy / distance * push
    return fx, fy

"""A drawing with coordinates, and the geometry that layouts share.  Units are pixels; y grows downwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from energyml.ir.sketch import Edge, Node, Plate

Point: TypeAlias = tuple[float, float]

TEXT = 12.0
SMALL_TEXT = 10.0
CIRCLE = 34.0
SQUARE = 11.0
LABEL_GAP = 5.0
LABEL_PARTS = (0.4, 0.5, 0.3, 0.6, 0.45, 0.55, 0.35, 0.65, 0.25, 0.7, 0.2, 0.75)


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the insides of two boxes meet."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True)
class PlacedNode:
    """A node around its centre; the label of a square stands at its right, or at its left when it is `flipped`."""

    node: Node
    x: float
    y: float
    width: float
    height: float
    flipped: bool = False

    @property
    def box(self) -> Box:
        """The shape itself, without a label beside it."""
        across, down = self.width / 2, self.height / 2
        return Box(self.x - across, self.y - down, self.x + across, self.y + down)

    @property
    def label_box(self) -> Box:
        """The room of the label."""
        width = text_width(self.node.label)
        left = self.x - width / 2
        if self.node.is_square:
            left = self.box.left - LABEL_GAP - width if self.flipped else self.box.right + LABEL_GAP
        return Box(left, self.y - TEXT / 2, left + width, self.y + TEXT / 2)


@dataclass(frozen=True)
class PlacedEdge:
    """A line of cubic pieces: a start, then three points a piece; the label stands on it, `part` of the way along."""

    edge: Edge
    curve: tuple[Point, ...]
    part: float = 0.5

    @property
    def label_at(self) -> Point:
        """The middle of the label."""
        return on_curve(self.curve, self.part)

    @property
    def label_box(self) -> Box:
        """The room of the label."""
        (x, y), width = self.label_at, text_width(self.edge.label, SMALL_TEXT)
        return Box(x - width / 2, y - SMALL_TEXT / 2, x + width / 2, y + SMALL_TEXT / 2)


@dataclass(frozen=True)
class PlacedPlate:
    """A plate's rectangle; its label stands at the lower right."""

    plate: Plate
    box: Box


@dataclass(frozen=True)
class Figure:
    """Everything with its place.

    Attributes:
        nodes: what is drawn.
        edges: the lines between them.
        plates: rectangles around what is repeated.
        legend: the terms of a grounded drawing, in the order of their colours.
        remark: what is left out.
    """

    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]
    plates: tuple[PlacedPlate, ...] = ()
    legend: tuple[Node, ...] = ()
    remark: str = ""

    def labels(self) -> Iterator[tuple[str, Box]]:
        """Every text of the drawing with the room that it takes."""
        for placed in self.nodes:
            if placed.node.label:
                yield placed.node.label, placed.label_box
        for line in self.edges:
            if line.edge.label:
                yield line.edge.label, line.label_box
        for frame in self.plates:
            width = text_width(frame.plate.label, SMALL_TEXT)
            right, bottom = frame.box.right - 7, frame.box.bottom - 5
            yield frame.plate.label, Box(right - width, bottom - SMALL_TEXT, right, bottom)

    def extent(self) -> Box:
        """The smallest box around everything but the legend."""
        boxes = [placed.box for placed in self.nodes] + [frame.box for frame in self.plates]
        boxes += [box for _, box in self.labels()]
        points = [point for line in self.edges for point in line.curve]
        lefts = [box.left for box in boxes] + [x for x, _ in points]
        rights = [box.right for box in boxes] + [x for x, _ in points]
        tops = [box.top for box in boxes] + [y for _, y in points]
        bottoms = [box.bottom for box in boxes] + [y for _, y in points]
        return Box(min(lefts, default=0), min(tops, default=0), max(rights, default=0), max(bottoms, default=0))


def text_width(text: str, size: float = TEXT) -> float:
    """About how wide a text is in a sans-serif font, rather too wide than too narrow."""
    return sum(0.4 if character in "[]()',.:il|! " else 0.66 for character in text) * size


def node_size(node: Node) -> tuple[float, float]:
    """Width and height of a node's shape."""
    if node.is_square:
        return SQUARE, SQUARE
    if node.kind in ("net", "param"):
        return text_width(node.label) + 16, 24.0
    return max(CIRCLE, text_width(node.label) + 14), CIRCLE


def border(placed: PlacedNode, towards: Point) -> Point:
    """Where a line from a node's centre to a point leaves its shape, which is taken to be round at both ends."""
    radius = placed.height / 2
    slack = max(0.0, placed.width / 2 - radius)
    centre = min(max(towards[0], placed.x - slack), placed.x + slack)
    dx, dy = towards[0] - centre, towards[1] - placed.y
    length = math.hypot(dx, dy) or 1.0
    return centre + radius * dx / length, placed.y + radius * dy / length


def through(points: Sequence[Point], centre: Point | None = None) -> tuple[Point, ...]:
    """A smooth curve that leaves and enters points vertically, the last one in the direction of a centre."""
    curve = [points[0]]
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        curve += [(x1, middle), (x2, middle), (x2, y2)]
    if centre is not None:
        (x, y), (before, above) = points[-1], points[-2]
        length = math.hypot(x - centre[0], y - centre[1]) or 1.0
        reach = math.hypot(x - before, y - above) / 2.5 / length
        curve[-2] = (x + (x - centre[0]) * reach, y + (y - centre[1]) * reach)
    return tuple(curve)


def bowed(start: Point, end: Point, bow: float) -> tuple[Point, ...]:
    """A line that is bent sideways by `bow` at its middle."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    across = (-dy / length * bow * 4 / 3, dx / length * bow * 4 / 3)
    first = (start[0] + dx / 3 + across[0], start[1] + dy / 3 + across[1])
    second = (start[0] + 2 * dx / 3 + across[0], start[1] + 2 * dy / 3 + across[1])
    return (start, first, second, end)


def on_curve(curve: Sequence[Point], part: float) -> Point:
    """A point on a curve of cubic pieces, `part` of the way along."""
    pieces = (len(curve) - 1) // 3
    piece = min(int(part * pieces), pieces - 1)
    along = part * pieces - piece
    weights = ((1 - along) ** 3, 3 * (1 - along) ** 2 * along, 3 * (1 - along) * along**2, along**3)
    ends = curve[3 * piece : 3 * piece + 4]
    x, y = (sum(w * point[axis] for w, point in zip(weights, ends, strict=True)) for axis in (0, 1))
    return x, y


def with_labels(figure: Figure) -> Figure:
    """Move each label along its line to the first place where it meets no other label and no node."""
    taken = [placed.box for placed in figure.nodes]
    taken += [box for _, box in replace(figure, edges=()).labels()]
    lines: list[PlacedEdge] = []
    for line in figure.edges:
        if line.edge.label:
            tries = [replace(line, part=part) for part in LABEL_PARTS]
            line = next((one for one in tries if not any(one.label_box.overlaps(box) for box in taken)), tries[0])
            taken.append(line.label_box)
        lines.append(line)
    return replace(figure, edges=tuple(lines))


@dataclass(frozen=True)
class Item:
    """Something on a line that wants to stand at a place and needs room to its left and right."""

    name: str
    wish: float
    left: float
    right: float


def spread(items: Sequence[Item], gap: float) -> dict[str, float]:
    """Places without overlap, in the order of the wishes and as near to them as possible in the sum of squares.

    Shifting each place by the room before it makes this a monotone regression, solved by pooling neighbours; n log n.
    """
    ordered = sorted(items, key=lambda item: item.wish)
    shifts: list[float] = []
    for place, item in enumerate(ordered):
        shifts.append(shifts[-1] + ordered[place - 1].right + gap + item.left if place else 0.0)
    pools: list[tuple[float, int]] = []
    for item, shift in zip(ordered, shifts, strict=True):
        total, count = item.wish - shift, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return {item.name: mean + shift for item, mean, shift in zip(ordered, means, shifts, strict=True)}

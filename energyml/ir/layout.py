"""Layout of lifted drawings: layers from the inputs down to the variables, plates as boxes inside boxes.

The terms and variables are placed first, plate by plate; then everything above them is layered in the manner of
Sugiyama: an edge that passes a layer holds a place in it, and every layer is put above what it feeds.  Deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from energyml.ir.figure import (
    LABEL_GAP,
    SMALL_TEXT,
    Box,
    Figure,
    Item,
    PlacedEdge,
    PlacedNode,
    PlacedPlate,
    Point,
    border,
    bowed,
    node_size,
    on_curve,
    spread,
    text_width,
    through,
    with_labels,
)
from energyml.ir.sketch import PAPER, Band, Edge, Node, PlateKey, Sketch

GAP = 26.0
PLATE_SIDE = 14.0
PLATE_TOP = 12.0
PLATE_BOTTOM = 24.0
LEVEL = 62.0
PASSAGE = 7.0
BOW = 13.0

# The rows of the lowest part, from above.
SOFT, VARIABLES, HARD, READOUTS = range(4)


@dataclass
class _Group:
    """Nodes beside each other with the plates around them; coordinates are relative."""

    x: dict[str, float] = field(default_factory=dict)
    sides: dict[PlateKey, tuple[float, float]] = field(default_factory=dict)
    left: float = 0.0
    right: float = 0.0

    @property
    def anchor(self) -> float:
        """The mean place of the nodes."""
        return sum(self.x.values()) / len(self.x) if self.x else 0.0

    def shift(self, by: float) -> None:
        self.x = {name: x + by for name, x in self.x.items()}
        self.sides = {key: (left + by, right + by) for key, (left, right) in self.sides.items()}
        self.left, self.right = self.left + by, self.right + by

    def take(self, other: _Group) -> None:
        self.x |= other.x
        self.sides |= other.sides
        self.left, self.right = min(self.left, other.left), max(self.right, other.right)


def lifted_layout(sketch: Sketch) -> Figure:
    """Place everything."""
    return _Layout(sketch).figure()


class _Layout:
    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.nodes = {node.id: node for node in sketch.nodes}
        self.uses: dict[str, list[Edge]] = defaultdict(list)
        for edge in sketch.edges:
            self.uses[edge.source].append(edge)
        self.plates = {(plate.band, plate.key): plate for plate in sketch.plates}
        self.readouts = {edge.target: edge.source for edge in sketch.edges if edge.kind == "readout"}
        self.free = [node for node in sketch.nodes_in("scored", PAPER) if node.is_square]
        self.x: dict[str, float] = {}
        self.y: dict[str, float] = {}
        self.frames: list[PlacedPlate] = []
        self.passages: dict[tuple[Edge, int], float] = {}
        self.levels: list[list[str]] = []
        self.level_y: list[float] = []
        self.row_y: dict[int, float] = {}
        self.ranks: dict[str, int] = {}
        self.flipped: set[str] = set()

    def figure(self) -> Figure:
        """All steps in order: the scored part, the layers above it, then lines."""
        self.place_scored()
        self.place_levels()
        placed = {name: self.placed(name) for name in self.nodes}
        lines, frames = tuple(self.lines(placed)), tuple(self.frames)
        return with_labels(Figure(tuple(placed.values()), lines, frames, remark=self.sketch.remark))

    def placed(self, name: str) -> PlacedNode:
        return PlacedNode(
            self.nodes[name], self.x[name], self.y[name], *node_size(self.nodes[name]), name in self.flipped
        )

    # ------------------------------------------------------------------------------------------------------- plates

    def sides(self, name: str) -> tuple[float, float]:
        """The room that a node needs to the left and right of its centre."""
        if name not in self.nodes:
            return PASSAGE, PASSAGE
        node = self.nodes[name]
        half = node_size(node)[0] / 2
        label = LABEL_GAP + text_width(node.label) if node.is_square else 0.0
        return (half + label, half) if name in self.flipped else (half, half + label)

    def framed(self, band: Band, key: PlateKey, group: _Group) -> _Group:
        """A group with its plate around it."""
        label = text_width(self.plates[band, key].label, SMALL_TEXT) + 14
        nodes = [group.x[node.id] for node in self.sketch.nodes_in(band, key)]
        group.left -= PLATE_SIDE
        group.right = max(group.right + PLATE_SIDE, group.left + label)
        if all(self.nodes[name].is_square or band == "given" for name in group.x if name in self.nodes):
            # the lines go down from the nodes: keep them off the label
            group.right = max(group.right, max(nodes, default=0.0) + label + (12 if band == "scored" else 0))
        group.sides[key] = (group.left, group.right)
        return group

    def beside(self, group: _Group, others: Iterable[_Group]) -> _Group:
        """Further groups to the right of a group."""
        for other in others:
            other.shift((group.right + GAP if group.x else 0.0) - other.left)
            group.take(other)
        return group

    def measured(self, x: dict[str, float]) -> _Group:
        """Nodes at their places as a group."""
        extents = [(at - self.sides(name)[0], at + self.sides(name)[1]) for name, at in x.items()]
        left = min((left for left, _ in extents), default=0.0)
        return _Group(x, {}, left, max((right for _, right in extents), default=0.0))

    # -------------------------------------------------------------------------------------------------- scored part

    def row_of(self, node: Node) -> int:
        if node.is_square:
            return HARD if node.kind == "hard" else SOFT
        return READOUTS if node.id in self.readouts else VARIABLES

    def scored_plate(self, key: PlateKey) -> _Group:
        """A plate of terms and variables: small plates with one row of terms stand in that row, others to the right."""
        own = [node for node in self.sketch.nodes_in("scored", key) if not (key == PAPER and node.is_square)]
        variables = [node.id for node in own if self.row_of(node) == VARIABLES]
        rows = {row: [node.id for node in own if self.row_of(node) == row] for row in (SOFT, HARD, READOUTS)}
        inner = {plate.key: self.scored_plate(plate.key) for plate in self.sketch.plates_in("scored", key)}
        small: dict[str, _Group] = {}
        for plate, group in inner.items():
            kinds = {self.row_of(self.nodes[name]) for name in group.x if name in self.nodes}
            if key != PAPER and variables and len(kinds) == 1 and kinds <= {SOFT, HARD}:
                small[f"plate {plate}"] = group
                rows[kinds.pop()].append(f"plate {plate}")
        for row in (SOFT, HARD):
            if rows[row]:
                rows[row] += [f"{edge.source}>{edge.target}" for edge in self.passing(row, variables)]
        at = self.settle(variables, rows, small)
        made = self.measured({name: x for name, x in at.items() if name not in small})
        for name, group in small.items():
            group.shift(at[name] - group.anchor)
            made.take(group)
        large = [group for plate, group in inner.items() if f"plate {plate}" not in small]
        made = self.beside(made, large)
        return made if key == PAPER else self.framed("scored", key, made)

    def settle(self, variables: list[str], rows: dict[int, list[str]], small: dict[str, _Group]) -> dict[str, float]:
        """Places for the rows of a plate: each row above or below what it touches, in turns."""
        touched = {name: self.touching(name, small) for names in rows.values() for name in names}
        at = spread([Item(name, 60.0 * place, *self.sides(name)) for place, name in enumerate(variables)], GAP)
        for turn in range(6):
            if turn == 3:
                self.flip([name for row in (SOFT, HARD) for name in rows[row]], touched, at)
            for names in rows.values():
                wishes = [
                    Item(n, self.mean([at[v] for v in touched[n] if v in at]), *self.room(n, small)) for n in names
                ]
                at.update(spread(wishes, GAP / 2))
            users = {v: [at[name] for name in rows[SOFT] if v in touched[name] and ">" not in name] for v in variables}
            wishes = [Item(v, self.mean(users[v] or [at[v]]), *self.sides(v)) for v in variables]
            at.update(spread(wishes, GAP))
        return at

    def flip(self, names: list[str], touched: dict[str, set[str]], at: dict[str, float]) -> None:
        """Put the labels of terms to the left where their lines go down to the right."""
        for name in names:
            targets = [at[variable] for variable in touched[name] if variable in at]
            if name in self.nodes and targets and self.mean(targets) > at[name] + 8:
                self.flipped.add(name)

    def touching(self, name: str, small: dict[str, _Group]) -> set[str]:
        """The variables that a term, the terms of a plate, or a passing line touch; the field of a read-out."""
        if ">" in name:
            return {name.split(">")[1]}
        members = list(small[name].x) if name in small else [name]
        found = {edge.target for member in members for edge in self.uses[member]}
        return found | ({self.readouts[name]} if name in self.readouts else set())

    def room(self, name: str, small: dict[str, _Group]) -> tuple[float, float]:
        if name not in small:
            return self.sides(name)
        group = small[name]
        return group.anchor - group.left, group.right - group.anchor

    def passing(self, row: int, variables: list[str]) -> list[Edge]:
        """The lines from free terms that pass a row of terms on their way to variables, once for each pair."""
        names = [node.id for node in self.free if self.row_of(node) == row]
        lines = [edge for name in names for edge in self.uses[name] if edge.target in variables]
        return list({(edge.source, edge.target): edge for edge in lines}.values())

    def place_scored(self) -> None:
        group = self.scored_plate(PAPER)
        self.x.update(group.x)
        deepest = max((self.depth(plate.key) for plate in self.sketch.plates if plate.band == "scored"), default=0)
        used = {self.row_of(node) for node in self.sketch.nodes if node.band == "scored" and node not in self.free}
        y = 0.0
        for row in sorted(used):
            self.row_y[row] = y
            y += LEVEL + (PLATE_BOTTOM + 4) * max(0, deepest - 1)
        for node in self.sketch.nodes:
            if node.band == "scored" and node not in self.free:
                self.y[node.id] = self.row_y[self.row_of(node)]
        bottom = max(
            (self.frame("scored", plate.key, group).bottom for plate in self.sketch.plates_in("scored", PAPER)),
            default=0.0,
        )
        lowest = max(bottom, max(self.row_y.values(), default=0.0) + 17)
        hard = [node.id for node in self.free if node.kind == "hard"]
        items = [Item(n, self.mean([self.below(edge, 0) for edge in self.uses[n]]), *self.sides(n)) for n in hard]
        for name, x in spread(items, GAP).items():
            self.x[name], self.y[name] = x, lowest + 30

    def depth(self, key: PlateKey) -> int:
        plate = self.plates["scored", key]
        return 1 + (self.depth(plate.inside) if plate.inside != PAPER else 0)

    def frame(self, band: Band, key: PlateKey, group: _Group) -> Box:
        """Draw a plate around what it holds, the inner plates first."""
        boxes = [self.frame(band, plate.key, group) for plate in self.sketch.plates_in(band, key)]
        own = [(self.y[node.id], node_size(node)[1] / 2) for node in self.sketch.nodes_in(band, key)]
        top = min([y - half for y, half in own] + [box.top for box in boxes]) - PLATE_TOP
        bottom = max([y + half for y, half in own] + [box.bottom for box in boxes]) + PLATE_BOTTOM
        left, right = group.sides[key]
        made = Box(left, top, right, bottom)
        self.frames.insert(0, PlacedPlate(self.plates[band, key], made))
        return made

    # ----------------------------------------------------------------------------------------------- layers above it

    def place_levels(self) -> None:
        """From below: free terms, networks and parameters by how far they are from a term, inputs."""
        ranks = {node.id: self.rank(node.id) for node in self.sketch.nodes if node.band == "computed"}
        soft = [node.id for node in self.free if node.kind == "term"]
        highest = max(ranks.values(), default=0)
        self.levels = [soft] if soft else []
        self.levels += [[name for name, rank in ranks.items() if rank == level] for level in range(1, highest + 1)]
        given = [node.id for node in self.sketch.nodes if node.band == "given"]
        tops = [frame.box.top for frame in self.frames] + [
            self.y[node.id] - node_size(node)[1] / 2 for node in self.sketch.nodes if node.id in self.y
        ]
        y = min(tops, default=0.0)
        level_of = {name: place for place, names in enumerate(self.levels) for name in names}
        level_of |= dict.fromkeys(given, len(self.levels))
        for place, names in enumerate(self.levels):
            y -= LEVEL * (0.8 if place == 0 else 1.0)
            self.level_y.append(y)
            self.place_level(place, names, level_of)
            self.y.update(dict.fromkeys(names, y))
        if given:
            self.place_given(y - LEVEL)

    def rank(self, name: str) -> int:
        """How many steps a network or parameter is above the terms; a network that reads its own output counts once."""
        if name not in self.ranks:
            self.ranks[name] = 0  # what leads back here is no step
            above = [self.rank(edge.target) for edge in self.uses[name] if self.nodes[edge.target].band == "computed"]
            self.ranks[name] = 1 + max(above, default=0)
        return self.ranks[name]

    def place_level(self, place: int, names: list[str], level_of: dict[str, int]) -> None:
        lower = {
            name: [edge for edge in self.uses[name] if level_of.get(edge.target, -1) < place] for name in names
        }  # a network may read its own output
        items = [
            Item(name, self.mean([self.below(edge, place) for edge in lower[name]]), *self.sides(name))
            for name in names
        ]
        crossing = [
            edge
            for edge in self.sketch.edges
            if level_of.get(edge.source, -1) > place and level_of.get(edge.target, -1) < place
        ]
        items += [Item(f"passage {i}", self.below(edge, place), PASSAGE, PASSAGE) for i, edge in enumerate(crossing)]
        at = spread(items, GAP)
        self.x.update({name: at[name] for name in names})
        self.passages.update({(edge, place): at[f"passage {i}"] for i, edge in enumerate(crossing)})

    def below(self, edge: Edge, place: int) -> float:
        """Where a line goes on under a level."""
        for level in range(place - 1, -1, -1):
            if (edge, level) in self.passages:
                return self.passages[edge, level]
        return self.x.get(f"{edge.source}>{edge.target}", self.x[edge.target])

    @staticmethod
    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    def given_plate(self, key: PlateKey) -> _Group:
        """A plate of inputs: its own in a row, the plates inside it to their right."""
        own = self.measured(spread([self.given_item(node) for node in self.sketch.nodes_in("given", key)], GAP / 2))
        inner = [self.given_plate(plate.key) for plate in self.sketch.plates_in("given", key)]
        return self.framed("given", key, self.beside(own, inner))

    def given_item(self, node: Node) -> Item:
        top = len(self.levels)
        return Item(node.id, self.mean([self.below(edge, top) for edge in self.uses[node.id]]), *self.sides(node.id))

    def place_given(self, y: float) -> None:
        """Inputs, the plates among them as wholes."""
        groups = [self.given_plate(plate.key) for plate in self.sketch.plates_in("given", PAPER)]
        groups += [self.measured(spread([self.given_item(node)], GAP)) for node in self.sketch.nodes_in("given", PAPER)]
        items = [
            Item(str(i), (group.left + group.right) / 2, *[(group.right - group.left) / 2] * 2)
            for i, group in enumerate(groups)
        ]
        at = spread(items, GAP)
        whole = _Group()
        for i, group in enumerate(groups):
            group.shift(at[str(i)] - (group.left + group.right) / 2)
            whole.take(group)
        deepest = max((len(plate.key.dims) for plate in self.sketch.plates if plate.band == "given"), default=0)
        self.x.update(whole.x)
        self.y.update(dict.fromkeys(whole.x, y - PLATE_BOTTOM * deepest))
        for plate in self.sketch.plates_in("given", PAPER):
            self.frame("given", plate.key, whole)

    # -------------------------------------------------------------------------------------------------------- lines

    def lines(self, placed: dict[str, PlacedNode]) -> Iterable[PlacedEdge]:
        twins: dict[tuple[str, str], list[Edge]] = defaultdict(list)
        for edge in self.sketch.edges:
            twins[edge.source, edge.target].append(edge)
        for between in twins.values():
            for number, edge in enumerate(between):
                start, end = placed[edge.source], placed[edge.target]
                if edge.kind == "flow":
                    yield PlacedEdge(
                        edge, through([(start.x, start.box.bottom), *self.bends(edge), (end.x, end.box.top)])
                    )
                else:
                    bow = BOW * (2 * number - len(between) + 1)
                    yield self.scope_line(edge, start, end, bow)

    def bends(self, edge: Edge) -> list[Point]:
        """The places that a line holds in the levels that it passes, from above."""
        levels = range(len(self.level_y) - 1, -1, -1)
        return [(self.passages[edge, level], self.level_y[level]) for level in levels if (edge, level) in self.passages]

    def scope_line(self, edge: Edge, start: PlacedNode, end: PlacedNode, bow: float) -> PlacedEdge:
        passage = self.x.get(f"{edge.source}>{edge.target}")
        if passage is not None:
            bend = (passage + bow / 2, self.row_y[self.row_of(start.node)])
            near = start.box.bottom if start.y < bend[1] else start.box.top
            return PlacedEdge(edge, through([(start.x, near), bend, border(end, bend)], (end.x, end.y)))
        middle = on_curve(bowed((start.x, start.y), (end.x, end.y), bow), 0.5)
        return PlacedEdge(edge, bowed(border(start, middle), border(end, middle), bow))

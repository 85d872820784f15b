"""What a drawing shows, before anybody knows where: nodes, edges and plates.

A *lifted* sketch has one node a declaration and one a term, inside plates for index sets; a *grounded* one has one
node a cell and one a factor of an example.  Both are written as DOT (`energyml.ir.dot`), or laid out and written as
SVG (`energyml.ir.svg`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal, TypeAlias

from energyml.ir.graph import Binding, CellRef, Edges, Graph, MaskedEnergy, Range, Stepwise, Term
from energyml.ir.ground import Cell, GroundFactor, GroundGraph
from energyml.ir.text import print_net, print_param, print_term, print_variable
from energyml.model.declared import Input, Variable
from energyml.model.expression import Apply, Expression, Reference
from energyml.model.types import EdgeType

NodeKind = Literal["input", "output", "latent", "field", "net", "param", "term", "hard"]
EdgeKind = Literal["flow", "scope", "readout"]

# `given` stands at the top, `computed` in the middle, `scored` (terms and variables) at the bottom.
Band = Literal["given", "computed", "scored"]


# A picture with more nodes shows nothing, and placing them takes time with a power of their number.
MOST_NODES = 240
_MOST_EDGES = 10 * MOST_NODES  # of one term
# A let and who reads it: a network or a term.
Passage: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class PlateKey:
    """Which plate: its index set, as dims each with how many of its last positions are left out.

    A plate without variables is drawn once for each group of terms over the same variables; `apart` tells those apart.
    """

    dims: tuple[tuple[str, int], ...] = ()
    apart: str = ""

    def holds(self, inner: PlateKey) -> bool:
        """Whether every position of another index set is one of this."""
        cuts = dict(inner.dims)
        contained = all(dim in cuts and cuts[dim] >= cut for dim, cut in self.dims)
        return contained and self != inner and self.apart in ("", inner.apart)


PAPER = PlateKey()


@dataclass(frozen=True)
class Node:
    """Something that is drawn.

    Attributes:
        id: unique in its sketch.
        kind: how it is drawn.
        label: the short text at it.
        title: the full text, shown as a tooltip.
        band: which part of a lifted drawing it stands in.
        plate: the plate that it stands in.
        term: the term of a grounded factor.
    """

    id: str
    kind: NodeKind
    label: str
    title: str
    band: Band = "scored"
    plate: PlateKey = PAPER
    term: str = ""

    @property
    def is_square(self) -> bool:
        """Whether it is a term or a factor rather than something with its name inside."""
        return self.kind in ("term", "hard")


@dataclass(frozen=True)
class Edge:
    """A line from one node to another."""

    source: str
    target: str
    kind: EdgeKind
    label: str = ""


@dataclass(frozen=True)
class Plate:
    """A rectangle around what is repeated; `inside` is the next larger plate of its band."""

    band: Band
    key: PlateKey
    label: str
    inside: PlateKey = PAPER


@dataclass(frozen=True)
class Sketch:
    """A drawing without coordinates; `remark` says what is left out of it."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    plates: tuple[Plate, ...] = ()
    remark: str = ""

    @cached_property
    def _plates(self) -> dict[tuple[Band, PlateKey], list[Plate]]:
        found: dict[tuple[Band, PlateKey], list[Plate]] = defaultdict(list)
        for plate in self.plates:
            found[plate.band, plate.inside].append(plate)
        return found

    @cached_property
    def _nodes(self) -> dict[tuple[Band, PlateKey], list[Node]]:
        found: dict[tuple[Band, PlateKey], list[Node]] = defaultdict(list)
        for node in self.nodes:
            found[node.band, node.plate].append(node)
        return found

    def plates_in(self, band: Band, inside: PlateKey) -> list[Plate]:
        """The plates that stand directly in a plate, or on the paper."""
        return self._plates.get((band, inside), [])

    def nodes_in(self, band: Band, plate: PlateKey) -> list[Node]:
        """The nodes that stand directly in a plate, or on the paper."""
        return self._nodes.get((band, plate), [])


# --------------------------------------------------------------------------------------------------------------- lifted


def lifted(graph: Graph, most: int = MOST_NODES) -> Sketch:
    """Declarations and terms, with the flow from inputs through networks into terms.

    Args:
        graph: the model.
        most: how many nodes are drawn; terms come in their order with all that they read and touch, and what has no
            room is left out and counted in the remark.

    Cost: linear in the graph, times the networks and terms that are drawn where named tensors are shared.
    """
    edges: dict[Edge, None] = {}
    drawn: dict[str, None] = {}
    through: set[Passage] = set()
    for term in graph.terms:
        passed: set[Passage] = set()
        found = dict.fromkeys(islice(_edges(graph, term, through, passed), _MOST_EDGES))
        ends = dict.fromkeys(name for edge in found for name in (edge.source, edge.target))
        if len(found) < _MOST_EDGES and len(drawn | ends) <= most:
            drawn |= ends
            edges |= found
            through |= passed
    alone = [f"variable {name}" for name in graph.variables if f"variable {name}" not in drawn]
    drawn |= dict.fromkeys(alone[: most - len(drawn)])
    for variable in graph.variables.values():
        if variable.readout is not None:
            edge = Edge(f"variable {variable.readout.field}", f"variable {variable.name}", "readout", "argmax")
            edges |= {edge: None} if edge.source in drawn and edge.target in drawn else {}
    kept = [node for node in _nodes(graph, drawn) if node.id in drawn]
    return Sketch(tuple(kept), tuple(edges), tuple(_plates(graph, kept)), _left_out(graph, drawn))


def _left_out(graph: Graph, drawn: dict[str, None]) -> str:
    """How many terms and variables a drawing does not show."""
    counts = {
        "terms": (len(graph.terms), sum(f"term {one.name}" not in drawn for one in graph.terms)),
        "variables": (len(graph.variables), sum(f"variable {name}" not in drawn for name in graph.variables)),
    }
    parts = [f"{missing} of {every} {kind}" for kind, (every, missing) in counts.items() if missing]
    return f"not drawn, for lack of room: {' and '.join(parts)}" if parts else ""


def _nodes(graph: Graph, drawn: dict[str, None]) -> Iterator[Node]:
    shared = {_key((dim, 0) for dim in variable.dims) for variable in graph.variables.values()}
    for given in graph.inputs.values():
        title = f"input {given.name} : {given.type}"
        yield Node(f"input {given.name}", "input", given.name, title, "given", _input_plate(given))
    for net in graph.nets.values():
        yield Node(f"net {net.name}", "net", net.name, print_net(net), "computed")
    for param in graph.params.values():
        yield Node(f"param {param.name}", "param", param.name, print_param(param), "computed")
    for variable in graph.variables.values():
        key = _key((dim, 0) for dim in variable.dims)
        yield Node(f"variable {variable.name}", variable.kind, variable.name, print_variable(variable), "scored", key)
    for term in graph.terms:
        if f"term {term.name}" in drawn:
            kind: NodeKind = "hard" if term.is_hard else "term"
            yield Node(f"term {term.name}", kind, term.name, print_term(term), "scored", _term_plate(shared, term))


def _key(parts: Iterator[tuple[str, int]], apart: str = "") -> PlateKey:
    dims = tuple(sorted(dict.fromkeys(parts)))
    return PlateKey(dims, apart if dims else "")


def _input_plate(given: Input) -> PlateKey:
    if isinstance(given.type, EdgeType):
        return PlateKey(((given.type.over, 0),))
    return _key((axis.extent.name, -axis.extent.offset) for axis in given.type.index_axes)


def _term_plate(shared: set[PlateKey], term: Term) -> PlateKey:
    """The plate of a term: that of variables, which are given, where one has its index set, else one of its own."""
    parts = [(b.dim, b.shrink) if isinstance(b, Range) else (b.over, 0) for b in term.domain]
    key = _key(iter(parts))
    if key in shared:
        return key
    return _key(iter(parts), f"{'hard' if term.is_hard else 'soft'} {' '.join(sorted(term.variables))}")


def _edges(graph: Graph, term: Term, through: set[Passage], passed: set[Passage]) -> Iterator[Edge]:
    """The edges of a term: from what it reads, and to what it touches."""
    target = f"term {term.name}"
    body = term.body
    if isinstance(body, Stepwise | MaskedEnergy):
        yield Edge(f"net {body.net}", target, "flow")
        target = f"net {body.net}"
    for value in term.expressions():
        yield from _flow(graph, value, target, through, passed)
    for binding in term.domain:
        if isinstance(binding, Edges):
            yield Edge(f"input {binding.source}", f"term {term.name}", "flow")
    for ref in term.scope:
        yield Edge(f"term {term.name}", f"variable {ref.variable}", "scope", _cell_label(term, ref))


def _flow(graph: Graph, value: Expression, target: str, through: set[Passage], passed: set[Passage]) -> Iterator[Edge]:
    """The edges from what an expression reads to its users; a let is seen through once for each user.

    Args:
        graph: the model.
        value: the expression.
        target: its user.
        through: what other terms have seen through.
        passed: takes what is seen through now.
    """
    waiting = [(value, target)]
    while waiting:
        one, user = waiting.pop()
        match one:
            case Apply(net=net, arguments=arguments):
                yield Edge(f"net {net}", user, "flow")
                waiting += [(argument, f"net {net}") for argument in reversed(arguments)]
            case Reference(kind="let", name=name):
                if (name, user) not in through and (name, user) not in passed:
                    passed.add((name, user))
                    waiting.append((graph.lets[name].value, user))
            case Reference(kind=kind, name=name):
                yield Edge(f"{kind} {name}", user, "flow")
            case _:
                waiting += [(part, user) for part in reversed(one.parts)]


def _cell_label(term: Term, ref: CellRef) -> str:
    """`from [t]`; nothing for the only cell of a term at its own index."""
    plain = all(index.index is not None and not index.offset for index in ref.indices)
    if not ref.indices or (len(term.scope) == 1 and plain):
        return ref.role or ""
    place = f"[{', '.join(map(str, ref.indices))}]"
    return f"{ref.role} {place}" if ref.role else place


def _plates(graph: Graph, nodes: list[Node]) -> Iterator[Plate]:
    domains: dict[PlateKey, list[tuple[Binding, ...]]] = {}
    drawn = {node.id: node.plate for node in nodes}
    for term in graph.terms:
        if f"term {term.name}" in drawn:
            domains.setdefault(drawn[f"term {term.name}"], []).append(term.domain)
    bands: tuple[Band, ...] = ("given", "scored")
    for band in bands:
        keys = list(dict.fromkeys(node.plate for node in nodes if node.band == band and node.plate != PAPER))
        for key in keys:
            label = _plate_label(graph, key, domains.get(key, []) if band == "scored" else [])
            around = [other for other in keys if other.holds(key)]
            inside = max(around, key=lambda other: (len(other.dims), sum(cut for _, cut in other.dims)), default=PAPER)
            yield Plate(band, key, label, inside)


def _plate_label(graph: Graph, key: PlateKey, domains: list[tuple[Binding, ...]]) -> str:
    texts = {", ".join(map(str, domain)) for domain in domains}
    if len(texts) == 1:
        return texts.pop()
    ordered = sorted(key.dims, key=lambda part: list(graph.dims).index(part[0]))
    return ", ".join(f"{dim}-{cut}" if cut else dim for dim, cut in ordered)


# ------------------------------------------------------------------------------------------------------------- grounded


def grounded(ground: GroundGraph, graph: Graph | None = None) -> Sketch:
    """Cells and factors of one example; the graph, when given, tells latent from output and hard from soft."""
    nodes = [_cell_node(number, cell, graph) for number, cell in enumerate(ground.cells)]
    edges: list[Edge] = []
    for number, factor in enumerate(ground.factors):
        node = _factor_node(number, factor, ground, graph)
        nodes.append(node)
        edges += [Edge(node.id, f"cell {cell}", "scope") for cell in factor.cells]
    return Sketch(tuple(nodes), tuple(edges))


def _cell_node(number: int, cell: Cell, graph: Graph | None) -> Node:
    variable: Variable | None = graph.variables.get(cell.variable) if graph is not None else None
    kind: NodeKind = variable.kind if variable is not None else "output"
    name = str(cell)
    return Node(f"cell {number}", kind, name.replace(" ", ""), f"{name} : {cell.labels}")


def _factor_node(number: int, factor: GroundFactor, ground: GroundGraph, graph: Graph | None) -> Node:
    cells = ", ".join(str(ground.cells[cell]) for cell in factor.cells)
    node = Node(f"factor {number}", "term", "", f"{factor.term} ({cells})", term=factor.term)
    if graph is None:
        return node
    term = graph.term(factor.term)
    return replace(node, kind="hard" if term.is_hard else "term", title=f"{node.title}\n{print_term(term)}")


__all__ = ["MOST_NODES", "PAPER", "Band", "Edge", "Node", "Plate", "PlateKey", "Sketch", "grounded", "lifted"]

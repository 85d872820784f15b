"""Sketches as DOT text for Graphviz, which is not needed for anything else."""

from __future__ import annotations

from collections.abc import Iterator

from energyml.ir.figure import Figure
from energyml.ir.sketch import PAPER, Band, Edge, Node, Plate, Sketch

_STYLES = {
    "input": 'shape=ellipse, style=filled, fillcolor="#cfd6de"',
    "output": 'shape=ellipse, style=filled, fillcolor="#ffffff"',
    "latent": 'shape=ellipse, style="filled,dashed", fillcolor="#ffffff"',
    "field": 'shape=ellipse, peripheries=2, style=filled, fillcolor="#ffffff"',
    "net": 'shape=box, style="filled,rounded", fillcolor="#dfe9f5", height=0.3',
    "param": 'shape=box, style="filled,rounded", fillcolor="#f3ead3", height=0.3',
    "term": 'shape=square, style=filled, fillcolor="#4078c0", label="", width=0.15, fixedsize=true',
    "hard": 'shape=square, style=solid, color="#d1242f", label="", width=0.15, fixedsize=true',
}
_LINES = {"flow": "", "scope": "dir=none", "readout": "style=dashed"}


def dot(sketch: Sketch, figure: Figure | None = None) -> str:
    """A whole DOT document; with a figure, `neato -n` keeps its coordinates."""
    spots = {placed.node.id: (placed.x, -placed.y) for placed in figure.nodes} if figure is not None else {}
    lines = ["digraph energyml {", f"  graph [{'layout=neato, ' if spots else ''}rankdir=TB];", "  node [fontsize=11];"]
    if sketch.remark:
        lines.append(f"  label={quoted(sketch.remark)};")
    bands: tuple[Band, ...] = ("given", "computed", "scored")
    for band in bands:
        lines += [_node(node, spots.get(node.id), 1) for node in sketch.nodes_in(band, PAPER)]
        for plate in sketch.plates_in(band, PAPER):
            lines += _cluster(sketch, plate, 1)
    lines += [f"  {quoted(edge.source)} -> {quoted(edge.target)}{_line_attributes(edge)};" for edge in sketch.edges]
    return "\n".join([*lines, "}\n"])


def quoted(text: str) -> str:
    """A DOT string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n") + '"'


def _cluster(sketch: Sketch, plate: Plate, depth: int) -> Iterator[str]:
    pad = "  " * depth
    name = "_".join(["cluster", plate.band, *(f"{dim}{cut}" for dim, cut in plate.key.dims), plate.key.apart])
    yield f"{pad}subgraph {quoted(name)} {{"
    yield f"{pad}  label={quoted(plate.label)}; labeljust=r; labelloc=b; style=rounded; fontsize=10;"
    for node in sketch.nodes_in(plate.band, plate.key):
        yield _node(node, None, depth + 1)
    for inner in sketch.plates_in(plate.band, plate.key):
        yield from _cluster(sketch, inner, depth + 1)
    yield f"{pad}}}"


def _node(node: Node, spot: tuple[float, float] | None, depth: int) -> str:
    label = f"xlabel={quoted(node.label)}" if node.is_square else f"label={quoted(node.label)}"
    facts = [label] if node.label else []
    facts += [f"tooltip={quoted(node.title)}", _STYLES[node.kind]]
    if spot is not None:
        facts.append(f'pos="{spot[0]:.1f},{spot[1]:.1f}!"')
    return f"{'  ' * depth}{quoted(node.id)} [{', '.join(facts)}];"


def _line_attributes(edge: Edge) -> str:
    label = f"label={quoted(edge.label)}, fontsize=9" if edge.label else ""
    facts = ", ".join(filter(None, [_LINES[edge.kind], label]))
    return f" [{facts}]" if facts else ""

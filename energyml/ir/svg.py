"""Figures as SVG text.  Colours are of middling lightness: a drawing can stand on a light and on a dark page."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from energyml.ir.figure import (
    LABEL_GAP,
    SMALL_TEXT,
    SQUARE,
    TEXT,
    Box,
    Figure,
    PlacedEdge,
    PlacedNode,
    PlacedPlate,
    Point,
    text_width,
)
from energyml.ir.sketch import Node

MARGIN = 16.0
LEGEND_ROW = 20.0

GREY = "#7d8590"
INK = "#1f2328"
OUTLINE = "#6e7781"
HARD = "#d1242f"
TERM = "#4078c0"
COLOURS = ("#4078c0", "#2da44e", "#bf8700", "#8250df", "#c4432b", "#1b7c83", "#bf3989", "#7d8590")
FILLS = {
    "input": "#cfd6de",
    "output": "#ffffff",
    "latent": "#ffffff",
    "field": "#ffffff",
    "net": "#dfe9f5",
    "param": "#f3ead3",
}

_UNWRITABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(figure: Figure, title: str) -> str:
    """A whole SVG document."""
    extent = figure.extent()
    rows = list(_legend_rows(figure.legend, max(extent.right - extent.left, 240.0)))
    wide = [extent.right - extent.left, *(row[-1][1] + row[-1][2] for row in rows), text_width(figure.remark)]
    width = max(wide) + 2 * MARGIN
    height = extent.bottom - extent.top + 2 * MARGIN + LEGEND_ROW * len(rows) + (8 if rows else 0)
    height += LEGEND_ROW if figure.remark else 0
    page = Box(extent.left - MARGIN, extent.top - MARGIN, extent.left - MARGIN + width, extent.top - MARGIN + height)
    lines = [*map(_frame, figure.plates), *map(_edge, figure.edges)]
    mark = f"{zlib.crc32(''.join([text(title), *lines]).encode()):08x}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="{_n(page.left)} {_n(page.top)} {_n(width)} {_n(height)}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{_n(TEXT)}">',
            f"<title>{text(title)}</title>",
            _definitions(figure, page, mark),
            *map(_plate, figure.plates),
            f'<g mask="url(#clear-{mark})" fill="none" stroke="{GREY}" stroke-width="1.2">',
            *(line.replace("url(#arrow)", f"url(#arrow-{mark})") for line in lines),
            "</g>",
            *(_edge_label(line) for line in figure.edges if line.edge.label),
            *(_node(placed, _colour(placed.node, figure.legend)) for placed in figure.nodes),
            *_legend(rows, figure.legend, extent),
            *([_label(extent.left, page.bottom - MARGIN, figure.remark, f'fill="{GREY}"')] if figure.remark else []),
            "</svg>\n",
        ]
    )


def _definitions(figure: Figure, page: Box, mark: str) -> str:
    """An arrow's head, and a mask that keeps lines from under the labels; `mark` makes their names unique on a page."""
    boxes = [box for label, box in figure.labels() if label]
    holes = "".join(_rectangle(Box(b.left - 2, b.top - 1, b.right + 2, b.bottom + 1), 'fill="black"') for b in boxes)
    area = _rectangle(page, 'fill="white"')
    place = area.removeprefix("<rect ").split(" fill")[0]
    return (
        f'<defs><marker id="arrow-{mark}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto"><path d="M0 0.8 L7.5 4 L0 7.2 z" fill="{GREY}" stroke="none"/></marker>'
        f'<mask id="clear-{mark}" maskUnits="userSpaceOnUse" {place}>{area}{holes}</mask></defs>'
    )


def text(value: str) -> str:
    """A text inside an element: marks escaped, characters that XML does not have replaced."""
    return escape(_UNWRITABLE.sub("\ufffd", value))


def _n(value: float) -> str:
    return f"{round(value, 1):g}"


def _colour(node: Node, legend: tuple[Node, ...]) -> str:
    if node.kind == "hard":
        return HARD
    terms = [one.term for one in legend]
    return COLOURS[terms.index(node.term) % len(COLOURS)] if node.term in terms else TERM


def _plate(placed: PlacedPlate) -> str:
    box = placed.box
    ground = _rectangle(box, f'rx="8" fill="{GREY}" fill-opacity="0.07"')
    return (
        f'<g>{ground}<text x="{_n(box.right - 7)}" y="{_n(box.bottom - 7)}" text-anchor="end" '
        f'font-size="{_n(SMALL_TEXT)}" fill="{GREY}">{text(placed.plate.label)}</text></g>'
    )


def _frame(placed: PlacedPlate) -> str:
    return _rectangle(placed.box, 'rx="8" stroke-width="1"')


def _edge(placed: PlacedEdge) -> str:
    head = ' marker-end="url(#arrow)"'
    style = {"flow": head, "scope": "", "readout": f' stroke-dasharray="4 3"{head}'}[placed.edge.kind]
    return f'<path d="{_path(placed.curve)}"{style}/>'


def _edge_label(placed: PlacedEdge) -> str:
    x, y = placed.label_at
    return (
        f'<text x="{_n(x)}" y="{_n(y + SMALL_TEXT * 0.35)}" text-anchor="middle" font-size="{_n(SMALL_TEXT)}" '
        f'fill="{GREY}">{text(placed.edge.label)}</text>'
    )


def _path(curve: Iterable[Point]) -> str:
    first, *rest = (f"{_n(x)} {_n(y)}" for x, y in curve)
    return " ".join([f"M{first}", *(f"C{', '.join(rest[i : i + 3])}" for i in range(0, len(rest), 3))])


def _node(placed: PlacedNode, colour: str) -> str:
    node = placed.node
    if node.is_square:
        shape = _square(placed.x, placed.y, node, colour)
        anchor = "end" if placed.flipped else "start"
        x = placed.box.left - LABEL_GAP if placed.flipped else placed.box.right + LABEL_GAP
        label = _label(x, placed.y, node.label, f'fill="{GREY}" text-anchor="{anchor}"')
    else:
        shape = _round(placed)
        label = _label(placed.x, placed.y, node.label, f'fill="{INK}" text-anchor="middle"')
    return f"<g><title>{text(node.title)}</title>{shape}{label}</g>"


def _label(x: float, y: float, value: str, style: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y + TEXT * 0.35)}" {style}>{text(value)}</text>' if value else ""


def _square(x: float, y: float, node: Node, colour: str) -> str:
    fill = "none" if node.kind == "hard" else colour
    half = SQUARE / 2
    return (
        f'<rect x="{_n(x - half)}" y="{_n(y - half)}" width="{_n(SQUARE)}" height="{_n(SQUARE)}" fill="{fill}" '
        f'stroke="{colour}" stroke-width="1.6" pointer-events="all"/>'
    )


def _round(placed: PlacedNode) -> str:
    """A box with round corners; a circle where it is as wide as high, and two of them for a field."""
    node, box = placed.node, placed.box
    radius = 6.0 if node.kind in ("net", "param") else placed.height / 2
    dashes = ' stroke-dasharray="3 3"' if node.kind == "latent" else ""
    shape = _rectangle(
        box, f'rx="{_n(radius)}" fill="{FILLS[node.kind]}" stroke="{OUTLINE}" stroke-width="1.6"{dashes}'
    )
    if node.kind == "field":
        inner = Box(box.left + 3, box.top + 3, box.right - 3, box.bottom - 3)
        shape += _rectangle(inner, f'rx="{_n(radius - 3)}" fill="none" stroke="{OUTLINE}" stroke-width="1.2"')
    return shape


def _rectangle(box: Box, style: str) -> str:
    return (
        f'<rect x="{_n(box.left)}" y="{_n(box.top)}" width="{_n(box.right - box.left)}" '
        f'height="{_n(box.bottom - box.top)}" {style}/>'
    )


# --------------------------------------------------------------------------------------------------------------- legend


def _legend_rows(legend: tuple[Node, ...], width: float) -> Iterator[list[tuple[Node, float, float]]]:
    """The terms of a legend in rows: node, left end, width."""
    row: list[tuple[Node, float, float]] = []
    x = 0.0
    for node in legend:
        wide = SQUARE + LABEL_GAP + text_width(node.term) + 14
        if row and x + wide > width:
            yield row
            row, x = [], 0.0
        row.append((node, x, wide))
        x += wide
    if row:
        yield row


def _legend(rows: list[list[tuple[Node, float, float]]], legend: tuple[Node, ...], below: Box) -> Iterator[str]:
    for number, row in enumerate(rows):
        y = below.bottom + 14 + LEGEND_ROW * (number + 0.5)
        for node, left, _ in row:
            x = below.left + left + SQUARE / 2
            label = _label(x + SQUARE / 2 + LABEL_GAP, y, node.term, f'fill="{GREY}"')
            yield f"<g>{_square(x, y, node, _colour(node, legend))}{label}</g>"

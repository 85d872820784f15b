"""Drawings of graphs, as DOT or SVG text; neither needs another program.

A lifted drawing shows the declarations and terms: inputs (shaded) at the top, networks and parameters (boxes), terms
(squares, hollow and red for hard constraints), and variables (circles; dashed for latent ones, double for fields), with
a plate around everything that is repeated.  A grounded drawing shows the cells and factors of one example.
"""

from __future__ import annotations

from energyml.ir.dot import dot
from energyml.ir.graph import Graph
from energyml.ir.ground import GroundGraph
from energyml.ir.ground_layout import grounded_layout
from energyml.ir.layout import lifted_layout
from energyml.ir.sketch import grounded, lifted
from energyml.ir.svg import svg


def lifted_dot(graph: Graph) -> str:
    """The lifted graph as DOT text, plates as clusters."""
    return dot(lifted(graph))


def lifted_svg(graph: Graph, title: str = "factor graph") -> str:
    """The lifted graph as an SVG document; the full text of every node is its tooltip."""
    return svg(lifted_layout(lifted(graph)), title)


def grounded_dot(ground: GroundGraph, graph: Graph | None = None) -> str:
    """One example as DOT text with coordinates; the graph, when given, tells hard factors and latent cells apart."""
    sketch = grounded(ground, graph)
    return dot(sketch, grounded_layout(ground, sketch))


def grounded_svg(ground: GroundGraph, graph: Graph | None = None, title: str = "factor graph of one example") -> str:
    """One example as an SVG document with a legend of its terms; the graph, when given, tells hard factors apart."""
    return svg(grounded_layout(ground, grounded(ground, graph)), title)


__all__ = ["grounded_dot", "grounded_svg", "lifted_dot", "lifted_svg"]

"""Grounded graphs as networkx graphs, for analysis and for other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energyml.ir.ground import GroundGraph

if TYPE_CHECKING:
    import networkx


def to_networkx(ground: GroundGraph) -> networkx.Graph[Any]:
    """The bipartite graph of cells and factors.

    Nodes are `("cell", i)` with `bipartite=0`, `variable`, `position` and `labels`, and `("factor", j)` with
    `bipartite=1`, `term` and `places`, numbered as in the grounded graph.  An edge has the cell's `slot` in the scope.
    """
    import networkx

    made: networkx.Graph[Any] = networkx.Graph()
    for number, cell in enumerate(ground.cells):
        made.add_node(("cell", number), bipartite=0, variable=cell.variable, position=cell.position, labels=cell.labels)
    for number, factor in enumerate(ground.factors):
        made.add_node(("factor", number), bipartite=1, term=factor.term, places=dict(factor.places))
        for slot, cell_number in enumerate(factor.cells):
            made.add_edge(("factor", number), ("cell", cell_number), slot=slot)
    return made


def primal(ground: GroundGraph) -> networkx.Graph[Any]:
    """The primal graph: cells by number, joined where they share a factor; `terms` on an edge says of which terms."""
    import networkx

    made: networkx.Graph[Any] = networkx.Graph()
    for number, cell in enumerate(ground.cells):
        made.add_node(number, variable=cell.variable, position=cell.position, labels=cell.labels)
    for factor in ground.factors:
        for place, first in enumerate(factor.cells):
            for second in factor.cells[place + 1 :]:
                if first != second:
                    known = made.edges[first, second]["terms"] if made.has_edge(first, second) else ()
                    made.add_edge(first, second, terms=tuple(dict.fromkeys((*known, factor.term))))
    return made


__all__ = ["primal", "to_networkx"]

"""The fields of a graph with the couplings of their quadratic terms, for those who plan."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.ir.graph import Graph, Quadratic
from energyml.model.declared import Variable
from energyml.model.expression import Potential


@dataclass(frozen=True)
class CoupledField:
    """A field, the potentials that couple it, and whether they are bounded."""

    field: Variable
    couplings: tuple[Potential, ...]
    bounded: bool


def coupled_fields(graph: Graph) -> tuple[CoupledField, ...]:
    """Every field that has a quadratic term."""
    return tuple(
        CoupledField(
            graph.variables[term.body.field],
            tuple(one for one in term.body.couplings if isinstance(one, Potential)),
            term.body.bounded,
        )
        for term in graph.terms
        if isinstance(term.body, Quadratic)
    )


__all__ = ["CoupledField", "coupled_fields"]

"""Grounded graphs as networkx graphs."""

from __future__ import annotations

import networkx
import pytest

from energyml.ir.ground import Instance, ground
from energyml.ir.view import primal, to_networkx
from tests.ir.models import graph

SIZES = {
    "skip": Instance({"T": 5}),
    "ising": Instance({"H": 3, "W": 3}),
    "mixture": Instance({"T": 4}, nested={"M": [1] * 4}),
}


@pytest.mark.parametrize("name", SIZES)
def test_bipartite(name: str) -> None:
    made = ground(graph(name), SIZES[name])
    seen = to_networkx(made)
    assert networkx.is_bipartite(seen)
    assert seen.number_of_nodes() == len(made.cells) + len(made.factors)
    assert seen.number_of_edges() == sum(len(factor.cells) for factor in made.factors)
    for number, factor in enumerate(made.factors):
        assert seen.nodes["factor", number]["term"] == factor.term
        by_slot = sorted(seen["factor", number], key=lambda cell: seen["factor", number][cell]["slot"])
        assert [cell for _, cell in by_slot] == list(factor.cells)


def test_attributes_of_cells() -> None:
    seen = to_networkx(ground(graph("ising"), SIZES["ising"]))
    assert seen.nodes["cell", 4] == {"bipartite": 0, "variable": "y", "position": (1, 1), "labels": "Spin"}


@pytest.mark.parametrize("name", SIZES)
def test_primal(name: str) -> None:
    made = ground(graph(name), SIZES[name])
    seen = primal(made)
    assert [set(seen[number]) for number in range(len(made.cells))] == made.neighbours()


def test_the_terms_of_a_primal_edge() -> None:
    seen = primal(ground(graph("skip"), SIZES["skip"]))
    assert seen.edges[0, 1]["terms"] == ("pair", "forbid.1", "forbid.3")
    assert seen.edges[0, 2]["terms"] == ("skip",)

"""Potentials: tables and couplings made from weights, such as `potts(w)`."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.cards.card import Card
from energyml.cards.options import Flag, Option


@dataclass(frozen=True)
class PotentialCard(Card):
    """A potential's card: where it may stand.

    Attributes:
        table: usable as the table of a factor, over a scope of two cells of one label set.
        coupling: usable as the `pair` of a Gaussian field.
        edges: whether it runs along a list of edges, which is given before the weight.
    """

    table: bool = False
    coupling: bool = False
    edges: bool = False


CARDS: tuple[PotentialCard, ...] = (
    PotentialCard(
        "potential",
        "potts",
        "factor: the weight where both labels are equal, else 0; field: coupling of different labels by embeddings",
        source="Shevchenko & Osokin 2019, eq. 16",
        table=True,
        coupling=True,
    ),
    PotentialCard(
        "potential", "lowrank", "field: A Aᵀ over positions, for each label, or over all cells", coupling=True
    ),
    PotentialCard(
        "potential",
        "smooth",
        "field: Laplacian of the grid, with one weight, one for each direction, or one for each edge",
        (Option("diagonals", Flag(), False, "also along diagonals: 8 neighbours in two dims"),),
        coupling=True,
    ),
    PotentialCard("potential", "dense", "field: an explicit symmetric matrix", coupling=True),
    PotentialCard("potential", "sparse", "field: weights on the edges of a list", coupling=True, edges=True),
)

"""Elimination orders and their widths on a grounded instance."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Beyond this many cells, of all searches together, counting fill-in costs more than its better orders bring.
LARGEST_FOR_FILL = 2_000
# Up to this many cells it is counted as soon as cliques are weighed.
SOON_BY_FILL = 500


@dataclass(frozen=True)
class Elimination:
    """An order of cells and its width: the largest number of neighbours that a cell has when it is eliminated."""

    order: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Primal:
    """The graph of cells that share a factor, as orders are looked for.

    Attributes:
        neighbours: for each cell the cells it shares a factor with.
        sizes: how many labels each cell has.
        first: cells to eliminate before all others, such as latents that are summed out before a maximum.
        known: cells whose label is known: they are never eliminated.
    """

    neighbours: Sequence[Collection[int]]
    sizes: Sequence[int]
    first: frozenset[int] = frozenset()
    known: frozenset[int] = frozenset()

    @property
    def cells(self) -> list[int]:
        """The cells to eliminate."""
        return [cell for cell in range(len(self.neighbours)) if cell not in self.known]


def clique_weights(sizes: Sequence[int]) -> list[int]:
    """The logarithms of the sizes as whole numbers: sums of them are exact, whatever is added first."""
    known = {size: round(math.log2(max(1, size)) * 2**32) for size in set(sizes)}
    return [known[size] for size in sizes]


def tie_rank(cell: int, ties: int) -> int:
    """The rank of a cell among equally good ones: its number, or for other ways to break ties its hash (Knuth)."""
    return (cell + 1) * 2_654_435_761 * (2 * ties - 1) & 0xFFFF_FFFF if ties else cell


def min_fill(graph: Primal, limit: float | None = None, ties: int = 0) -> Elimination | None:
    """The greedy order that adds the fewest edges; `None` if wider than `limit`.

    Ties are broken by the size of the clique, then by `tie_rank`: another way to break them gives another order.
    Cost: O(n · d²) operations on bit sets of n cells of degree d (Koller & Friedman 2009, section 9.4.3.2).
    """
    return _Fill(graph, ties).run(limit)


def min_weight(graph: Primal, limit: float | None = None) -> Elimination | None:
    """The greedy order of the smallest cliques, in entries; `None` if wider than `limit`.

    Cost: O(n · d) set operations on n cells of degree d: usable for tens of thousands of cells.
    """
    early, weights = graph.first, clique_weights(graph.sizes)
    adjacent = {cell: set(graph.neighbours[cell]) - graph.known for cell in graph.cells}
    cliques = {cell: weights[cell] + sum(map(weights.__getitem__, around)) for cell, around in adjacent.items()}
    heap = [(cell not in early, weight, cell) for cell, weight in cliques.items()]
    heapq.heapify(heap)
    order: list[int] = []
    width = 0
    while heap:
        _, weight, cell = heapq.heappop(heap)
        if cliques.get(cell) != weight:
            continue  # an entry from before its neighbourhood changed
        del cliques[cell]
        around = adjacent.pop(cell)
        width = max(width, len(around))
        if limit is not None and width > limit:
            return None
        order.append(cell)
        gone = weights[cell]
        for one in around:
            beside = adjacent[one]
            joined = around - beside
            joined.discard(one)
            beside |= joined
            beside.discard(cell)
            cliques[one] += sum(map(weights.__getitem__, joined)) - gone
            heapq.heappush(heap, (one not in early, cliques[one], one))
    return Elimination(tuple(order), width)


def least_width(graph: Primal, enough: float = math.inf) -> int:
    """A lower bound on the width of every order; the search for a higher one ends above `enough`.

    Contracting an edge makes no graph wider, and the width is at least the smallest degree: the largest of these while
    cells of the smallest degree are contracted into their neighbours of the smallest degree (minor-min-width: Gogate &
    Dechter 2004, section 4.1).  Tight on dense graphs, at most 5 on planar ones.  Cost: O(n · d) set operations.
    """
    adjacent = {cell: set(graph.neighbours[cell]) - graph.known for cell in graph.cells}
    heap = [(len(around), cell) for cell, around in adjacent.items()]
    heapq.heapify(heap)
    least = 0
    while heap and least <= enough:
        degree, cell = heapq.heappop(heap)
        around = adjacent.get(cell)
        if around is None or len(around) != degree:
            continue  # an entry from before its neighbourhood changed
        least = max(least, degree)
        del adjacent[cell]
        into = min(around, key=lambda one: (len(adjacent[one]), one), default=None)
        for one in around:
            beside = adjacent[one]
            beside.discard(cell)
            if into is not None and one != into:
                beside.add(into)
                adjacent[into].add(one)
            heapq.heappush(heap, (len(beside), one))
        if into is not None:
            heapq.heappush(heap, (len(adjacent[into]), into))
    return least


def natural(graph: Primal, limit: float | None = None) -> Elimination | None:
    """The cells in the order in which they are numbered: a sweep along the first dim; `None` if wider than `limit`."""
    order = sorted(graph.cells, key=lambda cell: (cell not in graph.first, cell))
    adjacent = {cell: set(graph.neighbours[cell]) - graph.known for cell in order}
    width = 0
    for cell in order:
        around = adjacent.pop(cell)
        width = max(width, len(around))
        if limit is not None and width > limit:
            return None
        for one in around:
            adjacent[one] |= around
            adjacent[one] -= {one, cell}
    return Elimination(tuple(order), width)


class _Fill:
    """Adjacency as one bit set for each cell; a heap whose stale entries are skipped.

    Attributes:
        fill: for each cell the edges that eliminating it would add.
        clique: for each cell the weight of its clique.
    """

    def __init__(self, graph: Primal, ties: int) -> None:
        known = _bits(graph.known)
        self.ties = ties
        self.weights, self.early = clique_weights(graph.sizes), graph.first
        self.adjacent = [_bits(around) & ~known for around in graph.neighbours]
        self.cells = graph.cells
        self.fill, self.clique = [0] * len(self.adjacent), [0] * len(self.adjacent)
        for cell in self.cells:
            self._count(cell)

    def _count(self, cell: int) -> None:
        around = self.adjacent[cell]
        degree = around.bit_count()
        weight, joined = self.weights[cell], 0
        for other in _members(around):
            weight += self.weights[other]
            joined += (self.adjacent[other] & around).bit_count()
        self.fill[cell], self.clique[cell] = (degree * (degree - 1) - joined) // 2, weight

    def key(self, cell: int) -> tuple[bool, int, int]:
        return cell not in self.early, self.fill[cell], self.clique[cell]

    def run(self, limit: float | None) -> Elimination | None:
        keys = {cell: self.key(cell) for cell in self.cells}
        ranks = {cell: tie_rank(cell, self.ties) for cell in self.cells}
        heap = [(key, ranks[cell], cell) for cell, key in keys.items()]
        heapq.heapify(heap)
        order: list[int] = []
        width = 0
        while heap:
            key, _, cell = heapq.heappop(heap)
            if keys.get(cell) != key:
                continue
            del keys[cell]
            around = self.adjacent[cell]
            width = max(width, around.bit_count())
            if limit is not None and width > limit:
                return None
            order.append(cell)
            for other in self._join(cell, around):
                new = self.key(other)
                if new != keys[other]:
                    keys[other] = new
                    heapq.heappush(heap, (new, ranks[other], other))
        return Elimination(tuple(order), width)

    def _join(self, cell: int, around: int) -> list[int]:
        """Connect the neighbours of an eliminated cell; the cells whose key may have changed."""
        clique, touched = _members(around), around
        for one in clique:
            own = self.adjacent[one] = self.adjacent[one] & ~(1 << cell)
            # With the cell go the gaps between it and the neighbours that it does not see.
            self.fill[one] -= (own & ~around).bit_count()
            self.clique[one] -= self.weights[cell]
        for one in clique:
            for other in _members(around & ~self.adjacent[one] & ~(1 << one)):
                touched |= self._connect(one, other)
        return _members(touched)

    def _connect(self, one: int, other: int) -> int:
        """Add an edge; the cells that see both of its ends, for which a gap is filled.

        Each end then has gaps to the neighbours of the other that it does not see.
        """
        own, theirs = self.adjacent[one], self.adjacent[other]
        both = own & theirs
        for seeing in _members(both):
            self.fill[seeing] -= 1
        self.fill[one] += (own ^ both).bit_count()
        self.fill[other] += (theirs ^ both).bit_count()
        self.clique[one] += self.weights[other]
        self.clique[other] += self.weights[one]
        self.adjacent[one], self.adjacent[other] = own | 1 << other, theirs | 1 << one
        return both


def _bits(cells: Collection[int]) -> int:
    found = 0
    for cell in cells:
        found |= 1 << cell
    return found


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def is_forest(neighbours: Sequence[Collection[int]]) -> bool:
    """Whether the primal graph has no cycle: as many edges as cells less components."""
    edges = sum(len(around) for around in neighbours) // 2
    seen: set[int] = set()
    components = 0
    for start in range(len(neighbours)):
        if start in seen:
            continue
        components += 1
        stack = [start]
        while stack:
            cell = stack.pop()
            if cell not in seen:
                seen.add(cell)
                stack.extend(set(neighbours[cell]) - seen)
    return edges == len(neighbours) - components

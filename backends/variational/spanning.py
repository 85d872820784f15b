"""How probable each factor is in a random forest of factors, and which of its cells is the nearest to the root.

A forest is a set of factors that makes no loop: whichever way one goes from factor to factor through their cells, one
never comes back (Berge-acyclic).  In a tree that is directed to a root, each factor has one cell that leads there, its
parent; the others are its children.

Where all factors join two cells, forests are spanning trees that are drawn uniformly.  A graph's Laplacian with its
root tied to the ground has an inverse G.  In a spanning tree that is directed to the root, node i has the parent j with
probability G[i, i] - G[i, j]: the derivative of the log-determinant, which counts the trees (the matrix-tree theorem,
Tutte 1948).  Both directions of an edge add up to its effective resistance.

Where some factor joins more, the distribution is a list of forests, each as probable as the others.  Each is made
greedily from the factors that were used least so far (Kruskal 1956), until all of them were used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energyml.diagnostics import QueryRefused

# Nodes of one connected part whose Laplacian is inverted: 4096 nodes take 134 MB and some seconds, once.
LARGEST = 4096
# In how many forests of the list each factor stands at least: the more, the more even the probabilities.
USES = 3


def forest_parents(scopes: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """[E, slots] for each block of scopes [E, slots]: that a factor is in the forest and its parent is at the slot.

    Cost: as `uniform_arcs` for connected parts with factors of two cells; in the others the sizes of some forests for
    each time that all factors are used once.
    """
    stars = [np.stack([np.broadcast_to(one[:, :1], one[:, 1:].shape), one[:, 1:]], -1).reshape(-1, 2) for one in scopes]
    parts = _parts(np.concatenate([np.zeros((0, 2), dtype=np.int64), *stars]), count)
    large = np.zeros(count, dtype=bool)
    for scope in scopes:
        if scope.shape[1] > 2:
            large[parts[scope[:, 0]]] = True
    listed = [large[parts[scope[:, 0]]] for scope in scopes]
    found = [np.zeros(scope.shape) for scope in scopes]
    pairs = [block for block, scope in enumerate(scopes) if scope.shape[1] == 2]
    if pairs:
        arcs = uniform_arcs(np.concatenate([scopes[block][~listed[block]] for block in pairs]), count)
        both = np.stack([arcs.backward, arcs.forward], 1)
        for block, own in zip(pairs, np.split(both, np.cumsum([(~listed[one]).sum() for one in pairs])), strict=False):
            found[block][~listed[block]] = own
    factors: dict[int, list[tuple[int, int]]] = {}
    for block, scope in enumerate(scopes):
        for element in np.flatnonzero(listed[block]).tolist():
            factors.setdefault(int(parts[scope[element, 0]]), []).append((block, element))
    for together in factors.values():
        rows = [scopes[block][element] for block, element in together]
        nodes, local = np.unique(np.concatenate(rows), return_inverse=True)
        cells = [tuple(one.tolist()) for one in np.split(local, np.cumsum([len(row) for row in rows])[:-1])]
        for (block, element), shares in zip(together, _listed_forests(cells, len(nodes)), strict=True):
            found[block][element] = shares
    return found


def _listed_forests(factors: Sequence[tuple[int, ...]], count: int) -> list[np.ndarray]:
    """[slots] for each factor, given by its cells: the share of the forests in which its parent is at the slot."""
    random = np.random.default_rng(0)
    used = np.zeros(len(factors))
    shares = [np.zeros(len(cells)) for cells in factors]
    forests = 0
    while not forests or used.min() < min(USES, forests):  # a forest of all factors is the only one
        forests += 1
        chosen = _forest(factors, np.lexsort((random.random(len(factors)), used)).tolist(), count)
        used[chosen] += 1
        for number, slot in _directed(factors, chosen, count):
            shares[number][slot] += 1
    return [one / forests for one in shares]


def _forest(factors: Sequence[tuple[int, ...]], order: Sequence[int], count: int) -> list[int]:
    """The factors that make no loop with those before them in an order."""
    trees, left, fewest = list(range(count)), count, min(len(cells) for cells in factors)

    def tree_of(cell: int) -> int:
        while trees[cell] != cell:
            trees[cell] = trees[trees[cell]]
            cell = trees[cell]
        return cell

    chosen = []
    for number in order:
        joined = {tree_of(cell) for cell in factors[number]}
        if len(joined) == len(factors[number]):
            chosen.append(number)
            first = joined.pop()
            for one in joined:
                trees[one] = first
            left -= len(joined)
            if left < fewest:
                break
    return chosen


def _directed(factors: Sequence[tuple[int, ...]], chosen: Sequence[int], count: int) -> list[tuple[int, int]]:
    """(factor, slot of its parent) for a forest; the root of each tree is its first cell."""
    around: list[list[int]] = [[] for _ in range(count)]
    for number in chosen:
        for cell in factors[number]:
            around[cell].append(number)
    found: dict[int, int] = {}
    reached = [False] * count
    for root in range(count):
        front = [] if reached[root] else [root]
        while front:
            cell = front.pop()
            reached[cell] = True
            for number in around[cell]:
                if number not in found:
                    found[number] = factors[number].index(cell)
                    front += [other for other in factors[number] if other != cell]
    return list(found.items())


@dataclass(frozen=True, eq=False)
class Arcs:
    """Probabilities of a uniform spanning forest: one tree for each connected part.

    Attributes:
        forward: [E] that the first end of an edge has the second one for its parent.
        backward: [E] that the second end has the first one for its parent.
        roots: [N] that a node is the root of its tree.
    """

    forward: np.ndarray
    backward: np.ndarray
    roots: np.ndarray


def uniform_arcs(edges: np.ndarray, count: int) -> Arcs:
    """The probabilities for edges [E, 2] of a graph with parallel edges allowed.

    Cost: n^3 for each connected part of n nodes that is no tree; linear for trees.
    """
    parts = _parts(edges, count)
    forward, backward = np.zeros(len(edges)), np.zeros(len(edges))
    order = np.argsort(parts[edges[:, 0]], kind="stable") if len(edges) else np.zeros(0, dtype=np.int64)
    names = parts[edges[order, 0]] if len(edges) else order
    for chosen in np.split(order, np.flatnonzero(np.diff(names)) + 1) if len(order) else []:
        nodes, local = np.unique(edges[chosen], return_inverse=True)
        ends = local.reshape(-1, 2)
        if len(chosen) == len(nodes) - 1:
            towards = _rooted(ends, len(nodes))
            forward[chosen], backward[chosen] = towards, 1 - towards
            continue
        if len(nodes) > LARGEST:
            raise QueryRefused(
                f"`trw` needs the probabilities of edges in the spanning trees of {len(nodes)} connected cells, and "
                f"finds them for at most {LARGEST}; `bp` and `mean_field` serve larger graphs"
            )
        laplacian = np.zeros((len(nodes), len(nodes)))
        one, two = ends.T
        for a, b, sign in ((one, one, 1), (two, two, 1), (one, two, -1), (two, one, -1)):
            np.add.at(laplacian, (a, b), sign)
        laplacian[0, 0] += 1
        inverse = np.linalg.inv(laplacian)
        forward[chosen] = np.clip(inverse[one, one] - inverse[one, two], 0, 1)
        backward[chosen] = np.clip(inverse[two, two] - inverse[one, two], 0, 1)
    roots = np.ones(count)
    np.subtract.at(roots, edges[:, 0], forward)
    np.subtract.at(roots, edges[:, 1], backward)
    return Arcs(forward, backward, np.clip(roots, 0, 1))


def _parts(edges: np.ndarray, count: int) -> np.ndarray:
    """[N]: the smallest node that each node is connected with."""
    labels = np.arange(count)
    while len(edges):
        before = labels.copy()
        least = np.minimum(labels[edges[:, 0]], labels[edges[:, 1]])
        np.minimum.at(labels, edges[:, 0], least)
        np.minimum.at(labels, edges[:, 1], least)
        labels = labels[labels]
        if (labels == before).all():
            break
    return labels


def _rooted(ends: np.ndarray, count: int) -> np.ndarray:
    """[E]: 1 where the first end of a tree's edge is further from node 0 than the second, else 0."""
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for number, (one, two) in enumerate(ends.tolist()):
        neighbours[one].append((two, number))
        neighbours[two].append((one, number))
    towards = np.zeros(len(ends))
    reached, front = {0}, [0]
    while front:
        node = front.pop()
        for other, number in neighbours[node]:
            if other not in reached:
                reached.add(other)
                front.append(other)
                towards[number] = float(ends[number, 0] == other)
    return towards

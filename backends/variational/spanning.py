"""How probable each edge is in a uniformly drawn spanning tree, and in which direction it leads to the root.

A graph's Laplacian with its root tied to the ground has an inverse G.  In a spanning tree that is drawn uniformly from
all of them and directed to the root, node i has the parent j with probability G[i, i] - G[i, j]: the derivative of the
log-determinant, which counts the trees (the matrix-tree theorem, Tutte 1948).  Both directions of an edge add up to its
effective resistance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energyml.backend import QueryRefused

# Nodes of one connected part whose Laplacian is inverted: 4096 nodes take 134 MB and some seconds, once.
LARGEST = 4096


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

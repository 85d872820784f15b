"""Precision matrices by their definition, entry by entry in double precision; shares no code with the package."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SHARE = 0.9


class Matrix:
    """The precision matrix of one example: cells are (channel, position), positions those of a grid."""

    def __init__(self, channels: int, shape: tuple[int, ...], ridge: float, bounded: bool, shared_by: int = 1) -> None:
        self.channels, self.shape, self.ridge, self.bounded = channels, shape, ridge, bounded
        self.positions = list(product(*(range(size) for size in shape)))
        self.share = SHARE / max(1, shared_by)
        cells = channels * len(self.positions)
        self.q: Array = ridge * np.eye(cells)

    def _cell(self, channel: int, position: int) -> int:
        return channel * len(self.positions) + position

    def potts(self, vectors: Array) -> Matrix:
        """vectors [K, *shape]."""
        a = vectors.reshape(vectors.shape[0], -1)
        gram = a.T @ a
        if self.bounded and self.channels > 1:
            eigenvalues = np.clip(np.linalg.eigvalsh(gram), 0, None)
            largest = (eigenvalues**8).sum() ** (1 / 8)
            gram = gram / (1 + largest / (self.share * self.ridge))
        for c, d in product(range(self.channels), repeat=2):
            if c != d:
                for i, j in product(range(len(self.positions)), repeat=2):
                    self.q[self._cell(c, i), self._cell(d, j)] += gram[i, j]
        return self

    def lowrank(self, vectors: Array) -> Matrix:
        """vectors [K, *shape], or [K, channels, *shape]."""
        if vectors.ndim == 1 + len(self.shape):
            a = vectors.reshape(vectors.shape[0], -1)
            for c in range(self.channels):
                for i, j in product(range(len(self.positions)), repeat=2):
                    self.q[self._cell(c, i), self._cell(c, j)] += a[:, i] @ a[:, j]
            return self
        a = vectors.reshape(vectors.shape[0], -1)
        self.q += a.T @ a
        return self

    def smooth(self, weights: Array, steps: list[tuple[int, ...]]) -> Matrix:
        """weights [D, *shape] of the edges that leave each position, in the directions `steps`."""
        for number, step in enumerate(steps):
            for i, position in enumerate(self.positions):
                other = tuple(p + s for p, s in zip(position, step, strict=True))
                if other in self.positions:
                    w = weights[(number, *position)]
                    self._edge(i, self.positions.index(other), abs(w) if self.bounded else w)
        return self

    def _edge(self, i: int, j: int, w: float) -> None:
        for c in range(self.channels):
            x, y = self._cell(c, i), self._cell(c, j)
            self.q[x, x] += w
            self.q[y, y] += w
            self.q[x, y] -= w
            self.q[y, x] -= w

    def sparse(self, edges: list[tuple[int, int]], weights: Array) -> Matrix:
        """Entries of the matrix; bounded ones bring their magnitude to the diagonal."""
        for (i, j), w in zip(edges, weights, strict=True):
            for c in range(self.channels):
                x, y = self._cell(c, i), self._cell(c, j)
                if i == j:
                    self.q[x, x] += abs(w) if self.bounded else w
                    continue
                self.q[x, y] += w
                self.q[y, x] += w
                if self.bounded:
                    self.q[x, x] += abs(w)
                    self.q[y, y] += abs(w)
        return self

    def dense(self, matrix: Array) -> Matrix:
        """A matrix over all cells."""
        symmetric = (matrix + matrix.T) / 2
        if self.bounded:
            below = max(0.0, -np.linalg.eigvalsh(symmetric)[0])
            symmetric = symmetric / (1 + below / (self.share * self.ridge))
        self.q += symmetric
        return self


def axes(dims: int) -> list[tuple[int, ...]]:
    """The steps along the axes of a grid."""
    return [tuple(int(i == d) for i in range(dims)) for d in range(dims)]


def diagonals(dims: int) -> list[tuple[int, ...]]:
    """Those, then one of each pair of diagonals; in two dims down-right and down-left."""
    found = [step for step in product((0, 1, -1), repeat=dims) if next((s for s in step if s), 0) == 1]
    return [*axes(dims), *(step for step in found if sum(map(abs, step)) > 1)]

"""Precision matrices that all channels share and that are inverted directly: diagonal ones, and grids by transforms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from energyml.bind.quadratic import QuadraticForm


class Base(ABC):
    """An N x N matrix D for each example; rows of fields [B, R, N] are multiplied by what is made of it."""

    @property
    @abstractmethod
    def definite(self) -> Tensor:
        """[B] bool: whether D is positive definite."""

    @abstractmethod
    def condition(self) -> Tensor:
        """[B]: about the condition number of D."""

    @abstractmethod
    def solve(self, rows: Tensor) -> Tensor:
        """Each row times D⁻¹."""

    @abstractmethod
    def root(self, rows: Tensor) -> Tensor:
        """Each row times some R with R Rᵀ = D⁻¹."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """[B or 1]: log det D."""

    @abstractmethod
    def variances(self) -> Tensor:
        """[B or 1, N or 1]: the diagonal of D⁻¹."""


class Diagonal(Base):
    """The ridge and what is added to it; everything is O(N)."""

    def __init__(self, form: QuadraticForm) -> None:
        self.form = form
        self.own = form.own()

    @property
    def definite(self) -> Tensor:
        """Whether all entries are positive."""
        return (self.own > 0).all(2).all(1).expand(self.form.sizes.batch)

    def condition(self) -> Tensor:
        """The ratio of the largest entry to the smallest."""
        return spread(self.own.detach().flatten(1)).expand(self.form.sizes.batch)

    def solve(self, rows: Tensor) -> Tensor:
        """A division."""
        return rows / self.own

    def root(self, rows: Tensor) -> Tensor:
        """A division by the square root."""
        return rows * self.own.rsqrt()

    def log_determinant(self) -> Tensor:
        """A sum of logarithms."""
        return self.own.log().expand(-1, 1, self.form.sizes.positions).sum((1, 2))

    def variances(self) -> Tensor:
        """The reciprocals."""
        return self.own.reciprocal().squeeze(1)


class Transform(Base):
    """A grid without gaps whose directions have one weight each: cosine transforms along each dim diagonalise it.

    The Laplacian of a path of n cells with free ends has the eigenvalues 2 - 2 cos(πk/n) and the vectors of the cosine
    transform (DCT-II); that of a grid is the sum over its dims.  Transforms are products with n x n matrices, O(N n):
    at the sizes of images that is what processors do best, and it is differentiable to any order.
    """

    def __init__(self, form: QuadraticForm) -> None:
        self.form = form
        stencil = form.stencil
        assert stencil is not None and stencil.is_constant and form.present is None and form.diagonal is None
        weights = stencil.weights
        self.shape = stencil.shape
        self.bases = [cosines(size, weights.dtype, weights.device) for size in self.shape]
        total = form.ridge.reshape(-1, *([1] * len(self.shape)))
        for number, offset in enumerate(stencil.offsets):
            axis = next(i for i, step in enumerate(offset) if step)
            along = [1] * (1 + len(self.shape))
            along[1 + axis] = self.shape[axis]
            own = _path_eigenvalues(self.shape[axis], weights)
            total = total + weights[:, number].reshape(-1, *([1] * len(self.shape))) * own.reshape(along)
        self.eigenvalues = total.expand(-1, *self.shape)

    @property
    def definite(self) -> Tensor:
        """Whether all eigenvalues are positive."""
        return (self.eigenvalues.flatten(1) > 0).all(1).expand(self.form.sizes.batch)

    def condition(self) -> Tensor:
        """The ratio of the largest eigenvalue to the smallest."""
        return spread(self.eigenvalues.detach().flatten(1)).expand(self.form.sizes.batch)

    def solve(self, rows: Tensor) -> Tensor:
        """There, a division, and back."""
        return self._between(rows, self.eigenvalues.unsqueeze(1).reciprocal())

    def root(self, rows: Tensor) -> Tensor:
        """The symmetric root."""
        return self._between(rows, self.eigenvalues.unsqueeze(1).rsqrt())

    def log_determinant(self) -> Tensor:
        """The sum of the logarithms of the eigenvalues."""
        return self.eigenvalues.log().flatten(1).sum(1)

    def variances(self) -> Tensor:
        """Squared vectors weighted by reciprocals: one more transform."""
        grid = self.eigenvalues.reciprocal().unsqueeze(1)
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis.square(), axis)
        return grid.reshape(grid.shape[0], -1)

    def _between(self, rows: Tensor, factor: Tensor) -> Tensor:
        grid = rows.reshape(*rows.shape[:2], *self.shape)
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis.T, axis)
        grid = grid * factor
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis, axis)
        return grid.reshape(rows.shape)


def spread(values: Tensor) -> Tensor:
    """[B]: the largest of values [B, n] over the smallest; 1 where there are none."""
    if values.shape[1] == 0:
        return values.new_ones(values.shape[0])
    return values.amax(1) / values.amin(1)


def _along(grid: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """A grid [B, R, *shape] whose vectors along one axis are multiplied by a matrix [from, to]."""
    last = grid.dim() - 1
    if 2 + axis == last:
        return grid @ matrix
    if 2 + axis == last - 1:
        return matrix.T @ grid
    return (grid.movedim(2 + axis, last) @ matrix).movedim(last, 2 + axis)


def _path_eigenvalues(size: int, like: Tensor) -> Tensor:
    steps = torch.arange(size, device=like.device, dtype=torch.float64)
    # 2 - 2 cos θ without cancellation
    return (4 * torch.sin(steps * (math.pi / (2 * max(1, size)))).square()).to(like.dtype)


@lru_cache(maxsize=32)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[frequencies, cells]: the orthonormal basis of the cosine transform (DCT-II)."""
    with torch.inference_mode(False):
        cells = torch.arange(size, device=device, dtype=torch.float64)
        basis = torch.cos(torch.outer(cells, cells + 0.5) * (math.pi / max(1, size))) * math.sqrt(2 / max(1, size))
        basis[:1] *= math.sqrt(0.5)
        return basis.to(dtype)


__all__ = ["Base", "Diagonal", "Transform", "cosines", "spread"]

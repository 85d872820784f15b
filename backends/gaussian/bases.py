"""Precision matrices that all channels share and that are inverted directly: diagonal ones, and grids by transforms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.bind.quadratic import QuadraticForm
from energyml.caching import cached_property
from energyml.execution import cached, under_transform
from energyml.plan.fields import by_fourier

# Cells that are transformed at a time: what is made on the way stays in the cache.
NEAR = 2**18


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
        return spread(self.own.detach().flatten(1), self.form.present).expand(self.form.sizes.batch)

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
    transform (DCT-II); that of a grid is the sum over its dims.  Transforms are products with n x n matrices, O(N n),
    or on larger images fast Fourier transforms, O(N log N); both are differentiable to any order.
    """

    def __init__(self, form: QuadraticForm) -> None:
        self.form = form
        stencil = form.stencil
        assert stencil is not None and stencil.is_constant and form.present is None and form.diagonal is None
        self.weights = stencil.weights
        self.shape = stencil.shape
        self.axes = [next(i for i, step in enumerate(offset) if step) for offset in stencil.offsets]

    @cached_property
    def bases(self) -> list[Tensor]:
        """The basis along each dim."""
        return [cosines(size, self.weights.dtype, self.weights.device) for size in self.shape]

    @cached_property
    def eigenvalues(self) -> Tensor:
        """[B or 1, *shape]."""
        return self._eigenvalues(self._paths())

    def _paths(self) -> list[Tensor]:
        """The eigenvalues of the path along each dim."""
        return [_path_eigenvalues(size, self.weights.dtype, self.weights.device) for size in self.shape]

    def _eigenvalues(self, paths: Sequence[Tensor]) -> Tensor:
        """[B or 1, ...]: sums over dims of those of their paths."""
        ones = [1] * len(paths)
        total, weights = self.form.ridge.view(-1, *ones), self.weights.reshape(*self.weights.shape[:2], *ones).unbind(1)
        for number, axis in enumerate(self.axes):
            along = ones.copy()
            along[axis] = paths[axis].shape[0]
            total = torch.addcmul(total, weights[number], paths[axis].view(along))
        return total.expand(-1, *(path.shape[0] for path in paths))

    @cached_property
    def extremes(self) -> tuple[Tensor, Tensor]:
        """[B or 1], [B or 1]: the smallest and the largest eigenvalue; along each dim they are at an end.

        Weights of couplings that share a direction add up first.
        """
        axes = sorted(set(self.axes))
        along = [[number for number, axis in enumerate(self.axes) if axis == one] for one in axes]
        # One by one: a list of numbers would be an index tensor on the host.
        weights = torch.stack([torch.stack([self.weights[:, n, 0] for n in numbers]).sum(0) for numbers in along], 1)
        sizes = tuple([self.shape[axis] for axis in axes])
        reach = weights * _tops(sizes, self.weights.dtype, self.weights.device)
        return self.form.ridge + reach.clamp(max=0).sum(1), self.form.ridge + reach.clamp(min=0).sum(1)

    @property
    def definite(self) -> Tensor:
        """Whether all eigenvalues are positive."""
        return (self.extremes[0] > 0).expand(self.form.sizes.batch)

    def condition(self) -> Tensor:
        """The ratio of the largest eigenvalue to the smallest."""
        lowest, highest = self.extremes
        return (highest / lowest).detach().expand(self.form.sizes.batch)

    def solve(self, rows: Tensor) -> Tensor:
        """There, a division, and back."""
        return self._between(rows, torch.reciprocal)

    def root(self, rows: Tensor) -> Tensor:
        """The symmetric root."""
        return self._between(rows, torch.rsqrt)

    def log_determinant(self) -> Tensor:
        """The sum of the logarithms of the eigenvalues."""
        return self.eigenvalues.log().flatten(1).sum(1)

    def variances(self) -> Tensor:
        """Squared vectors weighted by reciprocals: one more transform."""
        grid = self.eigenvalues.reciprocal().unsqueeze(1)
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis.square(), axis)
        return grid.reshape(grid.shape[0], -1)

    def _between(self, rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows times a function of the matrix."""
        grid = rows.reshape(*rows.shape[:2], *self.shape)
        if by_fourier(self.shape):
            return self._by_fourier(grid, function).reshape(rows.shape)
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis.T, axis)
        grid = grid * function(self.eigenvalues).unsqueeze(1)
        for axis, basis in enumerate(self.bases):
            grid = _along(grid, basis, axis)
        return grid.reshape(rows.shape)

    def _by_fourier(self, grid: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The same for images [B, R, n, m]: cosine transforms from Fourier transforms of as many cells.

        With v the image whose even cells come first and whose odd ones follow backwards, along both dims, and V its
        Fourier transform, the cosine transform along one dim is Re(w V) at frequency k and -Im(w V) at n - k, with
        w = exp(-iπk / 2n) (Makhoul 1980).  Along both, z = w w' V(k, l) + w̄ w' V(-k, l) has twice the transform at
        (k, l) as its real part, and minus twice that at (k, m - l) as its imaginary part: half of the frequencies l are
        enough.  The way back is V = w̄ w̄' (z - i z(-k, l)) / 2, where there is nothing at frequency n.
        """
        (n, m), half = self.shape, self.shape[1] // 2 + 1
        turn = _turns(n, m, grid.dtype, grid.device)
        rows, columns = self._paths()
        mirrored = columns.roll(-1).flip(0)
        halves = [function(self._eigenvalues([rows, one[:half]])) for one in (columns, mirrored)]
        factor = torch.stack(halves, -1).unsqueeze(1)
        together = max(1, NEAR // (n * m))
        parts = grid.flatten(0, 1).split(together) if factor.shape[0] == 1 else grid.unbind(0)
        found: list[Tensor] = []
        for number, images in enumerate(parts):
            seen = torch.fft.rfft2(_folded(images, turn.order))
            z = torch.addcmul(seen * turn.there, seen.index_select(-2, turn.back), turn.there_across)
            z = torch.view_as_complex(torch.view_as_real(z) * factor[min(number, factor.shape[0] - 1)])
            seen = torch.addcmul(z * turn.here, z.index_select(-2, turn.back), turn.here_across)
            found.append(_unfolded(torch.fft.irfft2(seen, s=(n, m)), turn.inverse))
        return torch.cat(found)


@dataclass(frozen=True)
class _Turns:
    """Constants of cosine transforms of images n x m by Fourier transforms; h = m // 2 + 1.

    Attributes:
        there: [n, h], w w' = exp(-iπ (k / 2n + l / 2m)).
        there_across: [n, h], w̄ w', which is that of row -k but for row 0.
        here: [n, h], w̄ w̄' / 2.
        here_across: [n, h], -i times this, and 0 in row 0.
        back: [n], -k as an index.
        order: [n], even rows, then odd ones backwards.
        inverse: [n], the inverse of that order.
    """

    there: Tensor
    there_across: Tensor
    here: Tensor
    here_across: Tensor
    back: Tensor
    order: Tensor
    inverse: Tensor


@cached(8)
def _turns(n: int, m: int, dtype: torch.dtype, device: torch.device) -> _Turns:
    with torch.inference_mode(False):
        rows = torch.arange(n, device=device)
        columns = torch.arange(m // 2 + 1, device=device)
        down, right = rows.double() * (math.pi / (2 * n)), columns.double() * (math.pi / (2 * m))
        one = torch.ones((), dtype=torch.float64, device=device)
        there, across = (torch.polar(one, -(sign * down[:, None] + right)) for sign in (1, -1))
        wide = torch.complex64 if dtype == torch.float32 else torch.complex128
        here = there.conj() / 2
        here_across = -1j * here * (rows > 0).unsqueeze(1)
        order = torch.cat([rows[0::2], rows[1::2].flip(0)])
        turns = [one.resolve_conj().to(wide) for one in (there, across, here, here_across)]
        return _Turns(turns[0], turns[1], turns[2], turns[3], (n - rows) % n, order, order.argsort())


def _folded(images: Tensor, order: Tensor) -> Tensor:
    """Even cells, then odd ones backwards, along both dims; `order` is that of rows."""
    return torch.cat([images[..., 0::2], images[..., 1::2].flip(-1)], -1).index_select(-2, order)


def _unfolded(images: Tensor, inverse: Tensor) -> Tensor:
    """The inverse of `_folded`."""
    images, even = images.index_select(-2, inverse), (images.shape[-1] + 1) // 2
    first, second = images[..., :even], images[..., even:].flip(-1)
    if first.shape[-1] == second.shape[-1]:
        return torch.stack([first, second], -1).flatten(-2)
    pairs = torch.stack([first[..., :-1], second], -1).flatten(-2)
    return torch.cat([pairs, first[..., -1:]], -1)


def spread(values: Tensor, present: Tensor | None = None) -> Tensor:
    """[B]: the largest of values [B or 1, n] over the smallest, of those that are present; 1 where there are none."""
    if values.shape[1] == 0:
        return values.new_ones(values.shape[0])
    if present is None:
        return values.amax(1) / values.amin(1)
    largest, least = values.masked_fill(~present, 0).amax(1), values.masked_fill(~present, math.inf).amin(1)
    return torch.where(present.any(1), largest / least, 1)


def inverse_of(factor: Tensor) -> Tensor:
    """[B, n, n]: the inverse of the matrices with these Cholesky factors; NaN where a pivot is zero."""
    singular = (factor.diagonal(dim1=1, dim2=2) == 0).any(1)  # torch raises there, for all of the batch
    factor = factor.masked_fill(singular[:, None, None], math.nan)
    if under_transform():  # the forward derivative of `cholesky_inverse` is wrong (torch 2.13)
        eye = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
        # That of `cholesky_solve` is wrong too where one matrix stands for a batch of as many as it has rows: it is
        # taken for a batch of vectors then.
        return torch.cholesky_solve(eye.expand(factor.shape), factor)
    return torch.cholesky_inverse(factor)


def _along(grid: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """A grid [B, R, *shape] whose vectors along one axis are multiplied by a matrix [from, to]."""
    last = grid.dim() - 1
    if 2 + axis == last:
        return grid @ matrix
    if 2 + axis == last - 1:
        return matrix.T @ grid
    return (grid.movedim(2 + axis, last) @ matrix).movedim(last, 2 + axis)


@cached(32)
def _path_eigenvalues(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        steps = torch.arange(size, device=device, dtype=torch.float64)
        # 2 - 2 cos θ without cancellation
        return (4 * torch.sin(steps * (math.pi / (2 * max(1, size)))).square()).to(dtype)


@cached(32)
def _tops(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[D]: the largest eigenvalues of some paths."""
    with torch.inference_mode(False):
        return torch.stack([_path_eigenvalues(size, dtype, device)[-1] for size in sizes])


@cached(32)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[frequencies, cells]: the orthonormal basis of the cosine transform (DCT-II)."""
    with torch.inference_mode(False):
        cells = torch.arange(size, device=device, dtype=torch.float64)
        basis = torch.cos(torch.outer(cells, cells + 0.5) * (math.pi / max(1, size))) * math.sqrt(2 / max(1, size))
        basis[:1] *= math.sqrt(0.5)
        return basis.to(dtype)


__all__ = ["Base", "Diagonal", "Transform", "cosines", "inverse_of", "spread"]

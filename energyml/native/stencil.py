"""Gaussian fields on grids: products and conjugate gradients on the CPU, torch tensors around the native kernel.

The matrix of a field is a diagonal plus a Laplacian with signed weights,

    (Q x)_i = diag_i x_i + sum over edges (i, j) of w_ij (x_i - x_j),

where each direction joins every cell i to the cell at an offset from it, if that is in the grid.  It is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from energyml.execution import is_addressable
from energyml.native import fields as kernels

Offsets = tuple[tuple[int, int, int], ...]
Shape = tuple[int, int, int]

# Cells for each thread below which one more costs more than it brings (measured with two): of all systems for a
# product, of all systems for solves that run side by side, and of one system that threads share, which meet twice in
# each step.
PRODUCTS_WORTH_A_THREAD = 15_000
SOLVES_WORTH_A_THREAD = 1_000
SHARES_WORTH_A_THREAD = 4_000


@dataclass(frozen=True)
class Solved:
    """What a solve found.

    Attributes:
        x: [B, M, N]: the solutions, of the right-hand side's type.
        iterations: [B] int64: steps taken, by the channel that took most.
        residual: [B] float64: |b - Q x| / |b| of the worst channel, from a product in float64; NaN where something is
            not finite.
        negative: [B] bool: whether p'Qp <= 0 was met for some p, hence the matrix is not positive definite.
        worst: the largest residual; NaN where something is not finite, a matrix not positive definite, or a number of
            `diag` not positive.
    """

    x: Tensor
    iterations: Tensor
    residual: Tensor
    negative: Tensor
    worst: float


def available() -> bool:
    """Whether the kernel was built."""
    return kernels is not None


def serves(*tensors: Tensor) -> bool:
    """Whether the kernel can run on these tensors: all on the CPU, all float32 or all float64."""
    dtype = tensors[0].dtype
    if kernels is None or dtype not in (torch.float32, torch.float64):
        return False
    return all(one.dtype is dtype for one in tensors) and is_addressable(*tensors)


def solve(
    rhs: Tensor,
    diag: Tensor,
    weights: Tensor,
    offsets: Offsets,
    shape: Shape,
    *,
    tol: float,
    iterations: int,
    preconditioner: Literal["jacobi", "none"] = "jacobi",
    start: Tensor | None = None,
) -> Solved:
    """Solve Q x = rhs by conjugate gradients; each channel of each example is a system of its own.

    Cost: in each step one pass over the field, which reads the weights and five more arrays; four arrays of memory for
    each thread.  The answer is the same for any number of threads.  Not differentiable.

    A system stops at |b - Q x| <= tol |b|; where rounding keeps it above, when starting again from the true residual
    does not lower it any more; when it meets p'Qp <= 0, or an entry of Q's diagonal that is not positive; and at what
    is not finite.  A right-hand side of zeros gives zeros after no step.

    Args:
        rhs: [B, M, N] float32 or float64, where N is the product of `shape`.
        diag: [B or 1, M or 1, N or 1].
        weights: [B or 1, D, N or 1], at each edge's first cell; those of edges that leave the grid are not read.
        offsets: for each direction the planes, rows and cells from an edge's first cell to its second.
        shape: planes, rows, and cells of a row.
        tol: the relative residual that is small enough.
        iterations: at most so many steps.
        preconditioner: `jacobi` divides by the diagonal of Q.
        start: [B, M, N]: where to start in place of zeros.
    """
    if preconditioner not in ("jacobi", "none"):
        raise ValueError(f"preconditioner: takes 'jacobi' or 'none', found {preconditioner!r}")
    system = _System("rhs", rhs, diag, weights, offsets, shape)
    if start is not None:
        if start.shape != rhs.shape or not serves(rhs, start):
            raise ValueError(f"start: takes {_described(rhs)} on the CPU like rhs, found {_described(start)}")
        start = start.contiguous()
    batch, _, cells = rhs.shape
    x = torch.empty_like(system.field)
    make = torch.empty if x.numel() > 0 else torch.zeros
    steps, residual = make(batch, dtype=torch.int64), make(batch, dtype=torch.float64)
    negative, worst = make(batch, dtype=torch.bool), 0.0
    if x.numel() > 0:
        threads, team = _threads(x.numel(), SOLVES_WORTH_A_THREAD), _threads(cells, SHARES_WORTH_A_THREAD)
        worst = system.kernels.solve(
            *system.arguments, system.field.data_ptr(), 0 if start is None else start.data_ptr(), x.data_ptr(),
            float(tol), iterations, int(preconditioner == "jacobi"), steps.data_ptr(), residual.data_ptr(),
            negative.data_ptr(), threads, team,
        )  # fmt: skip
    return Solved(x, steps, residual, negative, worst)


def multiply(x: Tensor, diag: Tensor, weights: Tensor, offsets: Offsets, shape: Shape) -> Tensor:
    """[B, M, N]: Q x, in one pass over the field and the weights.  Not differentiable; arguments as for `solve`."""
    system = _System("x", x, diag, weights, offsets, shape)
    out = torch.empty_like(system.field)
    if out.numel() > 0:
        threads = _threads(out.numel(), PRODUCTS_WORTH_A_THREAD)
        system.kernels.multiply(*system.arguments, system.field.data_ptr(), out.data_ptr(), threads)
    return out


class _System:
    """Matrices as the kernel reads them; holds the tensors that the kernel is given pointers to."""

    def __init__(self, name: str, field: Tensor, diag: Tensor, weights: Tensor, offsets: Offsets, shape: Shape) -> None:
        if kernels is None:
            raise RuntimeError("the native kernel for fields was not built: install energyml where there is a compiler")
        _check(name, field, diag, weights, offsets, shape)
        self.field, self.diag, self.weights = field.contiguous(), diag.contiguous(), weights.contiguous()
        batch, channels, _ = field.shape
        sizes, self.edges, address = _edges(offsets, shape)
        if len(self.edges) > kernels.MOST_DIRECTIONS:
            raise ValueError(f"offsets: takes at most {kernels.MOST_DIRECTIONS} directions, found {len(self.edges)}")
        self.kernels = kernels
        constant = int(weights.shape[2] == 1)
        self.arguments = (
            int(field.dtype == torch.float64), *sizes, address, len(self.edges), batch, channels,
            self.diag.data_ptr(), _stride(self.diag, 0), _stride(self.diag, 1), int(diag.shape[2] != 1),
            self.weights.data_ptr(), _stride(self.weights, 0), weights.shape[2], constant,
        )  # fmt: skip


@lru_cache(maxsize=64)
def _edges(offsets: Offsets, shape: Shape) -> tuple[Shape, np.ndarray, int]:
    """The grid with its axes of one cell put first, and [D, 4] the directions that have edges in it, with its address.

    A row of the array is the number of a direction and its offset along each axis.
    """
    first, second, third = sorted(range(3), key=lambda axis: shape[axis] != 1)
    edges = [
        (number, offset[first], offset[second], offset[third])
        for number, offset in enumerate(offsets)
        if any(offset) and all(abs(step) < size for step, size in zip(offset, shape, strict=True))
    ]
    array = np.array(edges, dtype=np.int64).reshape(len(edges), 4)
    return (shape[first], shape[second], shape[third]), array, array.ctypes.data


def _check(name: str, field: Tensor, diag: Tensor, weights: Tensor, offsets: Offsets, shape: Shape) -> None:
    """Refuse tensors that the kernel would read beyond their ends."""
    cells = shape[0] * shape[1] * shape[2]
    if field.dim() != 3 or field.shape[2] != cells:
        grid = " x ".join(map(str, shape))
        raise ValueError(f"{name}: takes [B, M, {cells}] for a grid of {grid} cells, found {_described(field)}")
    batch, channels, _ = field.shape
    if not _broadcasts(diag, batch, channels, cells):
        sizes = f"[{batch} or 1, {channels} or 1, {cells} or 1]"
        raise ValueError(f"diag: takes {sizes} beside {name} {list(field.shape)}, found {_described(diag)}")
    if not _broadcasts(weights, batch, len(offsets), cells) or weights.shape[1] != len(offsets):
        sizes = f"[{batch} or 1, {len(offsets)}, {cells} or 1]"
        raise ValueError(f"weights: takes {sizes} for {len(offsets)} offsets, found {_described(weights)}")
    if not serves(field, diag, weights):
        found = ", ".join(f"{what} {one.dtype} on {one.device}" for what, one in _named(name, field, diag, weights))
        raise ValueError(f"takes plain tensors on the CPU, all float32 or all float64; found {found}")


def _broadcasts(tensor: Tensor, *full: int) -> bool:
    """Whether a tensor has so many axes, each of its full size or of size 1; written out, as every call asks."""
    sizes = tensor.shape
    return len(sizes) == 3 and (sizes[0] in (1, full[0]) and sizes[1] in (1, full[1]) and sizes[2] in (1, full[2]))


def _named(name: str, field: Tensor, diag: Tensor, weights: Tensor) -> tuple[tuple[str, Tensor], ...]:
    return ((name, field), ("diag", diag), ("weights", weights))


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _stride(tensor: Tensor, axis: int) -> int:
    return 0 if tensor.shape[axis] == 1 else tensor.stride(axis)


def _threads(cells: int, worth: int) -> int:
    return max(1, min(torch.get_num_threads(), cells // worth))

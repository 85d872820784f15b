"""The peers: dense Cholesky, scipy's conjugate gradients, and those of linear_operator, each at its best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from linear_operator import settings
from linear_operator.operators import LinearOperator
from linear_operator.utils.linear_cg import linear_cg
from scipy import sparse
from scipy.sparse import linalg
from torch import Tensor

from benchmarks.exact.timing import CLOCK
from benchmarks.gaussian.cases import Case
from benchmarks.gaussian.ours import BACKWARD, Prepared
from energyml.backends.gaussian.dense import written_out
from energyml.bind.quadratic import QuadraticForm

TOLERANCE = 1e-6
MOST_ITERATIONS = 1000
LARGEST_DENSE = 8192  # cells

Array = np.ndarray[Any, Any]
Product = Callable[[Array], Array]


class Refused(Exception):
    """Why a peer cannot take a case."""


# ------------------------------------------------------------------------------------------------------ dense Cholesky


def dense(case: Case, task: str) -> Prepared:
    """Cholesky by torch of the matrix written out, factored once; the gradient of the matrix is not made."""
    cells = case.form.sizes.channels * case.form.sizes.positions
    if cells > LARGEST_DENSE or case.batch > 1:
        raise Refused(f"{case.batch} x {cells} x {cells} numbers are not written out")
    matrix = written_out(case.form)
    sides = [case.rhs, case.back][: 2 if task == BACKWARD else 1]

    def run() -> Tensor:
        factor = torch.linalg.cholesky(matrix)
        found = [torch.cholesky_solve(one.reshape(1, -1, 1), factor) for one in sides]
        return found[0].reshape(case.form.sizes)

    return Prepared(run)


# --------------------------------------------------------------------------------------------------------------- scipy


def low_rank_products(vectors: Array) -> dict[str, Product]:
    """Ways to write x + (S ⊗ A Aᵀ) x for two labels with A [K, N]; which is fastest depends on the sizes."""
    count = vectors.shape[1]
    columns = np.ascontiguousarray(vectors.T)

    def together(x: Array) -> Array:
        fields = x.reshape(2, count)
        return np.asarray((fields + (fields @ vectors.T)[::-1] @ vectors).reshape(-1))

    def turned(x: Array) -> Array:
        fields = x.reshape(2, count)
        return np.asarray((fields + (vectors @ fields.T)[:, ::-1].T @ vectors).reshape(-1))

    def one_by_one(x: Array) -> Array:
        out = x.copy()
        out[:count] += (vectors @ x[count:]) @ vectors
        out[count:] += (vectors @ x[:count]) @ vectors
        return out

    def by_columns(x: Array) -> Array:
        out = x.copy()
        out[:count] += columns @ (x[count:] @ columns)
        out[count:] += columns @ (x[:count] @ columns)
        return out

    return {"together": together, "turned": turned, "one by one": one_by_one, "by columns": by_columns}


def scipy_low_rank(case: Case, task: str) -> Prepared:
    """`scipy.sparse.linalg.cg` on a LinearOperator: bare solves, one example after the other."""
    part = case.form.vectors[0]
    scaled = (part.values * part.strength.sqrt()[:, None, None]).numpy()
    first = case.rhs[0].numpy().ravel()
    way = min(low_rank_products(scaled[0]), key=lambda name: _once(low_rank_products(scaled[0])[name], first))
    size = scaled.shape[2] * 2
    operators = [
        linalg.LinearOperator((size, size), matvec=low_rank_products(vectors)[way], dtype=np.float32)
        for vectors in scaled
    ]
    jobs = [(operators[b], side[b].ravel(), None) for side in _sides(case, task) for b in range(case.batch)]
    return _scipy(case, jobs, f"float32, {way}")


def scipy_grid(case: Case, task: str) -> Prepared:
    """`scipy.sparse.linalg.cg` on a csr matrix: each example and channel by itself, in the fastest of four ways.

    Single or double precision, with the diagonal as preconditioner or without: the fastest on one system is taken.
    """
    sides = _sides(case, task)
    ways: dict[str, tuple[float, Any, bool]] = {}
    for dtype in (np.float32, np.float64):
        matrix = csr(case.form.example(0)).astype(dtype)
        for jacobi in (False, True):
            start = CLOCK()
            linalg.cg(matrix, sides[0][0, 0].astype(dtype), rtol=TOLERANCE, maxiter=MOST_ITERATIONS,
                      M=_jacobi(matrix) if jacobi else None)  # fmt: skip
            ways[f"{np.dtype(dtype).name}, {'jacobi' if jacobi else 'plain'}"] = (CLOCK() - start, dtype, jacobi)
    note = min(ways, key=lambda name: ways[name][0])
    _, dtype, jacobi = ways[note]
    matrices = [csr(case.form.example(b)).astype(dtype) for b in range(case.batch)]
    inverses = [_jacobi(matrix) if jacobi else None for matrix in matrices]
    jobs = [
        (matrices[b], row.astype(dtype), inverses[b])
        for side in sides for b in range(case.batch) for row in side[b]
    ]  # fmt: skip
    return _scipy(case, jobs, note)


def csr(form: QuadraticForm) -> sparse.csr_array:
    """The matrix that every channel of one example has."""
    stencil = form.stencil
    assert stencil is not None
    ends = stencil.edges(torch.device("cpu")).flatten(0, 1)
    weights = stencil.weights.expand(1, -1, form.sizes.positions).flatten()
    inside = ends[:, 0] >= 0
    (first, second), weight = ends[inside].numpy().T, weights[inside].numpy()
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    shape = (form.sizes.positions,) * 2
    beside = sparse.coo_array((np.concatenate([weight, weight]), (rows, columns)), shape=shape).tocsr()
    own = float(form.ridge[0]) + np.asarray(beside.sum(1)).ravel()
    found = sparse.csr_array(sparse.diags_array(own) - beside)
    found.indices, found.indptr = found.indices.astype(np.int32), found.indptr.astype(np.int32)
    return found


def _jacobi(matrix: Any) -> linalg.LinearOperator:
    inverse = 1 / matrix.diagonal()
    return linalg.LinearOperator(matrix.shape, matvec=lambda x: inverse * x, dtype=matrix.dtype)


def _sides(case: Case, task: str) -> list[Array]:
    both = [case.rhs.numpy(), case.back.numpy()]
    return both if task == BACKWARD else both[:1]


def _once(product: Product, x: Array) -> float:
    product(x)
    times = []
    for _ in range(5):
        start = CLOCK()
        product(x)
        times.append(CLOCK() - start)
    return min(times)


def _scipy(case: Case, jobs: list[tuple[Any, Array, Any]], note: str) -> Prepared:
    """Each job a solve; the right-hand sides of all examples come first, then what comes back."""

    def run() -> Tensor:
        found = [
            linalg.cg(matrix, side, rtol=TOLERANCE, maxiter=MOST_ITERATIONS, M=inverse)[0]
            for matrix, side, inverse in jobs
        ]
        forward = case.rhs.numel() // found[0].size
        return torch.from_numpy(np.concatenate(found[:forward])).float().reshape(case.form.sizes)

    def iterations() -> list[int]:
        counts = []
        for matrix, side, inverse in jobs:
            steps: list[None] = []
            linalg.cg(
                matrix, side, rtol=TOLERANCE, maxiter=MOST_ITERATIONS, M=inverse,
                callback=lambda _, steps=steps: steps.append(None),
            )  # fmt: skip
            counts.append(len(steps))
        return counts

    return Prepared(run, iterations, note)


# ----------------------------------------------------------------------------------------------------- linear_operator


class Solved(LinearOperator):  # type: ignore[misc]
    """An operator that is solved by the library's conjugate gradients to a relative residual of 1e-6.

    As `solve` calls them they stop moving at 1e-5, in double precision too: they take curvatures below `eps` = 1e-10
    for zero, and then go on to the last iteration.  A smaller `eps` lets them reach what all others are asked for.
    """

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Tensor:
        found: Tensor = linear_cg(
            self._matmul, rhs, tolerance=TOLERANCE, eps=1e-30, max_iter=MOST_ITERATIONS, preconditioner=preconditioner
        )
        return found


class Potts(Solved):
    """I + S ⊗ A Aᵀ over two labels; the library's own sums and Kronecker products would write A Aᵀ out."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__(vectors)
        self.vectors = vectors

    def _matmul(self, rhs: Tensor) -> Tensor:
        fields = rhs.mT.reshape(*rhs.shape[:-2], 2 * rhs.shape[-1], -1)
        products = fields @ self.vectors.mT
        mixed = products.reshape(*rhs.shape[:-2], -1, 2, products.shape[-1]).flip(-2).reshape(products.shape)
        return (fields + mixed @ self.vectors).reshape(rhs.mT.shape).mT

    def _size(self) -> torch.Size:
        cells = 2 * self.vectors.shape[-1]
        return torch.Size((*self.vectors.shape[:-2], cells, cells))

    def _transpose_nonbatch(self) -> Potts:
        return self


class Neighbours(Solved):
    """A grid with weights [B, 2, H, W] between neighbours, channels as columns."""

    def __init__(self, weights: Tensor, ridge: Tensor) -> None:
        super().__init__(weights, ridge)
        self.weights, self.ridge = weights, ridge

    def _matmul(self, rhs: Tensor) -> Tensor:
        batch, _, height, width = self.weights.shape
        grid = rhs.mT.reshape(batch, -1, height, width)
        down = (grid[:, :, :-1] - grid[:, :, 1:]) * self.weights[:, :1, :-1]
        right = (grid[..., :-1] - grid[..., 1:]) * self.weights[:, 1:, :, :-1]
        total = grid * self.ridge
        total = total + torch.nn.functional.pad(down, (0, 0, 0, 1)) - torch.nn.functional.pad(down, (0, 0, 1, 0))
        total = total + torch.nn.functional.pad(right, (0, 1)) - torch.nn.functional.pad(right, (1, 0))
        return total.reshape(batch, -1, height * width).mT

    def _size(self) -> torch.Size:
        cells = self.weights.shape[-1] * self.weights.shape[-2]
        return torch.Size((self.weights.shape[0], cells, cells))

    def _transpose_nonbatch(self) -> Neighbours:
        return self


def operator_low_rank(case: Case, task: str) -> Prepared:
    """linear_operator's `solve` on the bounded matrix; gradients in the right-hand side and in the vectors."""
    part = case.form.vectors[0]
    vectors = (part.values * part.strength.sqrt()[:, None, None]).requires_grad_(task == BACKWARD)
    sides = [one.reshape(case.batch, -1, 1) for one in (case.rhs, case.back)]
    return _operator(case, task, lambda: Potts(vectors), [vectors], sides, lambda x: x.reshape(case.form.sizes))


def operator_grid(case: Case, task: str) -> Prepared:
    """linear_operator's `solve` with channels as columns; gradients in the right-hand side and in the weights."""
    stencil = case.form.stencil
    assert stencil is not None
    shape = (case.batch, 2, *stencil.shape)
    flat = stencil.weights.expand(case.batch, -1, case.form.sizes.positions)
    weights = flat.reshape(shape).clone().requires_grad_(task == BACKWARD)
    sides = [one.mT for one in (case.rhs, case.back)]
    made = lambda: Neighbours(weights, case.form.ridge)  # noqa: E731
    return _operator(case, task, made, [weights], sides, lambda x: x.mT)


def _operator(
    case: Case, task: str, make: Callable[[], LinearOperator], tensors: list[Tensor], sides: list[Tensor],
    to_cells: Callable[[Tensor], Tensor],
) -> Prepared:  # fmt: skip
    rhs = sides[0].clone().requires_grad_(task == BACKWARD)

    def run() -> Tensor:
        for one in (rhs, *tensors):
            one.grad = None
        with (
            warnings.catch_warnings(),
            settings.max_cholesky_size(0),
            torch.set_grad_enabled(task == BACKWARD),
        ):
            warnings.simplefilter("ignore")
            found: Tensor = make().solve(rhs)
            if task == BACKWARD:
                found.backward(sides[1])
        return to_cells(found.detach())

    return Prepared(run)

"""Gaussian fields by dense algebra in double precision, from the values of a model's score alone.

The score is u'v - v'Qv / 2, so that its values at multiples of unit vectors and of their sums and differences give u
and Q.  Multiples are powers of two, hence exact: at large ones the linear part vanishes beside the quadratic one, at
small ones the other way round.  No code is shared with the solvers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.fuzz.fields import FieldCase

Array = NDArray[np.float64]
LARGE, SMALL = 2.0**200, 2.0**-200
NEGLIGIBLE = 2.0**100
LOG_2_PI = math.log(2 * math.pi)


def _scores(case: FieldCase, number: int, points: Array) -> Array:
    """[n]: the scores of values [n, cells] of one example."""
    alone = case.double().example(number)
    count = len(points)
    values = torch.from_numpy(points).reshape(count, *case.sizes)
    given = {name: one.expand(count, *one.shape[1:]) for name, one in alone.inputs.items()}
    more = {name: {key: one.expand(count, *one.shape[1:]) for key, one in getattr(alone, part).items()}
            for name, part in (("lengths", "lengths"), ("mask", "masks")) if getattr(alone, part)}  # fmt: skip
    with torch.no_grad():
        return alone.model.score(**given, **more, s=values).numpy()


def matrix_of(case: FieldCase) -> list[Array]:
    """For each example Q [cells, cells]."""
    cells = math.prod(case.sizes)
    eye = LARGE * np.eye(cells)
    rows, columns = np.triu_indices(cells)
    found = []
    for number in range(case.batch):
        q = np.zeros((cells, cells))
        points = np.concatenate([eye[rows] + eye[columns], eye[rows] - eye[columns]])
        both = _scores(case, number, points) / LARGE / LARGE
        entries = (both[len(rows) :] - both[: len(rows)]) / 2
        q[rows, columns] = np.where(abs(entries) > 1 / NEGLIGIBLE, entries, 0)  # the linear part leaves traces
        q[columns, rows] = q[rows, columns]
        found.append(q)
    return found


def linear_of(case: FieldCase) -> list[Array]:
    """For each example u [cells]."""
    eye = SMALL * np.eye(math.prod(case.sizes))
    found = []
    for number in range(case.batch):
        both = _scores(case, number, np.concatenate([eye, -eye])) / SMALL
        entries = (both[: len(eye)] - both[len(eye) :]) / 2
        found.append(np.where(abs(entries) > 1 / NEGLIGIBLE, entries, 0))
    return found


@dataclass(frozen=True)
class Exact:
    """One example.

    Attributes:
        q, u: the score of all cells.
        present: which cells exist.
        observed: the observed values, NaN where a cell is free.
        eps: the rounding unit of the type that is judged.
        size: the magnitude of the parts that the matrix is a sum of.
        loss: how much more a method may lose than its matrix makes it lose: by the condition number that it reports.
    """

    q: Array
    u: Array
    present: NDArray[np.bool_]
    observed: Array
    eps: float
    size: float = 0.0
    loss: float = 1.0

    def given(self, values: Array) -> Exact:
        """The same with more cells observed."""
        both = np.where(np.isnan(values), self.observed, values)
        return replace(self, observed=both)

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Which cells exist and are not observed."""
        return self.present & np.isnan(self.observed)

    @cached_property
    def known(self) -> Array:
        """The observed values, 0 elsewhere."""
        return np.where(self.present & ~np.isnan(self.observed), self.observed, 0)

    @cached_property
    def matrix(self) -> Array:
        """That of the free cells."""
        return self.q[np.ix_(self.free, self.free)]

    @cached_property
    def rhs(self) -> Array:
        """The linear part of the free cells."""
        found: Array = (self.u - self.q @ self.known)[self.free]
        return found

    @cached_property
    def eigenvalues(self) -> Array:
        """Those of the free cells' matrix, ascending."""
        return np.linalg.eigvalsh(self.matrix)

    @property
    def count(self) -> int:
        """How many cells are free."""
        return int(self.free.sum())

    @cached_property
    def norm(self) -> float:
        """The magnitude of the matrix and of the parts that it is a sum of, which may cancel."""
        entries = max(abs(self.q).max(initial=0.0), self.size)
        return float(max(entries * max(1, self.count) ** 0.5, abs(self.eigenvalues).max(initial=0.0)))

    @cached_property
    def backward(self) -> float:
        """The norm of the change of the matrix that rounding may amount to.

        Cholesky factors are those of a matrix that differs by (n + 1) eps |L||L'| (Higham 2002, theorem 10.3); 4 units
        for computing the matrix itself, and for methods that are less stable by a constant.
        """
        return 4 * (self.count + 4) * self.eps * self.norm * self.loss

    @cached_property
    def definite(self) -> bool | None:
        """Whether the matrix is positive definite; `None` where rounding decides."""
        if not self.count:
            return True
        lowest, doubt = self.eigenvalues[0], 2 * self.backward
        return None if abs(lowest) <= doubt else bool(lowest > 0)

    @property
    def condition(self) -> float:
        """The condition number: the norm over the smallest eigenvalue."""
        return self.norm / self.eigenvalues[0] if self.count and self.norm else 1.0

    # -------------------------------------------------------------------------------------------------------- answers

    @cached_property
    def mean_of_free(self) -> Array:
        return np.linalg.solve(self.matrix, self.rhs)

    @cached_property
    def covariance(self) -> Array:
        return np.linalg.inv(self.matrix)

    @property
    def mean(self) -> Array:
        """[cells]."""
        found = self.known.copy()
        found[self.free] = self.mean_of_free
        return found

    @property
    def variance(self) -> Array:
        """[cells]."""
        found = np.zeros_like(self.u)
        found[self.free] = self.covariance.diagonal()
        return found

    def rhs_error(self, residual: float) -> float:
        """The norm of the change of the right-hand side that rounding, and a relative residual, may amount to."""
        terms = abs(self.u) + abs(self.q) @ abs(self.known)
        own = 8 * (self.count + 4) * self.eps * float(np.linalg.norm(terms[self.free]))
        return own + residual * float(np.linalg.norm(self.rhs))

    def mean_error(self, residual: float) -> float:
        """|x - x*| <= |Q^-1| (|dQ| |x| + |db|) (Higham 2002, theorem 7.2)."""
        if not self.count:
            return 0.0
        change = self.backward * float(np.linalg.norm(self.mean_of_free)) + self.rhs_error(residual)
        return 2 * change / float(self.eigenvalues[0])

    def variance_error(self) -> float:
        """|d(Q^-1)| <= |Q^-1|^2 |dQ|."""
        return 2 * self.backward / float(self.eigenvalues[0]) ** 2 if self.count else 0.0

    @property
    def best(self) -> float:
        """The score of the mean."""
        return self.constant + 0.5 * float(self.rhs @ self.mean_of_free)

    @property
    def constant(self) -> float:
        return float(self.known @ (self.u - 0.5 * self.q @ self.known))

    @property
    def best_size(self) -> float:
        """The magnitude of its terms."""
        known = abs(self.known)
        return float(known @ (abs(self.u) + 0.5 * abs(self.q) @ known)) + 0.5 * abs(float(self.rhs @ self.mean_of_free))

    def best_error(self, residual: float) -> float:
        """The score is flat in the matrix and the right-hand side at the mean: x'dQx / 2 + x'db."""
        size = float(np.linalg.norm(self.mean_of_free))
        change = 0.5 * self.backward * size**2 + self.rhs_error(residual) * size
        return 2 * change + 8 * (self.count + 4) * self.eps * self.best_size

    @property
    def log_determinant(self) -> float:
        return float(np.log(self.eigenvalues).sum())

    def log_determinant_error(self) -> float:
        """|tr(Q^-1 dQ)|, and rounding of the sum of logarithms."""
        if not self.count:
            return 0.0
        logs = float(abs(np.log(self.eigenvalues)).sum()) + self.count * abs(math.log(self.norm))
        return 2 * self.backward * float((1 / self.eigenvalues).sum()) + 8 * (self.count + 4) * self.eps * (logs + 1)

    @property
    def log_partition(self) -> float:
        return self.best - 0.5 * self.log_determinant + 0.5 * self.count * LOG_2_PI

    def log_partition_error(self, residual: float) -> float:
        return self.best_error(residual) + 0.5 * self.log_determinant_error() + 8 * self.eps * self.count

    @property
    def entropy(self) -> float:
        return 0.5 * self.count * (1 + LOG_2_PI) - 0.5 * self.log_determinant


def exact(case: FieldCase) -> list[Exact]:
    """The examples of a case."""
    eps = torch.finfo(case.dtype).eps
    observed = np.full((case.batch, math.prod(case.sizes)), np.nan)
    for one in case.evidence.values():
        observed = one.double().flatten(1).numpy()
    parts = zip(matrix_of(case), linear_of(case), case.present(), observed, strict=True)
    return [
        Exact(q, u, present, seen, eps, case.magnitude(number)) for number, (q, u, present, seen) in enumerate(parts)
    ]

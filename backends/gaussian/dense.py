"""Dense Cholesky: any form, written out; for small fields."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import inverse_of, spread
from energyml.backends.gaussian.solver import Normal, Outcome, Solver
from energyml.bind.quadratic import QuadraticForm
from energyml.caching import cached_property


def written_out(form: QuadraticForm) -> Tensor:
    """[B, M N, M N]: the matrix of a form, by multiplying the columns of the identity; O(M N) products."""
    batch, channels, positions = form.sizes
    cells = channels * positions
    columns = torch.eye(cells, dtype=form.ridge.dtype, device=form.ridge.device).reshape(cells, channels, positions)
    return torch.stack([form.example(b).multiply(columns).reshape(cells, cells) for b in range(batch)])


class Dense(Solver):
    """Cholesky of the whole matrix: O((M N)³) once, O((M N)²) a solve."""

    method = "cholesky"

    @cached_property
    def _factored(self) -> tuple[Tensor, Tensor]:
        factor, info = torch.linalg.cholesky_ex(written_out(self.form))
        return factor, info

    @property
    def definite(self) -> Tensor:
        """Whether the factor exists."""
        return self._factored[1] == 0

    def solve(self, rhs: Tensor, tol: float | None = None, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """Two triangular solves."""
        factor, _ = self._factored
        return torch.cholesky_solve(rhs.flatten(1).unsqueeze(2), factor).reshape(rhs.shape), self.outcome

    def condition(self) -> Tensor:
        """The ratio of the largest pivot to the smallest: at most the condition number, and of its size."""
        present = self.form.present
        if present is not None:
            present = present.unsqueeze(1).expand(self.form.sizes).flatten(1)
        return spread(self._factored[0].detach().diagonal(dim1=1, dim2=2), present).square()

    def log_determinant(self) -> tuple[Tensor, Tensor | None]:
        """Twice the logarithms of the factor's diagonal."""
        return 2 * self._factored[0].diagonal(dim1=1, dim2=2).log().sum(1), None

    def variances(self) -> tuple[Tensor, Tensor | None]:
        """The diagonal of the inverse."""
        inverse = inverse_of(self._factored[0])
        return inverse.diagonal(dim1=1, dim2=2).reshape(*self.form.sizes), None

    def draws(self, count: int, normal: Normal) -> Tensor:
        """L⁻ᵀ noise."""
        batch, channels, positions = self.form.sizes
        noise = normal((batch, channels * positions, count))
        drawn: Tensor = torch.linalg.solve_triangular(self._factored[0].transpose(1, 2), noise, upper=True)
        return drawn.movedim(2, 0).reshape(count, *self.form.sizes)


__all__ = ["Dense", "written_out"]

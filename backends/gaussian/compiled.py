"""Low-rank couplings beside a ridge: the bound, the solve and their gradients in few passes over the vectors.

The matrix over cells [M, N] is ridge I + strength (S ⊗ AᵀA) with S = within I + across (1 - I).  Woodbury's identity
leaves systems of the size of the rank, one for the mean over channels and one for the differences from it.  Products
of vectors are added up in double precision, and the small systems are solved in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import Diagonal
from energyml.backends.gaussian.solver import LEAST, Outcome, solved
from energyml.backends.gaussian.woodbury import Woodbury
from energyml.bind.lowrank import Bound, Vectors
from energyml.bind.quadratic import QuadraticForm
from energyml.execution import is_addressable

# Where vectors reach everywhere, a solution in double precision loses digits by the square of the condition of the
# small systems: torch solves once more for what is left.
LARGEST_CONDITION = math.sqrt(LEAST * 1e-4 / torch.finfo(torch.float64).eps)
# Columns whose products are added up in single precision.
PANEL = 1024

# Solves that can be differentiated to any order: ridge, vectors, strength or `None`, right-hand side -> solution.
Twin = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]


def low_rank_solution(form: QuadraticForm, rhs: Tensor) -> tuple[Tensor, Outcome] | None:
    """Q⁻¹ rhs [B, M, N] with gradients to any order, and how it went; `None` where this way does not serve.

    It serves a ridge and one coupling by vectors [B or 1, K, N], on the CPU.  Nothing of the form is computed
    beforehand: the strength of a bounded coupling comes out of the products that the solve needs.  Cost: O(N K²) in
    two passes over the vectors, and as much again for the gradients.
    """
    if len(form.vectors) != 1 or form.diagonal is not None:
        return None
    (part,) = form.vectors
    bound = part.weight if isinstance(part.weight, Bound) else None
    strength = None if isinstance(part.weight, Bound) else part.weight
    given = (rhs, form.ridge, part.given) if strength is None else (rhs, form.ridge, part.given, strength)
    plain = is_addressable(*given) and all(one.dtype is rhs.dtype for one in given)
    if not plain or rhs.dtype not in (torch.float32, torch.float64) or not rhs.numel() or not part.given.numel():
        return None

    def twin(ridge: Tensor, values: Tensor, strength: Tensor | None, rhs: Tensor) -> Tensor:
        weight = strength if bound is None else Bound(bound.gain, bound.share, ridge)
        assert weight is not None
        made = replace(form, ridge=ridge, vectors=(Vectors(values, weight, part.within, part.across),))
        plain = made.detached()
        return solved(Woodbury(plain, Diagonal(replace(plain, vectors=()))), made, rhs)[0]

    run = _Run(part, bound, form.present, twin)
    x: Tensor = _Solve.apply(run, rhs, form.ridge, part.given, strength)  # type: ignore[no-untyped-call]
    small = run.small
    worst = float(small.condition.max()) if bool(small.definite.all()) and run.finite else math.nan
    if math.isnan(worst) and bool((form.ridge <= 0).any()):
        return None  # the vectors may make up for a ridge that is not positive
    doubtful = rhs.dtype is torch.float64 and not worst <= LARGEST_CONDITION
    if doubtful and bool((small.condition > LARGEST_CONDITION).any()):
        return None
    outcome = Outcome(small.definite, answer=x, condition=small.condition.to(rhs.dtype))
    if form.present is not None:
        outcome.condition = small.condition.to(rhs.dtype) * Diagonal(replace(form, vectors=())).condition()
    else:
        outcome.seen_fine = worst * torch.finfo(rhs.dtype).eps <= LEAST
    return x, outcome


@dataclass
class _Small:
    """The small systems of a batch, in double precision; G = A Aᵀ.

    Attributes:
        ridge: [B].
        strength: [B].
        norm: [G or 1] the eighth root of the sum of the eighth powers of G's eigenvalues; `None` where the strength was
            given.
        gram: [B or 1, K, K]: G.
        fourth: [B or 1, K, K]: (G / norm)⁴, where there is a norm.
        factors: [B, 2 or 1, K, K]: Cholesky factors of I + strength eigenvalue(S) / ridge G, of the mean and of the
            differences.
        reach: [B, 2 or 1, 1, 1]: strength times those eigenvalues of S.
        definite: [B] bool.
        condition: [B]: about that of these systems; NaN where the matrix is not positive definite.
    """

    ridge: Tensor
    strength: Tensor
    norm: Tensor | None
    gram: Tensor
    fourth: Tensor | None
    factors: Tensor
    reach: Tensor
    definite: Tensor
    condition: Tensor

    def inner(self, products: Tensor) -> Tensor:
        """[B, M, K]: what A is multiplied by in the solution, from products [B, M, K] of fields with A."""
        mean = products.mean(1, keepdim=True)
        found = self.reach[:, 0] * torch.cholesky_solve(mean.mT, self.factors[:, 0]).mT
        if self.factors.shape[1] > 1:
            found = found + self.reach[:, 1] * torch.cholesky_solve((products - mean).mT, self.factors[:, 1]).mT
        return (found / self.ridge[:, None, None]).expand_as(products)

    def seen(self, products: Tensor, inner: Tensor) -> Tensor:
        """[B, M, K]: the products of the solution with A."""
        return (products - inner @ self.gram) / self.ridge[:, None, None]


class _Run:
    """One call: the coupling, and what the backward pass needs."""

    small: _Small
    seen: Tensor
    finite: bool

    def __init__(self, part: Vectors, bound: Bound | None, present: Tensor | None, twin: Twin) -> None:
        self.within, self.across, self.bound, self.present, self.twin = part.within, part.across, bound, present, twin

    def forward(self, rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None) -> Tensor:
        self.small = small = self._systems(rhs, ridge, values, strength)
        products = _products(rhs, values)
        inner = small.inner(products)
        self.seen = small.seen(products, inner)
        x = self._finished(rhs, values, inner)
        self.finite = bool(torch.isfinite(x.abs().amax()))
        if not bool(small.definite.all()):
            x[~small.definite] = math.nan
        return x

    def backward(
        self, back: Tensor, x: Tensor, values: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """The gradients of the right-hand side, of the vectors if wanted, and [B] those of ridge and strength."""
        small = self.small
        products = _products(back, values)
        inner = small.inner(products)
        seen = small.seen(products, inner)
        adjoint = self._finished(back, values, inner)
        of_seen, of_adjoint = self._mixed(self.seen), self._mixed(seen)
        of_strength = -(of_seen * seen).sum((1, 2))
        overlap = adjoint * x if self.present is None else adjoint * x * self.present.unsqueeze(1)
        of_ridge = -overlap.sum((1, 2), dtype=torch.float64)
        slope = None
        if small.norm is not None:
            assert self.bound is not None
            by = of_strength * small.strength.square() / (self.bound.share * small.ridge)
            of_ridge = of_ridge + by * small.norm / small.ridge
            slope, of_strength = -by, torch.zeros_like(by)
        if not bool(small.definite.all()):
            lost = ~small.definite
            adjoint[lost], of_ridge[lost], of_strength[lost] = 0, 0, 0
            of_seen, of_adjoint = (one.masked_fill(lost[:, None, None], 0) for one in (of_seen, of_adjoint))
            x = x.masked_fill(lost[:, None, None], 0)
            slope = slope if slope is None else slope.masked_fill(lost, 0)
        of_values = self._of_values(values, x, adjoint, of_seen, of_adjoint, slope) if wanted else None
        return adjoint, of_values, of_ridge, of_strength

    def _of_values(
        self, values: Tensor, x: Tensor, adjoint: Tensor, of_seen: Tensor, of_adjoint: Tensor, slope: Tensor | None
    ) -> Tensor:
        """The gradient of the vectors: outer products of fields, and the share of the bound, 2 slope (G / norm)⁷ A."""
        small, groups = self.small, values.shape[0]
        weight = -small.strength[:, None, None]
        left = torch.cat([weight * of_adjoint, weight * of_seen], 1).to(x.dtype)
        right = torch.cat([x, adjoint], 1)
        if groups == 1:
            left, right = left.flatten(0, 1).unsqueeze(0), right.flatten(0, 1).unsqueeze(0)
        if slope is None or small.norm is None or small.fourth is None:
            return left.mT @ right
        slope = slope.sum(0, keepdim=True) if groups == 1 else slope
        norm = small.norm.masked_fill(small.norm == 0, 1)[:, None, None]
        third = small.gram @ small.gram @ small.gram / norm**3
        share = (2 * slope[:, None, None] * (third @ small.fourth)).to(x.dtype)
        return (left.mT @ right).baddbmm_(share, values)

    def _systems(self, rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None) -> _Small:
        batch, channels = rhs.shape[:2]
        gram = _products(values, values)
        wide = ridge.double().expand(batch)
        norm = fourth = None
        if strength is not None:
            strength = strength.double().expand(batch)
        else:
            assert self.bound is not None
            size = torch.linalg.matrix_norm(gram)[:, None, None]
            scaled = gram / size.masked_fill(size == 0, 1)
            square = scaled @ scaled
            fourth = square @ square
            part = torch.linalg.matrix_norm(fourth).pow(0.25)[:, None, None]
            norm = (size * part)[:, 0, 0]
            fourth = fourth / part.masked_fill(part == 0, 1) ** 4
            above = wide.clamp(min=torch.finfo(rhs.dtype).tiny)
            strength = self.bound.gain / (1 + self.bound.gain * norm / (self.bound.share * above))
        eigenvalues = [self.within + (channels - 1) * self.across, self.within - self.across][: min(channels, 2)]
        reach = strength[:, None] * strength.new_tensor(eigenvalues)
        unit = torch.eye(gram.shape[-1], dtype=torch.float64, device="cpu")
        systems = unit + (reach / wide[:, None])[:, :, None, None] * gram.unsqueeze(1)
        factors, problem = torch.linalg.cholesky_ex(systems)
        pivots = factors.diagonal(dim1=-2, dim2=-1)
        spread = pivots.amax(-1).clamp(min=1) / pivots.amin(-1).clamp(max=1)
        condition = spread.amax(1).square()
        definite = (problem == 0).all(1) & (wide > 0) & wide.isfinite() & condition.isfinite()
        condition = condition.masked_fill(~definite, math.nan)
        return _Small(wide, strength, norm, gram, fourth, factors, reach[:, :, None, None], definite, condition)

    def _finished(self, rhs: Tensor, values: Tensor, inner: Tensor) -> Tensor:
        """(rhs - inner A) / ridge, and rhs where a position is not present."""
        inner = inner.to(rhs.dtype)
        batch, channels, positions = rhs.shape
        scale = self.small.ridge.reciprocal().to(rhs.dtype)[:, None, None]
        if values.shape[0] == batch:
            found = torch.baddbmm(rhs, inner, values, alpha=-1)
        else:
            flat = torch.addmm(rhs.reshape(-1, positions), inner.reshape(batch * channels, -1), values[0], alpha=-1)
            found = flat.view(rhs.shape)
        return found.mul_(scale if self.present is None else torch.where(self.present.unsqueeze(1), scale, 1))

    def _mixed(self, rows: Tensor) -> Tensor:
        """S times rows [B, M, K]."""
        return (self.within - self.across) * rows + self.across * rows.sum(1, keepdim=True)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """[B or 1, R, K]: products of rows [B or 1, R, N] and [B or 1, K, N], in double precision.

    Those of single precision are added up in it for panels of columns, whose sums are added up in double precision.
    """
    if left.shape[0] != right.shape[0]:  # vectors that a batch shares
        return _products(left.flatten(0, 1).unsqueeze(0), right).view(left.shape[0], left.shape[1], -1)
    if left.dtype is torch.float64:
        return left @ right.mT
    whole = left.shape[2] // PANEL * PANEL
    rest = (left[:, :, whole:] @ right[:, :, whole:].mT).double()
    if not whole:
        return rest
    panels = []
    for one, other in zip(left[:, :, :whole], right[:, :, :whole], strict=True):
        rows, columns = (each.unflatten(1, (-1, PANEL)).transpose(0, 1) for each in (one, other))
        panels.append(torch.bmm(rows, columns.mT).sum(0, dtype=torch.float64))
    return rest + torch.stack(panels)


class _Solve(torch.autograd.Function):
    """The solve; its backward pass is analytic, and that of torch where it is to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, run: _Run, rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None) -> Tensor:
        x = run.forward(rhs, ridge, values, strength)
        ctx.run = run
        ctx.save_for_backward(x, rhs, ridge, values, strength)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_addressable(grads[0]):
            return None, *_differentiable(ctx.run, given, grads[0])
        rhs, ridge, values, strength = ctx.needs_input_grad[1:]
        of_rhs, of_values, of_ridge, of_strength = ctx.run.backward(grads[0], x, given[2], values)
        return (
            None,
            of_rhs if rhs else None,
            _of_shape(of_ridge, given[1]) if ridge else None,
            of_values,
            _of_shape(of_strength, given[3]) if strength else None,
        )


def _of_shape(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient [B] for each example as that of a tensor [B or 1]."""
    return gradient.sum_to_size(like.shape).to(like.dtype)


@torch.enable_grad()
def _differentiable(run: _Run, given: list[Tensor | None], back: Tensor) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again."""
    # Under other names: the gradient by these leaves out that what came back depends on them too.
    rhs, ridge, values, strength = (None if one is None else one.view_as(one) for one in given)
    assert rhs is not None and ridge is not None and values is not None
    x = run.twin(ridge, values, strength, rhs)
    named = (rhs, ridge, values, strength)
    wanted = [one for one in named if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(x, wanted, back, create_graph=True, materialize_grads=True))
    return [next(found) if one is not None and one.requires_grad else None for one in named]


__all__ = ["low_rank_solution"]

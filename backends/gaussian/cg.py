"""Conjugate gradients for a batch of systems, each with its own convergence (Hestenes & Stiefel 1952)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# How often an accelerator is asked whether every example is done; on the host asking costs nothing.
PATIENCE = 10
RESTARTS = 4


@dataclass
class Trace:
    """The coefficients of the iterations: the tridiagonal matrix of Lanczos' method in other words.

    Attributes:
        steps, ratios: [B] for each iteration.
        residuals: [B, M, N] before each iteration: the vectors of Lanczos' method; `None` where they are not kept.
    """

    steps: list[Tensor] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    residuals: list[Tensor] | None = None

    def tridiagonal(self) -> Tensor:
        """[B, k, k]: the matrix; steps that an example did not take are those of the identity, beside the others."""
        steps, ratios = torch.stack(self.steps, 1), torch.stack(self.ratios, 1)
        taken = steps > 0
        safe = torch.where(taken, steps, 1)
        before = torch.where(taken[:, :-1], ratios[:, :-1] / safe[:, :-1], 0)
        diagonal = torch.where(taken, safe.reciprocal(), 1)
        diagonal[:, 1:] += torch.where(taken[:, 1:], before, 0)
        beside = torch.where(taken[:, 1:], ratios[:, :-1].clamp(min=0).sqrt() / safe[:, :-1], 0)
        return torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)

    def inverse_root(self) -> Tensor:
        """[B, M, N]: Q^-½ times the right-hand side, from all residuals (Chow & Saad 2014, section 2.1).

        Its error is below that of the solution: Q^-½ is an integral of inverses of Q + t², which converge sooner.
        """
        assert self.residuals
        values, vectors = torch.linalg.eigh(self.tridiagonal())
        roots = values.clamp(min=torch.finfo(values.dtype).tiny).rsqrt()
        shares = (vectors * (roots * vectors[:, 0]).unsqueeze(1)).sum(2)
        total = torch.zeros_like(self.residuals[0])
        size = dot(self.residuals[0], self.residuals[0]).sqrt()
        for number, residual in enumerate(self.residuals):
            own = dot(residual, residual).sqrt()
            taken = (self.steps[number] > 0) & (own > 0)
            share = torch.where(taken, shares[:, number] * size / torch.where(taken, own, 1), 0)
            total.addcmul_(residual, (-1) ** number * share.to(total.dtype)[:, None, None])
        return total


@dataclass(frozen=True)
class Solution:
    """What conjugate gradients found.

    Attributes:
        x: [B, M, N].
        iterations: [B].
        residual: [B], the relative residual |b - Qx| / |b|, of the true residual.
        negative: [B] bool, whether a direction of negative curvature was met: the matrix is not positive definite.
    """

    x: Tensor
    iterations: Tensor
    residual: Tensor
    negative: Tensor


def conjugate_gradients(
    multiply: Callable[[Tensor], Tensor],
    rhs: Tensor,
    precondition: Callable[[Tensor], Tensor] | None = None,
    *,
    tol: float,
    iterations: int,
    start: Tensor | None = None,
    trace: Trace | None = None,
) -> Solution:
    """Solve Q x = rhs; no gradients.

    Args:
        multiply: x -> Q x.
        rhs: [B, M, N].
        precondition: an approximation of Q⁻¹, symmetric and positive definite.
        tol: relative residual.
        iterations: most iterations.
        start: [B, M, N], where to start from; zero when left out.
        trace: takes the coefficients of the first run.

    Each iteration costs one product; four fields are kept.  In single precision the recursion's residual drifts from
    the true one, so the true one is looked at in the end, and the method starts again from there while it still falls.
    """
    norm = dot(rhs, rhs).sqrt()
    x = torch.zeros_like(rhs) if start is None else start.clone()
    residual = rhs.clone() if start is None else rhs - multiply(x)
    size = dot(residual, residual).sqrt()
    limit = tol * norm
    count = torch.zeros(rhs.shape[0], dtype=torch.long, device=rhs.device)
    negative = torch.zeros(rhs.shape[0], dtype=torch.bool, device=rhs.device)
    left, every = iterations, 1 if rhs.device.type == "cpu" else PATIENCE
    for _ in range(RESTARTS):
        active = (size > limit) & ~negative & size.isfinite()
        if left <= 0 or not bool(active.any()):
            break
        left = _run(multiply, precondition, x, residual, (limit, active, negative, count), left, every, trace)
        trace = None
        residual = rhs - multiply(x)
        true = dot(residual, residual).sqrt()
        done, size = ~(true < 0.5 * size), true
        if bool((done | (size <= limit)).all()):
            break
    relative = torch.where(norm > 0, size / torch.where(norm > 0, norm, 1), size)
    return Solution(x, count, relative.to(rhs.dtype), negative)


def _run(
    multiply: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor] | None,
    x: Tensor,
    residual: Tensor,
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    left: int,
    every: int,
    trace: Trace | None,
) -> int:
    """Iterate, changing x, residual, `negative` and `count` in place; how many iterations are left."""
    limit, active, negative, count = state
    z = residual if precondition is None else precondition(residual)
    direction = z.clone()
    slope = dot(residual, z)
    for number in range(left):
        product = multiply(direction)
        curvature = dot(direction, product)
        bent = active & ~(curvature > 0)
        negative |= bent
        active = active & ~bent
        step = torch.where(active, slope / torch.where(active, curvature, 1), 0)
        if trace is not None and trace.residuals is not None:
            trace.residuals.append(residual.clone())
        wide = step.to(x.dtype)[:, None, None]
        x.addcmul_(direction, wide)
        residual.addcmul_(product, wide, value=-1)
        count += active
        z = residual if precondition is None else precondition(residual)
        new = dot(residual, z)
        ratio = torch.where(active & (slope > 0), new / torch.where(slope > 0, slope, 1), 0)
        if trace is not None:
            trace.steps.append(step)
            trace.ratios.append(ratio)
        size = (new if precondition is None else dot(residual, residual)).sqrt()
        active = active & (size > limit) & size.isfinite()
        slope = new
        if (number + 1) % every == 0 and not bool(active.any()):
            return left - number - 1
        direction = torch.addcmul(z, direction, ratio.to(x.dtype)[:, None, None])
    return 0


def dot(a: Tensor, b: Tensor) -> Tensor:
    """[B]: products of fields, added up in double precision."""
    return (
        torch.linalg.vecdot(a.flatten(1), b.flatten(1)).double()
        if a.dtype == torch.float64
        else ((a * b).sum((1, 2), dtype=torch.float64))
    )


__all__ = ["Solution", "Trace", "conjugate_gradients", "dot"]

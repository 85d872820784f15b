"""Gradients at an optimum: of the equation that it solves, not of the way to it.

At logits z where the gradient F(z, theta) of what was maximised is zero, dz = -H^-1 dF, with H the Hessian in z.  A
gradient u of z becomes the solution of -H v = u, found by conjugate gradients in each row, and is then pulled back to
the parameters through F.  H is zero along constants in each cell, to which u is orthogonal, and along logits of cells
that do not exist; at a maximum -H is otherwise positive.  Only first derivatives are right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from energyml.backends.relaxed.space import Vectors

# Iterations, and the share of the first residual that ends them.
_MOST, _SMALL = 200, 1e-10
# Curvature below this share of the largest met counts as none: nothing is gained along it.
_FLAT = 1e-12


def at_optimum(gradient: Callable[[Vectors], Vectors], logits: Vectors) -> Vectors:
    """Logits with the gradients of the optimum's equation.

    Args:
        gradient: the gradient [R, *dims, labels] in logits of what they maximise, which gradients flow through.
        logits: the optimum, without gradients.
    """
    names = list(logits)
    with torch.enable_grad():
        start = {name: one.detach().requires_grad_() for name, one in logits.items()}
        slopes = gradient(start)
        sizes = [start[name].shape for name in names]
        flat = _joined([slopes[name] for name in names])

    def solve(right: Tensor) -> Tensor:
        def curved(v: Tensor) -> Tensor:
            pulled = torch.autograd.grad(
                flat, [start[name] for name in names], v, retain_graph=True, materialize_grads=True
            )
            return -_joined(list(pulled))

        return _conjugate_gradients(curved, right)

    found: Tensor = _Solved.apply(flat, _joined([logits[name].detach() for name in names]), solve)  # type: ignore[no-untyped-call]
    parts = found.split([size[1:].numel() for size in sizes], 1)
    return {name: part.reshape(size) for name, part, size in zip(names, parts, sizes, strict=True)}


def _joined(parts: list[Tensor]) -> Tensor:
    """[R, all]."""
    return torch.cat([one.reshape(one.shape[0], one.shape[1:].numel()) for one in parts], 1)


def _conjugate_gradients(curved: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """The solutions [R, N] of row-wise systems; a row ends where it is solved or meets no curvature."""
    x, r = torch.zeros_like(right), right
    d, rho = r, (r * r).sum(1)
    least, largest = rho * _SMALL**2, torch.zeros_like(rho)
    alive = rho > 0
    for _ in range(_MOST):
        product = curved(d)
        bend = (d * product).sum(1)
        largest = torch.maximum(largest, bend / (d * d).sum(1).clamp(min=torch.finfo(d.dtype).tiny))
        alive = alive & (bend > _FLAT * largest * (d * d).sum(1))
        alpha = torch.where(alive, rho / torch.where(alive, bend, 1), 0).unsqueeze(1)
        x, r = x + alpha * d, r - alpha * product
        new = (r * r).sum(1)
        alive = alive & (new > least)
        if right.device.type == "cpu" and not bool(alive.any()):
            break
        d = r + torch.where(alive, new / torch.where(alive, rho, 1), 0).unsqueeze(1) * d
        rho = new
    return x


class _Solved(torch.autograd.Function):
    """The optimum as a function of the gradient there: the value is given, gradients are sent through `solve`."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, slopes: Tensor, found: Tensor, solve: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.solve = solve  # type: ignore[attr-defined]
        return found.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        solved: Tensor = ctx.solve(gradient)  # type: ignore[attr-defined]
        return solved, None, None

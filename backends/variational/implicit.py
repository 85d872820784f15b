"""Gradients at a fixed point: of the equation that the state solves, not of the way to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

State = dict[str, Tensor]

# Terms of the Neumann series; on the host it ends when a term no longer counts.
LONGEST = 200
ON_DEVICES = 50


def at_fixed_point(update: Callable[[State], State], state: State) -> State:
    """A fixed point with the gradients of x = update(x; parameters).

    By the implicit function theorem a gradient g of the state becomes v = g + v dx'/dx, which is then pulled back to
    the parameters through one update (Bai et al. 2019).  v is summed up as a series, which converges wherever the
    updates do.  Only first derivatives are right.

    Args:
        update: one sweep; reads the parameters.
        state: the fixed point, without gradients.
    """
    names = list(state)
    with torch.enable_grad():
        start = {name: one.detach().requires_grad_() for name, one in state.items()}
        after = update(start)
    sizes = [after[name].shape for name in names]
    flat = torch.cat([after[name].reshape(-1) for name in names])

    def solve(gradient: Tensor) -> Tensor:
        total, term = gradient, gradient
        on_host = gradient.device.type == "cpu"
        for _ in range(LONGEST if on_host else ON_DEVICES):
            pulled = torch.autograd.grad(
                flat, [start[name] for name in names], term, retain_graph=True, materialize_grads=True
            )
            term = torch.cat([one.reshape(-1) for one in pulled])
            total = total + term
            if on_host and float(term.abs().amax()) <= torch.finfo(term.dtype).eps * float(total.abs().amax()):
                break
        return total

    solved: Tensor = _Solved.apply(flat, solve)  # type: ignore[no-untyped-call]
    parts = solved.split([size.numel() for size in sizes])
    return {name: part.reshape(size) for name, part, size in zip(names, parts, sizes, strict=True)}


class _Solved(torch.autograd.Function):
    """The identity, whose gradients are sent through `solve`."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, flat: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve = solve  # type: ignore[attr-defined]
        return flat.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        found: Tensor = ctx.solve(gradient)  # type: ignore[attr-defined]
        return found, None

"""Gaussian fields with one low-rank coupling: solves by the Woodbury identity on the CPU, around the native kernel.

The matrix over cells [M, N] is ridge I + strength (S ⊗ A Aᵀ) with S = within I + across (1 - I).  The strength is
given, or that of the bounded parametrisation, which the kernel finds from A Aᵀ in the pass that the solve needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energyml.execution import is_addressable
from energyml.native import fields as kernels
from energyml.native import reused
from energyml.native.stencil import serves as _plain

# Products of numbers for each thread below which one more costs more than it brings.
PRODUCTS_WORTH_A_THREAD = 2_000_000
# Solves as torch operations that can be differentiated to any order: ridge, vectors, strength or `None`, right-hand
# side -> solution.
Twin = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]


@dataclass(frozen=True)
class Coupling:
    """How channels are coupled, and what bounds it.

    Attributes:
        within: the coupling of a channel with itself.
        across: the coupling of different channels.
        gain: where the strength is not given, it is gain / (1 + gain λ / (share ridge)), with λ the eighth root of the
            sum of the eighth powers of the eigenvalues of A Aᵀ.
        share: of the ridge.
        present: [B, N], which positions exist; vectors are zero at the others, and the matrix is 1 there.
    """

    within: float
    across: float
    gain: float = 1.0
    share: float = 1.0
    present: Tensor | None = None


@dataclass(frozen=True)
class Solved:
    """What a solve found.

    Attributes:
        x: [B, M, N]; NaN where the matrix is not positive definite.
        definite: [B] bool.
        condition: [B]: about that of the small systems; NaN where the matrix is not positive definite.
        worst: the largest of these; NaN where a matrix is not positive definite, or a solution not finite.
    """

    x: Tensor
    definite: Tensor
    condition: Tensor
    worst: float


def serves(rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None) -> bool:
    """Whether the kernel can run on these tensors: plain ones of some size on the CPU, all float32 or all float64."""
    given = (rhs, ridge, values) if strength is None else (rhs, ridge, values, strength)
    return _plain(*given) and rhs.numel() > 0 and values.numel() > 0


def solve(
    rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None, coupling: Coupling, twin: Twin
) -> Solved:
    """Q⁻¹ rhs with gradients in all tensors, to any order: derivatives of gradients are those of the twin.

    Cost: O(N K²) in two passes over the vectors, as many for the gradients, which are written in one of them; memory of
    five K x K matrices for each example.  The answer is the same for any number of threads.

    Args:
        rhs: [B, M, N].
        ridge: [B or 1].
        values: [B or 1, K, N], A.
        strength: [B or 1]; that of the bound where it is `None`.
        coupling: the rest of the matrix.
        twin: the same solve by torch.
    """
    if kernels is None:
        raise RuntimeError("the native kernel for fields was not built: install energyml where there is a compiler")
    run = _Run(rhs, ridge, values, strength, coupling, twin)
    given = (rhs, ridge, values, strength)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given):
        x: Tensor = _Couple.apply(run, *given)  # type: ignore[no-untyped-call]
    else:
        x = run.forward()
    return Solved(x, run.definite, run.condition, run.worst)


class _Run:
    """One call: the arguments of the kernel, the tensors that they point into, and what the backward pass needs."""

    def __init__(
        self, rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None, coupling: Coupling, twin: Twin
    ) -> None:
        self.twin = twin
        self.rhs = rhs.detach().contiguous()
        self.held = [self.rhs, *(one.detach().contiguous() for one in (ridge, values))]
        _, ridge, values = self.held
        batch, channels, positions = rhs.shape
        rank, shared = values.shape[1], values.shape[0] != batch
        address, stride = 0, 0
        if strength is not None:
            self.held.append(strength.detach().contiguous())
            address, stride = self.held[-1].data_ptr(), int(strength.shape[0] != 1)
        mask = 0
        if coupling.present is not None:
            self.held.append(coupling.present.expand(batch, -1).contiguous())
            mask = self.held[-1].data_ptr()
        assert kernels is not None
        self.kept = torch.empty(batch, kernels.kept_size(rank, channels), dtype=torch.float64, device="cpu")
        self.definite, self.condition = torch.empty(batch, dtype=torch.bool, device="cpu"), rhs.new_empty(batch)
        self.worst = float("nan")
        work = batch * positions * rank * (rank // 2 + channels)
        self.arguments = (
            int(rhs.dtype == torch.float64), batch, channels, positions, rank, values.data_ptr(), int(shared),
            ridge.data_ptr(), int(ridge.shape[0] != 1), address, stride, coupling.gain, coupling.share,
            coupling.within, coupling.across, mask,
            max(1, min(torch.get_num_threads(), work // PRODUCTS_WORTH_A_THREAD)),
        )  # fmt: skip

    def forward(self) -> Tensor:
        assert kernels is not None
        x = torch.empty_like(self.rhs)
        self.worst = kernels.couple(
            *self.arguments, self.rhs.data_ptr(), x.data_ptr(), self.kept.data_ptr(), self.definite.data_ptr(),
            self.condition.data_ptr(),
        )  # fmt: skip
        return x

    def backward(self, back: Tensor, x: Tensor, values: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """The gradients of the right-hand side, of the vectors if wanted, and [2, B] those of ridge and strength."""
        assert kernels is not None
        back = back.contiguous()
        of_rhs, of_numbers = torch.empty_like(x), torch.empty(2, x.shape[0], dtype=torch.float64, device="cpu")
        of_values = reused.empty_like(self.held[2]) if values else None
        kernels.couple_backward(
            *self.arguments, back.data_ptr(), x.data_ptr(), self.kept.data_ptr(), of_rhs.data_ptr(),
            0 if of_values is None else of_values.data_ptr(), of_numbers[0].data_ptr(), of_numbers[1].data_ptr(),
        )  # fmt: skip
        return of_rhs, of_values, of_numbers


class _Couple(torch.autograd.Function):
    """The solve; its backward pass is analytic, and that of torch where it is to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, run: _Run, rhs: Tensor, ridge: Tensor, values: Tensor, strength: Tensor | None) -> Tensor:
        x = run.forward()
        ctx.run = run
        ctx.save_for_backward(x, rhs, ridge, values, strength)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_addressable(grads[0]):
            return None, *_differentiable(ctx.run, given, grads[0])
        rhs, ridge, values, strength = ctx.needs_input_grad[1:]
        of_rhs, of_values, numbers = ctx.run.backward(grads[0], x, values)
        return (
            None,
            of_rhs if rhs else None,
            _of_shape(numbers[0], given[1]) if ridge else None,
            of_values,
            _of_shape(numbers[1], given[3]) if strength else None,
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


__all__ = ["Coupling", "Solved", "serves", "solve"]

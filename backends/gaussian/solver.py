"""What every method for a Gaussian field offers, and solving with implicit differentiation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from energyml.bind.quadratic import QuadraticForm

Normal: TypeAlias = Callable[[tuple[int, ...]], Tensor]
# Answers whose relative error may be above this are pointed out.
LEAST = 1e-2


@dataclass
class Outcome:
    """How solving went, for each example; on the device, so that nobody waits for it unasked.

    Attributes:
        definite: [B] whether the matrix is positive definite, as far as the method could see.
        converged: [B] whether the residual is within the tolerance.
        residual: [B] the relative residual that was reached; `None` for direct methods.
        iterations: [B]; `None` for direct methods.
        answer: what was found: numbers that are not finite show that the input had some.
        condition: [B] about the condition number of the matrix, where a factor shows it.
        error: [B] how much of the answer the residual may amount to, where the smallest eigenvalue is bounded.
        seen_fine: whether a kernel saw already that nothing points at a problem.
    """

    definite: Tensor
    converged: Tensor | None = None
    residual: Tensor | None = None
    iterations: Tensor | None = None
    answer: Tensor | None = None
    condition: Tensor | None = None
    error: Tensor | None = None
    seen_fine: bool = False

    def both(self, other: Outcome) -> Outcome:
        """The worse of two, for iterative methods that solve several times."""
        found = Outcome(self.definite & other.definite)
        if self.converged is not None and other.converged is not None:
            found.converged = self.converged & other.converged
        if self.residual is not None and other.residual is not None:
            found.residual = torch.maximum(self.residual, other.residual)
        if self.iterations is not None and other.iterations is not None:
            found.iterations = torch.maximum(self.iterations, other.iterations)
        found.condition = _worse(self.condition, other.condition)
        found.error = _worse(self.error, other.error)
        return found

    def inexact(self) -> Tensor | None:
        """[B] bool: whether so few digits are right that somebody should know; `None` where nothing shows it."""
        if self.condition is None:
            return None
        return self.condition > LEAST / torch.finfo(self.condition.dtype).eps

    def is_fine(self) -> bool:
        """Whether nothing points at a problem; waits for the device, unless it was seen before."""
        if not self.seen_fine:
            self.seen_fine = self._looks_fine()
        return self.seen_fine

    def _looks_fine(self) -> bool:
        if self.answer is None or not self.definite.all() or not (self.converged is None or self.converged.all()):
            return False
        inexact = self.inexact()
        if inexact is not None and inexact.any():
            return False
        if self.error is not None and (self.error > LEAST).any():
            return False
        return math.isfinite(self.answer.detach().sum())


def _worse(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else torch.maximum(one, other)


class Solver(ABC):
    """A method at work on one precision matrix Q over cells [B, M, N].

    Made from a form with gradients, its answers have gradients (except where a docstring says otherwise); made from a
    detached one they have none.
    """

    method: ClassVar[str]

    def __init__(self, form: QuadraticForm) -> None:
        self.form = form

    @property
    @abstractmethod
    def definite(self) -> Tensor:
        """[B] bool: whether Q is positive definite, as far as is known so far."""

    @property
    def outcome(self) -> Outcome:
        """How determinants, variances and draws went."""
        return Outcome(self.definite, condition=self.condition())

    def condition(self) -> Tensor | None:
        """[B]: about the condition number of Q, where a factor shows it at no cost."""
        return None

    @abstractmethod
    def solve(self, rhs: Tensor, tol: float | None = None, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """Q⁻¹ rhs for fields [B, M, N], and how it went.

        Args:
            rhs: the right-hand side.
            tol: replaces the method's own relative residual.
            start: [B, M, N], where an iterative method starts; direct ones need none.
        """

    @abstractmethod
    def log_determinant(self) -> tuple[Tensor, Tensor | None]:
        """[B]: log det Q, and [B] its standard error where it is an estimate."""

    @abstractmethod
    def variances(self) -> tuple[Tensor, Tensor | None]:
        """[B, M, N]: the diagonal of Q⁻¹, and its standard errors where it is an estimate."""

    @abstractmethod
    def draws(self, count: int, normal: Normal) -> Tensor:
        """Draws [count, B, M, N] from N(0, Q⁻¹); `normal` gives standard normal noise of a shape."""


class _Solve(Function):
    """x = Q⁻¹ b; backward solves once more: db = Q⁻¹ dx, dQ = -db ⊗ x (Shevchenko & Osokin 2019, eq. 15).

    Saves the solution and the tensors of Q alone; backward is made of differentiable operations, so it has a backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        solver: Solver,
        tol: float | None,
        start: Tensor | None,
        keep: list[Outcome],
        rhs: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        x, outcome = solver.solve(rhs, tol, start)
        keep.append(outcome)
        ctx.solver, ctx.tol = solver, tol
        ctx.save_for_backward(x, *tensors)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, *tensors = ctx.saved_tensors
        solver: Solver = ctx.solver
        wanted = getattr(solver, "gradient_tol", None) or ctx.tol
        v: Tensor = _Solve.apply(  # type: ignore[no-untyped-call]
            solver, wanted, None, [], grads[0], *tensors
        )
        needed = ctx.needs_input_grad[5:]
        if not any(needed):
            return (None, None, None, None, v, *([None] * len(tensors)))
        # The minus of dQ goes to the smaller factor: a field, not the gradient of all vectors.
        found = solver.form.with_tensors(tensors).gradient(-v, x, needed)
        return (None, None, None, None, v, *found)


def solved(solver: Solver, form: QuadraticForm, rhs: Tensor, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
    """Q⁻¹ rhs with implicit gradients in rhs and in the tensors of Q, to any order.

    Args:
        solver: made from the detached form.
        form: the form with gradients.
        rhs: [B, M, N].
        start: [B, M, N], where an iterative method starts.
    """
    tensors = form.tensors() if torch.is_grad_enabled() else []
    if tensors and any(one.requires_grad for one in (rhs, *tensors)):
        keep: list[Outcome] = []
        x: Tensor = _Solve.apply(solver, None, start, keep, rhs, *tensors)  # type: ignore[no-untyped-call]
        outcome = keep[0]
    else:
        x, outcome = solver.solve(rhs, None, start)
    outcome.answer = x
    return x, outcome


__all__ = ["LEAST", "Normal", "Outcome", "Solver", "solved"]

"""Conjugate gradients as a method: solves to a tolerance, estimates by random probes, draws by perturbation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from energyml import native
from energyml.backends.gaussian.cg import Solution, Trace, conjugate_gradients, dot
from energyml.backends.gaussian.definite import lower_bound, rounded
from energyml.backends.gaussian.perturb import Perturbation
from energyml.backends.gaussian.preconditioners import preconditioner
from energyml.backends.gaussian.solver import LEAST, Normal, Outcome, Solver
from energyml.bind.quadratic import QuadraticForm
from energyml.diagnostics import EnergyError
from energyml.native import stencil as native_stencil

# Residuals of so many units in the last place of |Q| |x| are those of rounding.
ROUNDING = 16


@dataclass(frozen=True)
class Settings:
    """The options of `cg`.

    Attributes:
        tol: relative residual.
        gradient_tol: that of the solves behind gradients; `tol` when `None`.
        iterations: most iterations of a solve.
        preconditioner: `auto`, `none`, `jacobi`, `lowrank` or `transform`.
        probes: random vectors and draws behind estimates.
        seed: of the random vectors behind determinants and variances.
        native: whether grids may be solved by the compiled stencil.
    """

    tol: float = 1e-6
    gradient_tol: float | None = None
    iterations: int = 1000
    preconditioner: str = "auto"
    probes: int = 16
    seed: int = 0
    native: bool = True


# x, iterations, residual and whether negative curvature was met; the worst residual, NaN where more than it is to be
# looked at.
_Found: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, float]


@lru_cache(maxsize=64)
def _in_space(
    offsets: tuple[tuple[int, ...], ...], shape: tuple[int, ...]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, int, int]]:
    """The directions and the shape of a grid of at most three axes, with axes of one cell put in front."""
    lead = (0,) * (3 - len(shape))
    return tuple(lead + offset for offset in offsets), (1,) * len(lead) + shape  # type: ignore[misc, return-value]


class Iterative(Solver):
    """Conjugate gradients with a preconditioner; memory of a few fields."""

    method = "cg"

    def __init__(self, form: QuadraticForm, settings: Settings) -> None:
        super().__init__(form.detached())
        self.attached = form
        self.settings = settings
        self.gradient_tol = settings.gradient_tol
        self._last: Outcome | None = None
        self._made: tuple[str, Callable[[Tensor], Tensor] | None] | None = None
        self._perturbation: Perturbation | None = None
        self._proof: tuple[Outcome | None, Tensor] | None = None

    @property
    def definite(self) -> Tensor:
        """Whether no direction of negative curvature was met so far."""
        if self._last is None:
            return torch.ones(self.form.sizes.batch, dtype=torch.bool, device=self.form.ridge.device)
        return self._last.definite

    @property
    def _precondition(self) -> tuple[str, Callable[[Tensor], Tensor] | None]:
        if self._made is None:
            with torch.no_grad():
                self._made = preconditioner(self.settings.preconditioner, self.form)
        return self._made

    def solve(self, rhs: Tensor, tol: float | None = None, start: Tensor | None = None) -> tuple[Tensor, Outcome]:
        """Iterates until the relative residual is below the tolerance."""
        wanted = tol or self.settings.tol
        x, outcome = self._solved(rhs, wanted, start)
        proof, lowest = self._proven()
        size, residual = dot(x, x).sqrt() * lowest, outcome.residual
        assert residual is not None
        error = torch.where(residual > 0, residual * dot(rhs, rhs).sqrt() / size, 0)
        fine = outcome.seen_fine and proof is None and bool((error <= LEAST).all())
        self._last = replace(outcome if proof is None else outcome.both(proof), error=error, seen_fine=fine)
        return x, replace(self._last)

    def _solved(self, rhs: Tensor, tol: float, start: Tensor | None) -> tuple[Tensor, Outcome]:
        found = self._compiled(rhs, tol, start) if self._is_compiled(rhs) else self._plain(rhs, tol, start)
        x, iterations, residual, negative, worst = found
        if worst <= tol * 1.01:
            return x, Outcome(~negative, ~negative, residual, iterations, seen_fine=True)
        return x, self._judged(rhs, Solution(x, iterations, residual, negative), tol)

    def _judged(self, rhs: Tensor, found: Solution, tol: float, scale: Tensor | None = None) -> Outcome:
        """How a solve went: a residual as small as rounding lets it be is small enough (Greenbaum 1997).

        Rounding leaves some units of |Q| |x|, which over |b| is the condition number as far as this right-hand side
        shows it.

        Args:
            rhs: b.
            found: the solution.
            tol: the relative residual that was asked for.
            scale: S, where it is the solution of S Q S x = b.
        """
        parts = torch.where(self._free(), rounded(self.form), 0)
        parts = parts if scale is None else parts * scale.square()
        own = parts.flatten(1).amax(1) if parts.numel() else 1.0
        eps, size = torch.finfo(rhs.dtype).eps, dot(rhs, rhs).sqrt()
        condition = own * torch.where(size > 0, dot(found.x, found.x).sqrt() / torch.where(size > 0, size, 1), 0)
        reached = found.residual <= (ROUNDING * eps * condition).clamp(min=tol * 1.01)
        definite = ~found.negative & self._sound()
        return Outcome(definite, reached, found.residual, found.iterations, condition=condition.to(rhs.dtype))

    @property
    def outcome(self) -> Outcome:
        """The worst of the solves behind the last answer."""
        return Outcome(self.definite) if self._last is None else replace(self._last)

    def _sound(self) -> Tensor:
        """[B]: whether the diagonal at least is positive."""
        own = self.form.diagonal_of_all()
        return (own > 0).flatten(1).all(1).expand(self.form.sizes.batch)

    def _proven(self) -> tuple[Outcome | None, Tensor]:
        """Proof that Q is positive definite: `None` where a bound is one, else how a random system was solved.

        Also [B], the smallest eigenvalue: from below by the bound, else an estimate from the random system.

        A right-hand side without a part along some eigenvectors, such as zeros or a symmetric one, never meets their
        negative eigenvalues.  A random one has parts along all of them, and its residual cannot fall below the part
        along an eigenvector of a negative eigenvalue before that is met: polynomials with positive roots that are 1 at
        zero are larger than 1 below it.
        """
        if self._proof is None:
            form = self.form
            with torch.no_grad():
                lowest = lower_bound(form)
                fine = lowest > 0
                self._proof = None, lowest.double()
                if not bool(fine.all()):
                    noise = torch.randn(
                        form.sizes, generator=self._generator(), dtype=lowest.dtype, device=lowest.device
                    )
                    noise = noise.masked_fill(~self._free() | fine[:, None, None], 0)
                    x, outcome = self._solved(noise, self.settings.tol, None)
                    seen = (self._free().expand(form.sizes).sum((1, 2)) / dot(x, x)).sqrt()
                    self._proof = outcome, torch.where(fine, lowest.double(), seen)
        return self._proof

    def _plain(self, rhs: Tensor, tol: float, start: Tensor | None) -> _Found:
        with torch.no_grad():
            found = conjugate_gradients(
                self.form.multiply,
                rhs,
                self._precondition[1],
                tol=tol,
                iterations=self.settings.iterations,
                start=start,
            )
        return found.x, found.iterations, found.residual, found.negative, math.nan

    def _is_compiled(self, rhs: Tensor) -> bool:
        form = self.form
        return (
            self.settings.native
            and form.stencil is not None
            and 0 < len(form.stencil.shape) <= 3
            and not form.vectors
            and form.links is None
            and form.dense is None
            and rhs.device.type == "cpu"
            and rhs.dtype in (torch.float32, torch.float64)
            and self.settings.preconditioner in ("auto", "jacobi", "none")
            and native.fields is not None
        )

    def _compiled(self, rhs: Tensor, tol: float, start: Tensor | None) -> _Found:
        grid = self.form.stencil
        assert grid is not None
        offsets, shape = _in_space(grid.offsets, grid.shape)
        found = native_stencil.solve(
            rhs,
            self.form.own(),
            grid.weights,
            offsets,
            shape,
            tol=tol,
            iterations=self.settings.iterations,
            preconditioner="none" if self.settings.preconditioner == "none" else "jacobi",
            start=start,
        )
        return found.x, found.iterations, found.residual, found.negative, found.worst

    # ---------------------------------------------------------------------------------------------------- estimates

    def _free(self) -> Tensor:
        """[B or 1, 1, N or 1]: which positions are part of the field."""
        present = self.form.present
        if present is None:
            return torch.ones(1, 1, 1, dtype=torch.bool, device=self.form.ridge.device)
        return present.unsqueeze(1)

    def _generator(self) -> torch.Generator:
        return torch.Generator(self.form.ridge.device).manual_seed(self.settings.seed)

    def log_determinant(self) -> tuple[Tensor, Tensor | None]:
        """Stochastic Lanczos quadrature (Ubaru, Chen & Saad 2017) and its standard error; one solve for each probe.

        Gradients are those of the same probes, once differentiable.
        """
        tensors = self.attached.tensors()
        found = _LogDeterminant.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return found[0], found[1]

    def variances(self) -> tuple[Tensor, Tensor | None]:
        """Rao-Blackwellised draws (Siden et al. 2018): 1 / Qii plus the variance of the conditional means.

        The standard error is that of the mean over draws, whose squares have twice their squared mean for a variance
        because they are Gaussian: few draws tell less about it.  No gradients.
        """
        form, count = self.form, max(2, self.settings.probes)
        generator = self._generator()
        like = form.ridge

        def normal(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

        with torch.no_grad():
            own = form.diagonal_of_all()
            total = like.new_zeros(form.sizes)
            worst: Outcome | None = None
            for _ in range(count):
                draw = self.draws(1, normal)[0]
                worst = self.outcome if worst is None else worst.both(self.outcome)
                total += (draw - form.multiply(draw) / own).square()
            self._last = worst
            mean = total / count
            return own.reciprocal() + mean, mean * math.sqrt(2 / count)

    def draws(self, count: int, normal: Normal) -> Tensor:
        """Perturb and solve: Q⁻¹ times noise of covariance Q; no gradients.

        Where a part of Q is negative in some direction, Q^-½ times white noise by Lanczos' method, which keeps a field
        for each iteration.
        """
        found = []
        with torch.no_grad():
            if self._perturbation is None:
                self._perturbation = Perturbation(self.form)
            apart = bool(self._perturbation.sound.all())
            worst: Outcome | None = None
            for _ in range(count):
                drawn, outcome = self.solve(self._perturbation.draw(normal)) if apart else self._rooted(normal)
                worst = outcome if worst is None else worst.both(outcome)
                found.append(drawn)
            self._last = worst
        return torch.stack(found) if found else self.form.ridge.new_zeros(0, *self.form.sizes)

    def _rooted(self, normal: Normal) -> tuple[Tensor, Outcome]:
        """Q^-½ white noise, as S (S Q S)^-½ noise: its covariance is that of Q^-½ noise."""
        form, settings = self.form, self.settings
        noise, scale, trace = torch.where(self._free(), normal(form.sizes), 0), self._scale(), Trace(residuals=[])
        found = self._scaled(noise, trace)
        drawn = scale * trace.inverse_root() if trace.steps else noise
        return drawn, self._judged(noise, found, settings.tol, scale)

    def _scale(self) -> Tensor:
        """[B or 1, M or 1, N or 1]: S, the inverse root of the diagonal of Q; that of S Q S is 1."""
        own = self.form.diagonal_of_all()
        return torch.where(self._free(), own.clamp(min=torch.finfo(own.dtype).tiny).rsqrt(), 1)

    def _scaled(self, rhs: Tensor, trace: Trace) -> Solution:
        """The solution of S Q S x = rhs."""
        scale, settings = self._scale(), self.settings
        return conjugate_gradients(
            lambda x: scale * self.form.multiply(scale * x), rhs, tol=settings.tol, iterations=settings.iterations,
            trace=trace,
        )  # fmt: skip


class _LogDeterminant(Function):
    """log det Q with its error; the gradient tr(Q⁻¹ dQ) is estimated by the probes of the value."""

    @staticmethod
    def forward(ctx: Any, solver: Iterative, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        form, settings = solver.form, solver.settings
        free = solver._free()
        scale = solver._scale()
        cells = free.expand(form.sizes).sum((1, 2))
        generator, values = solver._generator(), []
        wanted = any(ctx.needs_input_grad[1:])
        gradients: list[Tensor] | None = None
        # What examples share gets a gradient for each of them: only backward knows their weights.
        batch = form.sizes.batch
        apart = form.with_tensors([one.expand(batch, *one.shape[1:]) for one in form.tensors()])
        bent = torch.zeros(form.sizes.batch, dtype=torch.bool, device=free.device)
        worst: Outcome | None = None
        for _ in range(settings.probes):
            signs = torch.randint(0, 2, form.sizes, generator=generator, device=free.device, dtype=torch.int8)
            probe = torch.where(free, signs.to(scale.dtype) * 2 - 1, 0)
            trace = Trace()
            found = solver._scaled(probe, trace)
            bent |= found.negative
            reached = solver._judged(probe, found, settings.tol, scale)
            worst = reached if worst is None else worst.both(reached)
            values.append(_quadrature(trace, cells) if trace.steps else cells.double() * 0)
            if wanted:
                parts = [one for one in apart.gradient(scale * found.x, scale * probe) if one is not None]
                gradients = parts if gradients is None else [a + b for a, b in zip(gradients, parts, strict=True)]
        estimates = torch.stack(values)
        solver._last = worst
        known = -2 * torch.where(free, scale.double().log(), 0).expand(form.sizes).sum((1, 2))
        spread = (estimates - estimates.mean(0)).square().sum(0) / max(1, settings.probes - 1)
        error = (spread / settings.probes).sqrt()
        ctx.save_for_backward(*[one / settings.probes for one in gradients or ()])
        ctx.shapes = [one.shape for one in tensors]
        ctx.mark_non_differentiable(error)
        dtype = form.ridge.dtype
        value = (known + estimates.mean(0)).masked_fill(bent, float("nan"))
        return value.to(dtype), error.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise EnergyError(
                "the determinant that `cg` estimates has no second derivatives; `exact` has them, for fields that a "
                "direct method serves"
            )
        found = [one * grads[0].reshape(len(grads[0]), *([1] * (one.dim() - 1))) for one in ctx.saved_tensors]
        return (None, *(one.sum_to_size(shape) for one, shape in zip(found, ctx.shapes, strict=True)))


def _quadrature(trace: Trace, cells: Tensor) -> Tensor:
    """[B]: |probe|² times the Gauss quadrature of the logarithm."""
    values, vectors = torch.linalg.eigh(trace.tridiagonal())
    weights = vectors[:, 0].square()
    logs = values.clamp(min=torch.finfo(values.dtype).tiny).log()
    found: Tensor = cells * (weights * logs).sum(1)
    return found


__all__ = ["Iterative", "Settings"]

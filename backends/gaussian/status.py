"""What to say when a field has no answer: causes and remedies, read from the device only when somebody asks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from energyml.backends.gaussian.cg import Trace, conjugate_gradients
from energyml.backends.gaussian.solver import LEAST, Outcome
from energyml.bind.quadratic import QuadraticForm
from energyml.execution import under_transform, unwrapped

_STEPS = 64


def lowest_eigenvalue(form: QuadraticForm) -> float:
    """An estimate, from above, of the smallest eigenvalue of one example's matrix: Lanczos' method, 64 products."""
    with torch.no_grad():
        shift = float(_upper_bound(form))
        generator = torch.Generator(form.ridge.device).manual_seed(0)
        start = torch.randn(form.sizes, generator=generator, dtype=form.ridge.dtype, device=form.ridge.device)
        if form.present is not None:
            start = torch.where(form.present.unsqueeze(1), start, 0)
        trace = Trace()
        # shift I + Q is positive definite, so that the coefficients of conjugate gradients give its eigenvalues.
        conjugate_gradients(lambda x: form.multiply(x) + shift * x, start, tol=1e-12, iterations=_STEPS, trace=trace)
        if not trace.steps:
            return 0.0
        values = torch.linalg.eigvalsh(trace.tridiagonal())[0]
        return float(values.min()) - shift


def _upper_bound(form: QuadraticForm) -> Tensor:
    """A number above the magnitude of all eigenvalues, by a few products with a random field."""
    generator = torch.Generator(form.ridge.device).manual_seed(1)
    x = torch.randn(form.sizes, generator=generator, dtype=form.ridge.dtype, device=form.ridge.device)
    if form.present is not None:
        x = torch.where(form.present.unsqueeze(1), x, 0)
    size = x.norm()
    for _ in range(20):
        x = form.multiply(x / size.clamp(min=torch.finfo(x.dtype).tiny))
        size = x.norm()
    bound: Tensor = 2 * size
    return bound


def problem(
    field: str, form: QuadraticForm, rhs: Tensor, outcome: Outcome, tol: float, bounded: bool
) -> tuple[bool, str] | None:
    """What is wrong with a solve, as (whether the answer is useless, message); `None` when it is fine.

    Waits for the device.  The message names the first example that failed; under `vmap`, where nobody can look, answers
    that failed are NaN.
    """
    if under_transform() and any(
        one is not None and unwrapped(one) is None for one in (rhs, outcome.definite, outcome.answer)
    ):
        return None
    if outcome.is_fine() and math.isfinite(form.ridge.detach().sum()):  # an infinite ridge has finite answers: zeros
        return None
    finite = _every(rhs) & _finite(form)
    if not bool(finite.all()):
        number = int((~finite).nonzero()[0])
        return True, not_finite(field, _culprit(form, rhs, number), number)
    if not bool(outcome.definite.all()):
        number = int((~outcome.definite).nonzero()[0])
        return True, _indefinite(field, form, number, bounded)
    sound = torch.ones_like(outcome.definite) if outcome.answer is None else _every(outcome.answer)
    if outcome.residual is not None:
        sound = sound & outcome.residual.isfinite()
    if not bool(sound.all()):
        return True, _overflow(field, form, rhs, int((~sound).nonzero()[0]))
    inexact = outcome.inexact()
    if inexact is not None and bool(inexact.any()):
        assert outcome.condition is not None
        number = int(inexact.nonzero()[0])
        kind = str(form.ridge.dtype).removeprefix("torch.")
        condition = float(outcome.condition[number])
        return False, (
            f"`{field}`: its matrix has a condition number of about {condition:.1g} in example {number}, more than "
            f"{kind} can solve to two digits; raise ridge, lower the couplings, or use float64"
        )
    if outcome.converged is not None and not bool(outcome.converged.all()):
        number = int((~outcome.converged).nonzero()[0])
        assert outcome.residual is not None and outcome.iterations is not None
        residual, count = float(outcome.residual[number]), int(outcome.iterations[number])
        steps = f"{count} iteration{'' if count == 1 else 's'}"
        reached = f"`{field}`: conjugate gradients stopped at a relative residual of {residual:.2g} after {steps} "
        reached += f"in example {number}, above the tolerance {tol:g}"
        causes = "(a) too few iterations: raise `iterations`; (b) a badly conditioned matrix: raise `ridge`, or choose "
        causes += "another `preconditioner`, or `infer exact`"
        if form.ridge.dtype == torch.float32:
            causes += "; (c) a tolerance below what single precision reaches: raise `tol`, or use float64"
        return False, f"{reached}; likely causes: {causes}"
    if outcome.error is not None and bool((outcome.error > LEAST).any()):
        number = int((outcome.error > LEAST).nonzero()[0])
        assert outcome.residual is not None
        return False, (
            f"`{field}`: its matrix is badly conditioned in example {number}: the relative residual of "
            f"{float(outcome.residual[number]):.2g} that conjugate gradients reached may be an error of "
            f"{100 * float(outcome.error[number]):.2g} percent of the answer; lower `tol`, raise `ridge`, or "
            "`infer exact`"
        )
    return None


def _finite(form: QuadraticForm) -> Tensor:
    """[B]: whether every number in the form is finite."""
    sound = torch.ones(form.sizes.batch, dtype=torch.bool, device=form.ridge.device)
    for tensor in form.tensors():
        sound = sound & _every(tensor)
    return sound


def _every(tensor: Tensor) -> Tensor:
    """[B]: whether all numbers of an example [B, ...] are finite; their sum may leave the range where they do not."""
    finite = tensor.isfinite()
    return finite.flatten(1).all(1) if finite.dim() > 1 else finite


def _overflow(field: str, form: QuadraticForm, rhs: Tensor, number: int) -> str:
    """What to say where finite numbers led to one that is not."""
    kind = str(rhs.dtype).removeprefix("torch.")
    peak, ridge = float(rhs[number].detach().abs().max()), float(form.example(number).ridge.detach().min())
    remedy = "scale them down, or raise ridge" if kind == "float64" else "scale them down, raise ridge, or use float64"
    return (
        f"`{field}`: its scores leave the range of {kind} in example {number}: unary and observed values reach "
        f"{peak:.2g}, and the ridge is {ridge:.2g}; {remedy}"
    )


def not_finite(field: str, where: str, number: int | None = None) -> str:
    """What to say about numbers that are not finite."""
    here = "" if number is None else f" in example {number}"
    return (
        f"`{field}`: {where} holds numbers that are not finite{here}; "
        "look for a diverged network, a division by zero, or bad inputs"
    )


def _culprit(form: QuadraticForm, rhs: Tensor, number: int) -> str:
    """Which part of one example holds numbers that are not finite."""
    alone = form.example(number)
    couplings = [("its vectors", part.values) for part in alone.vectors]
    couplings += [("weights of neighbours", alone.stencil.weights)] if alone.stencil is not None else []
    couplings += [("weights of edges", alone.links.weights)] if alone.links is not None else []
    couplings += [("a dense matrix", alone.dense)] if alone.dense is not None else []
    # The right-hand side last: given evidence, the couplings are in it.
    for where, tensor in (("the ridge", alone.ridge), *((f"a coupling ({one})", tensor) for one, tensor in couplings)):
        if not bool(torch.isfinite(tensor).all()):
            return where
    return "the unary" if not bool(torch.isfinite(rhs[number]).all()) else "a coupling"


def _indefinite(field: str, form: QuadraticForm, number: int, bounded: bool) -> str:
    alone = form.example(number).detached()
    ridge, lowest = float(alone.ridge[0]), lowest_eigenvalue(alone)
    own = alone.diagonal_of_all().expand(alone.sizes)
    own = own if alone.present is None else own.masked_fill(~alone.present.unsqueeze(1), 0)
    scale = float(own.abs().max()) if form.sizes.positions else 1.0
    what = f"`{field}`: its matrix is not positive definite in example {number}, so the field has no best value"
    if ridge <= 0:
        return f"{what}: the ridge is {ridge:.3g}; it must be positive (one that is learned: `ridge: 0.1 + r * r`)"
    if lowest > -1e-5 * scale:
        return (
            f"{what} in {str(alone.ridge.dtype).removeprefix('torch.')}: it is singular to working precision "
            f"(smallest eigenvalue about {max(lowest, 0.0):.1g}, largest entry {scale:.2g}); "
            "raise ridge, or use float64"
        )
    needed = ridge - lowest
    remedy = "raise ridge" if bounded else "raise ridge, or leave out `bounded: false`"
    return f"{what}: ridge {ridge:.3g} is below the estimated {needed:.3g}; {remedy}"


__all__ = ["lowest_eigenvalue", "not_finite", "problem"]

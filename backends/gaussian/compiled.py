"""Low-rank couplings beside a ridge by the native kernel: the bound, the solve and their gradients in few passes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import Diagonal
from energyml.backends.gaussian.solver import LEAST, Outcome, solved
from energyml.backends.gaussian.woodbury import Woodbury
from energyml.bind.lowrank import Bound, Vectors
from energyml.bind.quadratic import QuadraticForm
from energyml.native import lowrank as kernel

# The kernel's small systems are not cut into blocks: beyond this rank torch's are faster.
LARGEST_RANK = 256
# In double precision the kernel's small systems are no more exact than the rest, and where vectors reach everywhere a
# solution loses digits by the square of their condition: torch solves once more for what is left.
LARGEST_CONDITION = math.sqrt(LEAST * 1e-4 / torch.finfo(torch.float64).eps)


def low_rank_solution(form: QuadraticForm, rhs: Tensor) -> tuple[Tensor, Outcome] | None:
    """Q⁻¹ rhs [B, M, N] with gradients to any order, and how it went; `None` where the kernel does not serve.

    It serves a ridge and one coupling by vectors, on the CPU.  Nothing of the form is computed beforehand: the strength
    of a bounded coupling comes out of the products that the solve needs.
    """
    if len(form.vectors) != 1 or form.diagonal is not None:
        return None
    (part,) = form.vectors
    bound = part.weight if isinstance(part.weight, Bound) else None
    strength = None if isinstance(part.weight, Bound) else part.weight
    if part.rank > LARGEST_RANK or not kernel.serves(rhs, form.ridge, part.given, strength):
        return None
    coupling = kernel.Coupling(part.within, part.across, present=form.present)
    if bound is not None:
        coupling = replace(coupling, gain=bound.gain, share=bound.share)

    def twin(ridge: Tensor, values: Tensor, strength: Tensor | None, rhs: Tensor) -> Tensor:
        weight = strength if bound is None else Bound(bound.gain, bound.share, ridge)
        assert weight is not None
        made = replace(form, ridge=ridge, vectors=(Vectors(values, weight, part.within, part.across),))
        plain = made.detached()
        return solved(Woodbury(plain, Diagonal(replace(plain, vectors=()))), made, rhs)[0]

    found = kernel.solve(rhs, form.ridge, part.given, strength, coupling, twin)
    if math.isnan(found.worst) and bool((form.ridge <= 0).any()):
        return None  # the vectors may make up for a ridge that is not positive
    doubtful = rhs.dtype is torch.float64 and not found.worst <= LARGEST_CONDITION
    if doubtful and bool((found.condition > LARGEST_CONDITION).any()):
        return None
    outcome = Outcome(found.definite, answer=found.x, condition=found.condition)
    if form.present is not None:
        outcome.condition = found.condition * Diagonal(replace(form, vectors=())).condition()
    else:
        outcome.seen_fine = found.worst * torch.finfo(rhs.dtype).eps <= LEAST
    return found.x, outcome


__all__ = ["low_rank_solution"]

"""Approximate inverses that make conjugate gradients converge in fewer iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from energyml.backends.gaussian.bases import Diagonal, Transform
from energyml.backends.gaussian.woodbury import Woodbury
from energyml.bind.quadratic import QuadraticForm


def preconditioner(name: str, form: QuadraticForm) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """The preconditioner of that name, and the name of what was made.

    `auto` is `lowrank` where there are vectors, else `jacobi`; one that the form has no part for becomes `jacobi`.
    """
    if name == "auto":
        name = "lowrank" if form.vectors else "jacobi"
    if name == "lowrank" and form.vectors:
        return name, _low_rank(form)
    if name == "transform" and form.stencil is not None:
        rest = replace(form, stencil=None).diagonal_of_all().expand(form.sizes).mean((1, 2))
        if bool((rest > 0).all()):
            return name, _transform(form, rest)
    if name == "none":
        return name, None
    inverse = form.diagonal_of_all().clamp(min=torch.finfo(form.ridge.dtype).tiny).reciprocal()
    return "jacobi", lambda residual: residual * inverse


def _low_rank(form: QuadraticForm) -> Callable[[Tensor], Tensor]:
    """The vectors exactly, everything else by its diagonal (Woodbury)."""
    rest = replace(form, vectors=()).diagonal_of_all().mean(1)
    alike = QuadraticForm(form.sizes, torch.zeros_like(form.ridge), None, rest, form.vectors)
    if form.stencil is None and form.links is None and form.dense is None and form.diagonal is None:
        alike = QuadraticForm(form.sizes, form.ridge, form.present, None, form.vectors)
    made = Woodbury(alike, Diagonal(alike))
    sound = made.definite[:, None, None]
    return lambda residual: torch.where(sound, made.solve(residual)[0], residual)


def _transform(form: QuadraticForm, ridge: Tensor) -> Callable[[Tensor], Tensor]:
    """The grid with each direction's mean weight above a ridge [B], by cosine transforms; diagonals are left out."""
    assert form.stencil is not None
    aligned = [number for number, offset in enumerate(form.stencil.offsets) if sum(map(abs, offset)) == 1]
    weights = form.stencil.weights[:, aligned].mean(2, keepdim=True).abs()
    stencil = replace(form.stencil, weights=weights, offsets=tuple(form.stencil.offsets[i] for i in aligned))
    made = Transform(QuadraticForm(form.sizes, ridge, stencil=stencil))
    if form.present is None:
        return made.solve
    present = form.present.unsqueeze(1)  # cells that are not part of the field stay apart from it
    return lambda residual: torch.where(present, made.solve(residual), residual)


__all__ = ["preconditioner"]

"""Pseudo-likelihood: each cell given all others (Besag 1975)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.backend import Problem
from energyml.bind.conditionals import field_conditionals, label_conditionals
from energyml.bind.fields import LinearTerm, QuadraticTerm
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior
from energyml.result import Failed
from energyml.transforms import seen


def pseudo_likelihood(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of -log p(cell | all other cells, x), from the terms alone.

    Labels: non-negative, inf where a label is forbidden.  Fields: a density, so it may be negative; one product with
    the precision matrix.  Every cell needs a label or a value: an example with an unknown one is refused on the host,
    and has the loss NaN on an accelerator, where looking would wait.
    """
    problem = posterior.problem
    env, graph = problem.env, problem.graph
    total = torch.zeros(env.batch.size, device=env.batch.device, dtype=env.batch.dtype)
    total = total.masked_fill(_incomplete(problem, answer), float("nan"))
    for variable in graph.discrete:
        labels = answer[variable.name]
        known = label_conditionals(problem.terms, env, variable, problem.label_count(variable.name), answer)
        picked: Tensor = known.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        total = total + per_example(torch.where(labels >= 0, -picked, 0))
    for field in graph.fields:
        (linear,) = (t for t in problem.terms if isinstance(t, LinearTerm) and t.field == field.name)
        (quadratic,) = (t for t in problem.terms if isinstance(t, QuadraticTerm) and t.field == field.name)
        mean, variance = field_conditionals(linear, quadratic, env, answer[field.name])
        if variance.device.type == "cpu" and bool((variance < 0).any()):
            raise Failed(
                f"`{field.name}`: the diagonal of its matrix is not positive, so a cell has no distribution given the "
                "others; raise ridge, or leave out `bounded: false`"
            )
        exists = variance != 0
        safe = torch.where(exists, variance, 1)
        losses = 0.5 * ((answer[field.name] - mean).square() / safe + safe.log() + math.log(2 * math.pi))
        total = total + per_example(torch.where(exists, losses, 0))
    # As in the other objectives, an example whose labels are forbidden pulls at nothing.
    return total.masked_fill(total.isposinf(), float("inf"))


def _incomplete(problem: Problem, answer: Mapping[str, Tensor]) -> Tensor:
    """[B]: which examples have a cell without a label or value; on the host they are refused."""
    batch = problem.env.batch
    found = torch.zeros(batch.size, dtype=torch.bool, device=batch.device)
    for variable in (*problem.graph.discrete, *problem.graph.fields):
        if variable.name not in answer:
            raise EnergyError(f"`pseudo_likelihood` needs a full answer, and `{variable.name}` is missing")
        if any(problem.graph.dims[dim].kind == "free" for dim in variable.dims):
            raise EnergyError("`pseudo_likelihood` needs a fixed length, and here it is part of the answer")
        one, cells = answer[variable.name], batch.cells(variable.name, variable.dims)
        unknown = one.isnan() if one.is_floating_point() else one < 0
        if cells is not None and not one.is_floating_point():  # fields hold 0 where there is no cell
            unknown = unknown & cells
        missing = per_example(unknown) > 0
        if seen(missing) and bool(missing.any()):
            example = int(missing.nonzero()[0])
            raise EnergyError(
                f"`pseudo_likelihood` needs a full answer, and `{variable.name}` has an unknown cell in example "
                f"{example}; `nll` and `marginal_ce` take partial labels"
            )
        found = found | missing
    return found

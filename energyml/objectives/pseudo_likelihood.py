"""Pseudo-likelihood: each cell given all others (Besag 1975)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.conditionals import field_conditionals, label_conditionals
from energyml.bind.fields import LinearTerm, QuadraticTerm
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.posterior import Posterior


def pseudo_likelihood(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of -log p(cell | all other cells, x), from the terms alone.

    Labels: non-negative, inf where a label is forbidden.  Fields: a density, so it may be negative; one product with
    the precision matrix.
    """
    problem = posterior.problem
    env, graph = problem.env, problem.graph
    missing = [v.name for v in (*graph.discrete, *graph.fields) if v.name not in answer]
    if missing:
        raise EnergyError(f"`pseudo_likelihood` needs a full answer, and `{missing[0]}` is missing")
    total = torch.zeros(env.batch.size, device=env.batch.device, dtype=env.batch.dtype)
    for variable in graph.discrete:
        labels = answer[variable.name]
        known = label_conditionals(problem.terms, env, variable, answer)
        picked: Tensor = known.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        total = total + _added(torch.where(labels >= 0, -picked, 0))
    for field in graph.fields:
        (linear,) = (t for t in problem.terms if isinstance(t, LinearTerm) and t.field == field.name)
        (quadratic,) = (t for t in problem.terms if isinstance(t, QuadraticTerm) and t.field == field.name)
        mean, variance = field_conditionals(linear, quadratic, env, answer[field.name])
        exists = variance > 0
        safe = torch.where(exists, variance, 1)
        losses = 0.5 * ((answer[field.name] - mean).square() / safe + safe.log() + math.log(2 * math.pi))
        total = total + _added(torch.where(exists, losses, 0))
    return total


def _added(cells: Tensor) -> Tensor:
    """[B]: what cells [B, ...] add up to."""
    return cells.flatten(1).sum(1) if cells.dim() > 1 else cells

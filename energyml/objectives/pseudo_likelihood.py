"""Pseudo-likelihood: each cell given all others (Besag 1975)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.conditionals import field_conditionals, label_conditionals
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.execution import is_functional, is_host_readable
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior
from energyml.result import Failed, Status


def pseudo_likelihood(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of -log p(cell | all other cells, x), from the terms alone.

    Labels: non-negative, inf where a label is forbidden.  Fields: a density, so it may be negative; one product with
    the precision matrix.  Every cell needs a label or a value, and a cell of a field a positive precision given the
    others: an example without is refused on the host, and has the loss NaN on an accelerator, where looking would wait.
    Cells may have all that, and the field no distribution: the posterior is asked where that can be, and warned of.
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
        linear, quadratic = problem.linear()[field.name], problem.quadratic()[field.name]
        mean, variance = field_conditionals(linear, quadratic, env, answer[field.name])
        broken = _without_conditionals(field.name, variance, quadratic.bounded)
        total = total.masked_fill(broken, float("nan"))
        exists = variance != 0
        safe = torch.where(exists, variance, 1)
        losses = 0.5 * ((answer[field.name] - mean).square() / safe + safe.log() + math.log(2 * math.pi))
        total = total + per_example(torch.where(exists, losses, 0))
    _tell_of_no_distribution(posterior)
    # As in the other objectives, an example whose labels are forbidden pulls at nothing.
    return total.masked_fill(total.isposinf(), float("inf"))


def _without_conditionals(name: str, variance: Tensor, bounded: bool) -> Tensor:
    """[B]: which examples have a cell whose precision given all others is not positive; on the host they are refused.

    Args:
        name: the field.
        variance: [B, *axes], of each cell given all others; 0 where there is none.
        bounded: whether its couplings are.
    """
    broken = per_example((variance < 0) | ~variance.isfinite()) > 0
    if is_host_readable(broken) and bool(broken.any()):
        example = int(broken.nonzero()[0])
        lowest = float(torch.where(variance == 0, float("inf"), variance.detach().reciprocal())[example].min())
        remedy = "raise ridge" if bounded else "raise ridge, or leave out `bounded: false`"
        raise Failed(
            f"`{name}`: the diagonal of its matrix is not positive in example {example} (its smallest entry is "
            f"{lowest:.3g}), so a cell has no distribution given the others; {remedy}"
        )
    return broken


def _tell_of_no_distribution(posterior: Posterior) -> None:
    """Warn where each cell has a distribution given the others, and all cells together have none.

    Bounded couplings cannot lead there.  Others are looked at by whoever can solve for the mode: one solve.
    """
    problem = posterior.problem
    literal = [one for one in problem.quadratic().values() if not one.bounded]
    if not literal or "mode" not in posterior.answers or is_functional() or problem.env.batch.device.type != "cpu":
        return
    with torch.no_grad():
        status = posterior.ask("mode").status
    if status.is_useless:
        Status(lambda: (False, f"`pseudo_likelihood` is that of no distribution: {status.message}")).insist()


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
        if is_host_readable(missing) and bool(missing.any()):
            example = int(missing.nonzero()[0])
            raise EnergyError(
                f"`pseudo_likelihood` needs a full answer, and `{variable.name}` has an unknown cell in example "
                f"{example}; `nll` and `marginal_ce` take partial labels"
            )
        found = found | missing
    return found

"""Score matching for fields: no log Z, no solve (Hyvärinen 2005)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.execution import is_host_readable
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def score_matching(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of 1/2 (d score / d s)^2 + d^2 score / d s^2, at the values of the data.

    For the score u's - 1/2 s'As that is 1/2 |u - As|^2 - trace(A) (Hyvärinen 2005, eq. 4): least in expectation at the
    data's own mean and covariance.  It may be negative, and A need not be positive definite.  Every cell needs a value:
    an example with an unknown one is refused on the host, and has the loss NaN on an accelerator.

    Asks nothing of a backend.  Cost: one product with the precision matrix, and its diagonal.
    """
    problem = posterior.problem
    env, graph = problem.env, problem.graph
    if graph.discrete or not graph.fields:
        raise EnergyError(
            "`score_matching` follows the slopes of fields, and labels have none; see `pseudo_likelihood`"
        )
    total = torch.zeros(env.batch.size, device=env.batch.device, dtype=env.batch.dtype)
    for field in graph.fields:
        if field.name not in answer:
            raise EnergyError(f"`score_matching` needs the values of the field `{field.name}`; pass `{field.name}=...`")
        linear, quadratic = problem.linear()[field.name], problem.quadratic()[field.name]
        values = answer[field.name]
        missing = per_example(values.isnan().long()) > 0
        if is_host_readable(missing) and bool(missing.any()):
            raise EnergyError(
                f"`score_matching` needs a full answer, and `{field.name}` has an unknown cell in example "
                f"{int(missing.nonzero()[0])}; `nll` takes partial values"
            )
        form = quadratic.form(env)
        cells = quadratic.layout.to_cells(values, env.batch).reshape(form.sizes)
        slope = linear.linear(env).reshape(form.sizes) - form.multiply(cells)
        losses = 0.5 * slope.square() - form.diagonal_of_all().expand(form.sizes)
        if form.present is not None:
            losses = torch.where(form.present.unsqueeze(1), losses, 0)
        total = total + per_example(losses)
    return total


__all__ = ["score_matching"]

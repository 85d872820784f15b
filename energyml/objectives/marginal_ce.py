"""Cross-entropy of marginals (Kakade et al. 2002; Shevchenko & Osokin 2019, eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.execution import is_host_readable
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def marginal_ce(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over labelled cells of -log p(cell = its label | x).  Asks `marginals`; non-negative.

    inf where a label is forbidden.  A probability that is merely too small for its floating-point type counts as the
    smallest normal number, so that a model whose scores have grown too large still has a loss.
    """
    total: Tensor | None = None
    zero: Tensor | None = None
    for name, labels in answer.items():
        if labels.is_floating_point():
            raise EnergyError(f"`marginal_ce` needs labels, and `{name}` is a field; `nll` takes values of fields")
        marginals = posterior.marginals[name]
        tiny = torch.finfo(marginals.dtype).tiny
        picked = marginals.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        losses = per_example(torch.where(labels >= 0, -picked.clamp(min=tiny, max=1).log(), 0))
        gone = per_example((picked == 0) & (labels >= 0)) > 0
        total = losses if total is None else total + losses
        zero = gone if zero is None else zero | gone
    if total is None or zero is None:
        raise EnergyError("`marginal_ce` needs gold labels")
    forbidden = _forbidden(posterior.problem, answer, zero)
    return total if forbidden is None else total.masked_fill(forbidden, float("inf"))


def _forbidden(problem: Problem, answer: Mapping[str, Tensor], zero: Tensor) -> Tensor | None:
    """[B]: which examples with a label of probability zero have one that is forbidden.

    Then no completion of the labels has a score, not even that with the first label at each unknown cell; where that
    one has a score, the probability has underflown.  On the host nobody computes it as long as nothing is zero.

    Args:
        problem: the batch.
        answer: labels [B, *dims] by variable.
        zero: [B] whether some labelled cell has the probability zero.
    """
    if problem.graph.fields:
        return None  # read-outs of fields rule nothing out
    if is_host_readable(zero) and not bool(zero.any()):
        return None
    batch = problem.env.batch
    full = dict(answer)
    for variable in problem.graph.discrete:
        if variable.name not in full:
            sizes = [batch.size_of(dim) for dim in variable.dims]
            full[variable.name] = torch.zeros(batch.size, *sizes, dtype=torch.long, device=batch.device)
    with torch.no_grad():
        return zero & problem.score(full).isneginf()

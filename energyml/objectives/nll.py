"""Negative log-likelihood: -log p(y | x) = log Z - score (Shevchenko & Osokin 2019, eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def nll(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the negative log-likelihood of full or partial labels; -1 and missing variables are summed out.

    Non-negative wherever log Z is exact.  Asks `log_partition`.
    """
    return -posterior.log_prob(**answer)


def nll_within(whole: Posterior, within: Posterior, selection: Selection) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of sets of labels, and how many cells of each example are narrowed down: [B], [B].

    -log p(every cell has an allowed label | x) = log Z - log Z of the answers that are allowed.  Non-negative wherever
    both are exact, inf where nothing is allowed.  Asks `log_partition` twice; networks run once.

    Args:
        whole: the posterior of all answers.
        within: that of the same batch, with the allowed labels as evidence.
        selection: the objective.
    """
    if selection.name != "nll":
        raise EnergyError(f"`{selection.name}` needs one label a cell; sets of allowed labels (bool) are for `nll`")
    problem = within.problem
    if problem.evidence.observed:
        raise EnergyError("`nll` of allowed labels has no values of fields beside them")
    known, total = (one.unrounded("log_partition") for one in (within, whole))  # large, and may be close to each other
    nothing = known.isneginf()
    losses = (total - known.masked_fill(nothing, 0)).masked_fill(nothing, float("inf")).to(problem.env.batch.dtype)
    cells = torch.zeros(problem.env.batch.size, dtype=torch.long, device=losses.device)
    for name, allowed in problem.evidence.allowed.items():
        exists = problem.env.batch.cells(name, problem.graph.variables[name].dims)
        narrowed = ~allowed.all(-1)
        cells = cells + per_example((narrowed if exists is None else narrowed & exists).long())
    return losses, cells

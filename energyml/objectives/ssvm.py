"""The structured hinge loss (Taskar et al. 2003; Tsochantaridis et al. 2005; Shevchenko & Osokin 2019, eq. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.objectives.costs import costs_of
from energyml.posterior import Posterior


def ssvm(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: max over y' of score(y') + cost(y, y') - score(y), with the Hamming cost normalised by the number of cells.

    Where labels are unknown (-1), score(y) is that of the best completion, and unknown cells cost nothing.  Latents
    are summed out.  Asks `max_with_cost`; non-negative wherever the maximum is exact, inf where the labels are
    forbidden.
    """
    costs = costs_of(posterior.problem, answer, selection)
    dtype = posterior.problem.env.batch.dtype
    elsewhere = {
        name: torch.zeros(wrong.shape, device=wrong.device, dtype=dtype).masked_fill(wrong, float("-inf"))
        for name, wrong in costs.wrong.items()
    }
    worst, best = (posterior.unrounded("max_with_cost", cost=one).score for one in (costs.each, elsewhere))
    forbidden = best.isneginf()
    hinge: Tensor = worst.masked_fill(forbidden, 0) - best.masked_fill(forbidden, 0)
    return hinge.masked_fill(forbidden, float("inf")).to(dtype)

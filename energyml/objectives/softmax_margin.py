"""The softmax margin: likelihood among answers whose scores are raised by their cost (Gimpel & Smith 2010)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from energyml.cards.card import Selection
from energyml.objectives.costs import costs_of
from energyml.posterior import Posterior


def softmax_margin(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: log of the sum over y' of exp(score(y') + cost(y, y')), minus score(y).

    The gold answer costs nothing, so this is its negative log-likelihood under exp(score + cost): one query
    `log_prob_with_cost`, as expensive as `nll`.  Where labels are unknown (-1), score(y) is the log of the summed
    exp(score) of all completions, as in `nll`, and unknown cells cost nothing; latents are summed out.  It bounds `nll`
    and `ssvm` from above where costs are not negative (`ssvm` with full labels), and is `nll` where they are 0.
    Non-negative wherever the answer is exact, inf where the labels are forbidden.
    """
    costs = costs_of(posterior.problem, answer, selection)
    return -posterior.log_prob_with_cost(answer, costs.each)

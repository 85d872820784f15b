"""The expected cost of relaxed labels (Goyal et al. 2018, section 2; Belanger et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.objectives.costs import costs_of
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def direct_loss(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the expected cost of labels drawn from each cell's relaxed label; normalised Hamming when none is named.

    Asks `soft_decode`, and gradients flow through whatever made the relaxed labels: the steps of `relaxed`, a network,
    a relaxed beam.  Cells whose label is unknown (-1) cost nothing.
    """
    costs = costs_of(posterior.problem, answer, selection)
    relaxed = posterior.ask("soft_decode", answer=answer).value  # a search may stop where the gold answer ends
    total = torch.zeros(
        posterior.problem.env.batch.size,
        device=posterior.problem.env.batch.device,
        dtype=posterior.problem.env.batch.dtype,
    )
    for name, each in costs.each.items():
        total = total + per_example((relaxed[name] * each).sum(-1))
    return total

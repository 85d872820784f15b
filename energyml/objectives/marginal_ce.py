"""Cross-entropy of marginals (Kakade et al. 2002; Shevchenko & Osokin 2019, eq. 5)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.posterior import Posterior


def marginal_ce(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over labelled cells of -log p(cell = its label | x).  Asks `marginals`; non-negative.

    A probability below the smallest normal number counts as that number: the loss stays finite where the label is
    forbidden.
    """
    total: Tensor | None = None
    for name, labels in answer.items():
        marginals = posterior.marginals[name]
        tiny = torch.finfo(marginals.dtype).tiny
        picked = marginals.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        cells = torch.where(labels >= 0, -picked.clamp(min=tiny, max=1).log(), 0)
        losses = cells.flatten(1).sum(1) if cells.dim() > 1 else cells
        total = losses if total is None else total + losses
    if total is None:
        raise ValueError("marginal_ce needs gold labels")
    return total

"""The structured hinge loss (Taskar et al. 2003; Tsochantaridis et al. 2005; Shevchenko & Osokin 2019, eq. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.posterior import Posterior


def ssvm(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: max over y' of score(y') + cost(y, y') - score(y), with the Hamming cost normalised by the number of cells.

    Asks `max_with_cost`; non-negative wherever the maximum is exact.
    """
    problem = posterior.problem
    costs = {name: hamming(labels, problem.label_count(name), selection, problem.label_names()[name]) for name, labels in answer.items()}
    worst = posterior.max_with_cost(**costs)
    return worst.score - problem.score(answer)


def hamming(labels: Tensor, count: int, selection: Selection, names: tuple[str, ...]) -> Tensor:
    """[B, *dims, labels]: the share that each wrong label adds; weights by predicted label; unlabelled cells cost nothing."""
    steps = torch.arange(count, device=labels.device)
    known = labels >= 0
    wrong = (labels.unsqueeze(-1) != steps) & known.unsqueeze(-1)
    cells = known.flatten(1).sum(1).clamp(min=1) if labels.dim() > 1 else torch.ones_like(labels)
    cost = wrong / cells.reshape(-1, *([1] * labels.dim()))
    chosen = selection["cost"]
    weights = chosen["weights"] if chosen is not None else None
    if weights:
        scale = torch.tensor([weights.get(name, 1.0) for name in names], device=labels.device, dtype=cost.dtype)
        cost = cost * scale
    return cost

"""The structured hinge loss (Taskar et al. 2003; Tsochantaridis et al. 2005; Shevchenko & Osokin 2019, eq. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError, did_you_mean
from energyml.objectives.losses import labelled_cells
from energyml.posterior import Posterior


def ssvm(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: max over y' of score(y') + cost(y, y') - score(y), with the Hamming cost normalised by the number of cells.

    Where labels are unknown (-1), score(y) is that of the best completion, and unknown cells cost nothing.  Latents
    are summed out.  Asks `max_with_cost`; non-negative wherever the maximum is exact, inf where the labels are
    forbidden.
    """
    problem = posterior.problem
    names, dtype = problem.label_names(), problem.env.batch.dtype
    _check_weights(selection, {label for name in answer for label in names[name]})
    share = 1 / labelled_cells(answer).clamp(min=1).to(dtype)
    costs, elsewhere = {}, {}
    for name, labels in answer.items():
        wrong = _wrong(labels, problem.label_count(name))
        scale = share.reshape(-1, *([1] * labels.dim())) * _weights(selection, names[name], share)
        costs[name] = wrong * scale
        elsewhere[name] = torch.zeros_like(costs[name]).masked_fill(wrong, float("-inf"))
    worst = posterior.max_with_cost(**costs).score
    best = posterior.max_with_cost(**elsewhere).score
    forbidden = best.isneginf()
    return (worst.masked_fill(forbidden, 0) - best.masked_fill(forbidden, 0)).masked_fill(forbidden, float("inf"))


def _check_weights(selection: Selection, labels: set[str]) -> None:
    """Refuse a weight for a label that no labelled variable has."""
    chosen = selection["cost"]
    for label in (chosen["weights"] if chosen is not None else None) or {}:
        if label not in labels:
            guess = did_you_mean(label, sorted(labels))
            hint = f"; did you mean `{guess}`?" if guess else ""
            raise EnergyError(f"the cost weighs `{label}`, which is no label of the outputs{hint}")


def _wrong(labels: Tensor, count: int) -> Tensor:
    """[B, *dims, labels]: which labels differ from a known one."""
    steps = torch.arange(count, device=labels.device)
    return (labels.unsqueeze(-1) != steps) & (labels >= 0).unsqueeze(-1)


def _weights(selection: Selection, names: tuple[str, ...], like: Tensor) -> Tensor:
    """[labels]: the cost of predicting each label wrongly, 1 unless the selection says otherwise."""
    chosen = selection["cost"]
    weights = (chosen["weights"] if chosen is not None else None) or {}
    return torch.tensor([weights.get(name, 1.0) for name in names], device=like.device, dtype=like.dtype)

"""Structured prediction energy networks: an energy and its inference network, trained against each other.

Tu & Gimpel 2018 (Learning approximate inference networks for structured prediction).  The network looks for
relaxed labels of high score and high cost; the energy pushes the gold answer above them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.objectives.costs import costs_of
from energyml.objectives.infnet_loss import Relaxation, fixed_score, regularised, relaxation_of
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def spen(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the loss of the player whose turn it is; outside of the training loop that of both, each for its own part.

    With s the score, q the relaxed labels of the network and c(q) their expected cost (`loss: margin`; zero for
    `contrastive`, the perceptron's loss):

    - the energy (`model`) minimises max(0, c(q) + s(q) - s(gold)), with q fixed;
    - the network (`infer`) minimises -(c(q) + s(q)) + the regularisers of `infnet_loss`, with s fixed.  The maximum
      with zero is left out here: it would leave a network that has fallen behind without a gradient.

    Cells without a gold label, and latents, have the network's labels in s(gold), and cost nothing.
    """
    relaxation = relaxation_of(posterior, selection.name)
    player = posterior.problem.state.player
    costs = costs_of(posterior.problem, answer, selection).each if selection["loss"] == "margin" else {}
    total: Tensor | None = None
    if player in (None, "model"):
        total = _hinge(posterior, _detached(relaxation), answer, costs)
    if player in (None, "infer"):
        searched = fixed_score(posterior.problem, relaxation) + _expected(costs, relaxation)
        own = regularised(relaxation, answer, selection) - searched
        total = own if total is None else total + own
    assert total is not None
    return total


def _hinge(
    posterior: Posterior, found: Relaxation, answer: Mapping[str, Tensor], costs: Mapping[str, Tensor]
) -> Tensor:
    """[B]: how far the network's labels come above the gold answer, at least 0."""
    gold = {name: _gold(found.labels[name], answer.get(name)) for name in found.labels}
    problem = posterior.problem
    best = problem.soft_score(found.labels, penalty=found.penalty) + _expected(costs, found)
    return (best - problem.soft_score(gold, penalty=found.penalty)).clamp(min=0)


def _gold(relaxed: Tensor, labels: Tensor | None) -> Tensor:
    """[B, *dims, labels]: one-hot vectors of labels [B, *dims]; relaxed ones where a label is unknown."""
    if labels is None:
        return relaxed
    steps = torch.arange(relaxed.shape[-1], device=relaxed.device)
    chosen = (labels.unsqueeze(-1) == steps).to(relaxed.dtype)
    return torch.where((labels >= 0).unsqueeze(-1), chosen, relaxed)


def _expected(costs: Mapping[str, Tensor], relaxation: Relaxation) -> Tensor:
    """[B]: the expected cost of relaxed labels."""
    like = next(iter(relaxation.labels.values()))
    total = like.new_zeros(like.shape[0])
    for name, cost in costs.items():
        total = total + per_example(cost * relaxation.labels[name])
    return total


def _detached(relaxation: Relaxation) -> Relaxation:
    return replace(relaxation, labels={name: one.detach() for name, one in relaxation.labels.items()})


__all__ = ["spen"]

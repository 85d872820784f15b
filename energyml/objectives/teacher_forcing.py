"""Teacher forcing: the cross-entropy of each label given the gold labels before it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.steps import Steps
from energyml.cards.card import Selection
from energyml.objectives.log_shares import log_ratio, log_sum
from energyml.objectives.sequences import chosen, forced, gold_of
from energyml.posterior import Posterior


def teacher_forcing(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over steps of -log p(y[t] | y[<t], x), normalised over the labels of each step.

    The exact negative log-likelihood of a score with `normalize: local` and nothing beside it.  Scores that are not
    normalised at each step are, here: a start for training whole sequences.  Asks nothing of a backend.  Inf where the
    labels are forbidden.  Cost: as many steps as the longest sequence has.
    """
    gold = gold_of(posterior.problem, answer, "teacher_forcing")
    total = torch.zeros(gold.labels.shape[0], dtype=gold.steps.batch.dtype, device=gold.labels.device)
    for t, scores, _ in forced(gold.steps, gold.labels):
        total = total + torch.where(gold.counts[:, t], cross_entropy(gold.steps, scores, gold.labels[:, t]), 0)
    return total


def cross_entropy(steps: Steps, scores: Tensor, labels: Tensor) -> Tensor:
    """[R]: -log p of labels [R] under a step's scores [R, C], normalised unless they already are log-probabilities."""
    picked = chosen(scores, labels)
    return -picked if steps.local else -log_ratio(picked, log_sum(scores))


__all__ = ["cross_entropy", "teacher_forcing"]

"""Likelihood among the hypotheses of a beam, with early update (Andor et al. 2016; Collins & Roark 2004)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.cards.card import Selection
from energyml.objectives.log_shares import log_ratio, log_sum
from energyml.objectives.sequences import gold_of, prefix_scores
from energyml.objectives.tracked_beam import extended, tracked_beam
from energyml.posterior import Posterior

_NINF = float("-inf")


def beam_nll(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: log of the summed exp(score) of a beam's hypotheses and the gold sequence, minus the gold score.

    With `early`, an example stops at the step at which the gold prefix falls out of the beam, and prefixes are compared
    there; without it the search goes on, and the gold sequence joins the beam at its end.  A beam as wide as there are
    answers gives the exact negative log-likelihood; without `early` a smaller one sums over fewer answers, so that the
    loss is never larger.  Non-negative; inf where the labels are forbidden.  Asks nothing of a backend.

    Cost: T steps of k rows to search, and T steps of k + 1 rows, with gradients, to score what was found.
    """
    gold = gold_of(posterior.problem, answer, "beam_nll")
    early = bool(selection["early"])
    found = tracked_beam(gold, int(selection["width"]), early=early)
    size = max(found.labels.shape[2], gold.size)
    beyond = (0, size - found.labels.shape[2])
    labels, counts = F.pad(found.labels, beyond), F.pad(found.counts, beyond)
    target, own = extended(gold, size).unsqueeze(1), F.pad(gold.counts, (0, size - gold.size)).unsqueeze(1)
    if early:
        own = own & (torch.arange(size, device=own.device) < found.stopped.unsqueeze(1)).unsqueeze(1)
    scores = prefix_scores(gold.steps, torch.cat([target, labels], 1), torch.cat([own, counts], 1))
    others = scores[:, 1:].masked_fill(found.is_gold | ~found.exists, _NINF)
    losses = -log_ratio(scores[:, 0], log_sum(torch.cat([scores[:, :1], others], 1)))
    return losses.to(posterior.problem.env.batch.dtype)

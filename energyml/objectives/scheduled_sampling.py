"""Scheduled sampling: teacher forcing where some of the labels before are the model's own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.cards.card import Selection
from energyml.cards.options import Annealed
from energyml.diagnostics import EnergyError
from energyml.objectives.log_shares import shares
from energyml.objectives.sequences import chosen, gold_of, gumbel
from energyml.objectives.teacher_forcing import cross_entropy
from energyml.posterior import Posterior
from energyml.training_state import TrainingState

_NINF = float("-inf")


def scheduled_sampling(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over steps of -log p(y[t] | mixed labels before t, x).

    Each label that a step is given is the gold one with the probability that `mixing` gives the epoch, else the model's
    own, drawn anew for every token (Bengio et al. 2015).  The own label is the best one or a sample (by Gumbel noise);
    `hard` feeds it as it is, and no gradient flows through the choice; `fixed` and `annealed` feed the peaked softmax
    of scores plus noise, through which it does (Goyal 2021, section 3.3.2).

    The end label is never fed back, since nothing follows it.  Steps where own labels rule the gold one out do not
    count.  Random numbers are torch's own.  Costs what `teacher_forcing` costs.
    """
    gold = gold_of(posterior.problem, answer, "scheduled_sampling")
    steps, state_of_training = gold.steps, posterior.problem.state
    share, alpha = gold_share(selection["mixing"], state_of_training), peakedness(selection, state_of_training)
    batch = gold.labels.shape[0]
    total = torch.zeros(batch, dtype=steps.batch.dtype, device=gold.labels.device)
    strayed = torch.zeros(batch, dtype=torch.bool, device=gold.labels.device)
    state, previous = steps.start(), None
    for t in range(gold.size):
        scores, state = steps.advance(state, previous, t)
        labels = gold.labels[:, t]
        counts = gold.counts[:, t] & ~(strayed & chosen(scores, labels).isneginf())
        total = total + torch.where(counts, cross_entropy(steps, scores, labels), 0)
        own = scores if steps.end is None else _without(scores, steps.end)
        if selection["choose"] == "sample":
            own = own + gumbel(own)
        keeps = torch.rand(batch, dtype=total.dtype, device=total.device) < share
        keeps = keeps | own.detach().isneginf().all(1) | ~gold.counts[:, t]
        best = torch.where(keeps, labels, own.detach().argmax(1))
        strayed = strayed | (~keeps if alpha is not None else best != labels)
        if alpha is None:
            previous = best
        else:
            known = F.one_hot(labels, steps.count).to(total.dtype)
            previous = torch.where(keeps.unsqueeze(1), known, shares(alpha * own))
    return total


def gold_share(mixing: Selection | None, state: TrainingState) -> float:
    """The probability of the gold label in an epoch; the inverse sigmoid with k = 10 when nothing is said."""
    if mixing is None or mixing.name == "inverse_sigmoid":
        k = 10.0 if mixing is None else float(mixing["k"])
        return k / (k + math.exp(min(700.0, state.epoch / k)))
    if mixing.name == "exponential":
        return float(mixing["k"]) ** state.epoch
    return state.value(mixing["share"]) if mixing.name == "linear" else 0.0


def peakedness(selection: Selection, state: TrainingState) -> float | None:
    """The peakedness of the own choice in an epoch, annealed exponentially; `None` for hard choices."""
    relax, alpha = selection["relax"], selection["alpha"]
    if relax == "hard":
        return None
    if relax == "fixed":
        if isinstance(alpha, Annealed):
            raise EnergyError("`relax: fixed` needs one `alpha`; write `relax: annealed` for a schedule")
        return float(alpha)
    if not isinstance(alpha, Annealed):
        raise EnergyError("`relax: annealed` needs a schedule, for example `alpha: 1 -> 10`")
    return math.exp(state.value(Annealed(math.log(alpha.first), math.log(alpha.last))))


def _without(scores: Tensor, label: int) -> Tensor:
    return scores.masked_fill(torch.arange(scores.shape[1], device=scores.device) == label, _NINF)


__all__ = ["gold_share", "peakedness", "scheduled_sampling"]

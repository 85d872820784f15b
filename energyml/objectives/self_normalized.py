"""Self-normalised teacher forcing: steps whose raw scores nearly are log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.sequences import forced, gold_of
from energyml.objectives.teacher_forcing import cross_entropy
from energyml.posterior import Posterior


def self_normalized(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over steps of -log p(y[t] | y[<t], x) + weight * (log Z[t])^2.

    log Z[t] is the log of the summed exponentials of the step network's raw scores after the gold prefix.  Where it is
    near 0, the same weights serve with `normalize: global` (Goyal et al. 2019, section 3.2.1; Andreas & Klein 2015).
    Asks nothing of a backend; costs what `teacher_forcing` costs.
    """
    gold = gold_of(posterior.problem, answer, "self_normalized")
    if not gold.steps.nets:
        raise EnergyError("`self_normalized` penalises the log-normaliser of a step network, and the model has none")
    weight = float(selection["weight"])
    total = torch.zeros(gold.labels.shape[0], dtype=gold.steps.batch.dtype, device=gold.labels.device)
    for t, scores, state in forced(gold.steps, gold.labels):
        here = cross_entropy(gold.steps, scores, gold.labels[:, t]) + weight * state.normalizer.square()
        total = total + torch.where(gold.counts[:, t], here, 0)
    return total

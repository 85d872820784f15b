"""Fitting an inference network to a fixed energy (Tu & Gimpel 2019, section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


@dataclass(frozen=True)
class Relaxation:
    """What an inference network says about a batch.

    Attributes:
        logits: by variable: [B, *dims, labels].
        labels: by variable: probability vectors [B, *dims, labels], zero where there is no cell.
        penalty: what the probability of forbidden labels costs.
        weight: of the local cross-entropy, where training stands.
    """

    logits: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    penalty: float
    weight: float


def relaxation_of(posterior: Posterior, objective: str) -> Relaxation:
    """The answer of the inference network behind a posterior; other backends are refused."""
    result = posterior.ask("soft_decode")
    logits = result.statistics.get("logits")
    if logits is None or posterior.backend != "infnet":
        raise EnergyError(
            f"`{objective}` trains an inference network, and `{posterior.backend}` is none; write "
            f"`infer: infnet` in the stage, or pass `using='infnet'`"
        )
    options, state = posterior.selection, posterior.problem.state
    weight = state.value(options["weight"]) * math.exp(-float(options["anneal"]) * state.epoch)
    return Relaxation(logits, result.value, float(options["penalty"]), weight)


def infnet_loss(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: energy(q) + weight * the local cross-entropy of gold labels, for the relaxed labels q of the network.

    The energy is fixed: no gradient reaches its parameters.  The weight is an option of the backend, a number, a
    schedule over the epochs, and `anneal` lets it fall as exp(-anneal * epoch).  Cells without a gold label have no
    local term.  Options: `energy` is the weight of the energy (0: the local baseline of the paper), `smoothing` that of
    the local targets, `entropy` adds that of q.
    """
    relaxation = relaxation_of(posterior, selection.name)
    local = regularised(relaxation, answer, selection)
    weight = float(selection["energy"])
    return local - weight * fixed_score(posterior.problem, relaxation) if weight else local


def fixed_score(problem: Problem, relaxation: Relaxation) -> Tensor:
    """[B]: the score of relaxed labels, differentiable in them alone: the parameters of the energy get no gradient.

    Cost: one gradient of the score in the labels, as the backward pass would make.
    """
    names, labels = list(relaxation.labels), relaxation.labels
    if not torch.is_grad_enabled() or not any(labels[name].requires_grad for name in names):
        return problem.soft_score(labels, penalty=relaxation.penalty).detach()
    here = {name: labels[name].detach().requires_grad_() for name in names}
    score = problem.soft_score(here, penalty=relaxation.penalty)
    slopes = torch.autograd.grad(score.sum(), [here[name] for name in names], allow_unused=True)
    total = score.detach()
    for name, slope in zip(names, slopes, strict=True):
        if slope is not None:
            # zero in value: it carries the gradient
            total = total + per_example(slope * (labels[name] - here[name].detach()))
    return total


def regularised(relaxation: Relaxation, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: what keeps an inference network near the data: weight * cross-entropy + entropy * H(q)."""
    total: Tensor | None = None
    for name, logits in relaxation.logits.items():
        own = logits.log_softmax(-1)
        part = own.new_zeros(own.shape[0])
        if name in answer and relaxation.weight:
            part = part + relaxation.weight * _cross_entropy(own, answer[name], float(selection["smoothing"]))
        if selection["entropy"]:
            q = relaxation.labels[name]
            part = part - float(selection["entropy"]) * per_example(torch.where(q > 0, q * own, 0))
        total = part if total is None else total + part
    assert total is not None
    return total


def _cross_entropy(own: Tensor, gold: Tensor, smoothing: float) -> Tensor:
    """[B]: the sum over labelled cells of the cross-entropy of log-probabilities [B, *dims, labels].

    Args:
        own: log-probabilities.
        gold: labels [B, *dims], -1 where there is none.
        smoothing: share of the target that is spread over all labels.
    """
    cells = -own.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    if smoothing:
        cells = (1 - smoothing) * cells - smoothing * own.mean(-1)
    return per_example(torch.where(gold >= 0, cells, 0))


__all__ = ["Relaxation", "fixed_score", "infnet_loss", "regularised", "relaxation_of"]

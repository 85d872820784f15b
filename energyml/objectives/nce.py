"""Noise-contrastive estimation: the data told apart from noise (Gutmann & Hyvärinen 2010; Ma & Collins 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.full_answers import check_labels_only, unlabelled
from energyml.objectives.kept import Stored, kept
from energyml.objectives.losses import per_example
from energyml.objectives.trained_runs import problem_of, trained_run
from energyml.posterior import Posterior


@dataclass(frozen=True)
class Noise:
    """Answers that the data is told apart from.

    Attributes:
        labels: by variable: [B, k, *dims].
        log_prob: [B, k + 1]: the noise's log-probability of the data's answer, then of its own.
        known: whether that is normalised; else it lacks a constant for each example.
    """

    labels: Mapping[str, Tensor]
    log_prob: Tensor
    known: bool


def nce(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the cross-entropy of finding the data among `count` answers of noise, given score - log p_noise of each.

    `loss: ranking` (Ma & Collins 2018): which of the count + 1 answers is the data's; constants cancel, so that neither
    log Z of the model nor that of the noise is needed, and log(count + 1) is the loss of knowing nothing.
    `loss: binary` (Gutmann & Hyvärinen 2010): each answer by itself, data or noise; the score is taken as a
    log-probability, so that training makes the model normalise itself.

    Noise is `uniform`, `unigram` (labels as often as earlier batches had them) or drawn by a `sampler`: the stage's
    backend, from the model as it is (the gradient is then that of `nll` times count / (count + 1), while the value does
    not change) or from a trained `run`; its log-probability is its score, up to a constant.

    Cost: the draws without gradients, and the scores of count + 1 answers with them.
    """
    problem, count = posterior.problem, int(selection["count"])
    check_labels_only(problem, selection.name)
    gone = unlabelled(problem, answer, selection.name)
    with torch.no_grad():
        noise = _NOISES[str(selection["noise"])](posterior, answer, selection)
    every = {name: torch.cat([answer[name].unsqueeze(1), one], 1).flatten(0, 1) for name, one in noise.labels.items()}
    scores = problem.score(every, count + 1, wide=True).reshape(-1, count + 1)
    impossible = scores[:, 0].isneginf()
    # Noise may be forbidden, and then is told apart for sure; data that is forbidden pulls at nothing.
    sure = noise.log_prob[:, 0].isneginf()  # noise that forbids the data cannot be taken for it
    ratio = scores.masked_fill(impossible.unsqueeze(1), 0) - noise.log_prob.masked_fill(sure.unsqueeze(1), 0)
    if selection["loss"] == "ranking":
        losses = ratio.logsumexp(1) - ratio[:, 0]
    elif noise.known:
        odds = ratio - log(count)
        losses = F.softplus(-odds[:, 0]) + F.softplus(odds[:, 1:]).sum(1)
    else:
        raise EnergyError(
            "`nce(loss: binary)` needs noise whose probabilities are known, and those of a sampler lack a constant; "
            "write `loss: ranking`, or `noise: uniform`"
        )
    losses = losses.masked_fill(sure, 0).masked_fill(impossible, float("inf")).masked_fill(gone, float("nan"))
    return losses.to(problem.env.batch.dtype)


# --------------------------------------------------------------------------------------------------------------- noises


def _uniform(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Noise:
    flat = {v.name: _flat(posterior.problem, v.name) for v in posterior.problem.graph.discrete}
    return _independent(posterior.problem, answer, flat, int(selection["count"]))


def _flat(problem: Problem, variable: str) -> Tensor:
    batch = problem.env.batch
    labels = problem.label_count(variable)
    return torch.full((labels,), -log(labels), device=batch.device, dtype=batch.dtype)


class LabelCounts:
    """How often earlier batches had each label, and once more each."""

    def __init__(self) -> None:
        self.counts: dict[str, Tensor] = {}

    def log_prob(self, variable: str, like: Tensor) -> Tensor:
        """[labels]: the log of each label's share; equal shares before the first batch."""
        counts = self.counts.get(variable)
        known = torch.ones_like(like) if counts is None else counts.to(like)
        return (known / known.sum()).log()

    def add(self, variable: str, labels: Tensor, count: int) -> None:
        """Count the labels of a batch, -1 left out."""
        new = torch.bincount(labels[labels >= 0].flatten(), minlength=count).double()
        self.counts[variable] = self.counts.get(variable, torch.ones_like(new)).to(new.device) + new

    def stored(self) -> Stored:
        """All counts."""
        return Stored(self.counts)

    def restore(self, stored: Stored) -> None:
        """Become the counts of a checkpoint."""
        self.counts = dict(stored.tensors)


def _unigram(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Noise:
    """From earlier batches alone: noise that has seen the answer would give it away."""
    problem = posterior.problem
    seen = kept(problem.env.module, selection, LabelCounts)
    shares = {v.name: seen.log_prob(v.name, _flat(problem, v.name)) for v in problem.graph.discrete}
    noise = _independent(problem, answer, shares, int(selection["count"]))
    if problem.env.module.training:
        for name in shares:
            seen.add(name, answer[name], problem.label_count(name))
    return noise


def _independent(problem: Problem, answer: Mapping[str, Tensor], shares: Mapping[str, Tensor], count: int) -> Noise:
    """Every cell by itself."""
    labels: dict[str, Tensor] = {}
    total: Any = 0.0
    for name, log_share in shares.items():
        own = answer[name].unsqueeze(1)
        drawn = torch.multinomial(log_share.exp(), own.numel() * count, replacement=True)
        drawn = drawn.reshape(own.shape[0], count, *own.shape[2:]).masked_fill(own < 0, -1)
        labels[name] = drawn
        every = torch.cat([own, drawn], 1)
        total = total + per_example(torch.where(every >= 0, log_share[every.clamp(min=0)], 0).flatten(0, 1))
    return Noise(labels, total.reshape(-1, count + 1), known=True)


def _sampled(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Noise:
    """Draws of the model as it is, or of a trained run, by the stage's backend."""
    problem, count, path = posterior.problem, int(selection["count"]), selection["run"]
    if path is not None:
        model = trained_run(str(path), problem, "the noise of `nce`")
        backend, verdict = model.prepared(posterior.selection)
        problem = problem_of(model, problem)
        posterior = Posterior(backend.open(problem), verdict, problem)
    drawn = posterior.sample(count)
    labels = {name: drawn.labels[name].transpose(0, 1) for name in answer}
    if bool(drawn.score.isneginf().any()):
        raise EnergyError("the noise of `nce` has no answer for some example: everything is forbidden there")
    every = {name: torch.cat([answer[name].unsqueeze(1), one], 1).flatten(0, 1) for name, one in labels.items()}
    return Noise(labels, problem.score(every, count + 1, wide=True).reshape(-1, count + 1), known=False)


_NOISES = {"uniform": _uniform, "unigram": _unigram, "sampler": _sampled}


__all__ = ["LabelCounts", "Noise", "nce"]

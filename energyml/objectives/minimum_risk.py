"""Minimum risk: the expected cost over some answers (Smith & Eisner 2006; Shen et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.bind.steps import why_not_stepwise
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.costs import costs_of
from energyml.objectives.log_shares import shares
from energyml.objectives.sequences import drawn, first_of_each, prefix_scores, total_cost
from energyml.posterior import Posterior

_NINF = float("-inf")


def minimum_risk(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over answers of q(y) * cost(y), q being proportional to exp(sharpness * score) on `count` answers.

    The answers are the best ones that the backend finds, or distinct samples; the expectation is exact where they are
    all there are.  Unknown labels cost nothing; 0 where there is no answer.  Asks `n_best`, or `sample` with
    `over: samples` (drawn from left to right where the backend does not sample).

    Cost: the query, and the scores of `count` answers with gradients.
    """
    problem, count = posterior.problem, int(selection["count"])
    costs = costs_of(problem, answer, selection).each
    labels, scores = _sampled(posterior, count) if selection["over"] == "samples" else _best(posterior, count)
    # an answer that ends too early is wrong in all the cells that it leaves out
    for name, end in problem.ends().items():
        labels[name] = labels[name].masked_fill(labels[name] < 0, end)
    share = shares(float(selection["sharpness"]) * scores)
    risk = torch.zeros_like(share[:, 0])
    for name, cost in costs.items():
        risk = risk + (share * total_cost(labels[name], cost)).sum(1)
    return risk.to(problem.env.batch.dtype)


def _best(posterior: Posterior, count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Labels [B, n, *dims] by variable, and scores [B, n] with gradients."""
    found = posterior.unrounded("n_best", count=count)
    labels = dict(found.labels)
    if found.score.requires_grad or not torch.is_grad_enabled():
        return labels, found.score
    again = _scores(posterior.problem, labels)
    return labels, torch.where(found.score.isneginf(), _NINF, again)


def _sampled(posterior: Posterior, count: int) -> tuple[dict[str, Tensor], Tensor]:
    problem = posterior.problem
    if "sample" in posterior.answers:
        found = posterior.sample(count)
        labels = {name: one.transpose(0, 1) for name, one in found.labels.items()}
        exists = ~found.score.detach().isneginf().transpose(0, 1)
    else:
        steps = problem.steps()
        made, _, log_prob = drawn(steps, count)
        labels, exists = {steps.variable: steps.place(made)}, ~log_prob.isneginf()
    every = torch.cat([one.flatten(2) for one in labels.values()], 2)
    scores = _scores(problem, {name: one.clamp(min=-1) for name, one in labels.items()})
    return labels, scores.masked_fill(~(first_of_each(every) & exists), _NINF)


def _scores(problem: Problem, labels: Mapping[str, Tensor]) -> Tensor:
    """[B, n]: the scores of answers [B, n, *dims]; from left to right where their lengths differ."""
    latent = next((v.name for v in problem.graph.discrete if v.kind == "latent"), None)
    if latent is not None:
        raise EnergyError(f"`minimum_risk` over samples needs scores of whole answers, and `{latent}` is summed out")
    batch, several = next(iter(labels.values())).shape[:2]
    if not problem.ends():
        flat = {name: one.flatten(0, 1) for name, one in labels.items()}
        return problem.score(flat, several, wide=True).reshape(batch, several)
    reason = why_not_stepwise(problem.graph, None, problem.terms)
    if reason is not None:  # one answer of each example at a time
        each = [{name: one[:, number] for name, one in labels.items()} for number in range(several)]
        return torch.stack([problem.score(one, wide=True) for one in each], 1)
    steps = problem.steps()
    known = labels[steps.variable]
    return prefix_scores(steps, known.clamp(min=0), known >= 0)

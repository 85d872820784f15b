"""The structured hinge loss on a beam (Goyal et al. 2018, section 2.5)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from energyml.cards.card import Selection
from energyml.objectives.costs import Costs, costs_of
from energyml.objectives.sequences import Gold, gold_of, prefix_scores, total_cost
from energyml.objectives.tracked_beam import tracked_beam
from energyml.posterior import Posterior
from energyml.queries import Query


def beam_hinge(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: max(0, the best of score + cost - score of the gold sequence).

    With `relax` the best is the peaked mean of the hypotheses of the stage's relaxed beam.  Without it, a hard beam
    of `width` finds an answer, and gradients flow through its score alone (footnote 3 of the paper).  Where the length
    is part of the answer, the search goes as far as the gold sequence.  Every label must be known; inf where they are
    forbidden.  Asks `max_with_cost`.
    """
    problem = posterior.problem
    gold = gold_of(problem, answer, "beam_hinge")
    costs = costs_of(problem, answer, selection)
    target = prefix_scores(gold.steps, gold.labels.unsqueeze(1), gold.counts.unsqueeze(1)).squeeze(1)
    if selection["relax"]:
        worst: Tensor = posterior.ask(Query("max_with_cost", cost=costs.each, answer=answer)).value.score
    else:
        worst = _hard(gold, costs, int(selection["width"]))
    forbidden = target.isneginf()
    # a search that found nothing has nothing to say
    margin = worst.masked_fill(worst.isneginf(), 0) - target.masked_fill(forbidden, 0)
    loss = margin.clamp(min=0).masked_fill(worst.isneginf(), 0)
    return loss.masked_fill(forbidden, float("inf")).to(problem.env.batch.dtype)


def _hard(gold: Gold, costs: Costs, width: int) -> Tensor:
    """[B]: score plus cost of what a hard beam finds, differentiable in the score; -inf where it finds nothing."""
    steps = gold.steps
    cost = steps.by_step(costs.each[steps.variable])
    found = tracked_beam(gold, width, early=False, cost=cost, lengths=gold.lengths)
    labels = found.labels[:, :1, : gold.size]
    counts = gold.counts.unsqueeze(1)
    score = prefix_scores(steps, labels, counts) + total_cost(labels.masked_fill(~counts, -1), cost[:, : gold.size])
    return score.squeeze(1).masked_fill(~found.exists[:, 0], float("-inf"))

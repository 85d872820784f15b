"""Masked-language-model training: the degenerate pseudo-likelihood (Goyal 2021, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.backend import Problem
from energyml.bind.conditionals import masked_conditionals
from energyml.bind.whole import MaskedTerm
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.full_answers import check_labels_only, unlabelled
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def mlm(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of -log p_mlm(cell | all other cells), with p_mlm the softmax of masked scores.

    Every position is masked once, by itself.  That is no pseudo-likelihood of the energy: a label also changes what the
    network says at the other positions, which `pseudo_likelihood` counts and this does not.  Tables count as they are.
    Non-negative; inf where a label is forbidden.

    Cost: one pass of the masked network over all positions; nothing is asked of a backend.
    """
    problem = posterior.problem
    check_masked(problem, selection.name)
    gone = unlabelled(problem, answer, selection.name)
    total = torch.zeros_like(gone, dtype=problem.env.batch.dtype).masked_fill(gone, float("nan"))
    for variable in problem.graph.discrete:
        labels = answer[variable.name]
        count = problem.label_count(variable.name)
        known = masked_conditionals(problem.terms, problem.env, variable, count, answer)
        picked = known.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        total = total + per_example(torch.where(labels >= 0, -picked, 0))
    # As in the other objectives, an example whose labels are forbidden pulls at nothing.
    return total.masked_fill(total.isposinf(), float("inf"))


def check_masked(problem: Problem, objective: str) -> None:
    """Refuse models without a masked network."""
    check_labels_only(problem, objective)
    if not any(isinstance(term, MaskedTerm) for term in problem.terms):
        raise EnergyError(
            f"`{objective}` trains masked conditionals, and the model has no `masked` score; `pseudo_likelihood` takes "
            "the conditionals of any other"
        )


__all__ = ["check_masked", "mlm"]

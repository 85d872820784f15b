"""Masked-language-model training: the degenerate pseudo-likelihood (Goyal 2021, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.conditionals import masked_conditionals
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.full_answers import check_labels_only, unlabelled
from energyml.objectives.losses import per_example
from energyml.posterior import Posterior


def mlm(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of -log p_mlm(cell | all other cells), with p_mlm the softmax of masked scores.

    Every position is masked once, by itself.  With `hide: some` an example has n of its T positions hidden at once, n
    uniform from 1 to T, and the sum is over these: what mask-predict is trained by (Ghazvininejad et al. 2019), and
    what a first answer from nothing needs.  Where the model is not in training, the same positions are hidden each
    time.

    Neither is a pseudo-likelihood of the energy: a label also changes what the network says at the other positions,
    which `pseudo_likelihood` counts and this does not.  Tables count as they are.  Non-negative; inf where a label is
    forbidden.

    Cost: one pass of the masked network over all positions; nothing is asked of a backend.
    """
    problem = posterior.problem
    check_masked(problem, selection.name)
    gone = unlabelled(problem, answer, selection.name)
    total = torch.zeros_like(gone, dtype=problem.env.batch.dtype).masked_fill(gone, float("nan"))
    for variable in problem.graph.discrete:
        labels = answer[variable.name]
        count = problem.label_count(variable.name)
        counted = labels >= 0
        hidden = _hidden(counted, problem.env.module.training) if selection["hide"] == "some" else None
        known = masked_conditionals(problem.terms, problem.env, variable, count, answer, hidden)
        counted = counted if hidden is None else hidden
        picked = known.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        total = total + per_example(torch.where(counted, -picked, 0))
    # As in the other objectives, an example whose labels are forbidden pulls at nothing.
    return total.masked_fill(total.isposinf(), float("inf"))


def _hidden(present: Tensor, training: bool) -> Tensor:
    """[B, *dims]: in each example a random number of the present cells, at least one where there are any."""
    generator = None if training else torch.Generator(present.device).manual_seed(0)
    flat = present.flatten(1)
    kind = {"device": present.device, "generator": generator}
    share, place = torch.rand(flat.shape[0], 1, **kind), torch.rand(flat.shape, **kind)  # type: ignore[arg-type]
    rank = place.masked_fill(~flat, 2.0).argsort(1).argsort(1)  # present cells in a random order, then the others
    wanted = (share * flat.sum(1, keepdim=True)).floor() + 1
    return ((rank < wanted) & flat).reshape(present.shape)


def check_masked(problem: Problem, objective: str) -> None:
    """Refuse models without a masked network."""
    check_labels_only(problem, objective)
    if not problem.masked():
        raise EnergyError(
            f"`{objective}` trains masked conditionals, and the model has no `masked` score; `pseudo_likelihood` takes "
            "the conditionals of any other"
        )


__all__ = ["check_masked", "mlm"]

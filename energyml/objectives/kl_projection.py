"""Projection of masked conditionals onto those of a joint distribution (Goyal 2021, section 6.2.2)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from energyml.bind.conditionals import label_conditionals, masked_conditionals
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.full_answers import unlabelled
from energyml.objectives.kept import Stored, is_waiting, kept
from energyml.objectives.losses import per_example
from energyml.objectives.mlm import check_masked
from energyml.objectives.trained_runs import frozen, problem_of, trained_run
from energyml.posterior import Posterior

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel


def kl_projection(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the sum over cells of KL(p_mlm(cell | others), p(cell | others)) at the labels of the data.

    p are the true conditionals of the model's score.  p_mlm are the masked conditionals of a frozen teacher: the model
    as it was when the stage began (`train mlm {...} then kl_projection {...}`), or a trained run
    (`teacher: 'runs/mlm'`), whose weights the model should then start from too.  `weight` adds that many times
    -log p(label | others), the pseudo-likelihood (the thesis: 1).

    Non-negative where the teacher and the model forbid the same; inf where the model forbids what the teacher does not.
    Asks nothing of a backend.  Cost: that of `pseudo_likelihood`, and a pass of the teacher without gradients.
    """
    problem, weight = posterior.problem, float(selection["weight"])
    check_masked(problem, selection.name)
    gone = unlabelled(problem, answer, selection.name)
    total = torch.zeros_like(gone, dtype=problem.env.batch.dtype).masked_fill(gone, float("nan"))
    taught = problem_of(_teacher(selection, problem), problem)
    for variable in problem.graph.discrete:
        labels, count = answer[variable.name], problem.label_count(variable.name)
        with torch.no_grad():
            log_q = masked_conditionals(taught.terms, taught.env, variable, count, answer)
        log_p = label_conditionals(problem.terms, problem.env, variable, count, answer)
        wanted = log_q.exp()
        here = wanted > 0
        lost = (here & log_p.isneginf()).any(-1)
        apart = wanted * (log_q.masked_fill(~here, 0) - log_p.masked_fill(~here | log_p.isneginf(), 0))
        cells = apart.sum(-1).masked_fill(lost, float("inf"))
        if weight:
            picked = log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            cells = cells - weight * picked
        total = total + per_example(torch.where(labels >= 0, cells, 0))
    return total.masked_fill(total.isposinf(), float("inf"))


class Frozen:
    """The model as it was when a stage began; a later stage of the same words freezes it again."""

    def __init__(self, model: EnergyModel) -> None:
        self.model, self.epoch = frozen(copy.deepcopy(model)), 0

    def at(self, model: EnergyModel, epoch: int) -> EnergyModel:
        """The teacher of an epoch."""
        if epoch < self.epoch:
            self.model = frozen(copy.deepcopy(model))
        self.epoch = epoch
        return self.model

    def stored(self) -> Stored:
        """Its weights, the gains of its terms, and the last epoch."""
        from energyml.train.checkpoint import plain_gains

        return Stored(self.model.state_dict(), {"epoch": self.epoch, "gains": plain_gains(self.model.gains)})

    def restore(self, stored: Stored) -> None:
        """Become the teacher of a checkpoint."""
        from energyml.train.checkpoint import gains_from

        self.model.load_state_dict(dict(stored.tensors))
        self.model.gains.clear()
        self.model.gains.update(gains_from(stored.plain["gains"]))
        self.epoch = int(stored.plain["epoch"])


def _teacher(selection: Selection, problem: Problem) -> EnergyModel:
    if selection["teacher"] is not None:
        return trained_run(str(selection["teacher"]), problem, "the teacher of `kl_projection`")
    model, epoch = cast("EnergyModel", problem.env.module), problem.state.epoch

    def begin() -> Frozen:
        if epoch and not is_waiting(model, selection):
            raise EnergyError(
                "the teacher of `kl_projection` is the model as its stage began, and a run that goes on from a "
                "checkpoint without it cannot know it; name it: `kl_projection(teacher: 'runs/mlm')`"
            )
        return Frozen(model)

    return kept(model, selection, begin).at(model, epoch)


__all__ = ["kl_projection"]

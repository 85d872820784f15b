"""Distillation: a score whose whole sequences compare, from one that is normalised at each step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from energyml.bind.problem import Evidence, Problem
from energyml.bind.tensors import Environment
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.log_shares import log_shares, shares
from energyml.objectives.sequences import drawn, first_of_each, prefix_scores
from energyml.posterior import Posterior

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

_NINF = float("-inf")


def distill(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: KL(q, p) on sequences drawn from a teacher that is normalised at each step.

    q is the teacher's probability of the distinct draws, renormalised on them; p is proportional to exp(score) on the
    same ones.  The teacher is a trained run (`teacher: 'runs/local'`) or, when none is named, the model's own scores
    normalised at each step, without gradients: the projection of a locally normalised model onto a globally normalised
    one that Goyal et al. 2019 leave to future work (section 3.2; Hinton et al. 2015).  Labels are not used.

    Non-negative; the exact divergence where the draws are all answers there are.  Asks nothing of a backend.  Cost: T
    steps of `count` rows twice, once with gradients.
    """
    problem = posterior.problem
    steps = problem.steps()
    teacher = _teacher(selection, problem)
    source = steps if teacher is None else _problem_of(teacher, problem).steps(steps.variable)
    if source.count != steps.count:
        raise EnergyError(
            f"the teacher's `{steps.variable}` has {source.count} labels, that of the model {steps.count}; train both "
            "on the same labels"
        )
    labels, counts, log_prob = drawn(source, int(selection["count"]))
    exists = first_of_each(labels.masked_fill(~counts, -1)) & ~log_prob.isneginf()
    wanted = log_prob.masked_fill(~exists, _NINF)
    scores = prefix_scores(steps, labels, counts).masked_fill(~exists, _NINF)
    q = shares(wanted)
    here = q > 0
    log_q, log_p = log_shares(wanted), log_shares(scores)
    lost = (here & log_p.isneginf()).any(1)
    apart = (q * (log_q.masked_fill(~here, 0) - log_p.masked_fill(~here | log_p.isneginf(), 0))).sum(1)
    return apart.masked_fill(lost, float("inf")).to(problem.env.batch.dtype)


def _teacher(selection: Selection, problem: Problem) -> EnergyModel | None:
    """The trained model that a path names, or the one that Python gives."""
    chosen = selection["teacher"]
    if chosen is None:
        return None
    batch = problem.env.batch
    found: EnergyModel = _loaded(chosen, batch.device, batch.dtype) if isinstance(chosen, str) else chosen
    return found


@lru_cache(maxsize=4)
def _loaded(path: str, device: torch.device, dtype: torch.dtype) -> EnergyModel:
    from energyml.train.folder import load_run

    return load_run(path)[0].to(device, dtype).requires_grad_(False)


def _problem_of(teacher: EnergyModel, problem: Problem) -> Problem:
    """The same batch for another model."""
    missing = [name for name in teacher.graph.inputs if name not in problem.env.batch.tensors]
    if missing:
        raise EnergyError(f"the teacher reads the input `{missing[0]}`, which the model does not have")
    return Problem(
        teacher.graph, teacher.terms, Environment(teacher, problem.env.batch, gains=teacher.gains), Evidence()
    )

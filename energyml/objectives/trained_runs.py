"""Trained runs that objectives look at: a teacher, or a source of noise, for the same variables."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch

from energyml.bind.problem import Evidence, Problem
from energyml.bind.tensors import Environment
from energyml.diagnostics import EnergyError
from energyml.ir.graph import Graph
from energyml.model.types import EdgeType

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel


def trained_run(path: str, problem: Problem, role: str) -> EnergyModel:
    """The frozen model of a run, where the batch is; refused where its labels or inputs are not those of the model.

    Args:
        path: the run's folder, or a checkpoint.
        problem: the batch, and through it the model that is trained.
        role: what the run is for, in messages.
    """
    batch, model = problem.env.batch, cast("EnergyModel", problem.env.module)
    run = _loaded(path, batch.device, batch.dtype)
    for variable in model.graph.discrete:
        own = model.graph.label_sets[variable.type.element].labels
        other = run.graph.variables.get(variable.name)
        if other is None or run.graph.label_sets[other.type.element].labels != own:
            raise EnergyError(
                f"{role}, {path}, has no `{variable.name}` with the same labels; train both on the same data"
            )
    missing = [name for name in run.graph.inputs if name not in batch.tensors]
    if missing:
        raise EnergyError(f"{role}, {path}, reads the input `{missing[0]}`, which the model does not have")
    for name in run.graph.inputs.keys() & model.graph.inputs.keys():
        if _label_names(run.graph, name) != _label_names(model.graph, name):
            raise EnergyError(
                f"{role}, {path}, reads other labels of the input `{name}`, or the same in another order; train both "
                "on the same data"
            )
    return run


def _label_names(graph: Graph, name: str) -> list[tuple[str, ...] | None]:
    """The labels that an input holds, and those along its axes."""
    declared = graph.inputs[name].type
    if isinstance(declared, EdgeType):
        return []
    sets = [declared.element, *(axis.extent.name for axis in declared.label_axes)]
    return [graph.label_sets[one].labels for one in sets if one in graph.label_sets]


def problem_of(model: EnergyModel, problem: Problem) -> Problem:
    """The same batch for another model of the same variables and inputs, without evidence."""
    env = Environment(model, problem.env.batch, gains=model.gains)
    return Problem(model.graph, model.terms, env, Evidence())


def frozen(model: EnergyModel) -> EnergyModel:
    """The model as a fixed function: no gradients, no dropped units."""
    return model.requires_grad_(False).eval()


@lru_cache(maxsize=4)
def _loaded(path: str, device: torch.device, dtype: torch.dtype) -> EnergyModel:
    from energyml.train.folder import load_run

    return frozen(load_run(path)[0].to(device, dtype))


__all__ = ["frozen", "problem_of", "trained_run"]

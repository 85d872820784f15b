"""What objectives over full answers share: every cell has a label, and nothing is summed out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.diagnostics import EnergyError
from energyml.execution import is_host_readable
from energyml.objectives.losses import per_example


def check_labels_only(problem: Problem, objective: str) -> None:
    """Refuse models with fields, latents or a length that is part of the answer."""
    graph = problem.graph
    if graph.fields:
        raise EnergyError(
            f"`{objective}` compares labels, and `{graph.fields[0].name}` is a field; `score_matching`, `nll` and "
            "`pseudo_likelihood` train fields"
        )
    for variable in graph.discrete:
        if variable.kind == "latent":
            raise EnergyError(
                f"`{objective}` needs scores of whole answers, and `{variable.name}` is latent; `nll` sums it out"
            )
        if any(graph.dims[dim].kind == "free" for dim in variable.dims):
            raise EnergyError(
                f"`{objective}` needs a fixed length, and that of `{variable.name}` is part of the answer"
            )


def unlabelled(problem: Problem, answer: Mapping[str, Tensor], objective: str) -> Tensor:
    """[B]: which examples have a cell without a label; they are refused on the host, where looking costs nothing."""
    batch = problem.env.batch
    found = torch.zeros(batch.size, dtype=torch.bool, device=batch.device)
    for variable in problem.graph.discrete:
        if variable.name not in answer:
            raise EnergyError(f"`{objective}` needs a full answer, and `{variable.name}` is missing")
        unknown = (answer[variable.name] < 0) & batch.cells_exist(variable.dims, variable.name)
        missing = per_example(unknown.long()) > 0
        if is_host_readable(missing) and bool(missing.any()):
            raise EnergyError(
                f"`{objective}` needs a full answer, and `{variable.name}` has an unknown cell in example "
                f"{int(missing.nonzero()[0])}; `nll` and `marginal_ce` take partial labels"
            )
        found = found | missing
    return found


__all__ = ["check_labels_only", "unlabelled"]

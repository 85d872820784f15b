"""What objectives share: sums over cells, counts of labelled cells, and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError

REDUCTIONS = ("example", "cell", "sum", "none")


@dataclass(frozen=True)
class ExampleLosses:
    """Losses before any reduction.

    Attributes:
        losses: [B].
        objective: what was asked for.
        problem: the batch; what networks gave for it is remembered there.
        counted: gives `cells`, which not every reduction needs.
    """

    losses: Tensor
    objective: Selection
    problem: Problem
    counted: Callable[[], Tensor]

    @property
    def cells(self) -> Tensor:
        """[B]: how many cells of each example have a label or a value."""
        return self.counted()

    def reduced(self, reduction: str | None = None) -> Tensor:
        """The loss of the batch: one of `REDUCTIONS`, the objective's own when `None`."""
        losses, chosen = self.losses, reduction or self.objective["reduction"]
        chosen = chosen or ("cell" if self.objective.name == "marginal_ce" else "example")
        if chosen not in REDUCTIONS:
            raise ValueError(f"unknown reduction `{chosen}`; known: {', '.join(REDUCTIONS)}")
        if chosen == "none":
            return losses
        if chosen == "sum":
            return losses.sum()
        if chosen == "cell":
            return losses.sum() / self.cells.sum().clamp(min=1).to(losses.dtype)
        return losses.sum() / max(1, losses.numel())


def with_cost(objective: Selection, cost: Mapping[str, Tensor] | None) -> Selection:
    """An objective with costs [B, *dims, labels] by variable in place of those that it names."""
    if cost is None:
        return objective
    if objective.card.option("cost") is None:
        raise EnergyError(f"`{objective.name}` has no cost; `ssvm` and `softmax_margin` take `cost=`")
    return Selection(objective.card, {**objective.options, "cost": cost})


def labelled_cells(answer: Mapping[str, Tensor]) -> Tensor:
    """[B]: how many cells have a label or a value, over all variables; -1 and NaN mark those that have none."""
    known = [~one.isnan() if one.is_floating_point() else one >= 0 for one in answer.values()]
    return torch.stack([per_example(one.long()) for one in known]).sum(0)


def per_example(cells: Tensor) -> Tensor:
    """[B]: what cells [B, ...] add up to."""
    return cells.flatten(1).sum(1) if cells.dim() > 1 else cells

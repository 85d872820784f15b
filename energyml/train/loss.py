"""The loss of a stage on one batch: objective, penalty of balance, reduction, share of a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from energyml.cards.card import Selection
from energyml.data.dataset import Batch
from energyml.train.balance import Balance
from energyml.train.stages import Stage
from energyml.training_state import TrainingState

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel


class StageLoss(nn.Module):
    """The loss of a batch as a module, so that processes can share its gradients.

    The loss of a process is its part of the loss of the whole batch, times the number of processes: averaging
    gradients over processes then gives those of the whole batch.
    """

    def __init__(
        self,
        model: EnergyModel,
        stage: Stage,
        balance: Balance,
        using: Selection | None,
        world: int,
        state: Callable[[str | None], TrainingState] = lambda player: TrainingState(player=player),
    ) -> None:
        super().__init__()
        self.model, self.world = model, world
        self._stage, self._balance, self._using, self._state = stage, balance, using, state

    def forward(self, batch: Batch, player: str | None = None) -> Tensor:
        """The reduced loss of a batch on the model's device: that of one player, where an objective has several."""
        found = self.model.example_losses(
            objective=self._stage.objective, using=self._using, training_state=self._state(player),
            lengths=batch.lengths or None, **as_arguments(batch.tensors),
        )  # fmt: skip
        losses, penalty = found.losses, self._balance.penalty(found.problem.env)
        chosen = self._stage["reduction"] or ("cell" if self._stage.objective.name == "marginal_ce" else "example")
        if chosen == "sum":
            return (losses if penalty is None else losses + penalty).sum() * self.world
        by_example = self.world / max(1, batch.total)
        # the penalty speaks of examples, so that its weight means the same whatever the loss is divided by
        added = 0.0 if penalty is None else penalty.sum() * by_example
        if chosen == "example":
            return losses.sum() * by_example + added
        cells = found.cells.sum().to(losses.dtype)
        if self.world > 1:
            torch.distributed.all_reduce(cells)
        return losses.sum() * self.world / cells.clamp(min=1) + added


def as_arguments(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors as keyword arguments."""
    return dict(tensors)


__all__ = ["StageLoss", "as_arguments"]

"""The share of cells whose label is right."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.metrics.tally import Metric, ratio, right_and_all


class Accuracy(Metric):
    """Right cells / all cells, over the whole data: token accuracy, pixel accuracy."""

    name = "accuracy"

    @property
    def shape(self) -> tuple[int, ...]:
        """What is right, and what there is."""
        return (2,)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        right, cells = right_and_all(predicted, gold)
        return torch.stack([right.sum(), cells.sum()])

    def _value(self, sums: list[float]) -> float:
        return ratio(*sums)

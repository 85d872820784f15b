"""The accuracy of each example, averaged over examples."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.metrics.tally import Metric, ratio, right_and_all


class AveragedAccuracy(Metric):
    """1/N sum_i 1/L_i sum_j [prediction of cell j of example i is right]; an example without cells is left out.

    Source: Shevchenko & Osokin 2019, section 6.1, the measure of the handwritten words.
    """

    name = "averaged_accuracy"

    @property
    def shape(self) -> tuple[int, ...]:
        """What is right, and what there is."""
        return (2,)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        right, cells = right_and_all(predicted, gold)
        shares = right.to(self._placed(right.device).dtype) / cells.clamp(min=1)
        return torch.stack([shares.sum(), (cells > 0).sum()])

    def _value(self, sums: list[float]) -> float:
        return ratio(*sums)

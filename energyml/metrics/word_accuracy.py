"""The share of examples that are right as a whole."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.metrics.tally import Metric, ratio, right_and_all


class WordAccuracy(Metric):
    """Examples without a wrong cell / examples; an example without cells is left out."""

    name = "word_accuracy"

    @property
    def shape(self) -> tuple[int, ...]:
        """What is right, and what there is."""
        return (2,)

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        right, cells = right_and_all(predicted, gold)
        return torch.stack([((right == cells) & (cells > 0)).sum(), (cells > 0).sum()])

    def _value(self, sums: list[float]) -> float:
        return ratio(*sums)

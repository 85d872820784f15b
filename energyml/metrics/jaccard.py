"""Intersection over union."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from energyml.metrics.tally import Judged, Metric, MetricError, ratio

FOREGROUND = 1  # the second of two labels


class Jaccard(Metric):
    """|predicted and gold| / |predicted or gold| of the cells with a label.

    Source: Shevchenko & Osokin 2019, section 6.1, for the horses. The paper does not say over what it averages; the
    default is the mean over images of the index of the horse. Where neither prediction nor gold has the label the
    index of an example is 1.

    Args:
        judged: the labels.
        label: the label whose cells are compared; when left out, the second of two, else the mean over all labels that
            prediction or gold have.
        over: `examples`: the mean of each example's index; `cells`: one index of all cells.
    """

    name = "jaccard"

    def __init__(self, judged: Judged, *, label: str | None = None, over: str = "examples") -> None:
        known = judged.labels[: judged.known]
        if label is not None and label not in known:
            raise MetricError(self.name, f"there is no label `{label}`")
        if label is not None:
            self.compared = [known.index(label)]
        else:
            self.compared = [FOREGROUND] if judged.known == FOREGROUND + 1 else list(range(judged.known))
        self.over = over
        super().__init__(judged)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sum of indices and the number of examples, or the intersections and unions of each label."""
        return (2,) if self.over == "examples" else (2, len(self.compared))

    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        exists = (gold >= 0).flatten(1)
        predicted, gold = predicted.flatten(1), gold.flatten(1)
        both, either = [], []
        for label in self.compared:
            found, wanted = (predicted == label) & exists, gold == label
            both.append((found & wanted).sum(1))
            either.append((found | wanted).sum(1))
        shared, joint = torch.stack(both, 1), torch.stack(either, 1)
        if self.over == "cells":
            return torch.stack([shared.sum(0), joint.sum(0)])
        present = joint > 0
        exact = shared.to(self._placed(shared.device).dtype)
        shares = torch.where(present, exact / joint.clamp(min=1), 0).sum(1) / present.sum(1).clamp(min=1)
        indices = torch.where(present.any(1), shares, 1.0)
        counted = exists.any(1)
        return torch.stack([(indices * counted).sum(), counted.sum()])

    def _value(self, sums: list[Any]) -> float:
        if self.over == "examples":
            return ratio(*sums)
        indices = [shared / joint for shared, joint in zip(*sums, strict=True) if joint]
        return ratio(sum(indices), len(indices))

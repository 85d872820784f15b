"""Sums over batches that processes can add up, and metrics: what is computed from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from energyml import errors
from energyml.diagnostics import EnergyError, ShapeError


class MetricError(EnergyError):
    """A metric that cannot judge the labels it is given."""

    def __init__(self, metric: str, problem: str) -> None:
        kind = errors.CATALOGUE["E0821"]
        message = kind.message.format(metric=metric, problem=problem)
        super().__init__(f"error[{kind.code}]: {message}\nhelp: {kind.help}")


@dataclass(frozen=True)
class Judged:
    """What is judged.

    Attributes:
        labels: what gold numbers stand for: the labels that a model can give, then those that it lacks.
        known: how many of them a model can give.
        end: the label that ends a sequence, if there is one.
        pieces: whether labels are pieces of words, which texts are joined from.
    """

    labels: tuple[str, ...]
    known: int
    end: str | None = None
    pieces: bool = False


class Tally(ABC):
    """Sums that are added up over batches, on the predictions' device, without waiting for it.

    Args:
        judged: the labels.

    Attributes:
        sums: everything counted so far; sums of several processes may simply be added.
    """

    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.sums = torch.zeros(self.shape, dtype=torch.float64)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the sums."""

    @abstractmethod
    def _counted(self, predicted: Tensor, gold: Tensor) -> Tensor:
        """The sums of one batch."""

    def update(self, predicted: Tensor, gold: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: [B, *dims] labels; what stands where gold has none does not matter.
            gold: [B, *dims] labels, -1 where there is no cell or no label (`Batch.gold`); a label beyond those that a
                model can give is never predicted, so it counts as wrong.
        """
        if predicted.shape != gold.shape:
            raise ShapeError(f"predictions {list(predicted.shape)} and gold labels {list(gold.shape)} differ in shape")
        counted = self._counted(predicted, gold.to(predicted.device))
        self.sums = self._placed(counted.device) + counted

    def merge(self, other: Self) -> None:
        """Add what another process or another part of the data has counted."""
        self.sums = self.sums + other._placed(self.sums.device)

    def all_reduce(self, group: Any = None, device: torch.device | str | None = None) -> None:
        """Add up over the processes of `torch.distributed`.

        Args:
            group: the processes; all when left out.
            device: where the sums must lie, for processes that have counted nothing yet; nccl needs an accelerator.
        """
        self.sums = self._placed(self.sums.device if device is None else torch.device(device)).clone()
        torch.distributed.all_reduce(self.sums, group=group)

    def reset(self) -> None:
        """Forget everything."""
        self.sums = torch.zeros_like(self.sums)

    def _placed(self, device: torch.device) -> Tensor:
        """The sums on a device, in 64 bits where it has them."""
        return self.sums.to(device, torch.float32 if device.type == "mps" else torch.float64)


class Metric(Tally):
    """A number that says how good predictions are: a fraction from 0 to 1.

    Attributes:
        name: the name in specs.
        higher_is_better: the direction.
    """

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    def value(self) -> float:
        """The metric of everything counted so far."""
        return self._value(self.sums.tolist())

    def details(self) -> dict[str, float]:
        """What the number is made of, by name; nothing unless a metric has more to say."""
        return {}

    @abstractmethod
    def _value(self, sums: list[Any]) -> float:
        """The metric from its sums."""


def ratio(part: float, whole: float) -> float:
    """A share; NaN of nothing."""
    return part / whole if whole else float("nan")


def right_and_all(predicted: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """[B]: how many cells of each example are right, and how many there are."""
    exists = (gold >= 0).flatten(1) if gold.dim() > 1 else (gold >= 0).unsqueeze(1)
    right = (predicted == gold).reshape(exists.shape) & exists
    return right.sum(1), exists.sum(1)


def judged(labels: Sequence[str], known: int | None = None, end: str | None = None, *, pieces: bool = False) -> Judged:
    """What is judged, from labels in order."""
    return Judged(tuple(labels), len(labels) if known is None else known, end, pieces)

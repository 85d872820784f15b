"""How a run is made, and who hears about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from energyml.cards.card import Selection
from energyml.train.stages import Stage


class Interrupted(Exception):
    """Training was asked to stop; its state is saved."""


@dataclass
class Progress:
    """Called as training goes on; the base does nothing."""

    def stage(self, stage: Stage, number: int, count: int) -> None:
        """A stage begins."""

    def step(self, done: int, count: int, loss: float) -> None:
        """A batch is done."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is done and evaluated."""

    def note(self, text: str) -> None:
        """Something worth knowing."""


@dataclass
class Settings:
    """How a run is made.

    Attributes:
        infer: the backend of all stages that name none; the spec's own when `None`.
        metrics: what is evaluated after each epoch; chosen from the stop rules when empty.
        device: where the model lives.
        rank, world: this process, and how many there are.
        evaluation_batch: examples in a batch while evaluating.
        train_metrics: whether the training data is evaluated too, on as many examples as validation has.
        limit: most epochs of a stage, whatever the spec says.
        seed: added to the seed of each stage.
        stopping: asked after each batch; `True` saves and raises `Interrupted`.
    """

    infer: Selection | None = None
    metrics: tuple[str, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    world: int = 1
    evaluation_batch: int = 64
    train_metrics: bool = False
    limit: int | None = None
    seed: int = 0
    stopping: Callable[[], bool] = lambda: False


__all__ = ["Interrupted", "Progress", "Settings"]

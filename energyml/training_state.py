"""Where training stands: what schedules (`1 -> 5`) and objectives that change on their way look at."""

from __future__ import annotations

from dataclasses import dataclass

from energyml.cards.options import Annealed


@dataclass(frozen=True)
class TrainingState:
    """Where a stage of training stands; outside of training its end, so that schedules have their last value.

    Attributes:
        epoch: how many epochs of the stage are done.
        epochs: how many it has.
        player: whose turn it is, for objectives with several: `model` (the energy) or `infer` (what its backend owns);
            all at once when `None`.
    """

    epoch: int = 0
    epochs: int = 1
    player: str | None = None

    def value(self, option: float | Annealed) -> float:
        """An option's value now: a schedule goes from its first to its last value in equal steps, one an epoch."""
        if not isinstance(option, Annealed):
            return float(option)
        share = min(1.0, self.epoch / (self.epochs - 1)) if self.epochs > 1 else 1.0
        return option.first + share * (option.last - option.first)


__all__ = ["TrainingState"]

"""Lowering the learning rate, and stopping, when a metric no longer changes (Shevchenko & Osokin 2019, appendix B)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from energyml.cards.card import Selection


@dataclass
class Plateau:
    """Counts epochs in which a metric did not get better by more than a threshold.

    Attributes:
        metric: its name.
        higher: whether higher values are better.
        patience: epochs before stopping.
        reduce: epochs before the learning rate is divided by ten.
        threshold: the smallest change that counts, absolute.
        best: the best value so far.
        idle: epochs without a change, for stopping.
        waited: epochs without a change since the learning rate last fell.
    """

    metric: str
    higher: bool
    patience: int
    reduce: int
    threshold: float
    best: float | None = None
    idle: int = 0
    waited: int = 0

    @staticmethod
    def of(selection: Selection, higher: bool) -> Plateau:
        """From the options of `plateau`."""
        return Plateau(
            str(selection["metric"]),
            higher,
            int(selection["patience"]),
            int(selection["reduce"]),
            float(selection["threshold"]),
        )

    def step(self, value: float) -> tuple[bool, bool]:
        """Count an epoch; whether to lower the learning rate, and whether to stop."""
        gain = math.inf if self.best is None else (value - self.best if self.higher else self.best - value)
        if gain > self.threshold and not math.isnan(value):
            self.best, self.idle, self.waited = value, 0, 0
            return False, False
        self.idle += 1
        self.waited += 1
        lower = self.waited > self.reduce
        if lower:
            self.waited = 0
        return lower, self.idle >= self.patience

    def state(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


__all__ = ["Plateau"]

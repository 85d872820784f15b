"""Balance: how groups of terms are scaled against each other while training (Shevchenko & Osokin 2019, section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from energyml.bind.gains import Gain, Normalised, magnitude
from energyml.bind.tensors import Environment
from energyml.cards.card import Selection
from energyml.cards.options import Spread
from energyml.ir.graph import Graph
from energyml.train.stages import groups

GRID = Spread(2.0**-8, 2.0**8)
LossesAt: TypeAlias = Callable[[Sequence[Mapping[str, Gain]]], list[float]]


@dataclass
class Balance:
    """No scaling; the base of the others.

    Attributes:
        scale: the terms that are scaled.
        against: those they are weighed against.
        alpha: the scale in use.
    """

    scale: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    alpha: float = 1.0
    notes: list[str] = field(default_factory=list)

    def begin(self, gains: Mapping[str, Gain]) -> None:
        """Called once with the gains that the weights were trained with so far."""

    def gains(self) -> dict[str, Gain]:
        """What the terms are multiplied by."""
        return {}

    def penalty(self, env: Environment) -> Tensor | None:
        """[B]: what is added to the loss of each example."""
        return None

    @property
    def subset(self) -> int:
        """How many training examples `after_epoch` looks at; none when zero."""
        return 0

    def after_epoch(self, losses_at: LossesAt) -> None:
        """Called after each epoch with a function from choices of gains to their losses on the subset."""

    def ratio(self, env: Environment, used: Mapping[str, Gain] | None = None) -> Tensor:
        """[B]: the mean magnitude of the scaled potentials over that of the others, with the gains in use.

        Not a number for an example whose other potentials are all zero or do not exist, as in a chain of one cell.

        Args:
            env: the batch.
            used: gains by term; the balance's own when left out.  Terms that a stage leaves out (0) count as they are.
        """
        gains = self.gains() if used is None else used
        sides = []
        for group in (self.scale, self.against):
            size = magnitude(group, env)
            gain = gains.get(group[0], 1.0) if group else 1.0
            sides.append(size * (gain.of(env) if isinstance(gain, Normalised) else gain or 1.0))
        exists = sides[1] > 0
        # the inner choice keeps gradients finite, the outer one says what has no value
        return torch.where(exists, sides[0] / torch.where(exists, sides[1], 1.0), torch.nan)

    def state(self) -> dict[str, Any]:
        """Plain data."""
        return {"alpha": self.alpha}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the state back."""
        self.alpha = float(state["alpha"])


@dataclass
class Constant(Balance):
    """Figure 1: the scaled terms times a constant."""

    def gains(self) -> dict[str, Gain]:
        """The scaled terms, times alpha."""
        return dict.fromkeys(self.scale, self.alpha)


@dataclass
class Online(Constant):
    """Algorithm 1: after each epoch, the alpha of a grid with the least loss on a subset of the training data."""

    grid: tuple[float, ...] = ()
    looked_at: int = 2000

    def begin(self, gains: Mapping[str, Gain]) -> None:
        """Go on from the scale of the stage before, where these terms had one; else from 1."""
        known = [gains.get(name) for name in self.scale]
        if isinstance(known[0], float) and all(one == known[0] for one in known):
            self.alpha = known[0]

    @property
    def subset(self) -> int:
        """The size of the fixed subset."""
        return self.looked_at

    def after_epoch(self, losses_at: LossesAt) -> None:
        """Pick alpha for the next epoch, and for prediction until then."""
        choices: list[Mapping[str, Gain]] = [dict.fromkeys(self.scale, alpha) for alpha in self.grid]
        losses = dict(zip(self.grid, losses_at(choices), strict=True))
        finite = {alpha: loss for alpha, loss in losses.items() if math.isfinite(loss)}
        if finite:
            self.alpha = min(finite, key=lambda alpha: (finite[alpha], abs(math.log(alpha))))
        if self.alpha in (self.grid[0], self.grid[-1]):
            self.notes.append(f"the best scale {self.alpha:g} lies at the edge of the grid; widen `grid`")


@dataclass
class Offline(Balance):
    """Eq. 20: both groups divided by their mean magnitude, the scaled one times alpha."""

    def gains(self) -> dict[str, Gain]:
        """Factors that depend on each example's potentials."""
        own: dict[str, Gain] = dict.fromkeys(self.scale, Normalised(self.alpha, self.scale))
        return own | dict.fromkeys(self.against, Normalised(1.0, self.against))


@dataclass
class Regularized(Balance):
    """Eq. 21: weight · (|U| / |W| - alpha)² is added to the loss; nothing where the ratio has no value."""

    weight: float = 0.1

    def penalty(self, env: Environment) -> Tensor | None:
        """The penalty of each example."""
        ratio = self.ratio(env)
        return self.weight * (torch.where(ratio.isnan(), self.alpha, ratio) - self.alpha).square()


@dataclass
class Temperature(Balance):
    """Appendix A.2: one factor for both groups, plain or after dividing both by their mean magnitude."""

    normalize: bool = False

    def gains(self) -> dict[str, Gain]:
        """The same factor everywhere."""
        if not self.normalize:
            return dict.fromkeys((*self.scale, *self.against), self.alpha)
        own: dict[str, Gain] = dict.fromkeys(self.scale, Normalised(self.alpha, self.scale))
        return own | dict.fromkeys(self.against, Normalised(self.alpha, self.against))


def make_balance(selection: Selection | None, graph: Graph) -> Balance:
    """The balance of a stage."""
    if selection is None or selection.name == "none":
        return Balance()
    scale, against = groups(selection, graph)
    match selection.name:
        case "constant":
            return Constant(scale, against, float(selection["alpha"]))
        case "online":
            spread = selection["grid"] or GRID
            return Online(scale, against, grid=powers(spread), looked_at=int(selection["subset"]))
        case "offline" if selection["regularized"]:
            return Regularized(scale, against, float(selection["alpha"]), weight=float(selection["weight"]))
        case "offline":
            return Offline(scale, against, float(selection["alpha"]))
        case "temperature":
            return Temperature(scale, against, float(selection["alpha"]), normalize=bool(selection["normalize"]))
    raise AssertionError(f"no balance `{selection.name}`")


def powers(spread: Spread) -> tuple[float, ...]:
    """The powers of two from one end of a range to the other, both ends included."""
    low, high = math.log2(spread.low), math.log2(spread.high)
    steps = max(1, round(high - low))
    return tuple(2.0 ** (low + (high - low) * step / steps) for step in range(steps + 1))


def watched(graph: Graph) -> Balance | None:
    """Two groups whose ratio is worth watching where no balance names any; `None` where there are no two."""
    from energyml.cards import registry
    from energyml.diagnostics import EnergyError

    card = registry.find("balance", "offline")
    assert card is not None
    try:
        return Balance(*groups(Selection(card), graph))
    except EnergyError:
        return None


__all__ = [
    "Balance", "Constant", "Offline", "Online", "Regularized", "Temperature", "make_balance", "powers", "watched",
]  # fmt: skip

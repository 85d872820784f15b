"""Parallel tempering: chains at several temperatures that exchange their answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from energyml.backends.mcmc.kernel import Current, Kernel, State, accepted
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import Labels


def ladder(count: int, hottest: float) -> list[float]:
    """Inverse temperatures from 1 down to 1 / `hottest`, evenly spaced in their logarithms."""
    if count == 1:
        return [1.0]
    return [float(hottest) ** (-number / (count - 1)) for number in range(count)]


class Tempering(Kernel):
    """A kernel at each temperature, and swaps between neighbours.  Source: Geyer 1991.

    The target's chains are ladders: chain c at rung r stands at c * rungs + r, and rung 0 has temperature 1.  Cost of a
    sweep: that of the kernel, for all rungs.

    Args:
        inner: moves the chains; it follows each chain's inverse temperature.
        betas: the inverse temperatures of a ladder, the first one 1.
    """

    def __init__(self, inner: Kernel, betas: Sequence[float]) -> None:
        super().__init__(inner.target)
        self.inner, self.rungs, self.valid = inner, len(betas), inner.valid
        self.betas = torch.tensor(betas, device=self.target.device, dtype=self.target.dtype)

    @property
    def warning(self) -> str | None:
        """That of the kernel inside."""
        return self.inner.warning

    def init(self, generator: torch.Generator, beta: Tensor | None = None, labels: Labels | None = None) -> State:
        """Ladders at their starting points."""
        own = self.betas.repeat(self.target.chains // self.rungs) if beta is None else beta
        return super().init(generator, own, labels)

    def plan(self, current: Current, random: Randomness) -> Iterable[int | None]:
        """A sweep of the kernel, swaps of rungs (0, 1), (2, 3), ..., then of (1, 2), (3, 4), ..."""
        return (None, 0, 1)

    def move(self, current: Current, move: int | None, random: Randomness) -> None:
        """A sweep, or swaps between neighbouring rungs."""
        if move is None:
            self.inner.advance(current, random)
            return
        low = torch.arange(move, self.rungs - 1, 2, device=self.target.device)
        if not len(low):
            return
        first = torch.arange(self.target.chains // self.rungs, device=low.device).unsqueeze(1) * self.rungs
        one, two = (first + low).flatten(), (first + low + 1).flatten()
        gain = current.score[:, two] - current.score[:, one]
        ratio = (current.beta[one] - current.beta[two]) * gain
        taken = accepted(ratio, random)
        current.score = _swapped(current.score, one, two, taken)
        for held in (current.labels, current.cache):
            for name, values in held.items():
                held[name] = _swapped(values, one, two, taken)


def _swapped(values: Tensor, one: Tensor, two: Tensor, taken: Tensor) -> Tensor:
    """Values [B, C, ...] whose chains `one` and `two` are exchanged where [B, n] says so."""
    where = taken.reshape(*taken.shape, *([1] * (values.dim() - 2)))
    a, b = values[:, one], values[:, two]
    made = values.clone()
    made[:, one], made[:, two] = torch.where(where, b, a), torch.where(where, a, b)
    return made


__all__ = ["Tempering", "ladder"]

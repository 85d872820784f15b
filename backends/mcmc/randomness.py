"""Where samplers get their chance from: every draw of every kernel goes through one small interface.

A test may put another source in its place that goes through all outcomes with their probabilities, and so computes the
exact transition matrix of the very code that samples.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Drawable(Protocol):
    """Cells that code outside torch draws, by numbers that follow from a key."""

    def draw(self, key: int) -> None:
        """Draw them."""
        ...


class Randomness:
    """Draws from a torch generator.

    Args:
        generator: whose state moves on with each draw; its device is where draws are made.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    @staticmethod
    def resumed(state: Tensor, device: torch.device) -> Randomness:
        """Chance that goes on from a generator's saved state."""
        generator = torch.Generator(device)
        generator.set_state(state)
        return Randomness(generator)

    @property
    def state(self) -> Tensor:
        """The generator's state, as a tensor of bytes."""
        state: Tensor = self.generator.get_state()
        return state

    def categorical(self, scores: Tensor) -> Tensor:
        """[...]: labels drawn from the softmax of scores [..., K]; 0 where all scores are -inf."""
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top.masked_fill(top.isneginf(), 0)).double().exp()
        total = weights.cumsum(-1)
        u = self._uniform(scores.shape[:-1], torch.float64, scores.device).unsqueeze(-1)
        drawn = (total <= u * total[..., -1:]).sum(-1).clamp(max=scores.shape[-1] - 1)
        return drawn.masked_fill(total[..., -1] == 0, 0)

    def chance(self, probability: Tensor) -> Tensor:
        """[...]: true with the given probabilities."""
        return self._uniform(probability.shape, probability.dtype, probability.device) < probability

    def permutation(self, count: int) -> list[int]:
        """The numbers below `count` in random order."""
        order: list[int] = torch.randperm(count, generator=self.generator, device=self.generator.device).tolist()
        return order

    def key(self) -> int:
        """63 bits for a generator that counts; this one moves on by one number."""
        return int(torch.randint(2**63 - 1, (), generator=self.generator, device=self.generator.device))

    def sites(self, cells: Drawable) -> None:
        """Draw cells by a key of their own."""
        cells.draw(self.key())

    def _uniform(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=dtype, device=device)


__all__ = ["Drawable", "Randomness"]

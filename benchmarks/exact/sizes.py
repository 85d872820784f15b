"""What is measured: sizes, tasks, and one random problem of each size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Size = tuple[int, int, int]

# (batch, length, labels)
TUNED: tuple[Size, ...] = ((32, 20, 26), (32, 50, 23), (16, 50, 100), (8, 40, 400), (64, 128, 10), (1, 2000, 23))
UNTUNED: tuple[Size, ...] = ((24, 37, 45), (48, 80, 15), (4, 300, 64), (20, 25, 7), (5, 60, 250))
SIZES = TUNED + UNTUNED
QUICK: tuple[Size, ...] = ((32, 20, 26), (20, 25, 7))

LOG_PARTITION, NLL, VITERBI, MARGINALS = "log_partition", "nll", "viterbi", "marginals"
TASKS = (LOG_PARTITION, NLL, VITERBI, MARGINALS)
# The same as `nll` for peers: ours gives the gradients in one call instead of through the tape.
DIRECT = "nll without a tape"


@dataclass(frozen=True)
class Case:
    """One batch of chains.

    Attributes:
        unary: [B, T, C] scores of labels.
        trans: [C, C] scores of neighbouring labels (earlier, later).
        lengths: [B] how many cells each chain has; `None` when all have T.
        gold: [B, T] labels, -1 behind the end.
    """

    unary: Tensor
    trans: Tensor
    lengths: Tensor | None
    gold: Tensor

    @property
    def size(self) -> Size:
        batch, length, labels = self.unary.shape
        return batch, length, labels

    @property
    def ragged(self) -> bool:
        return self.lengths is not None

    @cached_property
    def ends(self) -> Tensor:
        """[B]: the lengths, full ones too."""
        batch, length, _ = self.size
        return torch.full((batch,), length) if self.lengths is None else self.lengths

    @cached_property
    def mask(self) -> Tensor:
        """[B, T]: which cells exist."""
        return torch.arange(self.size[1]) < self.ends[:, None]

    @cached_property
    def known(self) -> Tensor:
        """[B, T]: gold labels with 0 behind the end, for peers that index with them."""
        return self.gold.clamp(min=0)

    def double(self) -> Case:
        """The same numbers in float64."""
        return Case(self.unary.double(), self.trans.double(), self.lengths, self.gold)

    def score(self, labels: Tensor) -> Tensor:
        """[B]: the scores of labels [B, T], in float64."""
        at = labels.clamp(min=0)
        cells = self.unary.double().gather(2, at.unsqueeze(-1)).squeeze(-1)
        steps = self.trans.double()[at[:, :-1], at[:, 1:]]
        return (cells * self.mask).sum(1) + (steps * self.mask[:, 1:]).sum(1)


def make_case(size: Size, ragged: bool, scale: float = 1.0, seed: int = 0) -> Case:
    """Standard normal scores times `scale`; ragged lengths are uniform in [T/4, T] and one chain is full."""
    batch, length, labels = size
    generator = torch.Generator().manual_seed(seed)
    unary = scale * torch.randn(batch, length, labels, generator=generator)
    trans = scale * torch.randn(labels, labels, generator=generator)
    gold = torch.randint(labels, (batch, length), generator=generator)
    if not ragged:
        return Case(unary, trans, None, gold)
    lengths = torch.randint(max(1, length // 4), length + 1, (batch,), generator=generator)
    lengths[batch // 2] = length
    exists = torch.arange(length) < lengths[:, None]
    return Case(unary, trans, lengths, gold.masked_fill(~exists, -1))

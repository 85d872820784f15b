"""Long chains cut into blocks that are worked on side by side.

A chain of T-1 steps becomes K blocks of L steps.  The products of the step matrices of all blocks are taken at once (L
batched products), a pass over the K blocks gives the vectors at their borders, and with these all blocks run at once
again.  That is about 2 (L + K) operations in a row instead of T, for C times the multiplications of the plain pass.

The products are not guarded against underflow on the way.  They need not be: each border is compared with what the
guarded pass through the block before it arrives at, label by label, and a border that differs is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# Calling operations, in multiply-adds of one thread that take as long.  For products, forward and back: a step of a
# chain that is left whole; what blocks cost beside their arithmetic, and for each of their steps; an entry of a matrix.
STEP, CUTTING, CUT_STEP, ENTRY = 100_000, 4_000_000, 400_000, 50
# The same for maxima of sums, forward only, in additions with a maximum; what these cost where a step leaves the cache.
STEP_OF_MAXIMA, CUTTING_MAXIMA, CUT_STEP_OF_MAXIMA, ADD_FAR = 40_000, 1_200_000, 120_000, 4
CACHED = 600_000
# What cutting must save to be done.
WORTH = 0.8


@dataclass(frozen=True)
class Blocks:
    """How a chain is cut.

    Attributes:
        number: K, how many blocks.
        length: L, how many steps each has; the last may be filled up with steps that do not exist.
    """

    number: int
    length: int

    def rows(self, tensor: Tensor, apart: bool = False) -> Tensor:
        """What a chain has at each step, [B, T-1, ...], as rows [L, K B, ...]; 0 where it is filled up.

        With `apart` as a view [L, K, B, ...].
        """
        batch, steps, *beyond = tensor.shape
        missing = self.number * self.length - steps
        if missing:
            tensor = torch.cat([tensor, tensor.new_zeros(batch, missing, *beyond)], 1)
        rows = tensor.reshape(batch, self.number, self.length, *beyond).transpose(0, 2)
        return rows if apart else rows.contiguous().view(self.length, self.number * batch, *beyond)

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows [L, K B, ...] as what a chain has at each step, [B, K L, ...]."""
        length, number, *beyond = rows.shape
        return rows.view(length, self.number, number // self.number, *beyond).transpose(0, 2).flatten(1, 2)


@lru_cache
def cut(batch: int, steps: int, labels: int, shared: bool) -> Blocks:
    """One block, or as many as make a long chain of few labels faster; `shared` where all steps have one table."""
    blocks = _in_blocks(steps)
    work = batch * steps * labels**2 * (ENTRY + labels * (1 if shared else 4))
    faster = CUTTING + CUT_STEP * blocks.length + work < WORTH * STEP * steps
    return blocks if faster else Blocks(1, steps)


@lru_cache
def cut_maxima(batch: int, steps: int, labels: int) -> Blocks:
    """The same for maxima of sums, which take longer than products."""
    blocks = _in_blocks(steps)
    work = batch * steps * labels**3 * (1 if blocks.number * batch * labels**3 <= CACHED else ADD_FAR)
    faster = CUTTING_MAXIMA + CUT_STEP_OF_MAXIMA * blocks.length + work < WORTH * STEP_OF_MAXIMA * steps
    return blocks if faster else Blocks(1, steps)


def _in_blocks(steps: int) -> Blocks:
    number = max(1, round(math.sqrt(steps)))
    return Blocks(number, -(-steps // number))


def matrices(
    emission: Tensor,
    multiply: Callable[[Tensor, int, Tensor], Tensor],
    exists: Tensor | None,
    every: int,
) -> Tensor:
    """[R, C, C]: the product of the step matrices of each row's block, each up to a factor.

    Args:
        emission: [L, R, C] the factors of the labels that each step leads to.
        multiply: rows [R, C, C] times the pair factors of step l, into a buffer.
        exists: [L, R] which steps exist; those that do not are the identity.
        every: how many steps go between two scalings.
    """
    length, rows, labels = emission.shape
    current = torch.eye(labels, dtype=emission.dtype, device=emission.device).repeat(rows, 1, 1)
    spare = torch.empty_like(current)
    for step, factor in enumerate(emission.unsqueeze(2).unbind(0)):
        onward = multiply(current, step, spare).mul_(factor)
        if exists is not None:
            onward = torch.where(exists[step].reshape(-1, 1, 1), onward, current)
        current, spare = onward, current
        if step % every == every - 1 or step == length - 1:
            current /= current.sum((1, 2), keepdim=True)
    return current


def borders(first: Tensor, products: Tensor) -> Tensor:
    """[K, B, C]: the forward vector before each block, scaled to sum to 1; `products` are [K, B, C, C]."""
    found = [first]
    for one in products[:-1].unbind(0):
        onward = torch.bmm(found[-1].unsqueeze(1), one).squeeze(1)
        found.append(onward / onward.sum(-1, keepdim=True))
    return torch.stack(found)


def borders_behind(before: Tensor, products: Tensor) -> Tensor:
    """[K, B, C]: the backward vector behind each block, scaled so that it weighs 1 with the forward vector there.

    Zero for labels that cannot be reached: nothing asks for them, and they may be out of all proportion.
    """
    found = [torch.ones_like(before[0])]
    for one, ahead in zip(products[1:].flip(0).unbind(0), before[1:].flip(0).unbind(0), strict=True):
        onward = torch.bmm(one, found[-1].unsqueeze(2)).squeeze(2).masked_fill(ahead == 0, 0)
        weight = (onward * ahead).sum(-1, keepdim=True)
        found.append(onward / weight.masked_fill(weight == 0, 1))
    return torch.stack(found[::-1])


def disagreement(before: Tensor, after: Tensor, exists: Tensor | None) -> Tensor:
    """[B]: whether a border differs from what the block before it arrives at, by more than rounding.

    Args:
        before: [K, B, C] the vectors before each block, from the products.
        after: [K, B, C] the vectors after the last step of each block, from the guarded pass.
        exists: [K, B] whether that last step exists.
    """
    stated, reached = before[1:], after[:-1]
    error = 256 * torch.finfo(before.dtype).eps
    same = ((stated - reached).abs() <= error * reached).all(-1)
    if exists is not None:
        same = same | ~exists[:-1]
    return ~same.all(0)

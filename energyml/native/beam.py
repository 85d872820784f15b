"""Pieces of beam search on the CPU: torch tensors around the native kernels.

A search has rows, the hypotheses that go on.  Those of an example stand together, and examples have as many of them as
can still matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.execution import is_addressable
from energyml.native import beams as kernels

# Numbers below which a second thread costs more than it brings.
WORTH_A_THREAD = 100_000
# The best are kept in order by insertion, which wide beams should not pay for.
WIDEST = 256
_TYPES = (torch.float32, torch.float64)


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels can run on these tensors: all on the CPU, all float32 or all float64."""
    if kernels is None or torch.is_autocast_enabled("cpu") or not tensors:
        return False
    dtype = tensors[0].dtype
    return dtype in _TYPES and all(one.dtype is dtype for one in tensors) and is_addressable(*tensors)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows R that a step looks at.

    Attributes:
        total: [R] their scores so far.
        label: [R] their last labels; the number of labels stands for the start symbol.
        parent: [R] the rows of the step before that they extend; their examples before the first step.
        example: [R] their examples.
        distinct: [P] the parents, each once.
        slot: [R] which of these each row has.
    """

    total: Tensor
    label: Tensor
    parent: Tensor
    example: Tensor
    distinct: Tensor
    slot: Tensor

    def __len__(self) -> int:
        return self.label.shape[0]


class _Room:
    """Memory for the rows of a step, and for where those of each example begin."""

    def __init__(self, examples: int, room: int, dtype: torch.dtype) -> None:
        self.first = torch.zeros(examples + 1, dtype=torch.int64, device="cpu")
        self.total = torch.zeros(room, dtype=dtype, device="cpu")
        self.whole = tuple(torch.zeros(room, dtype=torch.int64, device="cpu") for _ in range(5))
        self.pointers = tuple(one.data_ptr() for one in (self.first, self.total, *self.whole))

    def rows(self, count: int, parents: int) -> Rows:
        label, parent, example, distinct, slot = self.whole
        return Rows(
            self.total[:count], label[:count], parent[:count], example[:count], distinct[:parents], slot[:count]
        )


class Choosing:
    """The choices of a search, from its first step to its answers.

    Args:
        lengths: [B] int64: how many steps each example has; may have, where the length is part of the answer.
        size: the most of them.
        labels: how many labels there are.
        end: the label that ends an answer, where its length is part of it.
        width: of the beam, at most `WIDEST`.
        wanted: how many answers are wanted.
        local: whether scores become log-probabilities.
        within: whether complete answers keep their place in the beam.
        penalty: complete answers are ranked by score / length ** penalty.
        dtype: of the scores.

    Cost of a step: two passes over the scores, one of them with exponentials where they become log-probabilities.
    """

    def __init__(
        self, lengths: Tensor, size: int, labels: int, end: int | None, *, width: int, wanted: int, local: bool,
        within: bool, penalty: float, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        assert kernels is not None and width <= WIDEST
        examples = lengths.shape[0]
        self.examples, self.width, self.labels, self.size, self.end = examples, width, labels, size, end
        self.double = int(dtype is torch.float64)
        self._lengths = lengths.contiguous()
        self.rank = torch.full((examples, width), float("-inf"), dtype=dtype, device="cpu")
        self.score = self.rank.clone()
        self._ends = tuple(torch.full((examples, width), -1, dtype=torch.int32, device="cpu") for _ in range(3))
        self._count = torch.zeros(examples, dtype=torch.int32, device="cpu")
        self._back = tuple(torch.empty(size, examples * width, dtype=torch.int32, device="cpu") for _ in range(2))
        self._now, self._next = (_Room(examples, examples * width, dtype) for _ in range(2))
        self._pool = tuple(one.data_ptr() for one in (self.rank, self.score, *self._ends, self._count))
        self._fixed = (
            examples, width, labels, size, -1 if end is None else end, min(wanted, width), int(local), int(within),
            float(penalty), self._lengths.data_ptr(), *self._pool, *(one.data_ptr() for one in self._back),
        )  # fmt: skip

    def start(self) -> Rows:
        """One row for each example that has a step; the answer of the others is empty."""
        empty = self._lengths <= 0
        self.rank[empty, 0] = self.score[empty, 0] = 0.0
        self._count[empty] = 1
        alive = (~empty).nonzero().flatten()
        count = alive.shape[0]
        self._now.first[1:] = (~empty).cumsum(0)
        found = self._now.rows(count, count)
        found.total.zero_()
        found.label.fill_(self.labels)
        torch.arange(count, out=found.slot, device="cpu")
        for one in (found.parent, found.example, found.distinct):
            one.copy_(alive)
        return found

    def step(self, scores: Tensor, bias: Tensor, t: int) -> Rows | None:
        """The rows that go on after step t; `None` where a score is not a number.

        Args:
            scores: [R, labels] without the bias, which is added in place.
            bias: [labels].
            t: the step.
        """
        assert kernels is not None
        rooms = (*self._now.pointers, *self._next.pointers)
        given = (t, scores.data_ptr(), bias.data_ptr())
        sizes = kernels.choose(self.double, *self._fixed, *given, *rooms, _threads(scores.numel()))
        if sizes is None:
            return None
        self._now, self._next = self._next, self._now
        return self._now.rows(*sizes)

    def answers(self) -> Tensor:
        """[B, width, size]: the complete answers in the order of `rank` and `score`."""
        assert kernels is not None
        found = torch.empty(self.examples, self.width, self.size, dtype=torch.int64, device="cpu")
        fill = 0 if self.end is None else self.end
        back = (one.data_ptr() for one in self._back)
        kernels.follow(self.examples, self.width, self.size, fill, *self._pool[2:], *back, found.data_ptr())
        return found


def attend(
    query: Tensor, bias: Tensor, keys: Tensor, values: Tensor, heads: int, lists: Tensor,
    which: Tensor | None = None, counts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What queries read: scaled dot-product attention over positions that are listed by their numbers.

    Args:
        query: [R, heads * d].
        bias: [heads * d], added to every query.
        keys: [N, heads * d], rows at any stride.
        values: [N, heads * e], rows at any stride.
        heads: how many heads.
        lists: [L, longest] int32: numbers of positions.
        which: [R] int64: the list of each row; its own where left out.
        counts: [L] int32: how many numbers of a list count; all where left out.

    Returns:
        [R, heads * e]; zeros where a list is empty.  Cost: R * longest * (d + e) * heads.
    """
    assert kernels is not None
    rows, size, wide = query.shape[0], query.shape[1] // heads, values.shape[1] // heads
    found = torch.empty(rows, values.shape[1], dtype=query.dtype, device="cpu")
    longest = lists.shape[1]
    kernels.attend(
        int(query.dtype is torch.float64), rows, heads, size, wide, query.data_ptr(), query.stride(0), bias.data_ptr(),
        keys.data_ptr(), keys.stride(0), values.data_ptr(), values.stride(0), lists.data_ptr(), lists.stride(0),
        0 if which is None else which.data_ptr(), 0 if counts is None else counts.data_ptr(), longest,
        found.data_ptr(), _threads(rows * longest * (query.shape[1] + values.shape[1])),
    )  # fmt: skip
    return found


def _threads(work: int) -> int:
    return max(1, min(torch.get_num_threads(), work // WORTH_A_THREAD))


__all__ = ["WIDEST", "Choosing", "Rows", "attend", "serves"]

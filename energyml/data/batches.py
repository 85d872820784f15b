"""Batches of a data set: by length, in an order that is a pure function of seed and epoch, shared between processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energyml.data.dataset import Batch, Dataset
from energyml.data.order import shuffled
from energyml.diagnostics import EnergyError

POOL = 50  # batches whose examples are sorted by length together: enough to pad little, few enough to stay random


class Batches:
    """The batches of a data set, epoch by epoch.

    Iterating gives the rest of the current epoch and then moves on to the next, so that
    `for epoch in range(batches.epoch, epochs): for batch in batches: ...` continues where `load_state_dict` says.
    Examples of a batch have similar lengths: a shuffled epoch is cut into pools of 50 batches, each pool is sorted by
    length and cut, and the batches of the epoch are shuffled again. With several processes, each has its share of every
    batch, so that all processes together take the steps of a single one. The state is an epoch, a position and a seed:
    nothing else decides about the order.

    Args:
        dataset: the examples.
        size: examples of a batch, over all processes; a remainder of fewer than `world` joins the batch before it.
        seed: of the order.
        shuffle: whether the order is random; else examples come sorted by length, longest first (for evaluation).
        rank: the number of this process.
        world: how many processes there are.
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int = 32,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if size < 1:
            raise EnergyError(f"a batch needs at least one example, found `size` {size}")
        if not 0 <= rank < world:
            raise EnergyError(f"process {rank} of {world} does not exist: ranks are counted from 0")
        if shuffle and size < world:
            raise EnergyError(f"a batch of {size} examples cannot be shared by {world} processes; make it larger")
        if shuffle and 0 < len(dataset) < world:
            raise EnergyError(f"{len(dataset)} examples cannot be shared by {world} processes")
        self.dataset, self.size, self.shuffle, self.rank, self.world = dataset, size, shuffle, rank, world
        self.epoch, self.position, self.seed = 0, 0, seed
        self._keys = [dataset.sizes(dim) for dim in reversed(dataset.dims)]

    def __len__(self) -> int:
        """The batches of an epoch."""
        return len(self._cuts(len(self.dataset)))

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch; the position counts a batch as soon as it is given."""
        plan = self.plan(self.epoch)
        while self.position < len(plan):
            rows = plan[self.position]
            self.position += 1
            own = rows[self.rank :: self.world]
            if len(own):
                yield self.dataset.batch(own, total=len(rows))
        self.epoch, self.position = self.epoch + 1, 0

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The rows of each batch of an epoch, over all processes."""
        count = len(self.dataset)
        if not self.shuffle:
            order = self._by_length(np.arange(count))[::-1]
            return [order[start:stop] for start, stop in self._cuts(count)]
        order = shuffled(count, self.seed, epoch)
        cuts = self._cuts(count)
        for first in range(0, len(cuts), POOL):
            start, stop = cuts[first][0], cuts[min(first + POOL, len(cuts)) - 1][1]
            order[start:stop] = self._by_length(order[start:stop])
        return [order[slice(*cuts[number])] for number in shuffled(len(cuts), self.seed, epoch, 1).tolist()]

    def _by_length(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._keys:
            return rows
        return rows[np.lexsort([key[rows] for key in self._keys])]

    def _cuts(self, count: int) -> list[tuple[int, int]]:
        starts = list(range(0, count, self.size))
        if self.shuffle and len(starts) > 1 and count - starts[-1] < self.world:
            starts.pop()
        return list(zip(starts, [*starts[1:], count], strict=True))

    # ----------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, int]:
        """Where in the data training stands."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, with a data set and a batch size like there."""
        position = int(state["position"])
        if not 0 <= position <= len(self):
            raise EnergyError(
                f"position {position} does not exist: an epoch has {len(self)} batches; were the data or the batch "
                "size changed?"
            )
        self.epoch, self.position, self.seed = int(state["epoch"]), position, int(state["seed"])

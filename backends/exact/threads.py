"""Torch's threads on the CPU, for recursions that are made of many small operations.

Torch gives every operation that is not tiny to all of its threads.  Where a step of a recursion takes microseconds,
they wait for each other longer than they work; and as sums are handed out by rows and their maxima by columns, every
core reads what another one has just written.  So steps that stay in the caches are left to one thread.

Where chains are the outermost axis, sums and maxima are handed out alike: by chains.  Steps of many such sums are
worked on by all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from energyml.execution import is_functional

# Sums or products of a step below which one thread is faster than two: up to three times (by benchmarks/exact).
SMALL_STEP = 2_000_000
# Sums of a step from which all threads are faster than one, where sums and maxima are handed out alike.
SPREAD_STEP = 80_000


def for_small_steps(scores: Tensor) -> AbstractContextManager[Any]:
    """A context for a recursion over chains [B, T, C]: one thread where its steps are small, and else as it is.

    Torch's setting is that of the calling thread, and what threads begin with that are new to torch.
    """
    small = scores.shape[0] * scores.shape[2] ** 2 < SMALL_STEP
    return one_thread() if small and _several(scores) else nullcontext()


def worth_spreading(scores: Tensor, sums: int) -> bool:
    """Whether steps of so many sums are worked on by all threads, where sums and maxima are handed out alike."""
    return sums >= SPREAD_STEP and _several(scores)


def _several(scores: Tensor) -> bool:
    """Whether there are threads to choose between: on the CPU, where nothing is recorded."""
    return scores.is_cpu and not is_functional() and torch.get_num_threads() > 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations are not handed out to other threads; afterwards, and after errors, they are as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Random orders that are the same for ever: a pure function of their seeds, on every platform and version."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014, figure 17): a bijection of 64-bit numbers."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def shuffled(count: int, *seeds: int) -> NDArray[np.int64]:
    """[count]: a permutation of 0..count-1 that depends on the seeds alone; O(count log count).

    NumPy's and torch's generators may change their streams between versions; a resumed run must not notice.
    """
    state = np.zeros(1, np.uint64)
    for seed in seeds:
        state = _mixed(state + np.uint64((seed * _GOLDEN + _GOLDEN) & _MASK))
    keys = _mixed(state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return np.argsort(keys, kind="stable")

"""What a file may ask for: sizes that its own length does not bound."""

from __future__ import annotations

import numpy as np

from energyml.interop.numbers import Integers

MOST_LABELS = 200_000  # names of values: one set for each distinct number of values
MOST_CELLS = 20_000_000  # numbers in all rows of single variables: 160 MB
MOST_ENTRIES = 2**24  # numbers in all tables of a sparse format: 128 MB each time that they are copied

LIMIT = f"{MOST_CELLS:,} values of all variables together, and {MOST_LABELS:,} names of values"


def first_too_large(cards: Integers) -> int | None:
    """The variable with which a model would get too large, if there is one."""
    limited = np.minimum(cards, MOST_CELLS + 1)
    distinct = np.zeros(len(cards), np.int64)
    where = np.unique(limited, return_index=True)[1]
    distinct[where] = limited[where]
    bad = (np.cumsum(limited) > MOST_CELLS) | (np.cumsum(distinct) > MOST_LABELS)
    return int(np.argmax(bad)) if bad.any() else None

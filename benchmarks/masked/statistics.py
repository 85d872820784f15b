"""Means with deviations, paired differences with intervals, and rows of tables."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence

from benchmarks.masked.records import Record

# Student's t at 97.5%, by degrees of freedom
STUDENT = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def prose(*sentences: str) -> str:
    """A paragraph, filled."""
    return textwrap.fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False) + "\n"


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation; nothing for no value."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def difference(values: Sequence[float], digits: int) -> str:
    """The mean of paired differences with its interval of 95%."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):+.{digits}f}"
    if len(values) == 1:
        return mean
    freedom = len(values) - 1
    half = (STUDENT[freedom] if freedom < len(STUDENT) else 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    return f"{mean} [{low:+.{digits}f}, {high:+.{digits}f}]"


def paired(
    records: Sequence[Record], field: str, one: str, other: str, value: str, key: Sequence[str], digits: int
) -> str:
    """The differences of a value between two kinds of records that agree in `key`."""
    known = {tuple(r[name] for name in key): r[value] for r in records if r[field] == other}
    own = {tuple(r[name] for name in key): r[value] for r in records if r[field] == one}
    return difference([own[at] - known[at] for at in own if at in known], digits)

"""Half precision is too coarse to add up in: sums are taken in float32, and answers are rounded once, at the end.

Single precision is too coarse for what large sums differ by: such answers are computed in double precision, and are
rounded once as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.bind.batch import HALF, accumulated
from energyml.queries import Query
from energyml.result import Assignment, Status
from energyml.transforms import numbers, seen

__all__ = ["HALF", "accumulated", "cancels", "fits", "large", "rounded", "widened"]

# Sums up to this are rounded by 4e-6 at most in single precision.
LARGEST_SUM = 64.0


def cancels(query: Query) -> bool:
    """Whether an answer is what sums differ by that may be far larger than it, or a sum that is about to be one."""
    return query.kind in ("cross_entropy", "kl") or (query.wide and query.kind == "log_partition")


def large(*scores: Tensor) -> bool:
    """Whether single precision would round sums of these scores so far that probabilities show it.

    They are looked at where nobody has to wait for them; elsewhere the answer is no.  Cost: O(size).
    """
    total = 0.0
    for one in scores:
        total += _largest(one) if one.dtype is torch.float32 and seen(one) else 0.0
        if total > LARGEST_SUM:
            return True
    return False


def _largest(scores: Tensor) -> float:
    """The largest magnitude of a finite number; 0 where there is none."""
    found = numbers(scores.detach())
    if found is None or not found.size:
        return 0.0
    high, low = float(found.max()), float(found.min())
    if not (np.isfinite(high) and np.isfinite(low)):
        finite = np.isfinite(found)
        high, low = (float(extreme(found, where=finite, initial=0.0)) for extreme in (np.max, np.min))
    return max(high, -low)


def widened(scores: Tensor) -> Tensor:
    """Scores in the type that sums are taken in; their gradients keep the type that they have."""
    return scores.float() if scores.dtype in HALF else scores


def rounded(value: Any, dtype: torch.dtype) -> Any:
    """An answer from a wider type (a tensor, tensors by name, or an assignment) in that of the scores."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    if isinstance(value, Assignment):
        return replace(value, score=value.score.to(dtype))
    return {name: one.to(dtype) for name, one in value.items()}


def fits(value: Any, made: Any) -> Status:
    """The status of an answer that was rounded: failing where a finite score became infinite."""

    def check() -> tuple[bool, str] | None:
        pairs = zip(_scores(value), _scores(made), strict=True)
        if not any(bool((one.isfinite() & other.isinf()).any()) for one, other in pairs):
            return None
        return False, (
            f"a score is larger than {_type_name(made)} holds and reads inf or -inf: use float64 (`model.double()`) or "
            "smaller scores; where large negative scores are masks, write -inf instead"
        )

    return Status(check)


def _scores(value: Any) -> list[Tensor]:
    """The tensors of an answer that may hold scores."""
    if isinstance(value, Tensor):
        return [value]
    return [value.score] if isinstance(value, Assignment) else list(value.values())


def _type_name(value: Any) -> str:
    """The name of the type of an answer, for messages."""
    return str(next((one.dtype for one in _scores(value)), "the type")).removeprefix("torch.")

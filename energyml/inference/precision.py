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

from energyml.bind.batch import HALF, accumulated, full_precision
from energyml.execution import as_numpy, is_host_readable
from energyml.queries import Query
from energyml.result import Assignment

__all__ = ["HALF", "accumulated", "cancels", "compensated", "full_precision", "large", "rounded", "widened"]

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
        total += _largest(one) if one.dtype is torch.float32 and is_host_readable(one) else 0.0
        if total > LARGEST_SUM:
            return True
    return False


def compensated(values: Tensor) -> Tensor:
    """The sums of finite values over the last axis, rounded as if they were added up in three times the precision.

    Two passes of error-free additions (Ogita, Rump & Oishi 2005, algorithm 4.8), which autograd follows.
    """
    parts = values.unbind(-1)
    if not parts:
        return values.sum(-1)
    for _ in range(2):
        total, errors = parts[0], []
        for one in parts[1:]:
            new = total + one
            share = new - total
            errors.append((total - (new - share)) + (one - share))
            total = new
        parts = (*errors, total)
    rest = torch.stack(parts[:-1], -1).sum(-1) if len(parts) > 1 else torch.zeros_like(total)
    found: Tensor = rest + parts[-1]
    return found


def _largest(scores: Tensor) -> float:
    """The largest magnitude of a finite number; 0 where there is none."""
    found = as_numpy(scores.detach())
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

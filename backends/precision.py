"""Half precision is too coarse to add up in: sums are taken in float32, and answers are rounded once, at the end.

Single precision is too coarse for what large sums differ by: such answers are computed in double precision, and are
rounded once as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from energyml.bind.batch import HALF, accumulated
from energyml.queries import Query
from energyml.result import Assignment

__all__ = ["HALF", "accumulated", "cancels", "rounded", "widened"]


def cancels(query: Query) -> bool:
    """Whether an answer is what sums differ by that may be far larger than it, or a sum that is about to be one."""
    return query.kind in ("cross_entropy", "kl") or (query.wide and query.kind == "log_partition")


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

"""Half precision is too coarse to add up in: sums are taken in float32, and answers are rounded once, at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from energyml.result import Assignment

HALF = (torch.float16, torch.bfloat16)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are taken in."""
    return torch.float32 if dtype in HALF else dtype


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

"""What processes that train together have to agree on: when to stop, the mean loss, and everyone's random numbers."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def any_of(flag: bool, world: int, device: torch.device) -> bool:
    """Whether the flag is up in any process; all of them must ask at the same step."""
    if world == 1:
        return flag
    raised = torch.tensor(float(flag), device=device)
    torch.distributed.all_reduce(raised, torch.distributed.ReduceOp.MAX)
    return bool(raised)


def mean_of(value: Tensor, world: int, device: torch.device) -> Tensor:
    """The mean of a number over processes, the same bits in each of them."""
    if world == 1:
        return value
    total = value.detach().clone().to(device)
    torch.distributed.all_reduce(total)
    return total / world


def each_of(value: Tensor, world: int, device: torch.device) -> list[Tensor]:
    """A tensor of every process, in their order; shapes agree."""
    if world == 1:
        return [value]
    own = value.detach().to(device)
    found = [torch.empty_like(own) for _ in range(world)]
    torch.distributed.all_gather(found, own)
    return [one.to(value.device) for one in found]


def whole_of(value: T, world: int) -> list[T]:
    """What every process has, in their order: any plain data, and tensors of any shape."""
    if world == 1:
        return [value]
    found: list[Any] = [None] * world
    torch.distributed.all_gather_object(found, value)
    return found


__all__ = ["any_of", "each_of", "mean_of", "whole_of"]

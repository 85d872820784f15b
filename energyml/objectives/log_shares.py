"""Shares of a whole in log space, safe at -inf: no NaN in values or gradients."""

from __future__ import annotations

import torch
from torch import Tensor

_NINF = float("-inf")


def log_sum(values: Tensor) -> Tensor:
    """[...]: the log of the summed exp of values [..., n]; -inf, without gradients, where every value is -inf."""
    none = values.detach().isneginf().all(-1)
    total: Tensor = torch.logsumexp(values.masked_fill(none.unsqueeze(-1), 0), -1)
    return total.masked_fill(none, _NINF)


def log_shares(values: Tensor) -> Tensor:
    """[..., n]: values less the log of their summed exp; -inf where a value is."""
    return log_ratio(values, log_sum(values).unsqueeze(-1))


def shares(values: Tensor) -> Tensor:
    """[..., n]: the softmax of values; all zero where every value is -inf."""
    none = values.detach().isneginf().all(-1, keepdim=True)
    return torch.softmax(values.masked_fill(none, 0), -1).masked_fill(none, 0)


def log_ratio(part: Tensor, whole: Tensor) -> Tensor:
    """The difference of two logarithms: -inf where the part is, even if both are."""
    gone = part.isneginf()
    return (part.masked_fill(gone, 0) - whole.masked_fill(whole.isneginf(), 0)).masked_fill(gone, _NINF)


__all__ = ["log_ratio", "log_shares", "log_sum", "shares"]

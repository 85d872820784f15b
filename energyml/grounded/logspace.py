"""Sums and averages in log space that are safe at -inf: no NaN in values, gradients or second gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.execution import is_functional


def logsumexp(values: Tensor, dim: int) -> Tensor:
    """The log of the sum of exp along a dim; -inf, with zero gradients, where every value is -inf or there is none."""
    if (values.requires_grad and torch.is_grad_enabled()) or is_functional():
        return tracked_logsumexp(values, dim)
    if values.shape[dim] == 0:
        return values.sum(dim) + float("-inf")
    return torch.logsumexp(values, dim)  # right at -inf too; only its gradient is not


def tracked_logsumexp(values: Tensor, dim: int) -> Tensor:
    """The same, by operations whose derivatives of any order and kind are safe, whoever records them."""
    if values.shape[dim] == 0:
        return values.sum(dim) + float("-inf")
    peak = values.detach().amax(dim, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0)
    total = (values - peak).exp().sum(dim)
    # A sum is at least 1 (the peak itself) or exactly 0.
    empty = total == 0
    log = torch.where(empty, 1, total).log() + peak.squeeze(dim)
    return log.masked_fill(empty, float("-inf"))


def softmax(values: Tensor, dim: int) -> Tensor:
    """exp(values) divided by their sum along a dim; all zero where every value is -inf.

    The largest value is subtracted first: of large values the log of the sum is rounded by more than their differences.
    """
    if values.shape[dim] == 0:
        return values
    peak = values.detach().amax(dim, keepdim=True)
    values = values - torch.where(peak.isfinite(), peak, 0)
    total = logsumexp(values, dim).unsqueeze(dim)
    empty = total.isneginf()
    return (values - total.masked_fill(empty, 0)).exp().masked_fill(empty, 0)


def entropy_terms(p: Tensor) -> Tensor:
    """-p log p of each entry, 0 at p = 0."""
    positive = p > 0
    return -torch.where(positive, p, 0) * torch.where(positive, p, 1).log()


def difference(minuend: Tensor, subtrahend: Tensor) -> Tensor:
    """The difference of two log-probabilities: -inf where the minuend is, even if both are."""
    gone = minuend.isneginf()
    return (minuend.masked_fill(gone, 0) - subtrahend.masked_fill(gone, 0)).masked_fill(gone, float("-inf"))


def grouped_logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """[count]: logsumexp of the values [N] of each group, -inf for a group without a finite value."""
    peak = values.detach().new_full((count,), float("-inf")).scatter_reduce(0, groups, values.detach(), "amax")
    peak = torch.where(peak.isfinite(), peak, 0)
    total = torch.zeros_like(peak).index_add(0, groups, (values - peak[groups]).exp())
    empty = total == 0
    return (torch.where(empty, 1, total).log() + peak).masked_fill(empty, float("-inf"))

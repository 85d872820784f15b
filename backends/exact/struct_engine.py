"""The log-partition of chains by torch-struct's log-depth scan (Rush 2020), kept as a peer of our own recursion.

A chain of T cells is handed over as T edges behind a start cell that has one possible label, so that chains of any
length, one and zero included, are the same case.  torch-struct has no -inf: scores are taken relative to the best of
their step, and what lies further below than `FORBIDDEN` counts as forbidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.exact.potentials import Potentials
from energyml.diagnostics import QueryRefused

# torch-struct adds exp(-1e9) to every score, which bounds what can be told apart from a forbidden one.
FORBIDDEN = -9e8


def struct_log_partition(potentials: Potentials) -> Tensor:
    """[B]: the log-partition of each chain; -inf where every answer is forbidden.  O(B T C³) in log T levels."""
    from torch_struct import LinearChain, LogSemiring

    single = potentials.single()
    if single is not None:
        return struct_log_partition(single).to(potentials.dtype)
    if potentials.unary.shape[0] == 0:
        return potentials.unary.sum((1, 2))
    edges = _edges(potentials)
    peak = edges.detach().amax((2, 3), keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0)
    edges = edges - peak
    _insist_on_small(edges.detach())
    edges = edges.clamp(min=FORBIDDEN)
    if not edges.requires_grad:
        # It marks its argument as requiring gradients; without this the answer would carry a graph nobody asked for.
        with torch.no_grad():
            total: Tensor = LinearChain(LogSemiring).sum(edges.clone())
    else:
        total = LinearChain(LogSemiring).sum(edges)
    gone = total < FORBIDDEN / 2
    restored: Tensor = total.masked_fill(gone, 0) + peak.sum((1, 2, 3))
    return restored.masked_fill(gone, float("-inf"))


def _insist_on_small(edges: Tensor) -> None:
    """Refuse chains with answers that torch-struct cannot tell from forbidden ones; the host reads a number."""
    lowest = edges.masked_fill(edges.isneginf(), 0).amin((2, 3)).sum(1)
    if bool((lowest < FORBIDDEN / 2).any()):
        raise QueryRefused(
            "torch-struct writes -1e9 for -inf, and here answers that are possible have scores that far below the "
            "best one; `exact(engine: auto)` serves scores of any size"
        )


def _edges(potentials: Potentials) -> Tensor:
    """[B, max(T, 1), C, C] edge scores (later, earlier), behind a start cell whose only label is the first."""
    unary, pair = potentials.unary, potentials.pair
    batch, size, labels = unary.shape
    none = torch.full((labels,), float("-inf"), device=unary.device, dtype=unary.dtype)
    only_first = torch.where(torch.arange(labels, device=unary.device) == 0, 0, none)
    waiting = only_first.unsqueeze(1) + only_first.unsqueeze(0)
    if size == 0:
        return waiting.expand(batch, 1, labels, labels)
    first = unary[:, :1].unsqueeze(3) + only_first
    edges = torch.cat([first, unary[:, 1:].unsqueeze(3) + pair.transpose(2, 3)], 1)
    exists = potentials.exists
    if exists is None:
        return edges
    same = torch.where(torch.eye(labels, dtype=torch.bool, device=unary.device), 0, none)
    idle = torch.cat([waiting.unsqueeze(0), same.expand(size - 1, labels, labels)])
    return torch.where(exists.reshape(batch, size, 1, 1), edges, idle)

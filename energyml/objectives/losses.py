"""What objectives share: reductions."""

from __future__ import annotations

import torch
from torch import Tensor

REDUCTIONS = ("example", "cell", "sum", "none")


def reduce_losses(losses: Tensor, cells: Tensor, reduction: str | None, objective: str) -> Tensor:
    """Reduce per-example losses [B].

    Args:
        losses: [B]; a sum over cells for objectives that are made of cells.
        cells: [B] how many labelled cells each example has.
        reduction: one of `REDUCTIONS`; the objective's own when `None`.  `sequence` and `example` are the same.
        objective: its name, which decides the default.
    """
    chosen = reduction or ("cell" if objective == "marginal_ce" else "example")
    if chosen not in REDUCTIONS:
        raise ValueError(f"unknown reduction `{chosen}`; known: {', '.join(REDUCTIONS)}")
    if chosen == "none":
        return losses
    if chosen == "sum":
        return losses.sum()
    if chosen == "cell":
        return losses.sum() / cells.sum().clamp(min=1).to(losses.dtype)
    return losses.mean() if losses.numel() else torch.zeros_like(losses.sum())

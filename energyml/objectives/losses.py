"""What objectives share: sums over cells, counts of labelled cells, and reductions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

REDUCTIONS = ("example", "cell", "sum", "none")


def labelled_cells(answer: Mapping[str, Tensor]) -> Tensor:
    """[B]: how many cells have a label or a value, over all variables; -1 and NaN mark those that have none."""
    known = [~one.isnan() if one.is_floating_point() else one >= 0 for one in answer.values()]
    return torch.stack([per_example(one.long()) for one in known]).sum(0)


def per_example(cells: Tensor) -> Tensor:
    """[B]: what cells [B, ...] add up to."""
    return cells.flatten(1).sum(1) if cells.dim() > 1 else cells


def at_hand(tensor: Tensor) -> bool:
    """Whether looking at a value costs nothing: not on an accelerator, and not where functions are transformed."""
    return tensor.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def reduce_losses(losses: Tensor, cells: Tensor, reduction: str | None, objective: str) -> Tensor:
    """Reduce per-example losses [B].

    Args:
        losses: [B]; a sum over cells for objectives that are made of cells.
        cells: [B] how many labelled cells each example has.
        reduction: one of `REDUCTIONS`; the objective's own when `None`.
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
    return losses.sum() / max(1, losses.numel())

"""Decomposable costs: what answers cost, as a sum over their cells."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def cost_of(
    answer: Mapping[str, Tensor], costs: Mapping[str, Tensor], lead: int = 1, dtype: torch.dtype | None = None
) -> Tensor:
    """The costs of answers, added up over cells.

    Args:
        answer: labels [*lead, *dims] by variable; -1 costs nothing.
        costs: by variable, at least one: [*lead, *dims, labels]; leading axes of size 1 are shared.
        lead: how many leading axes count answers.
        dtype: the type that they are added up in; `None` for their own.
    """
    total: Tensor | None = None
    for name, cost in costs.items():
        labels = answer[name]
        values = cost.expand(*labels.shape, cost.shape[-1])
        picked = values.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        picked = torch.where(labels >= 0, picked, 0)
        picked = picked if dtype is None else picked.to(dtype)
        here = picked.flatten(lead).sum(lead) if picked.dim() > lead else picked
        total = here if total is None else total + here
    assert total is not None
    return total

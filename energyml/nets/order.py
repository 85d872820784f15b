"""Sequences of a batch lined up at the left, and reversed, without asking the device for their lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.execution import is_host_readable


class Order:
    """Where the existing positions of each sequence go so that a recurrence or a convolution meets no padding first.

    The *compact* arrangement has the existing positions of a sequence in their order at the left and the others behind
    them; gaps may be anywhere. *Flipping* reverses the existing positions of a compact arrangement and leaves the
    others. Both are gathers along the time axis: no host synchronisation, unlike packed sequences.

    Args:
        mask: bool ``[B, T]`` of the existing positions; ``None`` when all exist.

    Attributes:
        count: int64 ``[B]``, how many positions exist; ``None`` without a mask.
        present: bool ``[B, T]``, the existing positions of the compact arrangement; ``None`` without a mask.
    """

    def __init__(self, mask: Tensor | None) -> None:
        self.count: Tensor | None = None
        self.present: Tensor | None = None
        self._is_compact = mask is None
        if mask is None:
            return
        time = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
        self.count = mask.sum(1)
        self.present = time < self.count.unsqueeze(1)
        self._flip = torch.where(self.present, self.count.unsqueeze(1) - 1 - time, time)
        # Without gaps there is nothing to move; only the host can tell without waiting.
        self._is_compact = is_host_readable(mask) and torch.equal(mask, self.present)
        if not self._is_compact:
            gone = ~mask
            self._place = torch.where(mask, mask.cumsum(1) - 1, self.count.unsqueeze(1) + gone.cumsum(1) - 1)
            self._take = torch.zeros_like(time).scatter(1, self._place, time)

    def compact(self, x: Tensor) -> Tensor:
        """``[B, T, F]`` with the existing positions brought to the left."""
        return x if self._is_compact else _gather(x, self._take)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of ``compact``."""
        return x if self._is_compact else _gather(x, self._place)

    def flip(self, x: Tensor) -> Tensor:
        """A compact ``[B, T, F]`` with its existing positions reversed; its own inverse."""
        return x.flip(1) if self.count is None else _gather(x, self._flip)

    def last(self, x: Tensor) -> Tensor:
        """The last existing position ``[B, F]`` of a compact ``[B, T, F]``; zeros for an empty sequence."""
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], x.shape[2])
        if self.count is None:
            return x[:, -1]
        at = (self.count - 1).clamp(min=0).unsqueeze(1)
        return _gather(x, at).squeeze(1).masked_fill((self.count == 0).unsqueeze(1), 0.0)

    def first(self, x: Tensor) -> Tensor:
        """The first existing position ``[B, F]`` of a compact ``[B, T, F]``; zeros for an empty sequence."""
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], x.shape[2])
        if self.count is None:
            return x[:, 0]
        return x[:, 0].masked_fill((self.count == 0).unsqueeze(1), 0.0)

    def clear(self, x: Tensor) -> Tensor:
        """A compact ``[B, T, F]`` with zeros at the positions that do not exist."""
        return x if self.present is None else x.masked_fill(~self.present.unsqueeze(-1), 0.0)


def _gather(x: Tensor, at: Tensor) -> Tensor:
    """``x[b, at[b, t]]``: ``[B, T, F]`` at ``[B, S]`` to ``[B, S, F]``; whole rows at a time, several times faster."""
    batch, size, features = x.shape
    rows = at + size * torch.arange(batch, device=at.device).unsqueeze(1)
    return x.reshape(batch * size, features).index_select(0, rows.reshape(-1)).reshape(*at.shape, features)

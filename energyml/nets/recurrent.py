"""Stacked LSTMs over padded sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from energyml.nets.features import check_positive
from energyml.nets.order import Order


def run_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """All states of an LSTM over ``[B, T, F]``; T may be 0, which ``nn.LSTM`` refuses."""
    if x.shape[1] == 0:
        return x.new_zeros(x.shape[0], 0, lstm.hidden_size)
    states: Tensor = lstm(x)[0]
    return states


class LSTMStack(nn.Module):
    """``layers`` LSTM layers, each in one or in both directions; a layer reads both directions of the one below.

    The backward direction is a plain LSTM over each sequence reversed in place, so that padding at the right never
    reaches an existing position and no length goes to the host. Equal to ``nn.LSTM(bidirectional=True)`` on each
    sequence alone. Cost: T steps of 4 * hidden * (F + hidden) multiplications for each layer and direction.

    Args:
        size: F, the features of a position.
        hidden: units of a direction.
        layers: how many layers.
        bidirectional: whether there is a backward direction.
        dropout: the probability of dropping a feature between two layers.

    Attributes:
        width: the size of an output, ``2 * hidden`` when bidirectional.
    """

    def __init__(self, size: int, hidden: int, *, layers: int, bidirectional: bool, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(hidden=hidden, layers=layers)
        self.hidden = hidden
        self.width = 2 * hidden if bidirectional else hidden
        sizes = [size, *[self.width] * (layers - 1)]
        self.ahead = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in sizes)
        self.back = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in sizes if bidirectional)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, order: Order) -> Tensor:
        """Features ``[B, T, F]`` to the states ``[B, T, width]`` of the last layer."""
        return order.restore(self._compact_states(x, order))

    def final(self, x: Tensor, order: Order) -> Tensor:
        """The forward state after the last existing position and the backward one after the first, ``[B, width]``."""
        states = self._compact_states(x, order)
        ahead = order.last(states[..., : self.hidden])
        if not self.back:
            return ahead
        return torch.cat([ahead, order.first(states[..., self.hidden :])], dim=-1)

    def _compact_states(self, x: Tensor, order: Order) -> Tensor:
        x = order.compact(x)
        for layer, ahead in enumerate(self.ahead):
            if layer:
                x = self.dropout(x)
            states = run_lstm(ahead, x)  # type: ignore[arg-type]
            if self.back:
                back = run_lstm(self.back[layer], order.flip(x))  # type: ignore[arg-type]
                states = torch.cat([states, order.flip(back)], dim=-1)
            x = states
        return x

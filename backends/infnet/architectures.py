"""The three architectures of Tu & Gimpel 2019, section 4.1: from features of positions to scores of labels.

Each is a module whose forward takes features ``[B, T, F]`` and an `Order` of the existing positions, and gives scores
``[B, T, labels]`` for each variable.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from energyml.nets.cnn1d import convolve
from energyml.nets.order import Order
from energyml.nets.recurrent import LSTMStack

Scores = dict[str, Tensor]


class _Heads(nn.ModuleList):
    """A linear layer for each variable."""

    def __init__(self, size: int, labels: Mapping[str, int]) -> None:
        super().__init__(nn.Linear(size, count) for count in labels.values())
        self.names = tuple(labels)

    def scores(self, states: Tensor) -> Scores:
        """States ``[..., size]`` to scores ``[..., labels]`` by variable."""
        return {name: head(states) for name, head in zip(self.names, self, strict=True)}


class CNN(nn.Module):
    """Filters over windows of 1 and of `width` positions with a ReLU, side by side, then a linear layer; no pooling.

    Args:
        size: F.
        labels: how many labels each variable has.
        dropout: the probability of dropping a feature map.
        hidden: filters of each window.
        width: the larger window, odd.
    """

    def __init__(
        self, size: int, labels: Mapping[str, int], *, dropout: float, hidden: int = 100, width: int = 3
    ) -> None:
        super().__init__()
        if width % 2 == 0:
            raise ValueError(f"width: {width} is even; a filter needs a middle")
        self.windows = nn.ModuleList(nn.Conv1d(size, hidden, each, padding=each // 2) for each in (1, width))
        self.dropout = nn.Dropout(dropout)
        self.heads = _Heads(2 * hidden, labels)

    def forward(self, x: Tensor, order: Order) -> Scores:
        """Features to scores; beyond the ends of a sequence there are zeros."""
        x = order.clear(order.compact(x))
        maps = torch.cat([convolve(window, x) for window in self.windows], dim=-1)  # type: ignore[arg-type]
        return self.heads.scores(order.restore(self.dropout(maps)))


class BLSTM(nn.Module):
    """A bidirectional LSTM, then a linear layer: the BLSTM tagger.

    Args:
        size: F.
        labels: how many labels each variable has.
        dropout: the probability of dropping a unit of the states.
        hidden: units of a direction.
        layers: one or two.
    """

    def __init__(
        self, size: int, labels: Mapping[str, int], *, dropout: float, hidden: int = 100, layers: int = 1
    ) -> None:
        super().__init__()
        self.stack = LSTMStack(size, hidden, layers=layers, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.heads = _Heads(self.stack.width, labels)

    def forward(self, x: Tensor, order: Order) -> Scores:
        """Features to scores."""
        return self.heads.scores(self.dropout(self.stack(x, order)))


class Seq2Seq(nn.Module):
    """An encoder as in `BLSTM`, and an LSTM that writes one label after another: softmax(W[h_t, s_t]).

    The decoder looks at the encoder's state s_t of its own position (fixed, "aligned" attention).  It always reads its
    own previous prediction, in training too, as the expected embedding of the label: so gradients flow through it.
    Where several variables run over the dim, each step reads the predictions of all of them.  Cost: T steps that wait
    for each other.

    Args:
        size: F.
        labels: how many labels each variable has.
        dropout: the probability of dropping a unit of the encoder's states.
        hidden: units of a direction of the encoder, and of the decoder.
        embed: the size of the embedding of a label.
    """

    def __init__(
        self, size: int, labels: Mapping[str, int], *, dropout: float, hidden: int = 100, embed: int = 50
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.stack = LSTMStack(size, hidden, layers=1, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.embeddings = nn.ModuleList(nn.Linear(count, embed, bias=False) for count in labels.values())
        self.start = nn.Parameter(torch.zeros(embed * len(labels)))
        self.read = nn.Linear(embed * len(labels) + self.stack.width, 4 * hidden)
        self.recur = nn.Linear(hidden, 4 * hidden, bias=False)
        self.heads = _Heads(hidden + self.stack.width, labels)

    def forward(self, x: Tensor, order: Order) -> Scores:
        """Features to scores."""
        states = self.dropout(order.compact(self.stack(x, order)))
        batch, length = states.shape[:2]
        hidden = cell = states.new_zeros(batch, self.hidden)
        previous = self.start.expand(batch, -1)
        found: dict[str, list[Tensor]] = {name: [] for name in self.heads.names}
        for t in range(length):
            gates = self.read(torch.cat([previous, states[:, t]], dim=-1)) + self.recur(hidden)
            hidden, cell = lstm_step(gates, cell)
            scores = self.heads.scores(torch.cat([hidden, states[:, t]], dim=-1))
            expected = zip(self.embeddings, scores.values(), strict=True)
            previous = torch.cat([embed(one.softmax(-1)) for embed, one in expected], dim=-1)
            for name, one in scores.items():
                found[name].append(one)
        if length == 0:
            return self.heads.scores(states.new_zeros(batch, 0, self.hidden + self.stack.width))
        return {name: order.restore(torch.stack(each, dim=1)) for name, each in found.items()}


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The next hidden and cell state ``[B, H]`` of an LSTM from its gates ``[B, 4 H]`` in torch's order."""
    enter, forget, candidate, leave = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell

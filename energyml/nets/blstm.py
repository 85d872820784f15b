"""LSTM encoders of sequences, in one or both directions."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import Features, Masks, as_output, existing, fixed_size, shared_index
from energyml.nets.order import Order
from energyml.nets.recurrent import LSTMStack


class LSTMEncoder(nn.Module):
    """Features of each position, read by stacked LSTMs, then a linear layer.

    Only existing positions are read: the results do not depend on the padding of a batch. Dropout falls on the
    features, between layers and on the last states.

    Args:
        inputs: types that share their first axis, a dim T: labels (embedded) or reals (flattened).
        output: ``[T, *fixed]``.
        hidden: units of a direction.
        layers: how many layers.
        embed: the size of the embedding of a label input.
        dropout: the probability of dropping a unit.
        vectors: a file of pretrained vectors for the first label input.
        project: whether a linear layer follows; without it the output is the states, ``2 * hidden`` of them a position
            (``hidden`` when unidirectional).
    """

    bidirectional: ClassVar[bool]

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        hidden: int = 100,
        layers: int = 1,
        embed: int = 50,
        dropout: float = 0.0,
        vectors: str | None = None,
        project: bool = True,
    ) -> None:
        super().__init__()
        if shared_index(inputs, output) < 1:
            raise ValueError("the inputs and the output of a sequence network share their first axis, which is a dim")
        self.dim = output.dims[0]
        self.output = output
        self.features = Features(inputs, 1, embed=embed, vectors=vectors)
        self.dropout = nn.Dropout(dropout)
        self.stack = LSTMStack(
            self.features.size, hidden, layers=layers, bidirectional=self.bidirectional, dropout=dropout
        )
        size = fixed_size(output.shape[1:], "the output")
        if not project and size != self.stack.width:
            raise ValueError(f"without a projection the output has {self.stack.width} values a position, not {size}")
        self.last = nn.Linear(self.stack.width, size) if project else nn.Identity()

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Arguments ``[B, T, ...]`` to ``[B, T, *fixed]``."""
        x = self.features(args, masks)
        order = Order(existing([self.dim], masks, x.shape[:2]))
        states = self.dropout(self.stack(self.dropout(x), order))
        return as_output(self.last(states), self.output, 1)


class BLSTM(LSTMEncoder):
    """The encoder in both directions (Graves and Schmidhuber 2005)."""

    bidirectional = True


class ForwardLSTM(LSTMEncoder):
    """The encoder from left to right: a position knows what stands before it and nothing of what follows."""

    bidirectional = False

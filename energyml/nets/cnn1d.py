"""Convolutions along a sequence."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import (
    Features,
    Masks,
    as_output,
    check_positive,
    existing,
    fixed_size,
    shared_index,
)
from energyml.nets.order import Order


def convolve(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """A convolution with a bias, a ReLU and equal length over ``[B, T, F]``; T may be 0."""
    if x.shape[1] == 0:
        return x.new_zeros(x.shape[0], 0, conv.out_channels)
    convolved: Tensor = conv(x.transpose(1, 2))
    return convolved.transpose(1, 2).relu()


class CNN1d(nn.Module):
    """``layers`` convolutions of odd ``width`` with ReLU along T, then a linear layer at each position; no pooling.

    Beyond the ends of a sequence there are zeros at every layer, whether the batch has padding there or not. A position
    sees ``layers * (width - 1) / 2`` neighbours on each side. Dropout falls on the features and on the last layer.

    Args:
        inputs: types that share their first axis, a dim T: labels (embedded) or reals (flattened).
        output: ``[T, *fixed]``.
        hidden: filters of a layer.
        width: positions that a filter covers, odd.
        layers: how many convolutions.
        embed: the size of the embedding of a label input.
        dropout: the probability of dropping a unit.
    """

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        hidden: int = 100,
        width: int = 3,
        layers: int = 1,
        embed: int = 50,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(hidden=hidden, width=width, layers=layers)
        if width % 2 == 0:
            raise ValueError(f"width: {width} is even; a filter needs a middle")
        if shared_index(inputs, output) < 1:
            raise ValueError("the inputs and the output of a sequence network share their first axis, which is a dim")
        self.dim = output.dims[0]
        self.output = output
        self.features = Features(inputs, 1, embed=embed)
        sizes = [self.features.size, *[hidden] * layers]
        self.layers = nn.ModuleList(
            nn.Conv1d(below, above, width, padding=width // 2) for below, above in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, fixed_size(output.shape[1:], "the output"))

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Arguments ``[B, T, ...]`` to ``[B, T, *fixed]``."""
        x = self.features(args, masks)
        order = Order(existing([self.dim], masks, x.shape[:2]))
        x = self.dropout(order.compact(x))
        for layer in self.layers:
            x = convolve(layer, order.clear(x))  # type: ignore[arg-type]
        return as_output(order.restore(self.last(self.dropout(x))), self.output, 1)

"""A multi-layer perceptron at each position."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import (
    ACTIVATIONS,
    Features,
    Masks,
    as_output,
    check_choice,
    check_positive,
    fixed_size,
    shared_index,
)


class MLP(nn.Module):
    """``layers`` hidden layers and a linear one, at each position; inputs and output as for ``Linear``.

    Args:
        inputs: the types of the arguments, reals or labels.
        output: index axes, then fixed axes.
        hidden: units of a hidden layer.
        layers: how many hidden layers.
        activation: ``relu``, ``tanh``, ``sigmoid`` or ``gelu``, after each hidden layer.
        dropout: the probability of dropping a hidden unit.
        embed: the size of the embedding of a label input.
    """

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        hidden: int = 100,
        layers: int = 1,
        activation: str = "relu",
        dropout: float = 0.0,
        embed: int = 50,
    ) -> None:
        super().__init__()
        check_positive(hidden=hidden, layers=layers)
        self.output = output
        self.index = shared_index(inputs, output)
        self.features = Features(inputs, self.index, embed=embed)
        self.activation = ACTIVATIONS[check_choice("activation", activation, tuple(ACTIVATIONS))]
        sizes = [self.features.size, *[hidden] * layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, fixed_size(output.shape[self.index :], "the output"))

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Arguments ``[B, *index, ...]`` to ``[B, *index, *fixed]``."""
        x = self.features(args, masks)
        for layer in self.layers:
            x = self.dropout(self.activation(layer(x)))
        return as_output(self.last(x), self.output, self.index)

"""One score, or one vector, for a whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import (
    ACTIVATIONS,
    Features,
    Masks,
    as_output,
    check_choice,
    check_positive,
    existing,
    fixed_size,
)


class Pooled(nn.Module):
    """A perceptron with one hidden layer over the mean of the existing positions.

    The mean of a sequence without any position is zero. Order does not matter: where it should, let an encoder
    come first. Cost: T * F additions, then that of the perceptron once.

    Args:
        inputs: types that share all of their leading dims: labels (embedded) or reals (flattened).
        output: fixed axes only; none for a single score.
        hidden: units of the hidden layer.
        embed: the size of the embedding of a label input.
        activation: ``relu``, ``tanh``, ``sigmoid`` or ``gelu``.
    """

    def __init__(
        self,
        inputs: tuple[BoundType, ...],
        output: BoundType,
        *,
        hidden: int = 100,
        embed: int = 50,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        check_positive(hidden=hidden)
        self.output = output
        self.dims = inputs[0].dims[: inputs[0].index_rank] if inputs else ()
        if any(given.dims[: given.index_rank] != self.dims for given in inputs):
            raise ValueError("the inputs of a pooled network share their leading dims")
        self.features = Features(inputs, len(self.dims), embed=embed)
        self.activation = ACTIVATIONS[check_choice("activation", activation, tuple(ACTIVATIONS))]
        self.first = nn.Linear(self.features.size, hidden)
        self.last = nn.Linear(hidden, fixed_size(output.shape, "the output"))

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Arguments ``[B, *index, ...]`` to ``[B, *fixed]``."""
        x = self.features(args, masks)
        mask = existing(self.dims, masks, x.shape[:-1])
        if mask is None:
            mask = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        count = mask.expand(x.shape[:-1]).reshape(x.shape[0], x.shape[1:-1].numel()).sum(1, keepdim=True).clamp(min=1)
        mean = x.flatten(1, -2).sum(1) / count if self.dims else x
        return as_output(self.last(self.activation(self.first(mean))), self.output, 0)

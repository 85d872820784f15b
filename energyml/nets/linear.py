"""A linear layer at each position."""

from __future__ import annotations

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import Features, Masks, as_output, fixed_size, shared_index


class Linear(nn.Module):
    """Scores that are linear in the features of a position.

    The leading axes whose dims all inputs and the output share are positions; what follows them is flattened. Label
    inputs are embedded first. Several fixed axes of the output are fine: ``real[E, from: Tag, to: Tag]`` is a table for
    each edge. Cost: F * out multiplications a position, for F input features.

    Args:
        inputs: the types of the arguments, reals or labels.
        output: index axes, then fixed axes.
        embed: the size of the embedding of a label input.
        bias: whether to add a bias.
    """

    def __init__(self, inputs: tuple[BoundType, ...], output: BoundType, *, embed: int = 50, bias: bool = True) -> None:
        super().__init__()
        self.output = output
        self.index = shared_index(inputs, output)
        self.features = Features(inputs, self.index, embed=embed)
        self.linear = nn.Linear(self.features.size, fixed_size(output.shape[self.index :], "the output"), bias=bias)

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Arguments ``[B, *index, ...]`` to ``[B, *index, *fixed]``."""
        return as_output(self.linear(self.features(args, masks)), self.output, self.index)

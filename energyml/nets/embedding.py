"""A vector for each label."""

from __future__ import annotations

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import LabelEmbedding, Masks, fixed_size


class Embedding(nn.Module):
    """Looks a learned vector up for each label: ``Word[T]`` to ``real[T, 50]``.

    Args:
        inputs: one type, of labels.
        output: the axes of the input, then one fixed axis.
    """

    def __init__(self, inputs: tuple[BoundType, ...], output: BoundType) -> None:
        super().__init__()
        if len(inputs) != 1 or inputs[0].classes is None:
            raise ValueError("an embedding reads exactly one input, of labels")
        if len(output.shape) != len(inputs[0].shape) + 1:
            raise ValueError("an embedding adds exactly one axis to its input")
        self.embedding = LabelEmbedding(inputs[0].classes, fixed_size(output.shape[-1:], "the output"))

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Labels ``[B, ...]`` to vectors ``[B, ..., size]``."""
        (labels,) = args
        vectors: Tensor = self.embedding(labels)
        return vectors

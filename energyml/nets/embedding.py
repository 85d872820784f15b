"""A vector for each label."""

from __future__ import annotations

from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, fixed_size, label_embedding


class Embedding(nn.Module):
    """Looks a learned vector up for each label: ``Word[T]`` to ``real[T, 50]``.

    Args:
        inputs: one type, of labels.
        output: the axes of the input, then one fixed axis.
        vectors: a file of pretrained vectors.
    """

    def __init__(self, inputs: tuple[BoundType, ...], output: BoundType, *, vectors: str | None = None) -> None:
        super().__init__()
        if len(inputs) != 1 or inputs[0].classes is None:
            raise ValueError("an embedding reads exactly one input, of labels")
        if len(output.shape) != len(inputs[0].shape) + 1:
            raise ValueError("an embedding adds exactly one axis to its input")
        size = fixed_size(output.shape[-1:], "the output")
        self.embedding = label_embedding(inputs[0].classes, size, vectors, argument=0, option="out")

    def forward(self, *args: Tensor, masks: Masks) -> Tensor:
        """Labels ``[B, ...]`` to vectors ``[B, ..., size]``."""
        (labels,) = args
        vectors: Tensor = self.embedding(labels)
        return vectors

"""The labels that a step network reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from energyml.nets.features import LabelEmbedding, check_positive


class LabelInputs(nn.Module):
    """The embeddings of the labels and, as the last row, of the start symbol."""

    def __init__(self, labels: int, size: int) -> None:
        super().__init__()
        check_positive(labels=labels, embed=size)
        self.labels = labels
        self.label_embedding = LabelEmbedding(labels + 1, size)

    def embed(self, labels: Tensor) -> Tensor:
        """Labels ``[...]`` to ``[..., embed]``; the number of labels stands for the start symbol."""
        embedded: Tensor = self.label_embedding(labels)
        return embedded

    def embed_soft(self, probabilities: Tensor) -> Tensor:
        """Probabilities ``[..., labels]`` to the expected embedding ``[..., embed]``."""
        return probabilities @ self.label_embedding.weight[: self.labels]

    def embed_shifted(self, labels: Tensor) -> Tensor:
        """Labels ``[B, T]`` to the inputs ``[B, T, embed]`` of T steps: the start symbol, then all but the last."""
        start = torch.full_like(labels[:, :1], self.labels)
        return self.embed(torch.cat([start, labels.clamp(0, self.labels - 1)[:, :-1]], dim=1))


def each_row(shared: Tensor, rows: int) -> Tensor:
    """What the rows of an example share, ``[B, F]``, for each of them, ``[rows, F]``."""
    examples = shared.shape[0]
    return shared if examples == rows else shared.repeat_interleave(rows // max(1, examples), 0)

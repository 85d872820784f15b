"""What a sequence score is given: a memory over one dim and a vector for the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from energyml.nets.bound import BoundType
from energyml.nets.features import Features, Masks, existing


class Observed(NamedTuple):
    """The tensors that a network is given, gathered.

    Attributes:
        memory: ``[B, S, F]``, zero at padding; F is 0 when nothing runs over a dim.
        exists: bool ``[B, S]``.
        context: ``[B, C]``; C is 0 when every tensor runs over a dim.
    """

    memory: Tensor
    exists: Tensor
    context: Tensor


class Given(nn.Module):
    """Gathers what a network is given.

    Tensors whose first axis runs over a dim are concatenated into the memory, and must share that dim; the others are
    concatenated into the context. Labels are embedded.

    Args:
        given: the types of the tensors.
        embed: the size of the embedding of labels.

    Attributes:
        dim: the dim of the memory, ``None`` without one.
        memory_size: F.
        context_size: C.
    """

    def __init__(self, given: Sequence[BoundType], *, embed: int = 50) -> None:
        super().__init__()
        self.along = [each.index_rank > 0 for each in given]
        over_dim = [each for each in given if each.index_rank > 0]
        whole = [each for each in given if each.index_rank == 0]
        dims = {each.dims[0] for each in over_dim}
        if len(dims) > 1:
            raise ValueError(f"the given tensors run over different dims: {', '.join(sorted(map(str, dims)))}")
        self.dim = over_dim[0].dims[0] if over_dim else None
        self.memory = Features(over_dim, 1, embed=embed) if over_dim else None
        self.context = Features(whole, 0, embed=embed) if whole else None
        self.memory_size = self.memory.size if self.memory is not None else 0
        self.context_size = self.context.size if self.context is not None else 0

    def forward(self, given: Sequence[Tensor], masks: Masks, like: Tensor) -> Observed:
        """Gather ``given``; ``like`` is ``[B, ...]`` and has the device and dtype of what is empty."""
        over_dim = [tensor for tensor, along in zip(given, self.along, strict=True) if along]
        whole = [tensor for tensor, along in zip(given, self.along, strict=True) if not along]
        memory = like.new_zeros(like.shape[0], 0, 0) if self.memory is None else self.memory(over_dim, masks)
        context = like.new_zeros(like.shape[0], 0) if self.context is None else self.context(whole, masks)
        exists = existing([self.dim], masks, memory.shape[:2])
        if exists is None:
            exists = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        return Observed(memory, exists, context)

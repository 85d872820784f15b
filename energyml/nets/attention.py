"""Transformer blocks that take their keys and values from outside, so that a decoder can cache them."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energyml.nets.features import check_positive


def attend(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the last axis restricted to ``allowed`` (broadcastable bool); zeros where nothing is allowed."""
    if allowed is None:
        return scores.softmax(-1)
    masked = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return masked.softmax(-1).masked_fill(~allowed, 0.0)


def positions(at: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Sinusoids of the positions ``[...]`` as ``[..., size]``, for any length (Vaswani et al. 2017, section 3.5)."""
    half = (size + 1) // 2
    rates = torch.exp(torch.arange(half, device=at.device, dtype=dtype) * (-log(10000.0) / half))
    angles = at.unsqueeze(-1).to(dtype) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :size]


class Attention(nn.Module):
    """Multi-head attention in plain operations, twice differentiable.

    Args:
        hidden: the size of queries, keys and values, a multiple of ``heads``.
        heads: how many heads.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        check_positive(hidden=hidden, heads=heads)
        if hidden % heads:
            raise ValueError(f"hidden: {hidden} is not a multiple of heads: {heads}")
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None) -> Tensor:
        """Queries from ``[B, Q, H]`` over keys and values ``[B, S, H]``; ``allowed`` broadcasts to ``[B, Q, S]``."""
        query, key, value = (split_heads(each, self.heads) for each in (self.query(x), keys, values))
        return self.read(query, key, value, allowed)

    def read(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """``[B, Q, H]``: what queries ``[B, heads, Q, H / heads]`` read from keys and values split alike."""
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = attend(scores, None if allowed is None else allowed.unsqueeze(1))
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Positions ``[B, S, H]`` as ``[B, heads, S, H / heads]``."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def split_rows(x: Tensor, examples: int, heads: int) -> Tensor:
    """The hypotheses of each example, ``[B * n, H]``, as ``[B, heads, n, H / heads]``."""
    return x.reshape(examples, x.shape[0] // max(1, examples), heads, x.shape[1] // heads).transpose(1, 2)


class Block(nn.Module):
    """Self-attention, optional attention to a memory, and two linear layers, each after a layer normalisation.

    Args:
        hidden: the size of a position.
        heads: how many heads.
        cross: whether there is a memory.
    """

    def __init__(self, hidden: int, heads: int, *, cross: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.cross_norm = nn.LayerNorm(hidden) if cross else None
        self.cross = Attention(hidden, heads) if cross else None
        self.wide = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What positions ``[B, S, H]`` show to the self-attention."""
        normed = self.norm(x)
        return self.attention.key(normed), self.attention.value(normed)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What positions ``[..., H]`` ask the self-attention, and what they show to it."""
        parts = (self.attention.query, self.attention.key, self.attention.value)
        weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        query, key, value = F.linear(self.norm(x), weight, bias).chunk(3, -1)  # one large product is the fastest
        return query, key, value

    def memory_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What the memory ``[B, S, H]`` shows to the attention to it."""
        if self.cross is None:
            raise ValueError("this block was built without attention to a memory")
        return self.cross.key(memory), self.cross.value(memory)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        allowed: Tensor | None = None,
        memory: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Positions ``[B, Q, H]`` to ``[B, Q, H]``; ``memory`` as in ``after``."""
        return self.after(x + self.attention(self.norm(x), keys, values, allowed), memory)

    def after(self, x: Tensor, memory: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
        """What follows the self-attention.

        Args:
            x: ``[R, ..., H]``; R is B, or a multiple of it: rows that share a memory ask it together.
            memory: its keys and values ``[B, heads, S, H / heads]``, and a bool ``[B, S]``: what exists.
        """
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            keys, values, exists = memory
            query = self.cross.query(self.cross_norm(x)).flatten(0, -2)
            query = split_rows(query, keys.shape[0], self.cross.heads)
            x = x + self.cross.read(query, keys, values, exists.unsqueeze(1)).reshape(x.shape)
        summed: Tensor = x + self.wide(x)
        return summed

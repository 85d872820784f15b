"""The step network with attention to all labels before."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energyml.nets.attention import Block, positions, split_heads, split_rows
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, check_positive
from energyml.nets.given import Given
from energyml.nets.label_inputs import LabelInputs, each_row

# Steps whose keys and values are kept apart: only these are copied at each step.
RECENT = 8


class TransformerState(NamedTuple):
    """The state of a ``TransformerDecoder`` after t steps of n hypotheses of each example.

    Keys and values are kept where they were written, one place for each of the (at most) m hypotheses that an example
    had at a step; a hypothesis knows by its ``ancestry`` which of them are its own.  So a beam that gathers or blends
    hypotheses moves ``ancestry`` alone: at position p a hypothesis has the key ``sum_j ancestry[p, j] keys[p, j]``.

    Attributes:
        ancestry: ``[B * n, t, m]``.
        keys: ``[B, layers, heads, t - r, m, H / heads]``.
        values: ``[B, layers, heads, t - r, m, H / heads]``.
        recent_keys: ``[B, layers, heads, r, m, H / heads]``, of the latest r steps.
        recent_values: ``[B, layers, heads, r, m, H / heads]``.
        memory_keys: ``[B, layers, heads, S, H / heads]``.
        memory_values: ``[B, layers, heads, S, H / heads]``.
        exists: ``[B, S]``, 1 where the memory exists and 0 elsewhere, in the dtype of the rest.
        context: ``[B, H]``, added to the input of every step.
    """

    ancestry: Tensor
    keys: Tensor
    values: Tensor
    recent_keys: Tensor
    recent_values: Tensor
    memory_keys: Tensor
    memory_values: Tensor
    exists: Tensor
    context: Tensor


class TransformerDecoder(LabelInputs):
    """A causal Transformer that attends to the labels before and to the given tensors over a dim (Vaswani et al. 2017).

    Keys and values of the labels before are kept in the state. Cost of step t: layers * (t + S + 12 H) * H
    multiplications. Given tensors without a dim are added to the input of every step.

    Args:
        labels: how many labels there are.
        given: the types of the tensors that the score is given.
        hidden: H, the size of a position and of a label's embedding.
        heads: how many heads; they divide ``hidden``.
        layers: how many blocks.
        dim: the dim that the sequence runs over; kept for whoever asks, the steps do not need it.
    """

    varying: ClassVar[tuple[str, ...]] = ("ancestry", "keys", "values", "recent_keys", "recent_values")
    by_row: ClassVar[tuple[str, ...]] = ("ancestry",)

    def __init__(
        self,
        labels: int,
        given: tuple[BoundType, ...] = (),
        *,
        hidden: int = 128,
        heads: int = 4,
        layers: int = 2,
        dim: str | None = None,
    ) -> None:
        super().__init__(labels, hidden)
        check_positive(layers=layers)
        self.hidden, self.heads, self.dim = hidden, heads, dim
        self.given = Given(given, embed=hidden)
        has_memory = self.given.memory_size > 0
        self.memory = nn.Linear(self.given.memory_size, hidden) if has_memory else None
        self.context = nn.Linear(self.given.context_size, hidden) if self.given.context_size else None
        self.blocks = nn.ModuleList(Block(hidden, heads, cross=has_memory) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.readout = nn.Linear(hidden, labels)

    def start(self, given: tuple[Tensor, ...], masks: Masks, batch: int) -> TransformerState:
        """The state before the first label, for ``batch`` rows."""
        like = self.readout.weight.new_zeros(batch, 0)
        memory, exists, context = self.given(given, masks, like)
        context = like.new_zeros(batch, self.hidden) if self.context is None else self.context(context)
        none = like.new_zeros(len(self.blocks), batch, self.heads, 0, 1, self.hidden // self.heads).transpose(0, 1)
        empty = (like.new_zeros(batch, 0, 1), none, none, none, none)
        if self.memory is None:
            return TransformerState(*empty, none[..., 0, :], none[..., 0, :], like, context)
        at = (exists.cumsum(1) - 1).clamp(min=0)
        seen = self.memory(memory) + positions(at, self.hidden, memory.dtype)
        keys, values = zip(*(block.memory_keys_values(seen) for block in self._blocks()), strict=True)
        memory_keys, memory_values = (
            torch.stack([split_heads(one, self.heads) for one in each]).transpose(0, 1) for each in (keys, values)
        )
        return TransformerState(*empty, memory_keys, memory_values, exists.to(memory.dtype), context)

    def step(self, state: TransformerState, embedding: Tensor, t: int) -> tuple[Tensor, TransformerState]:
        """Unnormalised scores ``[R, labels]`` of position t after the label embedded as ``[R, H]``; the next state."""
        at = torch.full((1,), t, device=embedding.device)
        context = each_row(state.context, embedding.shape[0])
        x = embedding + positions(at, self.hidden, embedding.dtype) + context
        cache = Cache.of(state, x.shape[0])
        for layer, block in enumerate(self._blocks()):
            query, key, value = block.queries_keys_values(x)
            heads = (split_rows(one, cache.examples, self.heads) for one in (query, key, value))
            x = x + block.attention.out(cache.read(layer, *heads))
            x = block.after(x, self._memory(state, layer))
        return self.readout(self.norm(x)), cache.after(state)

    def forced(self, labels: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Scores ``[B, T, labels]`` of every position after the labels ``[B, T]`` before it: T steps at once."""
        batch, length = labels.shape
        state = self.start(given, masks, batch)
        time = torch.arange(length, device=labels.device)
        inputs = self.embed_shifted(labels)
        x = inputs + positions(time, self.hidden, inputs.dtype) + state.context.unsqueeze(1)
        causal = (time.unsqueeze(0) <= time.unsqueeze(1)).unsqueeze(0)
        for layer, block in enumerate(self._blocks()):
            query, key, value = (split_heads(one, self.heads) for one in block.queries_keys_values(x))
            x = x + block.attention.read(query, key, value, causal)
            x = block.after(x, self._memory(state, layer))
        every: Tensor = self.readout(self.norm(x))
        return every

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _memory(self, state: TransformerState, layer: int) -> tuple[Tensor, Tensor, Tensor] | None:
        if self.memory is None:
            return None
        return state.memory_keys[:, layer], state.memory_values[:, layer], state.exists > 0.5


class Cache:
    """The keys and values of all steps so far, during one step.

    Args:
        state: the state before the step.
        rows: n, the hypotheses of each example.
        width: m, the places of a step.
    """

    def __init__(self, state: TransformerState, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        self.examples = examples = state.keys.shape[0]
        # Layers first, so that the part of a layer is read where it lies.
        parts = (state.keys, state.values, state.recent_keys, state.recent_values)
        self.keys, self.values, self.recent_keys, self.recent_values = (
            _widened(one, width).transpose(0, 1) for one in parts
        )
        before = F.pad(state.ancestry, (0, width - state.ancestry.shape[2]))
        own = torch.eye(rows, width, dtype=before.dtype, device=before.device).repeat(examples, 1).unsqueeze(1)
        self.ancestry = torch.cat([before, own], 1)  # [B * n, t + 1, m]
        self.weights = before.reshape(examples, 1, rows, *before.shape[1:])  # [B, 1, n, t, m]
        self.new: list[tuple[Tensor, Tensor]] = []

    @staticmethod
    def of(state: TransformerState, rows: int) -> Cache:
        """The cache of a state for ``rows`` hypotheses in all."""
        each = rows // max(1, state.keys.shape[0])
        return Cache(state, each, max(each, state.ancestry.shape[2]))

    def read(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What hypotheses read, ``[B * n, H]``, of all steps and this one; arguments are ``[B, heads, n, H / heads]``.

        Scores with all places of a step are made at once and mixed by ancestry, so that nothing is gathered.
        """
        self.new.append((key, value))
        query = query * query.shape[-1] ** -0.5
        segments = [
            (keys[layer].flatten(2, 3), values[layer].flatten(2, 3))
            for keys, values in ((self.keys, self.values), (self.recent_keys, self.recent_values))
            if keys.shape[3]
        ]
        scores = [query @ keys.transpose(-1, -2) for keys, _ in segments]  # [B, heads, n, steps * m]
        own = (query * key).sum(-1, keepdim=True)
        if not scores:
            return _merged(value)
        every = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)).unflatten(-1, (-1, self.width))
        attention = torch.cat([(every * self.weights).sum(-1), own], -1).softmax(-1)
        mixed = (attention[..., :-1, None] * self.weights).flatten(3)
        read: Tensor = attention[..., -1:] * value
        start = 0
        for _, values in segments:
            read = read + mixed[..., start : start + values.shape[2]] @ values
            start += values.shape[2]
        return _merged(read)

    def after(self, state: TransformerState) -> TransformerState:
        """The state after the step."""
        old, recent = (self.keys, self.values), (self.recent_keys, self.recent_values)
        if recent[0].shape[3] >= RECENT:
            old = (torch.cat([old[0], recent[0]], 3), torch.cat([old[1], recent[1]], 3))
            recent = (recent[0][:, :, :, :0], recent[1][:, :, :, :0])
        room = (0, 0, 0, self.width - self.rows)
        latest = (F.pad(torch.stack(each), room).unsqueeze(3) for each in zip(*self.new, strict=True))
        keys, values = (torch.cat([before, new], 3) for before, new in zip(recent, latest, strict=True))
        return state._replace(
            ancestry=self.ancestry,
            keys=old[0].transpose(0, 1),
            values=old[1].transpose(0, 1),
            recent_keys=keys.transpose(0, 1),
            recent_values=values.transpose(0, 1),
        )


def _merged(read: Tensor) -> Tensor:
    """``[B, heads, n, H / heads]`` as ``[B * n, H]``."""
    return read.transpose(1, 2).reshape(read.shape[0] * read.shape[2], read.shape[1] * read.shape[3])


def _widened(places: Tensor, width: int) -> Tensor:
    """Keys or values ``[..., t, m, F]`` with room for more hypotheses."""
    return places if places.shape[-2] == width else F.pad(places, (0, 0, 0, width - places.shape[-2]))

"""Masked networks: the scores of every label at each position from all the other positions.

A masked network has ``masked_scores(y, given, masks) -> [B, T, labels]``: row t never sees ``y[:, t]``. The scores are
unnormalised. Source: Goyal 2021 (thesis), chapter 6.

It may also have ``hidden_scores(y, given, masks) -> [B, T, labels]``, where many positions of a row are hidden at once:
there ``y`` holds the number of labels. Only the rows of hidden positions mean anything, and all of a sequence's come
from one pass. Source: Ghazvininejad et al. 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energyml.execution import is_host_readable
from energyml.nets.attention import Block, attend, positions, split_heads
from energyml.nets.bound import BoundType
from energyml.nets.features import LabelEmbedding, Masks, check_positive, existing
from energyml.nets.given import Given
from energyml.nets.order import Order
from energyml.nets.recurrent import LSTMStack

# Positions that a Transformer reads in one pass, over all rows and all copies with one of their positions masked.
PASS = 1 << 16
# Rows that repeat each other's beginnings and ends share states: up to this length, and from so many rows on.
SHARED_LENGTH, SHARED_ROWS = 16, 1024
# The keys and values of a memory, and which of its positions exist.
Memory = tuple[Tensor, Tensor, Tensor]


class MaskedGiven(nn.Module):
    """What a masked network is given: vectors beside each position, and a memory that all positions attend to.

    Tensors over the sequence's own dim stand beside its positions, those without a dim beside all of them. Tensors over
    another dim, such as the words of a sentence that is translated, are the memory.

    Args:
        given: the types of the tensors.
        embed: the size of the embedding of labels.
        dim: the dim that the sequence runs over.

    Attributes:
        size: the numbers beside a position.
        memory_size: those of a position of the memory; 0 without one.
    """

    def __init__(self, given: Sequence[BoundType], *, embed: int, dim: str) -> None:
        super().__init__()
        self.apart = [each.index_rank > 0 and each.dims[0] != dim for each in given]
        self.given = Given([each for each, apart in zip(given, self.apart, strict=True) if not apart], embed=embed)
        self.memory = Given([each for each, apart in zip(given, self.apart, strict=True) if apart], embed=embed)
        self.size = self.given.memory_size + self.given.context_size
        self.memory_size = self.memory.memory_size

    def forward(self, given: Sequence[Tensor], masks: Masks, like: Tensor) -> Tensor:
        """``[B, T, size]`` for ``like`` of ``[B, T, ...]``: what stands beside the positions."""
        beside = [one for one, apart in zip(given, self.apart, strict=True) if not apart]
        observed = self.given(beside, masks, like)
        parts = [observed.context.unsqueeze(1).expand(-1, like.shape[1], -1)]
        if self.given.memory_size:
            parts.append(observed.memory)
        return torch.cat(parts, dim=-1)

    def attended(self, given: Sequence[Tensor], masks: Masks, like: Tensor) -> tuple[Tensor, Tensor]:
        """The memory ``[B, S, memory_size]``, and bool ``[B, S]``: which of its positions exist."""
        observed = self.memory([one for one, apart in zip(given, self.apart, strict=True) if apart], masks, like)
        return observed.memory, observed.exists


class Look(nn.Module):
    """A look into a memory: what positions find there is added to them, normalised, and goes through a layer.

    Without the normalisation the chain of linear layers from the memory grows so fast in the first updates that a
    saturated layer behind it never learns anything.

    Args:
        memory: the numbers of a position of the memory.
        hidden: those of a position that looks.
    """

    def __init__(self, memory: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(memory, hidden)
        self.value = nn.Linear(memory, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layer = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, memory: Tensor, exists: Tensor) -> Tensor:
        """Positions ``[B, T, hidden]`` that look into ``[B, S, memory]``, of which ``[B, S]`` exist."""
        scores = self.query(x) @ self.key(memory).transpose(1, 2) * x.shape[-1] ** -0.5
        read = attend(scores, exists.unsqueeze(1)) @ self.value(memory)
        found: Tensor = F.gelu(self.layer(self.norm(x + read)))
        return found


class MaskedBLSTM(nn.Module):
    """All masked scores in one pass: an LSTM over the labels left of t and one over those right of t, then two layers.

    The directions only meet in the layers after them, so that no path leads from ``y[t]`` to its own scores. Beyond the
    ends there are a start and an end symbol. What is given at t is read at t by both directions. Where a memory is
    given, the joined states at t look into it by dot products. A hidden label is a vector of zeros.

    Cost: that of a BiLSTM over T positions, and T * S products of vectors. Where many rows over few labels are read
    with nothing given, as in an enumeration, beginnings and ends that rows have in common are read once: all V^T
    strings take V^(T-1) states and T * V^(T-1) joins.

    Args:
        labels: how many labels there are.
        given: the types of the tensors that the energy is given: over ``dim``, without a dim, or over one other dim.
        hidden: units of a direction, and of the layers behind them.
        embed: the size of a label's embedding.
        layers: layers of each direction.
        dim: the dim that the sequence runs over, whose mask says which positions exist.
    """

    def __init__(
        self,
        labels: int,
        given: tuple[BoundType, ...] = (),
        *,
        hidden: int = 100,
        embed: int = 50,
        layers: int = 1,
        dim: str,
    ) -> None:
        super().__init__()
        check_positive(labels=labels, hidden=hidden, embed=embed)
        self.labels, self.dim = labels, dim
        self.label_embedding = LabelEmbedding(labels, embed)
        self.ends = nn.Parameter(torch.randn(2, embed))
        self.given = MaskedGiven(given, embed=embed, dim=dim)
        size = embed + self.given.size
        self.left = LSTMStack(size, hidden, layers=layers, bidirectional=False)
        self.right = LSTMStack(size, hidden, layers=layers, bidirectional=False)
        self.join = nn.Linear(2 * hidden, hidden)
        self.readout = nn.Linear(hidden, labels)
        self.look = Look(self.given.memory_size, hidden) if self.given.memory_size else None

    def masked_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Labels ``[B, T]`` to scores ``[B, T, labels]``."""
        order = Order(existing([self.dim], masks, y.shape))
        if self._shares(y):
            return order.restore(self._shared_scores(order.compact(y.unsqueeze(-1)).squeeze(-1).clamp(min=0), order))
        return self._scores(self.label_embedding(y), order, given, masks)

    def hidden_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """As ``masked_scores``, without the labels of positions that hold the number of labels."""
        order = Order(existing([self.dim], masks, y.shape))
        embedded = self.label_embedding(y).masked_fill((y == self.labels).unsqueeze(-1), 0.0)
        return self._scores(embedded, order, given, masks)

    def _scores(self, embedded: Tensor, order: Order, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Embedded labels ``[B, T, E]`` to scores ``[B, T, labels]``."""
        # From here on everything is compact: existing positions at the left, neighbours are the next existing ones.
        labels = order.compact(embedded)
        beside = order.compact(self.given(given, masks, embedded))
        plain = Order(None)
        ahead = self.left(torch.cat([self._shifted(labels, 0), beside], dim=-1), plain)
        back = self.right(torch.cat([self._shifted(order.flip(labels), 1), order.flip(beside)], dim=-1), plain)
        joined = torch.tanh(self.join(torch.cat([ahead, order.flip(back)], dim=-1)))
        if self.look is not None:
            joined = self.look(joined, *self.given.attended(given, masks, embedded))
        return order.restore(self.readout(joined))

    def _shifted(self, labels: Tensor, end: int) -> Tensor:
        """``[B, T, E]`` moved one position to the right behind the start (0) or the end (1) symbol."""
        symbol = self.ends[end].expand(labels.shape[0], 1, -1)
        return torch.cat([symbol, labels], dim=1)[:, : labels.shape[1]]

    def _shares(self, y: Tensor) -> bool:
        """Whether rows are worth comparing, and can be looked at."""
        rows, length = y.shape
        return (
            is_host_readable(y)
            and not self.given.size
            and not self.given.memory_size
            and 0 < length <= SHARED_LENGTH
            and rows >= max(SHARED_ROWS, self.labels**2)
        )

    def _shared_scores(self, y: Tensor, order: Order) -> Tensor:
        """Compact labels ``[B, T]`` to scores ``[B, T, labels]``, with one state for each beginning and each end."""
        ahead, left_of = self._states(y, self.left, 0)
        back, right_of = self._states(order.flip(y.unsqueeze(-1)).squeeze(-1), self.right, 1)
        right_of = order.flip(right_of.unsqueeze(-1)).squeeze(-1)
        pairs, place = (left_of * back.shape[0] + right_of).unique(return_inverse=True)
        left, right = self.join.weight.split(ahead.shape[1], dim=1)
        # The layer that joins them is linear before its tanh, so that each direction's part is computed once a state.
        before, behind = ahead @ left.T, torch.addmm(self.join.bias, back, right.T)
        joined = torch.tanh(before[pairs // back.shape[0]] + behind[pairs % back.shape[0]])
        scores: Tensor = self.readout(joined)[place.flatten()]
        return scores.reshape(*y.shape, self.labels)

    def _states(self, y: Tensor, stack: LSTMStack, end: int) -> tuple[Tensor, Tensor]:
        """A direction's states ``[N, hidden]`` after all different beginnings, and which of them is where ``[B, T]``.

        Args:
            y: labels ``[B, T]`` in the order in which the direction reads them.
            stack: the direction's layers.
            end: the symbol that it reads first.
        """
        x = self.ends[end].unsqueeze(0)
        zero = x.new_zeros(1, stack.hidden)
        kept = [(zero, zero) for _ in stack.ahead]
        which, states, places, count = torch.zeros_like(y[:, 0]), [], [], 0
        for t in range(y.shape[1]):
            if t:
                known, which = (which * self.labels + y[:, t - 1]).unique(return_inverse=True)
                x, before = self.label_embedding(known % self.labels), known // self.labels
                kept = [(h[before], c[before]) for h, c in kept]
            for layer, lstm in enumerate(stack.ahead):
                # One step at a time, a cell has far less to set up than a whole layer.
                kept[layer] = torch.lstm_cell(x, kept[layer], *cast("nn.LSTM", lstm).all_weights[0])
                x = kept[layer][0]
            states.append(x)
            places.append(which + count)
            count += x.shape[0]
        return torch.cat(states), torch.stack(places, 1)


class MaskedTransformer(nn.Module):
    """Masked scores from a bidirectional Transformer, with a pass for each position (Devlin et al. 2019).

    Position t is replaced by a mask symbol in the copy that scores it; the T copies of all rows go through the network
    as batches: at most ``chunk`` masked positions at a time, and so many rows that a pass reads about ``PASS``
    positions. The last layer only computes the masked position. A given memory is attended to by every block; positions
    that are hidden together need one pass alone. Cost: T times a Transformer over T positions; memory
    PASS * (hidden + heads * T) a layer in a pass, of which gradients keep all passes.

    Args:
        labels: how many labels there are.
        given: the types of the tensors that the energy is given: over ``dim`` or without a dim, added to the labels; or
            over one other dim, attended to.
        hidden: the size of a position.
        heads: how many heads; they divide ``hidden``.
        layers: how many blocks.
        chunk: how many positions are masked at once, for less memory.
        dim: the dim that the sequence runs over, whose mask says which positions exist.
    """

    def __init__(
        self,
        labels: int,
        given: tuple[BoundType, ...] = (),
        *,
        hidden: int = 64,
        heads: int = 4,
        layers: int = 2,
        chunk: int = 32,
        dim: str,
    ) -> None:
        super().__init__()
        check_positive(labels=labels, layers=layers, chunk=chunk)
        self.labels, self.hidden, self.chunk, self.dim = labels, hidden, chunk, dim
        self.label_embedding = LabelEmbedding(labels, hidden)
        self.mask_symbol = nn.Parameter(torch.randn(hidden))
        self.given = MaskedGiven(given, embed=hidden, dim=dim)
        self.beside = nn.Linear(self.given.size, hidden) if self.given.size else None
        attends = self.given.memory_size > 0
        self.blocks = nn.ModuleList(Block(hidden, heads, cross=attends) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.readout = nn.Linear(hidden, labels)
        self.remembered = nn.Linear(self.given.memory_size, hidden) if attends else None

    def masked_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Labels ``[B, T]`` to scores ``[B, T, labels]``."""
        length = y.shape[1]
        embedded: Tensor = self.label_embedding(y)
        exists = existing([self.dim], masks, y.shape)
        beside = self._beside(embedded, exists, given, masks)
        if not length or not y.shape[0]:
            return embedded.new_zeros(y.shape[0], length, self.labels)
        memory = self._memory(embedded, given, masks)
        time = torch.arange(length, device=y.device)
        copies = max(1, PASS // length)
        rows = max(1, copies // min(self.chunk, length))
        parts = [
            self._score_rows(
                embedded[at : at + rows],
                beside[at : at + rows],
                None if exists is None else exists.expand(y.shape)[at : at + rows],
                [
                    (keys[at : at + rows], values[at : at + rows], there[at : at + rows])
                    for keys, values, there in memory
                ],
                time.split(min(self.chunk, copies)),
            )
            for at in range(0, y.shape[0], rows)
        ]
        return torch.cat(parts)

    def hidden_scores(self, y: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Scores ``[B, T, labels]`` where labels ``[B, T]`` hold the number of labels: one pass for all of these."""
        embedded = torch.where((y == self.labels).unsqueeze(-1), self.mask_symbol, self.label_embedding(y))
        exists = existing([self.dim], masks, y.shape)
        x = embedded + self._beside(embedded, exists, given, masks)
        allowed = None if exists is None else exists.expand(y.shape).unsqueeze(1)
        memory = self._memory(embedded, given, masks)
        for layer, block in enumerate(self._blocks()):
            x = block(x, *block.keys_values(x), allowed, memory[layer] if memory else None)
        scores: Tensor = self.readout(self.norm(x))
        return scores

    def _blocks(self) -> Sequence[Block]:
        return cast("Sequence[Block]", self.blocks)

    def _beside(self, embedded: Tensor, exists: Tensor | None, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """``[B, T, H]``: what is added to the labels, which says where they stand."""
        time = torch.arange(embedded.shape[1], device=embedded.device)
        at = time if exists is None else (exists.cumsum(1) - 1).clamp(min=0)
        beside = positions(at, self.hidden, embedded.dtype).expand_as(embedded)
        return beside if self.beside is None else beside + self.beside(self.given(given, masks, embedded))

    def _memory(self, like: Tensor, given: tuple[Tensor, ...], masks: Masks) -> list[Memory]:
        """For each block the memory's keys and values ``[B, heads, S, H / heads]`` and what exists of it ``[B, S]``."""
        if self.remembered is None:
            return []
        memory, exists = self.given.attended(given, masks, like)
        at = (exists.cumsum(1) - 1).clamp(min=0)
        seen = self.remembered(memory) + positions(at, self.hidden, memory.dtype)
        found = []
        for block in self._blocks():
            keys, values = (split_heads(one, block.attention.heads) for one in block.memory_keys_values(seen))
            found.append((keys, values, exists))
        return found

    def _score_rows(
        self,
        embedded: Tensor,
        beside: Tensor,
        exists: Tensor | None,
        memory: Sequence[Memory],
        times: Sequence[Tensor],
    ) -> Tensor:
        """The scores ``[b, T, labels]`` of some rows, so many positions at a time as ``times`` has."""
        return torch.cat([self._score_chunk(embedded, beside, exists, memory, at) for at in times], dim=1)

    def _score_chunk(
        self, embedded: Tensor, beside: Tensor, exists: Tensor | None, memory: Sequence[Memory], at: Tensor
    ) -> Tensor:
        """The scores ``[B, C, labels]`` at the positions ``at`` (``[C]``)."""
        batch, length, hidden = embedded.shape
        count = at.shape[0]
        masked = (torch.arange(length, device=at.device) == at.unsqueeze(1)).unsqueeze(-1)  # [C, T, 1]
        x = torch.where(masked, self.mask_symbol, embedded.unsqueeze(1)) + beside.unsqueeze(1)
        x = x.reshape(batch * count, length, hidden)
        allowed = None
        if exists is not None:
            allowed = exists.unsqueeze(1).expand(-1, count, -1).reshape(batch * count, 1, length)
        for layer, block in enumerate(self._blocks()):
            keys, values = block.keys_values(x)
            if layer == len(self.blocks) - 1:
                x = x.gather(1, at.repeat(batch).reshape(-1, 1, 1).expand(-1, 1, hidden))
            x = block(x, keys, values, allowed, memory[layer] if memory else None)
        scores: Tensor = self.readout(self.norm(x.squeeze(1)))
        return scores.reshape(batch, count, self.labels)

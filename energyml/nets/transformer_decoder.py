"""The step network with attention to all labels before."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from energyml.nets.attention import Block, positions
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, check_positive
from energyml.nets.given import Given
from energyml.nets.label_inputs import LabelInputs


class TransformerState(NamedTuple):
    """The state of a ``TransformerDecoder`` after t steps; all but ``exists`` and ``context`` have one entry a layer.

    Attributes:
        keys: ``[B, layers, t, H]``, grown by one at each step.
        values: ``[B, layers, t, H]``.
        memory_keys: ``[B, layers, S, H]``.
        memory_values: ``[B, layers, S, H]``.
        exists: ``[B, S]``, 1 where the memory exists and 0 elsewhere, in the dtype of the rest.
        context: ``[B, H]``, added to the input of every step.
    """

    keys: Tensor
    values: Tensor
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

    varying: ClassVar[tuple[str, ...]] = ("keys", "values")

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
        self.hidden, self.dim = hidden, dim
        self.given = Given(given, embed=hidden)
        has_memory = self.given.memory_size > 0
        self.memory = nn.Linear(self.given.memory_size, hidden) if has_memory else None
        self.context = nn.Linear(self.given.context_size, hidden) if self.given.context_size else None
        self.blocks = nn.ModuleList(Block(hidden, heads, cross=has_memory) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.readout = nn.Linear(hidden, labels)

    def start(self, given: tuple[Tensor, ...], masks: Masks, batch: int) -> TransformerState:
        """The state before the first label, for ``batch`` rows."""
        layers = len(self.blocks)
        empty = self.readout.weight.new_zeros(batch, layers, 0, self.hidden)
        memory, exists, context = self.given(given, masks, empty)
        context = empty.new_zeros(batch, self.hidden) if self.context is None else self.context(context)
        if self.memory is None:
            return TransformerState(empty, empty, empty, empty, empty.new_zeros(batch, 0), context)
        at = (exists.cumsum(1) - 1).clamp(min=0)
        seen = self.memory(memory) + positions(at, self.hidden, memory.dtype)
        keys, values = zip(*(block.memory_keys_values(seen) for block in self._blocks()), strict=True)
        return TransformerState(
            empty, empty, torch.stack(keys, 1), torch.stack(values, 1), exists.to(memory.dtype), context
        )

    def step(self, state: TransformerState, embedding: Tensor, t: int) -> tuple[Tensor, TransformerState]:
        """Unnormalised scores ``[B, labels]`` of position t after the label embedded as ``[B, H]``; the next state."""
        at = torch.full((1,), t, device=embedding.device)
        x = (embedding + positions(at, self.hidden, embedding.dtype) + state.context).unsqueeze(1)
        kept: list[tuple[Tensor, Tensor]] = []
        for layer, block in enumerate(self._blocks()):
            key, value = block.keys_values(x)
            keys = torch.cat([state.keys[:, layer], key], dim=1)
            values = torch.cat([state.values[:, layer], value], dim=1)
            x = block(x, keys, values, memory=self._memory(state, layer))
            kept.append((keys, values))
        state = state._replace(
            keys=torch.stack([keys for keys, _ in kept], 1), values=torch.stack([values for _, values in kept], 1)
        )
        return self.readout(self.norm(x.squeeze(1))), state

    def forced(self, labels: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Scores ``[B, T, labels]`` of every position after the labels ``[B, T]`` before it: T steps at once."""
        batch, length = labels.shape
        state = self.start(given, masks, batch)
        time = torch.arange(length, device=labels.device)
        inputs = self.embed_shifted(labels)
        x = inputs + positions(time, self.hidden, inputs.dtype) + state.context.unsqueeze(1)
        causal = (time.unsqueeze(0) <= time.unsqueeze(1)).unsqueeze(0)
        for layer, block in enumerate(self._blocks()):
            x = block(x, *block.keys_values(x), allowed=causal, memory=self._memory(state, layer))
        every: Tensor = self.readout(self.norm(x))
        return every

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _memory(self, state: TransformerState, layer: int) -> tuple[Tensor, Tensor, Tensor] | None:
        if self.memory is None:
            return None
        return state.memory_keys[:, layer], state.memory_values[:, layer], state.exists > 0.5

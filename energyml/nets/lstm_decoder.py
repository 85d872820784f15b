"""The recurrent step network."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from energyml.nets.attention import attend
from energyml.nets.bound import BoundType
from energyml.nets.features import Masks, check_choice, check_positive
from energyml.nets.given import Given
from energyml.nets.label_inputs import LabelInputs, each_row


class LSTMState(NamedTuple):
    """The state of an ``LSTMDecoder``.

    Attributes:
        hidden: ``[B, layers, H]``.
        cell: ``[B, layers, H]``; ``[B, 0, H]`` for a GRU.
        memory: ``[B, S, F]``, what is attended to.
        keys: ``[B, S, H]``, what it is compared by; ``[B, 0, H]`` when nothing is compared.
        exists: ``[B, S]``, 1 where the memory exists and 0 elsewhere, in the dtype of the rest.
        context: ``[B, C]``, fed to every step.
    """

    hidden: Tensor
    cell: Tensor
    memory: Tensor
    keys: Tensor
    exists: Tensor
    context: Tensor


class LSTMDecoder(LabelInputs):
    """A recurrent decoder: ``h1 = r(0, <s>)``, ``h[t+1] = r(h[t], y[t])``; scores are linear in h and what h reads.

    Attention to the given tensors over a dim is one of

    - ``none``: their mean over the existing positions goes into every step;
    - ``aligned``: step t reads position t, or the last existing one when t is beyond (Goyal et al. 2018, section 3);
    - ``dot``: the new state is compared with each position (Luong et al. 2015, general);
    - ``bahdanau``: the old state is compared with each position, additively, before the step (Bahdanau et al. 2015).

    Given tensors without a dim go into every step. Cost of a step: 4 * H * (inputs + H) multiplications for each layer
    and S * (F + H) for ``dot`` and ``bahdanau``.

    Args:
        labels: how many labels there are.
        given: the types of the tensors that the score is given.
        hidden: H, units of a layer.
        embed: the size of a label's embedding.
        layers: how many layers.
        attention: ``none``, ``aligned``, ``dot`` or ``bahdanau``.
        cell: ``lstm`` or ``gru``.
        dim: the dim that the sequence runs over; kept for whoever asks, the steps do not need it.
    """

    varying: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    by_row: ClassVar[tuple[str, ...]] = ("hidden", "cell")

    def __init__(
        self,
        labels: int,
        given: tuple[BoundType, ...] = (),
        *,
        hidden: int = 100,
        embed: int = 50,
        layers: int = 1,
        attention: str = "none",
        cell: str = "lstm",
        dim: str | None = None,
    ) -> None:
        super().__init__(labels, embed)
        check_positive(hidden=hidden, layers=layers)
        self.hidden, self.layers, self.dim = hidden, layers, dim
        self.attention = check_choice("attention", attention, ("none", "aligned", "dot", "bahdanau"))
        self.cell = check_choice("cell", cell, ("lstm", "gru"))
        self.given = Given(given, embed=embed)
        memory = self.given.memory_size
        if attention != "none" and memory == 0:
            raise ValueError(f"attention: {attention} needs a given tensor whose first axis is a dim")
        read_before = memory if attention != "dot" else 0
        network = nn.LSTM if cell == "lstm" else nn.GRU
        self.recurrence: nn.LSTM | nn.GRU = network(
            embed + read_before + self.given.context_size, hidden, layers, batch_first=True
        )
        compares = attention in ("dot", "bahdanau")
        self.key = nn.Linear(memory, hidden, bias=False) if compares else None
        self.query = nn.Linear(hidden, hidden) if attention == "bahdanau" else None
        self.energy = nn.Linear(hidden, 1, bias=False) if attention == "bahdanau" else None
        self.readout = nn.Linear(hidden + (memory if attention != "none" else 0), labels)

    def start(self, given: tuple[Tensor, ...], masks: Masks, batch: int) -> LSTMState:
        """The state before the first label, for ``batch`` rows."""
        empty = self.readout.weight.new_zeros(batch, 0, self.hidden)
        memory, exists, context = self.given(given, masks, empty)
        zeros = empty.new_zeros(batch, self.layers, self.hidden)
        cell = zeros if self.cell == "lstm" else empty
        if self.attention == "none":
            if self.given.memory_size:
                count = exists.sum(1, keepdim=True).clamp(min=1)
                context = torch.cat([context, memory.sum(1) / count], dim=1)
            return LSTMState(zeros, cell, memory[:, :0], empty, memory.new_zeros(batch, 0), context)
        if self.attention == "aligned":
            return LSTMState(zeros, cell, _extend_last(memory, exists), empty, memory.new_zeros(batch, 0), context)
        keys = empty if self.key is None else self.key(memory)
        return LSTMState(zeros, cell, memory, keys, exists.to(memory.dtype), context)

    def step(self, state: LSTMState, embedding: Tensor, t: int) -> tuple[Tensor, LSTMState]:
        """Unnormalised scores ``[B, labels]`` of position t after the label embedded as ``[B, embed]``, next state."""
        rows = embedding.shape[0]
        parts = [embedding, each_row(state.context, rows)]
        read: list[Tensor] = []
        if self.attention == "aligned":
            read = [each_row(state.memory[:, min(t, state.memory.shape[1] - 1)], rows)]
        elif self.attention == "bahdanau":
            read = [self._attend(state, state.hidden[:, -1:]).squeeze(1)]
        hidden, cell = self._advance(state, torch.cat([*parts, *read], dim=-1))
        state = state._replace(hidden=hidden, cell=cell)
        top = hidden[:, -1]
        if self.attention == "dot":
            read = [self._attend(state, top.unsqueeze(1)).squeeze(1)]
        return self.readout(torch.cat([top, *read], dim=-1)), state

    def forced(self, labels: Tensor, given: tuple[Tensor, ...], masks: Masks) -> Tensor:
        """Scores ``[B, T, labels]`` of every position after the labels ``[B, T]`` before it: T steps at once."""
        batch, length = labels.shape
        state = self.start(given, masks, batch)
        inputs = self.embed_shifted(labels)
        if length == 0:
            return inputs.new_zeros(batch, 0, self.labels)
        if self.attention == "bahdanau":  # what is read depends on the state before
            scores = []
            for t in range(length):
                score, state = self.step(state, inputs[:, t], t)
                scores.append(score)
            return torch.stack(scores, dim=1)
        parts = [inputs, state.context.unsqueeze(1).expand(-1, length, -1)]
        read: list[Tensor] = []
        if self.attention == "aligned":
            at = torch.arange(length, device=labels.device).clamp(max=state.memory.shape[1] - 1)
            read = [state.memory.index_select(1, at)]
        tops = self.recurrence(torch.cat([*parts, *read], dim=-1))[0]
        if self.attention == "dot":
            read = [self._attend(state, tops)]
        every: Tensor = self.readout(torch.cat([tops, *read], dim=-1))
        return every

    def _advance(self, state: LSTMState, x: Tensor) -> tuple[Tensor, Tensor]:
        """One step of every layer, with the weights of ``recurrence`` and without its overhead for sequences."""
        hidden, cell = [], []
        for layer in range(self.layers):
            weights = self.recurrence.all_weights[layer]
            if self.cell == "lstm":
                x, c = torch.lstm_cell(x, [state.hidden[:, layer], state.cell[:, layer]], *weights)
                cell.append(c)
            else:
                x = torch.gru_cell(x, state.hidden[:, layer], *weights)
            hidden.append(x)
        return torch.stack(hidden, dim=1), torch.stack(cell, dim=1) if cell else state.cell

    def _attend(self, state: LSTMState, queries: Tensor) -> Tensor:
        """The memory that states ``[R, Q, H]`` read, ``[R, Q, F]``; rows that share a memory ask it together."""
        rows, asked = queries.shape[:2]
        examples = state.memory.shape[0]
        queries = queries.reshape(examples, rows * asked // max(1, examples), self.hidden)
        if self.query is None or self.energy is None:
            scores = queries @ state.keys.transpose(1, 2) * self.hidden**-0.5
        else:
            mixed = torch.tanh(self.query(queries).unsqueeze(2) + state.keys.unsqueeze(1))
            scores = self.energy(mixed).squeeze(-1)
        read = attend(scores, (state.exists > 0.5).unsqueeze(1)) @ state.memory
        return read.reshape(rows, asked, read.shape[-1])


def _extend_last(memory: Tensor, exists: Tensor) -> Tensor:
    """``[B, S, F]`` with the last existing position repeated behind it, and S at least 1."""
    if memory.shape[1] == 0:
        return memory.new_zeros(memory.shape[0], 1, memory.shape[2])
    time = torch.arange(memory.shape[1], device=memory.device)
    at = torch.minimum(time, (time * exists).amax(1, keepdim=True))
    return memory.gather(1, at.unsqueeze(-1).expand_as(memory))

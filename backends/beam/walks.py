"""Step networks on the rows of one search: what a search does not look at again is overwritten, and nothing is copied.

A walk computes what `step` of its network computes.  It knows what `step` cannot: which rows extend the same parent, so
that what depends on the parent alone is computed once; that states are never gone back to; that rows of an example
share what it is given.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.steps import Steps
from energyml.native import beam as native
from energyml.native.beam import Rows
from energyml.nets.attention import Attention, Block, attend, positions
from energyml.nets.lstm_decoder import LSTMDecoder, LSTMState
from energyml.nets.transformer_decoder import TransformerDecoder, TransformerState

# Numbers in the table of the labels' part of the gates; with more, each step makes its own.
LARGEST_TABLE = 1 << 26
# Steps that a cache has room for at first, at most.
FIRST_STEPS = 64


class Walk(Protocol):
    """A network on its way through one search.

    Attributes:
        bias: [labels], what `step` leaves to be added to all scores.
    """

    bias: Tensor

    def step(self, rows: Rows, t: int) -> Tensor:
        """Unnormalised scores [R, labels] of position t less `bias`, for rows of the step before; overwritten later."""
        ...


def walk_of(steps: Steps, width: int) -> Walk | None:
    """The walk of a beam where a problem is one network and nothing else, on the CPU; `None` where there is none."""
    if len(steps.nets) != 1 or steps.tables or steps.allowed is not None or torch.is_grad_enabled():
        return None
    term = steps.nets[0]
    net = steps.env.module._modules[term.body.net]
    if steps.env.gains.get(term.term.gain) is not None or (term.end is not None and steps.end is None):
        return None
    if not isinstance(net, torch.nn.Module) or not native.serves(*net.parameters()):
        return None
    if type(net) is LSTMDecoder and net.cell == "lstm":
        state = term.started(steps.env)
        return LSTMWalk(net, state) if native.serves(*state) else None
    if type(net) is TransformerDecoder:
        state = term.started(steps.env)
        return TransformerWalk(net, state, steps.size, steps.batch.size * width) if native.serves(*state) else None
    return None


class _Readout:
    """A linear layer without its bias, whose output is written to the same place each time."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        self.weight = layer.weight.t()
        self.room = self.weight.new_empty(0, layer.out_features)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > self.room.shape[0]:
            self.room = x.new_empty(x.shape[0], self.room.shape[1])
        return torch.mm(x, self.weight, out=self.room[: x.shape[0]])


class _Listed:
    """The existing positions of each example's memory [B, S], as lists for `native.attend`."""

    def __init__(self, exists: Tensor) -> None:
        there = exists > 0.5
        size = there.shape[1]
        order = (~there).to(torch.int8).argsort(dim=1, stable=True)  # those that exist first
        first = torch.arange(there.shape[0], device="cpu").unsqueeze(1) * size
        self.lists = (order + first).to(torch.int32).contiguous()
        self.counts = there.sum(1).to(torch.int32)

    def read(self, query: Tensor, bias: Tensor, keys: Tensor, values: Tensor, heads: int, rows: Rows) -> Tensor:
        return native.attend(query, bias, keys, values, heads, self.lists, rows.example, self.counts)


class LSTMWalk:
    """An `LSTMDecoder` with LSTM cells.

    The gates are a sum: what a label adds is looked up after it was computed once, what the parent's state adds is
    computed once for all rows that extend it, what the example adds once for the example.

    Args:
        network: the decoder.
        state: its state before the first step, a row for each example.
    """

    def __init__(self, network: LSTMDecoder, state: LSTMState) -> None:
        self.net, self.start = network, state
        inputs, recurrent, bias, other = network.recurrence.all_weights[0]
        embed, seen = network.label_embedding.weight.shape[1], state.context.shape[1]
        self.by_label, self.gate_bias = inputs[:, :embed].t(), bias + other
        self.by_read = inputs[:, embed + seen :]
        self.context = F.linear(state.context, inputs[:, embed : embed + seen]) if seen else None
        self.recurrent: Tensor = recurrent
        if network.attention == "bahdanau":
            self.recurrent = torch.cat([recurrent, self.by_read], 1)
        self.hidden = [one.contiguous() for one in state.hidden.unbind(1)]
        self.cell = [one.contiguous() for one in state.cell.unbind(1)]
        size = (network.labels + 1) * self.gate_bias.shape[0]
        self.table = None if size > LARGEST_TABLE else recurrent.new_empty(network.labels + 1, recurrent.shape[0])
        self.known = torch.zeros(network.labels + 1, dtype=torch.bool, device="cpu")
        self.readout, self.bias = _Readout(network.readout), network.readout.bias.contiguous()
        if network.attention == "dot":
            self.listed, self.none = _Listed(state.exists), recurrent.new_zeros(network.hidden)
            self.memory, self.keys = (one.flatten(0, 1).contiguous() for one in (state.memory, state.keys))

    def step(self, rows: Rows, t: int) -> Tensor:
        """Scores [R, labels]; see `Walk`."""
        net = self.net
        parts: list[tuple[Tensor, Tensor | None]] = [self._of_labels(rows.label)]
        if net.attention == "aligned":
            here = self.start.memory[:, min(t, self.start.memory.shape[1] - 1)]
            parts.append((F.linear(here, self.by_read), rows.example))
        if self.context is not None:
            parts.append((self.context, rows.example))
        read: Tensor | None = here.index_select(0, rows.example) if net.attention == "aligned" else None
        parents = self.hidden[0].index_select(0, rows.distinct)
        if net.attention == "bahdanau":
            by_parent = self._compared(rows)
            read, parents = by_parent.index_select(0, rows.slot), torch.cat([parents, by_parent], 1)
        parts.append((F.linear(parents, self.recurrent), rows.slot))
        state, cell = _lstm_cell(parts, self.cell[0], rows.parent)
        self.hidden[0], self.cell[0] = state, cell
        for layer in range(1, net.layers):
            inputs, recurrent, bias, other = net.recurrence.all_weights[layer]
            own = F.linear(state, inputs, bias + other)
            before = F.linear(self.hidden[layer].index_select(0, rows.distinct), recurrent)
            state, cell = _lstm_cell([(own, None), (before, rows.slot)], self.cell[layer], rows.parent)
            self.hidden[layer], self.cell[layer] = state, cell
        if net.attention == "dot":
            read = self.listed.read(state, self.none, self.keys, self.memory, 1, rows)
        return self.readout(state if read is None else torch.cat([state, read], 1))

    def _of_labels(self, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """What labels [R] add to the gates: rows of the table, or a row for each."""
        if self.table is None:
            return torch.addmm(self.gate_bias, self.net.embed(labels), self.by_label), None
        new = labels[~self.known[labels]].unique()
        if new.shape[0]:
            self.table.index_copy_(0, new, torch.addmm(self.gate_bias, self.net.embed(new), self.by_label))
            self.known[new] = True
        return self.table, labels

    def _compared(self, rows: Rows) -> Tensor:
        """What each distinct parent reads by additive attention, [P, F]."""
        assert self.net.query is not None and self.net.energy is not None
        example = torch.empty_like(rows.distinct)
        example[rows.slot] = rows.example
        keys, memory, exists = (
            one.index_select(0, example) for one in (self.start.keys, self.start.memory, self.start.exists)
        )
        query = self.net.query(self.hidden[-1].index_select(0, rows.distinct))
        scores = self.net.energy(torch.tanh(query.unsqueeze(1) + keys)).squeeze(-1)
        return (attend(scores, exists > 0.5).unsqueeze(1) @ memory).squeeze(1)


def _lstm_cell(parts: list[tuple[Tensor, Tensor | None]], before: Tensor, parent: Tensor) -> tuple[Tensor, Tensor]:
    """The states and cells [R, H] after a step whose gates are a sum.

    Args:
        parts: [N, 4 H], and [R] which row of it each row adds; its own where left out.
        before: [N, H]: cells before the step.
        parent: [R]: which of them each row has.
    """
    first, *others = (part if rows is None else part.index_select(0, rows) for part, rows in parts)
    gates = sum(others, first)
    inward, kept, new, outward = gates.chunk(4, 1)
    cell = torch.sigmoid(kept) * before.index_select(0, parent) + torch.sigmoid(inward) * torch.tanh(new)
    return torch.sigmoid(outward) * torch.tanh(cell), cell


def _normed(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """The layer normalisation, without the time that calling a module takes."""
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class TransformerWalk:
    """A `TransformerDecoder`: keys and values stay where they were written, and rows list which are their own.

    Args:
        network: the decoder.
        state: its state before the first step, a row for each example.
        size: the most steps.
        rows: the most rows of a step.
    """

    def __init__(self, network: TransformerDecoder, state: TransformerState, size: int, rows: int) -> None:
        self.net, self.state = network, state
        hidden = network.hidden
        weight = network.readout.weight
        self.places = positions(torch.arange(size, device="cpu"), hidden, weight.dtype)
        self.blocks = [_Weights(block) for block in network._blocks()]
        self.lists = torch.empty(0, 0, dtype=torch.int32, device="cpu")
        self.caches = [weight.new_empty(rows * min(size, FIRST_STEPS), 2 * hidden) for _ in self.blocks]
        self.used = 0
        self.readout, self.bias = _Readout(network.readout), network.readout.bias.contiguous()
        self.memories: list[tuple[Tensor, Tensor]] = []
        if network.memory is not None:
            self.listed = _Listed(state.exists)
            for layer in range(len(self.blocks)):
                keys, values = (one[:, layer].transpose(1, 2) for one in (state.memory_keys, state.memory_values))
                self.memories.append((keys.reshape(-1, hidden), values.reshape(-1, hidden)))

    def step(self, rows: Rows, t: int) -> Tensor:
        """Scores [R, labels]; see `Walk`."""
        net, count, hidden = self.net, len(rows), self.net.hidden
        x = net.embed(rows.label) + self.places[t]
        if net.context is not None:
            x = x + self.state.context.index_select(0, rows.example)
        own = torch.arange(self.used, self.used + count, dtype=torch.int32, device="cpu").unsqueeze(1)
        self.lists = own if t == 0 else torch.cat([self.lists.index_select(0, rows.parent), own], 1)
        normed = _normed(x, self.blocks[0].norm)
        for layer, block in enumerate(self.blocks):
            cache = self._room(layer, count)
            torch.mm(normed, block.shown, out=cache[self.used : self.used + count])
            query, keys, values = torch.mm(normed, block.asked), cache[:, :hidden], cache[:, hidden:]
            read = native.attend(query, block.asked_bias, keys, values, net.heads, self.lists)
            x += torch.mm(read, block.out).add_(block.out_bias)
            if block.cross is not None:
                query = torch.mm(_normed(x, block.cross.norm), block.cross.asked)
                read = self.listed.read(query, block.cross.asked_bias, *self.memories[layer], net.heads, rows)
                x += torch.mm(read, block.cross.out).add_(block.cross.out_bias)
            wide = F.gelu(torch.mm(_normed(x, block.wide_norm), block.wide).add_(block.wide_bias))
            x += torch.mm(wide, block.narrow).add_(block.narrow_bias)
            after = net.norm if layer + 1 == len(self.blocks) else self.blocks[layer + 1].norm
            normed = _normed(x, after)
        self.used += count
        return self.readout(normed)

    def _room(self, layer: int, count: int) -> Tensor:
        """The cache of a layer with room for more rows; it doubles where there is none."""
        cache = self.caches[layer]
        if self.used + count > cache.shape[0]:
            wider = cache.new_empty(2 * cache.shape[0], cache.shape[1])
            wider[: self.used] = cache[: self.used]
            self.caches[layer] = cache = wider
        return cache


class _Reading:
    """The layers around an attention, as a step uses them.

    Keys need no bias, as it adds the same to all that is compared, and that of values comes out as it is: it goes into
    the bias of the layer behind.
    """

    def __init__(self, norm: torch.nn.LayerNorm, attention: Attention, *, keeps_bias: bool) -> None:
        self.norm = norm
        self.asked, self.asked_bias = attention.query.weight.t(), attention.query.bias
        self.out = attention.out.weight.t()
        self.out_bias: Tensor = attention.out.bias
        if not keeps_bias:
            self.out_bias = F.linear(attention.value.bias, attention.out.weight, attention.out.bias)


class _Weights(_Reading):
    """The layers of a block as a step uses them; keys and values are one product."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.norm, block.attention, keeps_bias=False)
        self.shown = torch.cat([block.attention.key.weight, block.attention.value.weight]).t()
        self.cross: _Reading | None = None
        if block.cross is not None and block.cross_norm is not None:
            self.cross = _Reading(block.cross_norm, block.cross, keeps_bias=True)  # their keys and values are ready
        norm, wide, _, narrow = block.wide
        assert isinstance(norm, torch.nn.LayerNorm)
        assert isinstance(wide, torch.nn.Linear) and isinstance(narrow, torch.nn.Linear)
        self.wide_norm, self.wide, self.wide_bias = norm, wide.weight.t(), wide.bias
        self.narrow, self.narrow_bias = narrow.weight.t(), narrow.bias


__all__ = ["LSTMWalk", "TransformerWalk", "Walk", "walk_of"]

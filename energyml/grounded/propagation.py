"""Messages between factors and cells, in log space: sum- and max-product, plain and reweighted.

A message m(f -> i) says how a factor f likes the labels of its cell i; a belief is b(i) = unary(i) + sum of
w m(f -> i).  With all weights 1 this is belief propagation on the factor graph (Pearl 1988; Kschischang et al. 2001):

    m(f -> i) = log sum over the other cells of exp(table + sum of n(j -> f)),    n(j -> f) = b(j) - m(f -> j).

With the weights w of a distribution over forests of factors it is tree-reweighted belief propagation (Wainwright et
al. 2005, eq. 39, for pairs), in which each table is divided by its factor's weight.

A label that finds no support among the labels of a factor's other cells is impossible.  Its belief becomes -inf and
stays it, and the message about it is kept as 0: so no message is ever -inf, and no difference of infinities arises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.execution import is_host_readable
from energyml.grounded.ascent import is_tracked, times
from energyml.grounded.factors import FactorGraph, Potentials
from energyml.grounded.logspace import logsumexp
from energyml.grounded.schedule import Entry, Pick, Schedule, Step, add, put, take

Messages = dict[str, Tensor]
"""By block and slot, as `key` names them: [R, E, labels]."""


def key(block: int, slot: int) -> str:
    """The name of the messages from a block's factors to the cells at a slot."""
    return f"{block}.{slot}"


@dataclass(eq=False)
class State:
    """Messages, and the beliefs that they make: by variable [R, N, labels]."""

    messages: Messages
    beliefs: dict[str, Tensor]


class Propagation:
    """Message passing for one batch.

    Args:
        graph: the batch.
        potentials: its scores.
        schedule: steps over its cells.
        damping: the share of an old message that is kept.
        largest: max-product instead of sum-product.
        weights: by block: [E] the weight of each factor's messages; `None` where all are 1.
    """

    def __init__(
        self,
        graph: FactorGraph,
        potentials: Potentials,
        schedule: Schedule,
        damping: float = 0.0,
        largest: bool = False,
        weights: Sequence[Tensor] | None = None,
    ) -> None:
        self.graph, self.potentials, self.schedule, self.damping = graph, potentials, schedule, damping
        self.largest, self.weights = largest, weights
        self.tables: list[Tensor] = []
        for number, factors in enumerate(potentials.factors):
            table = factors.table
            if weights is not None:
                if factors.valid is not None:
                    there = factors.valid.reshape(*factors.valid.shape, *([1] * (table.dim() - 2)))
                    table = torch.where(there, table, 0)
                table = table / weights[number].reshape(1, -1, *([1] * (table.dim() - 2)))
            self.tables.append(table)
        self.ratios = [None if largest or factors.hard else _ratios(table)
                       for factors, table in zip(potentials.factors, self.tables, strict=True)]  # fmt: skip
        unary = potentials.unary.values()
        self.hard = any(factors.hard for factors in potentials.factors)
        self.tracked = is_tracked([*unary, *self.tables])

    # ---------------------------------------------------------------------------------------------------------- states

    def start(self) -> Messages:
        """Messages that say nothing."""
        made = {}
        for number, factors in enumerate(self.potentials.factors):
            for slot, name in enumerate(factors.block.variables):
                labels = self.potentials.unary[name].shape[-1]
                shape = (self.graph.rows, len(factors.block.scope), labels)
                made[key(number, slot)] = torch.zeros(shape, device=self.graph.device, dtype=self.graph.dtype)
        return made

    def state(self, messages: Messages) -> State:
        """Messages with their beliefs."""
        beliefs = dict(self.potentials.unary)
        for number, factors in enumerate(self.potentials.factors):
            for slot, (name, pick) in enumerate(zip(factors.block.variables, self.schedule.scope(number), strict=True)):
                message = messages[key(number, slot)]
                weight = self._weight(number)
                index = pick if isinstance(pick, Tensor) else _range(pick, self.graph.device)
                beliefs[name] = beliefs[name].index_add(1, index, message if weight is None else weight * message)
        return State(messages, beliefs)

    def _weight(self, block: int, pick: Pick | None = None) -> Tensor | None:
        """[1, n, 1]: the weights of factors' messages."""
        if self.weights is None:
            return None
        weight = self.weights[block].reshape(1, -1, 1)
        return weight if pick is None else take(weight, pick)

    # --------------------------------------------------------------------------------------------------------- updates

    def run(self, state: State, steps: Sequence[Step]) -> State:
        """Renew all messages to a step's cells, step after step.  Cost of a sweep: every table once for each slot."""
        in_place = not (self.tracked or is_tracked(state.messages.values()))
        messages, beliefs = dict(state.messages), dict(state.beliefs)
        if in_place:
            messages = {name: one.clone() for name, one in messages.items()}
            beliefs = {name: one.clone() for name, one in beliefs.items()}
        for step in steps:
            now = State(messages, beliefs)
            made: list[tuple[Entry, Tensor]] = []
            scores: dict[str, Tensor] = {}
            for name, cells in step.cells.items():
                total = take(self.potentials.unary[name], cells)
                for entry in step.entries[name]:
                    message = self._message(now, entry)
                    weight = self._weight(entry.block, entry.elements)
                    total = add(total, entry, message if weight is None else weight * message)
                    made.append((entry, message.masked_fill(message.isneginf(), 0) if self.hard else message))
                scores[name] = total
            for entry, message in made:
                name = key(entry.block, entry.slot)
                messages[name] = put(messages[name], entry.elements, message, in_place)
            for name, total in scores.items():
                beliefs[name] = put(beliefs[name], step.cells[name], total, in_place)
        return State(messages, beliefs)

    def _message(self, state: State, entry: Entry) -> Tensor:
        """[R, n, labels]: the new messages of an entry's factors; -inf for a label without support."""
        factors, table = self.potentials.factors[entry.block], self.tables[entry.block]
        ratios = self.ratios[entry.block]
        if ratios is not None:
            ratios = take(ratios, entry.elements) if ratios.shape[1] > 1 else ratios
            other = self._cavity(state, entry.block, 1 - entry.slot, entry.others[1 - entry.slot], entry.elements)
            found = _products(ratios, other, entry.slot, self.hard)
        else:
            cavities = self.cavities(state, entry.block, entry.others, entry.elements)
            table = table if table.shape[1] == 1 else take(table, entry.elements)
            found = self.collected(table, cavities, entry.slot)
        # The constant of a message is part of its gradient: left in, it would grow from sweep to sweep.
        peak = found.amax(-1, keepdim=True)
        found = found - (peak.masked_fill(peak.isneginf(), 0) if self.hard else peak)
        if factors.valid is not None and self.weights is None:
            found = torch.where(take(factors.valid, entry.elements).unsqueeze(-1), found, 0)
        if self.damping:
            old = take(state.messages[key(entry.block, entry.slot)], entry.elements)
            found = (1 - self.damping) * found + self.damping * old
        return found

    def cavities(self, state: State, block: int, cells: Sequence[Pick], elements: Pick | None) -> list[Tensor]:
        """For every slot [R, n, labels]: the belief there without what the factor itself says."""
        return [self._cavity(state, block, slot, pick, elements) for slot, pick in enumerate(cells)]

    def _cavity(self, state: State, block: int, slot: int, cells: Pick, elements: Pick | None) -> Tensor:
        message = state.messages[key(block, slot)]
        belief = take(state.beliefs[self.potentials.factors[block].block.variables[slot]], cells)
        return belief - (message if elements is None else take(message, elements))

    def collected(self, table: Tensor, cavities: Sequence[Tensor], slot: int) -> Tensor:
        """[R, n, labels of the slot]: the sum or the largest of a table and the other slots' cavities."""
        joint = table
        for other, cavity in enumerate(cavities):
            if other != slot:
                joint = joint + _along(cavity, other, len(cavities))
        if len(cavities) == 2:
            return self.over(joint, 3 - slot)
        return self.over(joint.movedim(2 + slot, 2).flatten(3), 3)

    def summed(self, number: int, cavities: Sequence[Tensor], slot: int) -> Tensor:
        """[R, E, labels of the slot]: as `collected`, for all factors of a block."""
        ratios, table = self.ratios[number], self.tables[number]
        if ratios is None:
            return self.collected(table, cavities, slot)
        other, largest = cavities[1 - slot], table.detach().amax((2, 3)).unsqueeze(-1)
        return _products(ratios, other, slot, self.hard) + _finite_peak(other, self.hard) + largest

    def over(self, values: Tensor, axis: int) -> Tensor:
        """The log of the sum of exp along an axis, or the largest."""
        return values.amax(axis) if self.largest else logsumexp(values, axis)

    def change(self, old: State, new: State) -> Tensor:
        """The largest change of a cell's probabilities."""
        with torch.no_grad():
            found = [
                (probabilities(new.beliefs[name]) - probabilities(old.beliefs[name])).abs().amax()
                for name in new.beliefs
                if new.beliefs[name].numel()
            ]
        return torch.stack(found).amax() if found else torch.zeros((), device=self.graph.device)

    # ----------------------------------------------------------------------------------------------------- conclusions

    def joints(self, state: State, number: int) -> Tensor:
        """[R, E, *labels]: the table of each factor plus the cavities of its cells."""
        cavities = self.cavities(state, number, self.schedule.scope(number), None)
        joint = self.tables[number]
        for slot, cavity in enumerate(cavities):
            joint = joint + _along(cavity, slot, len(cavities))
        return joint

    def bethe(self, state: State) -> Tensor:
        """[B]: the Bethe approximation of log Z, or of the best score (Yedidia et al. 2005).

        At a fixed point it is minus the Bethe free energy; on a forest it is exact.
        """
        graph = self.graph
        total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        gone = self.potentials.impossible
        cells: dict[str, Tensor] = {}
        for name, belief in state.beliefs.items():
            value = self.over(belief, 2)
            gone = gone | (graph.by_example(name, value.isneginf().to(graph.dtype)) > 0)
            cells[name] = value.masked_fill(value.isneginf(), 0)
            total = total + graph.by_example(name, cells[name])
        for number, factors in enumerate(self.potentials.factors):
            value = self.over(self.joints(state, number).flatten(2), 2)
            gone = gone | (graph.factor_sums(factors, value.isneginf().to(graph.dtype)) > 0)
            value = value.masked_fill(value.isneginf(), 0)
            for name, pick in zip(factors.block.variables, self.schedule.scope(number), strict=True):
                value = value - take(cells[name], pick)
            total = total + graph.factor_sums(factors, value)
        return total.masked_fill(gone, float("-inf"))


def _ratios(table: Tensor) -> Tensor | None:
    """exp(table - its largest entry), where the smallest one is no closer to 0 than half of what the type can tell.

    Then a sum of products with exp(cavity - its largest entry) loses nothing that matters: it holds the largest one
    times an entry of the table.  `None` where entries differ by more, or where looking would wait for a device.
    """
    if not is_host_readable(table) or not table.numel() or table.dim() != 4:
        return None
    peak = table.detach().amax((2, 3), keepdim=True)
    span = float((peak - table.detach().amin((2, 3), keepdim=True)).amax())
    if not span <= -0.5 * math.log(torch.finfo(table.dtype).tiny):
        return None
    return (table - peak).exp()


def _products(ratios: Tensor, cavity: Tensor, slot: int, hard: bool) -> Tensor:
    """[R, n, labels of the slot]: log of the sum over the other slot's labels of ratio times exp(cavity - its peak)."""
    likely = (cavity - _finite_peak(cavity, hard)).exp()
    total = times(likely, ratios.mT if slot == 0 else ratios)
    if not hard:
        return total.log()
    empty = total == 0
    return torch.where(empty, 1, total).log().masked_fill(empty, float("-inf"))


def _finite_peak(cavity: Tensor, hard: bool) -> Tensor:
    """[R, n, 1]: the largest entries, 0 where none is finite; without gradients."""
    peak = cavity.detach().amax(-1, keepdim=True)
    return peak.masked_fill(peak.isneginf(), 0) if hard else peak


def _along(values: Tensor, slot: int, slots: int) -> Tensor:
    """[R, n, labels] as [R, n, 1, .., labels, .., 1]."""
    return values.reshape(*values.shape[:2], *([1] * slot), values.shape[2], *([1] * (slots - slot - 1)))


def probabilities(values: Tensor) -> Tensor:
    """The softmax along the last axis, normalised to the last digit whatever the scores; zero where all are -inf."""
    gone = values.isneginf().all(-1, keepdim=True)
    return values.masked_fill(gone, 0).softmax(-1).masked_fill(gone, 0)


def _range(pick: slice, device: torch.device) -> Tensor:
    return torch.arange(pick.start, pick.stop, pick.step, device=device)

"""Descent on the dual of the local polytope: upper bounds of the best score of a factor graph.

Every cell i takes a share s(f, i) of the table of each of its factors f, a function of its label.  Whatever the shares,

    score(y) = sum over cells of (unary(i) + sum of s(f, i)) + sum over factors of (table(f) - sum of s(f, i)),

and so the best score is at most the sum of the largest values of all parts (dual decomposition; Sontag et al. 2011).
The smallest such sum is the optimum of the local polytope's linear program.  The shares of one cell at a time are
chosen best: with g(f, i), the largest value of a factor without i's own share for each label of i, and
b(i) = unary(i) + sum of g(f, i), every choice

    s(f, i) = g(f, i) - w(f) b(i),    w >= 0,    sum of w <= 1,

is best for the cell.  Even weights are the star update of max-product linear programming (Globerson & Jaakkola 2007).
Here cells are visited in an order and back, and a cell gives its weight to the factors that reach onwards,
1 / max(their number, that of those that reach back) each: sequential tree-reweighted message passing (Kolmogorov 2006;
2015 for factors of any size).  No step raises the bound, and on a chain the first sweep is dynamic programming.

A label that some factor rules out for good is -inf in its cell, and its share is kept as 0: no share is ever infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.grounded.factors import FactorGraph, Potentials
from energyml.grounded.propagation import key
from energyml.grounded.schedule import Entry, Pick, Schedule, Step, add, put, take
from energyml.grounded.skeleton import on_device

Weights = list[Tensor]
"""By block: [E, slots], the weight that the cell at a slot gives to the factor."""


@dataclass(eq=False)
class Shares:
    """A point of the dual.

    Attributes:
        taken: by block and slot, as `key` names them: [R, E, labels], the shares.
        unary: by variable: [R, N, labels], the scores of single cells; -inf for labels that are ruled out.
    """

    taken: dict[str, Tensor]
    unary: dict[str, Tensor]


class Descent:
    """Steps on the dual for one batch.

    Args:
        graph: the batch.
        potentials: its scores.
        schedule: its cells in an order in which no two of a step share a factor.
    """

    def __init__(self, graph: FactorGraph, potentials: Potentials, schedule: Schedule) -> None:
        self.graph, self.potentials, self.schedule = graph, potentials, schedule
        self.tables: list[Tensor] = []
        for factors in potentials.factors:
            table = factors.table.detach()
            if factors.valid is not None:
                there = factors.valid.reshape(*factors.valid.shape, *([1] * (table.dim() - 2)))
                table = torch.where(there, table, 0)
            self.tables.append(table)

    def start(self) -> Shares:
        """No cell takes anything."""
        taken = {}
        for number, factors in enumerate(self.potentials.factors):
            for slot, name in enumerate(factors.block.variables):
                scores = self.potentials.unary[name]
                shape = (self.graph.rows, len(factors.block.scope), scores.shape[-1])
                taken[key(number, slot)] = torch.zeros(shape, device=self.graph.device, dtype=self.graph.dtype)
        return Shares(taken, {name: one.detach().clone() for name, one in self.potentials.unary.items()})

    # ----------------------------------------------------------------------------------------------------------- steps

    def sweep(self, shares: Shares) -> None:
        """Through all cells and back, in place.  Cost: every table twice for each of its cells."""
        upwards, downwards = self._weights()
        steps = self.schedule.there_and_back()
        depth = self.schedule.depth
        for number, step in enumerate(steps):
            # The last level is where the way back begins.
            self._update(shares, step, upwards if number < depth - 1 else downwards)

    def _weights(self) -> tuple[Weights, Weights]:
        """On the way there and on the way back; kept with the schedule's structure."""
        kept, known = self.schedule.skeleton.kept, ("dual weights", id(self.schedule), self.graph.dtype)
        if known not in kept:
            made = (_onward(self.schedule, 1), _onward(self.schedule, -1))
            kept[known] = tuple(
                [on_device(one, self.graph.device, self.graph.dtype) for one in weights] for weights in made
            )
        found: tuple[Weights, Weights] = kept[known]
        return found

    def _update(self, shares: Shares, step: Step, weights: Weights) -> None:
        for name, cells in step.cells.items():
            total = take(shares.unary[name], cells)
            offered = []
            for entry in step.entries[name]:
                best = self._best(shares, entry)
                offered.append((entry, best))
                total = add(total, entry, best)
            for entry, best in offered:
                own = take(total, entry.targets)
                weight = take(weights[entry.block][:, entry.slot].reshape(1, -1, 1), entry.elements)
                share = (best - weight * own).masked_fill(own.isneginf(), 0)
                put(shares.taken[key(entry.block, entry.slot)], entry.elements, share, True)
            left = take(shares.unary[name], cells).masked_fill(total.isneginf(), float("-inf"))
            put(shares.unary[name], cells, left, True)

    def _best(self, shares: Shares, entry: Entry) -> Tensor:
        """[R, n, labels]: the largest values of an entry's factors for each label of its cells, shares left out."""
        table = self.tables[entry.block]
        joint = self._reduced(
            table if table.shape[1] == 1 else take(table, entry.elements),
            shares, entry.block, entry.others, entry.elements, entry.slot,
        )  # fmt: skip
        if joint.dim() == 4:
            return joint.amax(3 - entry.slot)
        return joint.movedim(2 + entry.slot, 2).flatten(3).amax(3)

    def _reduced(
        self, table: Tensor, shares: Shares, block: int, cells: Sequence[Pick], elements: Pick | None, but: int | None
    ) -> Tensor:
        """[R, n, *labels]: tables without the shares of all slots but one; -inf for labels that are ruled out."""
        names = self.potentials.factors[block].block.variables
        for slot, (name, pick) in enumerate(zip(names, cells, strict=True)):
            if slot == but:
                continue
            share = shares.taken[key(block, slot)]
            share = share if elements is None else take(share, elements)
            gone = take(shares.unary[name], pick).isneginf()
            left = (-share).masked_fill(gone, float("-inf"))
            shape = [*left.shape[:2], *([1] * len(names))]
            shape[2 + slot] = left.shape[2]
            table = table + left.reshape(shape)
        return table

    # ----------------------------------------------------------------------------------------------------- conclusions

    def bound(self, shares: Shares) -> Tensor:
        """[B]: an upper bound of the best score; -inf where the steps have found that there is no answer."""
        graph = self.graph
        parts: list[tuple[Tensor, Tensor | None]] = []
        for name, total in shares.unary.items():
            for number, factors in enumerate(self.potentials.factors):
                for slot, (own, pick) in enumerate(
                    zip(factors.block.variables, self.schedule.scope(number), strict=True)
                ):
                    if own == name:
                        index = pick if isinstance(pick, Tensor) else _range(pick, graph.device)
                        total = total.index_add(1, index, shares.taken[key(number, slot)])
            parts.append((total.amax(2), None))
        for number, factors in enumerate(self.potentials.factors):
            joint = self._reduced(self.tables[number], shares, number, self.schedule.scope(number), None, None)
            where = factors.block.rows
            parts.append((joint.flatten(2).amax(2), None if where is None else graph.placed(where)))
        bound = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        gone = self.potentials.impossible
        for values, rows in parts:
            lost = values.isneginf()
            gone = gone | (self._summed(lost.to(graph.dtype), rows) > 0)
            bound = bound + self._summed(values.masked_fill(lost, 0), rows)
        return bound.masked_fill(gone, float("-inf"))

    def _summed(self, values: Tensor, rows: Tensor | None) -> Tensor:
        """[B]: sums of values [R, n], padding included: what a cell gives away may have gone there."""
        size = self.graph.batch.size
        if rows is None:
            return values.reshape(size, values.numel() // max(1, size)).sum(1)
        start = torch.zeros(size, device=values.device, dtype=values.dtype)
        return start.index_add(0, rows, values[0])

    def labels(self, shares: Shares) -> dict[str, Tensor]:
        """[R, N] by variable: cell by cell in the order, the best label given those that are decided (Kolmogorov 2006).

        On a chain, after a sweep, this is the best answer, ties or not.
        """
        decided = Shares(shares.taken, {name: one.clone() for name, one in shares.unary.items()})
        found = {name: one.argmax(-1) for name, one in shares.unary.items()}
        for step in self.schedule.sweeps(1):
            for name, cells in step.cells.items():
                own = take(decided.unary[name], cells)
                total = own
                for entry in step.entries[name]:
                    total = add(total, entry, self._best(decided, entry))
                # Where what is decided leaves nothing, the cell's own score decides; the caller repairs.
                total = torch.where(total.isneginf().all(-1, keepdim=True), own, total)
                best = total.argmax(-1)
                put(found[name], cells, best, True)
                other = F.one_hot(best, own.shape[-1]) == 0
                put(decided.unary[name], cells, own.masked_fill(other, float("-inf")), True)
        return found

    def choices(self, shares: Shares, names: Sequence[str]) -> Tensor:
        """[B]: the log of how many labels the cells of some variables have left, taken together."""
        graph = self.graph
        total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        for name in names:
            left = (~shares.unary[name].isneginf()).sum(-1).clamp(min=1).to(graph.dtype)
            total = total + graph.by_example(name, left.log())
        return total


def _onward(schedule: Schedule, direction: int) -> list[np.ndarray]:
    """By block: [E, slots] what a cell gives to a factor that reaches onwards in a direction; 0 to all others."""
    blocks, skeleton = schedule.skeleton.blocks, schedule.skeleton
    onward = []
    ahead_of = {name: np.zeros(count) for name, count in skeleton.counts.items()}
    behind_of = {name: np.zeros(count) for name, count in skeleton.counts.items()}
    for block in blocks:
        levels = np.stack([schedule.levels[name][block.scope[:, slot]] for slot, name in enumerate(block.variables)], 1)
        levels = direction * levels
        ahead = levels.max(1, keepdims=True) > levels
        behind = levels.min(1, keepdims=True) < levels
        onward.append(ahead)
        for slot, name in enumerate(block.variables):
            cells, count = block.scope[:, slot], skeleton.counts[name]
            ahead_of[name] += np.bincount(cells, ahead[:, slot], count)
            behind_of[name] += np.bincount(cells, behind[:, slot], count)
    made = []
    for block, ahead in zip(blocks, onward, strict=True):
        most = {name: np.maximum(np.maximum(ahead_of[name], behind_of[name]), 1) for name in block.variables}
        of = np.stack([most[name][block.scope[:, slot]] for slot, name in enumerate(block.variables)], 1)
        made.append(np.where(ahead, 1 / of, 0.0))
    return made


def _range(pick: slice, device: torch.device) -> Tensor:
    return torch.arange(pick.start, pick.stop, pick.step, device=device)

"""Gibbs sampling: cells are drawn from their exact conditionals, one after the other or in blocks.

Source: Geman & Geman 1984; blocks of independent cells: Besag 1974 (coding sets); whole chains: Carter & Kohn 1994.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from energyml.backends.mcmc.factor_target import FactorTarget, picked, replaced
from energyml.backends.mcmc.kernel import Current, Kernel
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import ScoreTarget
from energyml.diagnostics import QueryRefused
from energyml.grounded.schedule import Pick, Step
from energyml.grounded.skeleton import Skeleton, on_device


class SiteGibbs(Kernel):
    """Cell after cell, by the scores of all its labels.  Cost of a sweep: a score for each label of each cell."""

    target: ScoreTarget

    def plan(self, current: Current, random: Randomness) -> Iterable[tuple[str, int]]:
        """All cells in their order."""
        return [(name, cell) for name, cells in self.target.cells.items() for cell in range(cells)]

    def move(self, current: Current, move: tuple[str, int], random: Randomness) -> None:
        """Draw one cell, given all others."""
        name, cell = move
        scores = self.target.trials(current.labels, name, cell)
        old = current.labels[name][:, :, cell].clone()  # a view would change with what is written below
        new = random.categorical(scores * current.beta.reshape(1, -1, 1))
        new = torch.where(scores.isneginf().all(-1), old, new)
        current.labels[name][:, :, cell] = new
        current.score = scores.gather(-1, new.unsqueeze(-1)).squeeze(-1)
        present = self.target.existing(name)[:, :, cell].expand_as(old).to(current.score.dtype)
        current.count(present, present, (new != old).to(present.dtype))


class FactorGibbs(Kernel):
    """Cells that share no factor are drawn together; the order is that of the cells, or of colours.

    Cost of a sweep: every table once for each of its cells; operations for each level or colour, not for each cell.

    Args:
        target: the factor graph.
        order: `sequential` gives what cell after cell gives; `coloured` goes through the classes of a colouring.
    """

    target: FactorTarget

    def __init__(self, target: FactorTarget, order: str) -> None:
        super().__init__(target)
        self.steps = target.schedule(order).sweeps(1)
        pairs = not target.hard and all(len(f.block.variables) == 2 for f in target.potentials.factors)
        two = {name: count == 2 for name, count in target.counts.items()}
        linear = pairs and any(two.values()) and target.subtractable
        self.binary = {name: one and linear for name, one in two.items()}
        self._differences: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def plan(self, current: Current, random: Randomness) -> Iterable[Step]:
        """The levels or colours in turn."""
        return self.steps

    def advance(self, current: Current, random: Randomness) -> None:
        """One sweep, in the factor graph's own layout."""
        placed = {name: self.target.rows(one).clone() for name, one in current.labels.items()}
        for step in self.steps:
            self._draw(placed, step, current.beta, random)
        _settle(self.target, current, placed)

    def move(self, current: Current, move: Step, random: Randomness) -> None:
        """Draw the cells of one level or colour, given all others."""
        placed = {name: self.target.rows(one).clone() for name, one in current.labels.items()}
        self._draw(placed, move, current.beta, random)
        _settle(self.target, current, placed)

    def _draw(self, placed: dict[str, Tensor], step: Step, beta: Tensor, random: Randomness) -> None:
        for name, pick in step.cells.items():
            if self.binary[name]:
                new = self._binary(placed, name, step, beta, random)
            else:
                scores = self.target.local(placed, name, step)
                drawn = random.categorical(scores * beta.reshape(1, -1, 1, 1))
                # Chains that start in what is forbidden stay until a conditional leaves them a label.
                new = torch.where(scores.isneginf().all(-1), picked(placed[name], pick), drawn)
            replaced(placed[name], pick, new)

    def _binary(self, placed: dict[str, Tensor], name: str, step: Step, beta: Tensor, random: Randomness) -> Tensor:
        """[R, C, n]: two labels need one logit: the difference of their scores, linear in a binary neighbour."""
        target = self.target
        unary = picked(target.potentials.unary[name].unsqueeze(1), step.cells[name])
        total = unary[..., 1] - unary[..., 0]
        for entry in step.entries[name]:
            other = 1 - entry.slot
            neighbour = target.potentials.factors[entry.block].block.variables[other]
            if target.counts[neighbour] != 2:
                value = target.heard(placed, entry.block, entry.slot, entry.elements, entry.others)
                value = value[..., 1] - value[..., 0]
            else:
                base, slope = self._line(entry.block, entry.slot)
                if base.shape[2] > 1:
                    base, slope = picked(base, entry.elements), picked(slope, entry.elements)
                here = picked(placed[neighbour], entry.others[other]).to(base.dtype)
                value = torch.addcmul(base, slope, here)
                valid = target.potentials.factors[entry.block].valid
                if valid is not None:
                    value = torch.where(picked(valid.unsqueeze(1), entry.elements), value, 0)
            total = _summed(total, entry.targets, value)
        logits = total.expand(-1, placed[name].shape[1], -1) * beta.reshape(1, -1, 1)
        return random.chance(logits.sigmoid()).long()

    def _line(self, number: int, slot: int) -> tuple[Tensor, Tensor]:
        """[R or 1, 1, E or 1] twice: the difference that a neighbour with label 0 makes, and what label 1 adds."""
        found = self._differences.get((number, slot))
        if found is None:
            table = self.target.potentials.factors[number].table.movedim(2 + slot, -1)
            difference = (table[..., 1] - table[..., 0]).unsqueeze(1)
            found = difference[..., 0].contiguous(), (difference[..., 1] - difference[..., 0]).contiguous()
            self._differences[number, slot] = found
        return found[0], found[1]


def _settle(target: FactorTarget, current: Current, placed: dict[str, Tensor]) -> None:
    """Take over labels [R, C, cells of a row], and count."""
    proposed, novel = torch.zeros_like(current.score), torch.zeros_like(current.score)
    for name, one in placed.items():
        new = target.by_example(one)
        proposed = proposed + target.existing(name).sum(-1)
        novel = novel + (new != current.labels[name]).sum(-1)
        current.labels[name] = new
    current.score = target.score(current.labels)
    current.count(proposed, proposed, novel)


def _summed(values: Tensor, pick: Pick, new: Tensor) -> Tensor:
    """Values [R, 1 or C, n] plus those of some cells."""
    if isinstance(pick, slice) and pick.step == 1 and pick.stop - pick.start == values.shape[2]:
        return values + new
    lead = torch.broadcast_shapes(values.shape[:2], new.shape[:2])
    if values.shape[:2] != lead:
        values = values.expand(*lead, -1).clone()
    if isinstance(pick, slice):
        values[:, :, pick] += new
        return values
    return values.index_add_(2, pick, new.expand(*lead, -1))


@dataclass(frozen=True, eq=False)
class Paths:
    """Chains of cells of one variable that share no factor with each other, and are drawn together.

    Attributes:
        name: the variable.
        cells: [P, L] the cells of each path, in order.
        single: (block, slot, factors, path * L + place) of factors that hold one of these cells.
        pairs: (block, first slot, factors, path * (L - 1) + place) of factors between neighbours of a path.
    """

    name: str
    cells: Tensor
    single: Sequence[tuple[int, int, Tensor, Tensor]]
    pairs: Sequence[tuple[int, int, Tensor, Tensor]]


class ChainGibbs(Kernel):
    """Whole chains of cells along a variable's last dim, given all other cells, by forward filtering.

    A model that is one chain is drawn exactly, so that its sweeps are independent.  Cost of a sweep: C L K^2 for each
    chain of cells, in 2 L operations for each colour of chains; where no other cell has a say and all chains have one
    temperature, the filter is made once, and a sweep costs C L K.
    """

    target: FactorTarget

    def __init__(self, target: FactorTarget) -> None:
        super().__init__(target)
        kept, key = target.graph.skeleton.kept, ("paths", target.device, tuple(target.shapes.items()))
        if key not in kept:
            kept[key] = list(_paths(target))
        self.paths: list[Paths] = kept[key]
        self._filters: dict[Paths, tuple[Tensor, Filter]] = {}

    def plan(self, current: Current, random: Randomness) -> Iterable[Paths]:
        """The chains of cells, colour after colour."""
        return self.paths

    def advance(self, current: Current, random: Randomness) -> None:
        """One sweep; the score is computed once."""
        placed = {name: self.target.rows(one).clone() for name, one in current.labels.items()}
        for paths in self.paths:
            self._draw(placed, paths, current.beta, random)
        _settle(self.target, current, placed)

    def move(self, current: Current, move: Paths, random: Randomness) -> None:
        """Draw the chains of one colour."""
        placed = {name: self.target.rows(one).clone() for name, one in current.labels.items()}
        self._draw(placed, move, current.beta, random)
        _settle(self.target, current, placed)

    def _draw(self, placed: dict[str, Tensor], paths: Paths, beta: Tensor, random: Randomness) -> None:
        if paths.single or not bool((beta == beta[0]).all()):
            self._sampled(placed, paths, self._filter(self._unary(placed, paths), paths, beta), random)
        else:
            self._sampled(placed, paths, self._shared(paths, beta[:1]), random)

    def _shared(self, paths: Paths, beta: Tensor) -> Filter:
        """The filter of paths that hear from no other cell, the same for all chains."""
        found = self._filters.get(paths)
        if found is None or not torch.equal(found[0], beta):
            unary = self.target.potentials.unary[paths.name].index_select(1, paths.cells.flatten()).unsqueeze(1)
            found = self._filters[paths] = beta.clone(), self._filter(unary, paths, beta)
        return found[1]

    def _sampled(self, placed: dict[str, Tensor], paths: Paths, filtered: Filter, random: Randomness) -> None:
        """Draw the last cells, then each one before."""
        ahead, links = filtered.ahead, filtered.links
        rows, chains = placed[paths.name].shape[:2]
        shape = (rows, chains, *ahead[0].shape[2:])
        drawn = random.categorical(ahead[-1].expand(shape))
        labels = [drawn]
        for t in range(len(ahead) - 2, -1, -1):
            pair = links.at(t)
            index = drawn[..., None, None].expand(*drawn.shape, pair.shape[-2], 1)
            scores = ahead[t] + pair.expand(*drawn.shape, -1, -1).gather(-1, index).squeeze(-1)
            drawn = random.categorical(scores)
            labels.append(drawn)
        self._put(placed, paths, torch.stack(labels[::-1], -1).flatten(2), filtered)

    def _put(self, placed: dict[str, Tensor], paths: Paths, new: Tensor, filtered: Filter) -> None:
        """Take over labels [R, C, P * L] of paths that have possible labels at all."""
        possible = filtered.possible.expand(*new.shape[:2], -1, paths.cells.shape[1]).flatten(2)
        where = paths.cells.flatten()
        old = placed[paths.name].index_select(2, where)
        placed[paths.name].index_copy_(2, where, torch.where(possible, new, old))

    def _filter(self, unary: Tensor, paths: Paths, beta: Tensor) -> Filter:
        """Forward: log of the summed weights of all beginnings that end in a label.

        Args:
            unary: [R, C or 1, P * L, K]: the scores of single cells, given all cells outside of their chains.
            paths: the chains of cells.
            beta: [C or 1].
        """
        count, length = paths.cells.shape
        unary = (unary * beta.reshape(1, -1, 1, 1)).unflatten(2, (count, length))
        links = self._links(paths, beta)
        ahead = [unary[:, :, :, 0]]
        for t in range(1, length):
            ahead.append(torch.logsumexp(ahead[-1].unsqueeze(-1) + links.at(t - 1), -2) + unary[:, :, :, t])
        return Filter(ahead, links, ~ahead[-1].isneginf().all(-1, keepdim=True))

    def _unary(self, placed: dict[str, Tensor], paths: Paths) -> Tensor:
        """[R, C, P * L, K]: the scores of single cells, and of factors that hold one cell of a chain, given others."""
        target, chains = self.target, placed[paths.name].shape[1]
        unary = target.potentials.unary[paths.name].index_select(1, paths.cells.flatten()).unsqueeze(1)
        unary = unary.expand(-1, chains, -1, -1).clone()
        for number, slot, elements, at in paths.single:
            block = target.potentials.factors[number].block
            scope = target.graph.placed(block.scope)[elements]
            others = tuple(scope[:, place] for place in range(len(block.variables)))
            unary.index_add_(2, at, target.heard(placed, number, slot, elements, others))
        return unary

    def _links(self, paths: Paths, beta: Tensor) -> Links:
        """The scores of neighbours along paths; one table for all of them stays one."""
        target, labels = self.target, self.target.counts[paths.name]
        count, length = paths.cells.shape
        tables, valids = [], []
        for number, first, elements, _ in paths.pairs:
            factors = target.potentials.factors[number]
            table = factors.table if factors.table.shape[1] == 1 else factors.table.index_select(1, elements)
            tables.append(table if first == 0 else table.mT)
            valids.append(None if factors.valid is None else factors.valid.index_select(1, elements))
        scale = beta.reshape(1, -1, 1, 1, 1)
        tempered = not bool((beta == 1).all())
        if len(tables) == 1 and tables[0].shape[1] == 1 and len(paths.pairs[0][3]) == count * (length - 1):
            at, valid = paths.pairs[0][3], valids[0]
            if valid is not None:
                valid = torch.empty_like(valid).index_copy_(1, at, valid).unflatten(1, (count, length - 1))
            table = tables[0].unsqueeze(1)
            return Links((table * scale if tempered else table).unsqueeze(3), valid)
        rows = target.graph.rows
        pair = torch.zeros(rows, 1, count * (length - 1), labels, labels, device=target.device, dtype=target.dtype)
        for table, valid, (_, _, _, at) in zip(tables, valids, paths.pairs, strict=True):
            if valid is not None:
                table = torch.where(valid[..., None, None], table, 0)
            pair.index_add_(2, at, table.expand(rows, len(at), -1, -1).unsqueeze(1))
        return Links((pair * scale if tempered else pair).unflatten(2, (count, length - 1)), None)


@dataclass(frozen=True, eq=False)
class Links:
    """The scores of neighbours along paths.

    Attributes:
        table: [R or 1, C or 1, P or 1, L - 1 or 1, K, K].
        valid: [R or 1, P, L - 1] which of them exist, where the table is one for all of them; `None` when all do.
    """

    table: Tensor
    valid: Tensor | None

    def at(self, t: int) -> Tensor:
        """[R or 1, C or 1, P or 1, K, K]: between the cells t and t + 1."""
        table = self.table[:, :, :, min(t, self.table.shape[3] - 1)]
        return table if self.valid is None else torch.where(self.valid[:, None, :, t, None, None], table, 0)


@dataclass(frozen=True, eq=False)
class Filter:
    """What forward filtering found.

    Attributes:
        ahead: [R, C or 1, P, K] for each of the L cells: log of the summed weights of all beginnings that end there.
        links: the scores of neighbours.
        possible: [R, C or 1, P, 1]: whether a path has possible labels.
    """

    ahead: Sequence[Tensor]
    links: Links
    possible: Tensor


def _paths(target: FactorTarget) -> Iterable[Paths]:
    """Chains of cells along the last dim of each variable; those that share a factor come in different colours."""
    skeleton, starts = target.graph.skeleton, target.graph.skeleton.starts
    owner = np.full(sum(skeleton.counts.values()), -1, dtype=np.int64)
    place = np.zeros_like(owner)
    groups: list[tuple[str, np.ndarray]] = []
    for name, total in skeleton.counts.items():
        shape = target.shapes[name]
        length = shape[-1] if shape else 1
        for cells in np.arange(total).reshape(-1, length) if total and length else ():
            owner[starts[name] + cells], place[starts[name] + cells] = len(groups), np.arange(length)
            groups.append((name, cells))
    _check(skeleton, owner, place)
    colours = _coloured(skeleton, owner, len(groups))
    for colour in range(int(colours.max(initial=-1)) + 1):
        for name in skeleton.counts:
            members = [one for one in np.flatnonzero(colours == colour).tolist() if groups[one][0] == name]
            if members:
                yield _gathered(target, name, members, [groups[number][1] for number in members], owner, place)


def _check(skeleton: Skeleton, owner: np.ndarray, place: np.ndarray) -> None:
    for block in skeleton.blocks:
        cells = skeleton.numbered(block)
        own, at = owner[cells], place[cells]
        for one in range(cells.shape[1]):
            for two in range(one + 1, cells.shape[1]):
                same = own[:, one] == own[:, two]
                if same.any() and (cells.shape[1] > 2 or (np.abs(at[same, one] - at[same, two]) != 1).any()):
                    raise QueryRefused(
                        "`gibbs(block: chains)` draws cells along a variable's last dim, and a factor joins such cells "
                        "that are no neighbours; use `block: colour`"
                    )


def _coloured(skeleton: Skeleton, owner: np.ndarray, count: int) -> np.ndarray:
    """[chains of cells]: a greedy colouring of those that share factors."""
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for block in skeleton.blocks:
        own = owner[skeleton.numbered(block)]
        for one in range(own.shape[1]):
            for two in range(one + 1, own.shape[1]):
                for a, b in np.unique(own[own[:, one] != own[:, two]][:, [one, two]], axis=0).tolist():
                    neighbours[a].add(b)
                    neighbours[b].add(a)
    colours = np.full(count, -1, dtype=np.int64)
    for number in range(count):
        taken = {int(colours[other]) for other in neighbours[number]}
        colours[number] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
    return colours


def _gathered(
    target: FactorTarget, name: str, members: list[int], cells: list[np.ndarray], owner: np.ndarray, place: np.ndarray
) -> Paths:
    skeleton, device = target.graph.skeleton, target.device
    length = len(cells[0])
    rank = np.full(int(owner.max(initial=0)) + 1, -1, dtype=np.int64)
    rank[members] = np.arange(len(members))
    single, pairs = [], []
    for number, block in enumerate(skeleton.blocks):
        numbered = skeleton.numbered(block)
        own, at = rank[owner[numbered]], place[numbered]
        inside = len(block.variables) == 2 and owner[numbered][:, 0] == owner[numbered][:, 1]
        inside = np.broadcast_to(inside, (len(numbered),))
        for slot in range(len(block.variables)):
            here = np.flatnonzero((own[:, slot] >= 0) & ~inside)
            if len(here):
                where = own[here, slot] * length + at[here, slot]
                single.append((number, slot, on_device(here, device), on_device(where, device)))
        for first in (0, 1) if inside.any() else ():
            here = np.flatnonzero(inside & (own[:, 0] >= 0) & (at[:, first] < at[:, 1 - first]))
            if len(here):
                where = own[here, 0] * (length - 1) + at[here, first]
                pairs.append((number, first, on_device(here, device), on_device(where, device)))
    return Paths(name, on_device(np.stack(cells), device), single, pairs)


__all__ = ["ChainGibbs", "FactorGibbs", "Filter", "Links", "Paths", "SiteGibbs"]

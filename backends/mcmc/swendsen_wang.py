"""Swendsen-Wang: clusters of equal labels change together, where neighbours attract each other.

Source: Swendsen & Wang 1987; with scores of single cells: Edwards & Sokal 1988.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from energyml.backends.mcmc.factor_target import FactorTarget, picked
from energyml.backends.mcmc.kernel import Current, Kernel, State
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import Labels
from energyml.diagnostics import QueryRefused
from energyml.execution import is_host_readable

# How far a table may be from one weight for equal labels, in nats, beside rounding.
TOLERANCE = 1e-6
# Rounds that join clusters where the host cannot look, for each bit of the number of cells.
ROUNDS = 2
# The first and the second cells of factors, and which of them are bound.
Ends: TypeAlias = Sequence[tuple[Tensor, Tensor, Tensor]]


class SwendsenWang(Kernel):
    """Bonds between equal neighbours, then a new label for each cluster, from the sum of its cells' scores.

    Every factor of two cells must score equal labels by a weight of at least 0 more than all others, which may differ
    from factor to factor.  Cost of a sweep: every factor once, times the rounds that join clusters (at most the log of
    the longest one, nearly).
    """

    target: FactorTarget

    def __init__(self, target: FactorTarget) -> None:
        super().__init__(target)
        if len(target.counts) != 1:
            raise QueryRefused("`swendsen_wang` moves the cells of one variable; `gibbs` serves this model")
        (self.name,) = target.counts
        self.weights = [self._weight(number) for number in range(len(target.potentials.factors))]
        self.apart: Tensor | None = None  # whether some clusters were not joined in the rounds of an accelerator

    def init(self, generator: torch.Generator, beta: Tensor | None = None, labels: Labels | None = None) -> State:
        """Chains at their starting points: without hard constraints all labels are possible."""
        return super().init(generator, beta, self.target.spread(Randomness(generator)) if labels is None else labels)

    def _weight(self, number: int) -> Tensor:
        """[R or 1, 1, E or 1]: what equal labels gain in a block's factors."""
        factors = self.target.potentials.factors[number]
        table = factors.table
        if table.dim() != 4:
            raise QueryRefused("`swendsen_wang` needs factors of two cells; `gibbs` serves others")
        count = table.shape[-1]
        rest = table[..., 0, 1] if count > 1 else table[..., 0, 0]
        weight = table[..., 0, 0] - rest
        if is_host_readable(table):
            problem = _unfit(table, weight, rest)
            if problem is not None:
                raise QueryRefused(problem)
        else:
            # The host would wait for the device: the status of an answer makes the check when it is read.
            self.target.problem.env.unseen.append(lambda: _unfit(table, weight, rest))
        if factors.valid is not None:
            weight = torch.where(factors.valid, weight, 0)
        return weight.unsqueeze(1)

    def plan(self, current: Current, random: Randomness) -> Iterable[int]:
        """One move of all clusters."""
        return range(1)

    def move(self, current: Current, move: int, random: Randomness) -> None:
        """Join, and draw."""
        target, name = self.target, self.name
        labels = target.rows(current.labels[name])
        rows, chains, cells = labels.shape
        beta = current.beta.reshape(1, -1, 1)
        ends = []
        for number, weight in enumerate(self.weights):
            first, second = target.schedule("parallel").scope(number)
            one, two = picked(labels, first), picked(labels, second)
            probability = torch.where(one == two, -torch.expm1(-beta * weight), 0)
            every = torch.arange(cells, device=labels.device)
            ends.append((every[first], every[second], random.chance(probability)))
        root = self._joined(rows, chains, cells, ends)
        unary = target.potentials.unary[name].unsqueeze(1).expand(rows, chains, cells, -1)
        total = torch.zeros_like(unary).scatter_add(2, root.unsqueeze(-1).expand_as(unary), unary)
        drawn = random.categorical(total * beta.unsqueeze(-1))
        new = target.by_example(drawn.gather(2, root))
        changed = (new != current.labels[name]).any(-1)
        current.labels[name] = new
        current.score = target.score(current.labels)
        one_each = torch.ones_like(current.score)
        current.count(one_each, one_each, changed.to(one_each.dtype))

    def _joined(self, rows: int, chains: int, cells: int, ends: Ends) -> Tensor:
        """[R, C, cells]: the smallest cell of each cell's cluster.

        On an accelerator, where the host would have to wait to see the end, so many rounds as any clusters that were
        tried needed twice over; the status of an answer tells if they were too few.
        """
        root = torch.arange(cells, device=self.target.device).expand(rows, chains, cells).contiguous()
        rounds = None if is_host_readable(root) else max(1, ROUNDS * cells.bit_length())
        before = root
        while rounds is None or rounds > 0:
            before, root = root, _closer(root, ends)
            if rounds is None:
                if torch.equal(root, before):
                    return root
            else:
                rounds -= 1
        late = (root != before).any()
        if self.apart is None:
            self.target.problem.env.unseen.append(self._told)
        self.apart = late if self.apart is None else self.apart | late
        return root

    def _told(self) -> str | None:
        if self.apart is None or not bool(self.apart):
            return None
        return "`swendsen_wang`: clusters were too winding to be joined on this device: use the CPU, or `gibbs`"


def _unfit(table: Tensor, weight: Tensor, rest: Tensor) -> str | None:
    """Why a table [..., K, K] cannot be served, whose equal labels gain a weight over the rest; `None` where it can."""
    if bool(table.isneginf().any()):
        return "`swendsen_wang` needs factors of two cells without hard constraints; `gibbs` serves them"
    same = torch.eye(table.shape[-1], dtype=torch.bool, device=table.device)
    usual = torch.where(same, table[..., 0, 0, None, None], rest[..., None, None])
    # Each score is held to its own magnitude: beside a mask of -1e9 all others are small.
    slack = TOLERANCE + 8 * torch.finfo(table.dtype).eps * table.abs()
    if bool(((usual - table).abs() > slack).any()):
        return "`swendsen_wang` needs factors that score equal labels only (`potts`)"
    if bool((weight < 0).any()):
        return "`swendsen_wang` needs neighbours that attract each other: a weight of `potts` is below 0"
    return None


def _closer(root: Tensor, ends: Ends) -> Tensor:
    """A round that joins clusters: the smallest cells [R, C, cells] are passed along bonds, and jumped to."""
    rows, chains, cells = root.shape
    for first, second, bond in ends:
        one, two = root.index_select(2, first), root.index_select(2, second)
        least = torch.where(bond, torch.minimum(one, two), cells)
        for place in (first, second):
            index = place.expand(rows, chains, -1)
            root = root.scatter_reduce(2, index, least, "amin")
        # The old roots hear of it too: clusters join as wholes.
        root = root.scatter_reduce(2, one, torch.where(bond, least, one), "amin")
        root = root.scatter_reduce(2, two, torch.where(bond, least, two), "amin")
    return root.gather(2, root)


__all__ = ["SwendsenWang"]

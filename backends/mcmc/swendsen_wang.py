"""Swendsen-Wang: clusters of equal labels change together, where neighbours attract each other.

Source: Swendsen & Wang 1987; with scores of single cells: Edwards & Sokal 1988.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from energyml.backend import QueryRefused
from energyml.backends.mcmc.factor_target import FactorTarget, picked
from energyml.backends.mcmc.kernel import Current, Kernel
from energyml.backends.mcmc.randomness import Randomness

# How far a table may be from one weight for equal labels.
TOLERANCE = 1e-5


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

    def _weight(self, number: int) -> Tensor:
        """[R or 1, 1, E or 1]: what equal labels gain in a block's factors."""
        factors = self.target.potentials.factors[number]
        table = factors.table
        if table.dim() != 4 or factors.hard:
            raise QueryRefused(
                "`swendsen_wang` needs factors of two cells without hard constraints; `gibbs` serves them"
            )
        count = table.shape[-1]
        same = torch.eye(count, dtype=torch.bool, device=table.device)
        rest = table[..., 0, 1] if count > 1 else table[..., 0, 0]
        weight = table[..., 0, 0] - rest
        potts = torch.where(same, (weight + rest)[..., None, None], rest[..., None, None])
        error = (potts - table).abs().amax() if table.numel() else table.new_zeros(())
        if bool(error > TOLERANCE * (1 + table.abs().amax() if table.numel() else 1)):
            raise QueryRefused("`swendsen_wang` needs factors that score equal labels only (`potts`)")
        if bool((weight < 0).any()):
            raise QueryRefused(
                "`swendsen_wang` needs neighbours that attract each other: a weight of `potts` is below 0"
            )
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
        root = _clusters(rows, chains, cells, ends, labels.device)
        unary = target.potentials.unary[name].unsqueeze(1).expand(rows, chains, cells, -1)
        total = torch.zeros_like(unary).scatter_add(2, root.unsqueeze(-1).expand_as(unary), unary)
        drawn = random.categorical(total * beta.unsqueeze(-1))
        new = target.by_example(drawn.gather(2, root))
        changed = (new != current.labels[name]).any(-1)
        current.labels[name] = new
        current.score = target.score(current.labels)
        one_each = torch.ones_like(current.score)
        current.count(one_each, one_each, changed.to(one_each.dtype))


def _clusters(
    rows: int, chains: int, cells: int, ends: list[tuple[Tensor, Tensor, Tensor]], device: torch.device
) -> Tensor:
    """[R, C, cells]: the smallest cell of each cell's cluster, by passing the smallest along bonds and jumping."""
    root = torch.arange(cells, device=device).expand(rows, chains, cells).contiguous()
    while True:
        before = root
        for first, second, bond in ends:
            one, two = root.index_select(2, first), root.index_select(2, second)
            least = torch.where(bond, torch.minimum(one, two), cells)
            for place in (first, second):
                index = place.expand(rows, chains, -1)
                root = root.scatter_reduce(2, index, least, "amin")
            # The old roots hear of it too: clusters join as wholes.
            root = root.scatter_reduce(2, one, torch.where(bond, least, one), "amin")
            root = root.scatter_reduce(2, two, torch.where(bond, least, two), "amin")
        root = root.gather(2, root)
        if torch.equal(root, before):
            return root


__all__ = ["SwendsenWang"]

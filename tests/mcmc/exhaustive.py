"""Exact transition matrices: the code that samples, run under all outcomes of its chance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from math import factorial

import torch
from torch import Tensor

from energyml.backends.mcmc.gibbs_native import PathSites, Sites
from energyml.backends.mcmc.kernel import Current, Kernel, State
from energyml.backends.mcmc.randomness import Drawable, Randomness
from energyml.backends.mcmc.target import Target


class Pruned(Exception):
    """What was chosen so far has probability 0 in all chains."""


class Script(Randomness):
    """Chance that follows a script: the same outcome in each group of chains, whose probabilities are multiplied."""

    def __init__(self, outcomes: list[int], groups: int) -> None:
        self.outcomes, self.groups = outcomes, groups
        self.widths: list[int] = []
        self.weight = torch.ones(groups, dtype=torch.float64)

    def categorical(self, scores: Tensor) -> Tensor:
        p = scores.double().softmax(-1).nan_to_num(nan=0.0)
        flat = p.reshape(self.groups, -1, p.shape[-1])
        drawn = torch.zeros(flat.shape[:2], dtype=torch.long)
        for element in range(flat.shape[1]):
            impossible = flat[:, element].sum(-1) == 0
            one = flat[:, element] + (impossible.double() / p.shape[-1]).unsqueeze(-1)
            drawn[:, element] = self._chosen(one)
        return drawn.reshape(scores.shape[:-1])

    def chance(self, probability: Tensor) -> Tensor:
        return self.categorical(torch.stack([1 - probability, probability], -1).double().log()) == 1

    def permutation(self, count: int) -> list[int]:
        p = torch.full((self.groups, factorial(count)), 1 / factorial(count), dtype=torch.float64)
        return list(list(permutations(range(count)))[self._chosen(p)])

    def sites(self, cells: Drawable) -> None:
        """Native code is given its draws and says how likely it would have made them."""
        assert isinstance(cells, Sites | PathSites)
        labels = {name: one.clone() for name, one in cells.labels.items()}
        chains = next(iter(labels.values())).shape[1] // self.groups
        for name, cell in cells.cells:
            width = torch.ones(self.groups, cells.counts[name], dtype=torch.float64)
            for chain in range(chains):
                labels[name][:, chain::chains, cell] = self._chosen(width)
        self.weight = self.weight * cells.take(labels).reshape(self.groups, chains).prod(1)

    def _chosen(self, p: Tensor) -> int:
        """One of several outcomes with probabilities [groups, K]."""
        at = len(self.widths)
        self.widths.append(p.shape[1])
        if at == len(self.outcomes):
            self.outcomes.append(0)
        self.weight = self.weight * p[:, self.outcomes[at]]
        if not bool((self.weight > 0).any()):
            raise Pruned
        return self.outcomes[at]


def all_labels(target: Target) -> dict[str, Tensor]:
    """[1, S, cells] by variable: every combination of labels, as chains of one example."""
    sizes = [target.counts[name] for name, cells in target.cells.items() for _ in range(cells)]
    rows = torch.tensor(list(product(*(range(size) for size in sizes))))
    made, first = {}, 0
    for name, cells in target.cells.items():
        made[name] = rows[:, first : first + cells].unsqueeze(0)
        first += cells
    return made


def numbered(target: Target, labels: dict[str, Tensor]) -> Tensor:
    """[C]: the number of each chain's combination of labels, as `all_labels` has them."""
    total = torch.zeros((), dtype=torch.long)
    for name, cells in target.cells.items():
        for cell in range(cells):
            total = total * target.counts[name] + labels[name][0, :, cell]
    return total


def transitions(
    kernel: Kernel,
    state: State,
    run: Callable[[Current, Randomness], None],
    groups: int,
    number: Callable[[Current], Tensor],
) -> Tensor:
    """[S, S]: the probability of going from each combination to each, in one call of `run`.

    Args:
        kernel: whose moves are made.
        state: every combination, each in one group of chains.
        run: the moves.
        groups: how many combinations there are.
        number: the number of each group's combination.
    """
    matrix = torch.zeros(groups, groups, dtype=torch.float64)
    outcomes: list[int] = []
    while True:
        current, script = Current(state), Script(outcomes, groups)
        try:
            with torch.no_grad():
                run(current, script)
            matrix[torch.arange(groups), number(current)] += script.weight
        except Pruned:
            pass
        outcomes = outcomes[: len(script.widths)]
        while outcomes and outcomes[-1] == script.widths[len(outcomes) - 1] - 1:
            outcomes.pop()
        if not outcomes:
            return matrix
        outcomes[-1] += 1


def state_of(kernel: Kernel, labels: dict[str, Tensor], beta: Tensor | None = None) -> State:
    return kernel.init(torch.Generator().manual_seed(0), beta, labels)


def target_distribution(score: Tensor) -> Tensor:
    """[S]: the probabilities of all combinations from their scores."""
    return score.double().softmax(-1)


def imbalance(p: Tensor, matrix: Tensor) -> float:
    """The largest violation of detailed balance: p(a) M(a, b) = p(b) M(b, a)."""
    flow = p.unsqueeze(1) * matrix
    return float((flow - flow.T).abs().max())


def drift(p: Tensor, matrix: Tensor) -> float:
    """The total variation between a distribution and where it goes."""
    return float((p @ matrix - p).abs().sum() / 2)

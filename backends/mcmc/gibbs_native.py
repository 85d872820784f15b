"""Gibbs sampling of factor graphs by native code: the same laws as `FactorGibbs`, other random numbers.

The order of cells is that of `FactorGibbs`.  A factor counts for the score when the last of its cells is drawn, so that
the score of a sweep's labels falls out of its draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from energyml.backends.mcmc.factor_target import FactorTarget
from energyml.backends.mcmc.gibbs import ChainGibbs, Filter, Paths
from energyml.backends.mcmc.gibbs_graphs import levels_of, pair_graph, paired, table_graph
from energyml.backends.mcmc.kernel import Current, Info, Kernel, State
from energyml.backends.mcmc.randomness import Randomness
from energyml.native.sweep import Drawn, Order, Rows, Scopes, TableGraph, padded, serves, swept

Span: TypeAlias = tuple[int, int]


class NativeGibbs(Kernel):
    """Cells are drawn in the order of levels or colours, many chains at once.

    Two labels with factors of two cells and without hard constraints: a bit for each chain, eight chains to a vector.
    Up to 16 labels (8 in double precision): chains in vectors.  More: the labels of one chain in vectors.  Cost of a
    sweep: every table once for each of its cells.

    Args:
        target: the factor graph.
        order: `sequential` gives what cell after cell gives; `coloured` goes through the classes of a colouring.
    """

    target: FactorTarget

    def __init__(self, target: FactorTarget, order: str) -> None:
        super().__init__(target)
        with torch.no_grad():
            self.graph = pair_graph(target, order) if paired(target) else table_graph(target, order)
        levels = np.concatenate([np.sort(levels_of(target, order)), [-1]])
        ends = np.flatnonzero(np.diff(levels)) + 1
        self.spans: list[Span] = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)) if len(ends) else []
        self.proposed = torch.stack(
            [target.existing(name).sum(-1).expand(target.size, 1) for name in target.cells]
        ).sum(0)

    @staticmethod
    def serves(target: FactorTarget) -> bool:
        """Whether native code can draw from a target: it was built, and the scores are on the CPU."""
        scores = [*target.potentials.unary.values(), *(factors.table for factors in target.potentials.factors)]
        return serves(*scores) and target.size > 0 and any(target.cells.values())

    def step(self, state: State) -> tuple[State, Info]:
        """One sweep."""
        return self.run(state, 1)

    def run(self, state: State, count: int) -> tuple[State, Info]:
        """Some sweeps in one call, which reads and writes the labels once."""
        if not count:
            return super().run(state, count)
        random = Randomness.resumed(state.random, self.target.device)
        current = Current(state, copied=False)
        with torch.no_grad():
            Sites(self, current, None).draw(*(random.key() for _ in range(count)))
        return current.after(state, random, count)

    def plan(self, current: Current, random: Randomness) -> Iterable[Span]:
        """The levels or colours in turn."""
        return self.spans

    def advance(self, current: Current, random: Randomness) -> None:
        """One sweep."""
        random.sites(Sites(self, current, None))

    def move(self, current: Current, move: Span, random: Randomness) -> None:
        """Draw the cells of one level or colour, given all others."""
        random.sites(Sites(self, current, move))


class Sites:
    """Cells that are about to be drawn.

    Args:
        kernel: whose cells they are.
        current: the chains.
        span: the places of the order; `None` for a whole sweep.
    """

    def __init__(self, kernel: NativeGibbs, current: Current, span: Span | None) -> None:
        self.kernel, self.current, self.span = kernel, current, span
        self.labels, self.counts = current.labels, kernel.target.counts

    @property
    def cells(self) -> list[tuple[str, int]]:
        """The variable and the number of each cell, in the order of drawing."""
        order, counts = self.kernel.graph.order.cells, self.kernel.target.graph.skeleton.counts
        places = [(name, cell) for name, count in counts.items() for cell in range(count)]
        return [places[cell] for cell in order[slice(*self.span) if self.span else slice(None)].tolist()]

    def draw(self, *keys: int) -> None:
        """Draw them, once by the numbers of each key."""
        self._settle(self._swept(keys, None), len(keys))

    def take(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[B, C]: give cells labels [B, C, cells] instead of drawing them, and say how likely that was."""
        drawn = self._swept((0,), labels)
        self._settle(drawn, 1)
        assert drawn.chance is not None
        return drawn.chance

    def _swept(self, keys: Sequence[int], given: Mapping[str, Tensor] | None) -> Drawn:
        current = self.current
        return swept(self.kernel.graph, current.labels, current.beta, keys, self.span, given)

    def _settle(self, drawn: Drawn, sweeps: int) -> None:
        current, target = self.current, self.kernel.target
        current.labels = drawn.labels
        if self.span is None:
            score = drawn.score.to(target.dtype)
            current.score = score.masked_fill(target.potentials.impossible.unsqueeze(1), float("-inf"))
        else:
            current.score = target.score(current.labels)
        novel = drawn.novel.to(current.score.dtype)
        proposed = sweeps * self.kernel.proposed.to(novel.dtype).expand_as(novel)
        current.count(proposed, proposed, novel)


# --------------------------------------------------------------------------------------------------------- whole chains


class NativeChains(ChainGibbs):
    """Whole chains of cells, where those that hear from no other cell are drawn backwards by native code."""

    def __init__(self, target: FactorTarget) -> None:
        super().__init__(target)
        self._graphs: dict[Paths, tuple[Filter, TableGraph]] = {}

    def _sampled(self, placed: dict[str, Tensor], paths: Paths, filtered: Filter, random: Randomness) -> None:
        if filtered.ahead[0].shape[1] == 1:
            random.sites(PathSites(self, placed, paths, filtered))
        else:
            super()._sampled(placed, paths, filtered, random)

    def graph(self, placed: dict[str, Tensor], paths: Paths, filtered: Filter) -> TableGraph:
        """Backward sampling as a sweep: a cell has the score of all beginnings that end there, and hears the next."""
        found = self._graphs.get(paths)
        if found is None or found[0] is not filtered:
            found = self._graphs[paths] = filtered, _backward(self.target, paths, filtered, placed[paths.name].shape[2])
        return found[1]


class PathSites:
    """Chains of cells that are about to be drawn.

    Args:
        kernel: whose they are.
        placed: by variable: [R, C, cells of a row]; the labels are put there.
        paths: the chains of cells.
        filtered: their filter.
    """

    def __init__(self, kernel: NativeChains, placed: dict[str, Tensor], paths: Paths, filtered: Filter) -> None:
        self.kernel, self.placed, self.paths, self.filtered = kernel, placed, paths, filtered
        self.labels, self.counts = {paths.name: placed[paths.name]}, kernel.target.counts

    @property
    def cells(self) -> list[tuple[str, int]]:
        """The variable and the number of each cell, in the order of drawing."""
        return [(self.paths.name, cell) for cell in self.paths.cells.T.flip(0).flatten().tolist()]

    def draw(self, *keys: int) -> None:
        """Draw them, by the numbers of a key."""
        self._swept(keys, None)

    def take(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[R, C]: give cells labels [R, C, cells] instead of drawing them, and say how likely that was."""
        chance = self._swept((0,), labels).chance
        assert chance is not None
        return chance

    def _swept(self, keys: Sequence[int], given: Mapping[str, Tensor] | None) -> Drawn:
        graph = self.kernel.graph(self.placed, self.paths, self.filtered)
        own = self.labels[self.paths.name]
        drawn = swept(
            graph, self.labels, torch.ones(own.shape[1], dtype=torch.float64, device="cpu"), keys, None, given
        )
        new = drawn.labels[self.paths.name].index_select(2, self.paths.cells.flatten())
        self.kernel._put(self.placed, self.paths, new, self.filtered)
        return drawn


def _backward(target: FactorTarget, paths: Paths, filtered: Filter, cells: int) -> TableGraph:
    """The graph of backward sampling; inverse temperatures are in the filter's scores."""
    name, links = paths.name, filtered.links
    count, length = paths.cells.shape
    order = paths.cells.T.flip(0).flatten().numpy().astype(np.int32)
    ahead = torch.stack(list(filtered.ahead), 3)[:, 0].flatten(1, 2)
    unary = torch.zeros(ahead.shape[0], cells, ahead.shape[-1], dtype=ahead.dtype, device="cpu")
    unary.index_copy_(1, paths.cells.flatten(), ahead)
    table = links.table[:, 0].mT
    rows = [] if length == 1 else [Rows(padded(table.flatten(1, 2)), None)]
    if rows and links.valid is not None:
        rows = [Rows(rows[0].table, links.valid.flatten(1).contiguous())]
    # In the order of drawing: the last cells hear nothing, all others the cell that was drawn `count` places before.
    heard = np.arange(count, count * length)
    time, path = length - 1 - heard // count, heard % count
    scopes = Scopes(
        start=np.concatenate([np.zeros(count), np.arange(count * (length - 1) + 1)]).astype(np.int32),
        settled=np.repeat([0, 1], [count, count * (length - 1)]).astype(np.int32),
        lookup=np.zeros(len(heard), dtype=np.int32),
        element=(path * (length - 1) + time).astype(np.int32),
        others=np.arange(len(heard) + 1, dtype=np.int32),
        cell=order[heard - count],
        stride=np.ones(len(heard), dtype=np.int32),
        variable=np.zeros(cells, dtype=np.int32),
        rank=np.arange(cells, dtype=np.int32),
    )
    return TableGraph(
        Order(order, None, {name: cells}, 1), scopes, {name: target.counts[name]}, {name: padded(unary)}, rows
    )


__all__ = ["NativeChains", "NativeGibbs", "PathSites", "Sites"]

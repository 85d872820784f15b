"""Trees that are given at run time, another one for each example, without planning each of them.

The native kernel walks each tree; the torch path handles all nodes of one level of all trees at once, and serves
accelerators and second derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.backends.exact.elimination import runs_natively, slopes, tracked
from energyml.execution import is_addressable
from energyml.grounded.grounding import Sources
from energyml.grounded.logspace import logsumexp
from energyml.native.forest import Trees, order_trees, sweep


@dataclass(frozen=True)
class Level:
    """The nodes of all trees that send their messages at once, as places in [B * N].

    Attributes:
        nodes: [R] the senders.
        parents: [R] the receivers.
        edges: [R] places in [B * E] of the edges between them.
        swapped: [R] whether the sender is the second end of its edge.
    """

    nodes: Tensor
    parents: Tensor
    edges: Tensor
    swapped: Tensor


class Forest:
    """The trees of a batch and its tables in the form that trees need.

    Attributes:
        trees: which node sends to which.
        singles: numbers of the terms over one cell, with the cells [B or 1, elements] of their elements;
            `None` where element i stands at cell i.
        pairs: numbers of the terms over two cells, with the number of their elements: the edges, in this order.
        domains: the sizes of each term's index set.
    """

    def __init__(
        self,
        trees: Trees,
        singles: dict[int, np.ndarray | None],
        pairs: dict[int, int],
        domains: Sequence[tuple[int, ...]],
    ) -> None:
        self.trees, self.singles, self.pairs, self.domains = trees, singles, pairs, domains
        self.edges = sum(pairs.values())
        # Whether scores of a cell are sums: of several terms, or of elements of one that stand anywhere.
        self.adds = len(singles) > 1 or any(places is not None for places in singles.values())

    @cached_property
    def levels(self) -> list[Level]:
        """The senders by height, leaves first."""
        nodes, height = self.trees.parent.shape[1], self.trees.height
        sends = self.trees.parent >= 0
        found = []
        for level in range(int(height[sends].max()) + 1 if sends.any() else 0):
            here = np.nonzero(sends & (height == level))
            row, node = here
            arrays = (
                row * nodes + node,
                row * nodes + self.trees.parent[here],
                row * self.edges + self.trees.edge[here],
                self.trees.swapped[here].astype(bool),
            )
            found.append(Level(*(torch.from_numpy(one) for one in arrays)))
        return found

    # ---------------------------------------------------------------------------------------------------------- scores

    def unary(self, tables: Sequence[Tensor], cells: Tensor | None) -> Tensor:
        """[B, N, C]: the scores of cells, from their own table (`None` for zeros) and all terms over one cell."""
        batch, nodes = self.trees.parent.shape
        labels = tables[next(iter(self.pairs))].shape[-1]
        total = cells
        for number, places in self.singles.items():
            table = _flat(tables[number], self.domains[number], 1)
            if places is None:
                total = table if total is None else total + table
                continue
            index = torch.from_numpy(places).to(table.device).expand(batch, -1)
            exists = (index >= 0) & (index < nodes)
            values = torch.where(exists.unsqueeze(-1), table.expand(batch, places.shape[1], labels), 0)
            before = table.new_zeros(batch, nodes, labels) if total is None else total.expand(batch, nodes, labels)
            total = before.scatter_add(1, torch.where(exists, index, 0).unsqueeze(-1).expand_as(values), values)
        if total is None:
            total = tables[next(iter(self.pairs))].new_zeros(1, 1, 1)
        return total.expand(batch, nodes, labels)

    def pair(self, tables: Sequence[Tensor]) -> Tensor:
        """[B or 1, E or 1, C, C]: the scores of edges."""
        flat = {number: _flat(tables[number], self.domains[number], 2) for number in self.pairs}
        if len(flat) == 1:
            return next(iter(flat.values()))
        batch = max(one.shape[0] for one in flat.values())
        return torch.cat([one.expand(batch, self.pairs[number], -1, -1) for number, one in flat.items()], 1)

    # ------------------------------------------------------------------------------------------------------------ sums

    def log_partition(self, unary: Tensor, pair: Tensor, kernels: bool) -> Tensor:
        """[B]: log Z, differentiable twice; in float64 where the native kernel answers, in the type of scores else."""
        if not (kernels and runs_natively([unary, pair])):
            return self.by_levels(unary, pair)
        if tracked([unary, pair]):
            found: Tensor = _LogPartition.apply(self, unary, pair, None)  # type: ignore[no-untyped-call]
            return found
        return sweep(self.trees, *_plain(unary, pair)).total

    def log_likelihood(self, unary: Tensor, pair: Tensor, labels: Tensor) -> Tensor:
        """[B]: the log-probability of labels [B, N] of all cells by the native kernel; one tape entry for all of it.

        -inf, with zero gradients, where they are forbidden.  Differentiable twice.  Cost: O(B N C²).
        """
        answers = labels.to(torch.int64).contiguous()
        if tracked([unary, pair]):
            found: Tensor = _LogPartition.apply(self, unary, pair, answers)  # type: ignore[no-untyped-call]
            return found
        return sweep(self.trees, *_plain(unary, pair), answers=answers).total.to(unary.dtype)

    def score(self, unary: Tensor, pair: Tensor, labels: Tensor) -> Tensor:
        """[B]: the score of labels [B, N] of all cells."""
        batch, _, count = unary.shape
        listed = torch.from_numpy(_listed(self.trees)).to(unary.device)
        places = labels.clamp(0, count - 1)
        own = unary.gather(2, places.unsqueeze(2)).squeeze(2).masked_fill(~listed, 0).sum(1)
        parent, edge, swapped = (
            torch.from_numpy(one).to(unary.device) for one in (self.trees.parent, self.trees.edge, self.trees.swapped)
        )
        sends = parent >= 0
        above = places.gather(1, parent.clamp(min=0))
        first, second = torch.where(swapped.bool(), above, places), torch.where(swapped.bool(), places, above)
        example = torch.arange(batch, device=unary.device).unsqueeze(1) if pair.shape[0] > 1 else 0
        row = edge.clamp(min=0) if pair.shape[1] > 1 else 0
        return own + pair[example, row, first, second].masked_fill(~sends, 0).sum(1)

    def by_levels(self, unary: Tensor, pair: Tensor) -> Tensor:
        """[B]: log Z by torch operations, all nodes of one height at once.  Cost: O(B N C²) in depth many steps."""
        batch, nodes, labels = unary.shape
        belief = unary.reshape(batch * nodes, labels)
        for level in self.levels:
            senders, receivers, edges, swapped = (
                one.to(unary.device) for one in (level.nodes, level.parents, level.edges, level.swapped)
            )
            table = self._edge_scores(pair, edges)
            table = torch.where(swapped.reshape(-1, 1, 1), table.transpose(-1, -2), table)
            message = logsumexp(belief[senders].unsqueeze(2) + table, 1)
            belief = belief.index_add(0, receivers, message)
        roots = torch.from_numpy((self.trees.parent < 0) & _listed(self.trees)).to(unary.device)
        totals = torch.where(roots, logsumexp(belief, 1).reshape(batch, nodes), 0).sum(1)
        totals = totals + pair.flatten()[:0].sum()  # where no example has an edge, gradients of pairs are zero
        # Where one tree has no answer the example has none, and the other trees no gradients.
        return totals.masked_fill(totals.isneginf(), float("-inf"))

    def _edge_scores(self, pair: Tensor, edges: Tensor) -> Tensor:
        """[R, C, C] or [1, C, C]: the pair scores of edges given as places in [B * E]."""
        example, row = edges // max(1, self.edges), edges % max(1, self.edges)
        if pair.shape[:2] == (1, 1):
            return pair[0]
        return pair[example if pair.shape[0] > 1 else 0, row if pair.shape[1] > 1 else 0]

    def moments(self, unary: Tensor, pair: Tensor, kernels: bool, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Marginals of cells [B, N, C] and of edges (the shape of `pair`), without a tape."""
        if kernels and runs_natively([unary, pair]):
            ones = torch.ones(unary.shape[0], dtype=torch.float64, device="cpu")
            found = sweep(self.trees, *_plain(unary, pair), weights=ones, pairs=pairs)
            assert found.unary is not None
            return found.unary.to(unary.dtype), None if found.pair is None else found.pair.to(pair.dtype)
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [one.detach().clone().requires_grad_() for one in ((unary, pair) if pairs else (unary,))]
            log_z = self.by_levels(leaves[0], leaves[1] if pairs else pair.detach().clone())
            shares = slopes(log_z.masked_fill(log_z.isneginf(), 0).sum(), leaves, again=False)
        return shares[0], shares[1] if pairs else None

    def best(self, unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        """The best answer: labels [B, N] and its score [B]; no gradients."""
        found = sweep(self.trees, *_plain(unary, pair), maximise=True)
        assert found.labels is not None
        return found.labels, found.total.to(unary.dtype)


def find_forest(sources: Sources) -> Forest | None:
    """The trees of a batch whose structure is known at run time; `None` where it is no forest of like cells."""
    arities = [len(term.term.scope) for term, _ in sources.terms]
    if max(arities, default=0) != 2:
        return None  # also where there is nothing to send messages along
    if (
        any(v.kind == "latent" for v in sources.graph.discrete)
        or sources.fixed
        or len(set(sources.label_counts.values())) != 1
        or not sources.batch.size * sources.cells.count
    ):
        return None
    alone = len(sources.variables) == 1  # the cells of others are not numbered from 0 on
    scopes = [None if alone and sources.covered(number) else sources.scopes(number) for number in range(len(arities))]
    pairs = [number for number, arity in enumerate(arities) if arity == 2]
    found = [places for number in pairs if (places := scopes[number]) is not None]
    size = sources.batch.size
    whole = [np.broadcast_to(one, (size, *one.shape[1:])) if one.shape[0] != size else one for one in found]
    ends = whole[0] if len(whole) == 1 else np.concatenate(whole, 1)
    if not ends.shape[1]:
        return None
    trees = order_trees(ends, sources.exists())
    if trees is None:
        return None
    singles = {
        number: None if places is None else places[:, :, 0]
        for number, places in enumerate(scopes)
        if arities[number] == 1
    }
    domains = [term.domain_sizes(batch) for term, batch in sources.terms]
    return Forest(
        trees, singles, {number: places.shape[1] for number, places in zip(pairs, found, strict=True)}, domains
    )


def _flat(table: Tensor, domain: tuple[int, ...], arity: int) -> Tensor:
    """A table [B or 1, *domain (1 where shared), *labels] as [B or 1, elements or 1, *labels]."""
    labels = table.shape[table.dim() - arity :]
    if all(size == 1 for size in table.shape[1 : 1 + len(domain)]):
        return table.reshape(table.shape[0], 1, *labels)
    return table.expand(table.shape[0], *domain, *labels).reshape(table.shape[0], prod(domain), *labels)


class _LogPartition(torch.autograd.Function):
    """log Z, or the log-probability of labels, by the native kernel, with its gradients at once.

    Losses weigh all examples alike, and likelihoods mostly by -1: the gradients for one weight are scaled then, and
    computed again otherwise.  The second derivative goes through torch operations.
    """

    @staticmethod
    def forward(ctx: Any, forest: Forest, unary: Tensor, pair: Tensor, labels: Tensor | None) -> Tensor:
        ctx.forest, ctx.labels = forest, labels
        ctx.weight = 1.0 if labels is None else -1.0
        ctx.save_for_backward(unary, pair)
        weights = torch.full((unary.shape[0],), ctx.weight, dtype=torch.float64, device="cpu")
        swept = ctx.swept = sweep(
            forest.trees, *_plain(unary, pair), weights=weights, pairs=pair.requires_grad, answers=labels
        )
        total: Tensor = swept.total
        return total if labels is None else total.to(unary.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        unary, pair = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_addressable(gradients[0]):
            return None, *_differentiable(ctx.forest, unary, pair, ctx.labels, gradients[0]), None
        weights = gradients[0]
        swept, ctx.swept = ctx.swept, None  # the caller may write into its gradients
        common = float(weights[0]) if len(weights) else 0.0
        if swept is not None and (weights.stride(0) == 0 or bool((weights == common).all())):
            for one in (swept.unary, swept.pair):
                if one is not None and common != ctx.weight:
                    one.mul_(common / ctx.weight)
        else:
            each = weights.to(torch.float64).contiguous()
            swept = sweep(
                ctx.forest.trees,
                *_plain(unary, pair),
                weights=each,
                pairs=ctx.needs_input_grad[2],
                answers=ctx.labels,
            )
        assert swept.unary is not None
        return None, swept.unary.to(unary.dtype), None if swept.pair is None else swept.pair.to(pair.dtype), None


@torch.enable_grad()
def _differentiable(
    forest: Forest, unary: Tensor, pair: Tensor, labels: Tensor | None, weight: Tensor
) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, by torch operations."""
    # Under other names: the gradient by these leaves out that the weight may depend on the scores too.
    unary, pair = unary.view_as(unary), pair.view_as(pair)
    total = forest.by_levels(unary, pair)
    total = total.masked_fill(total.isneginf(), 0)
    if labels is not None:
        score = forest.score(unary, pair, labels)
        total = (score - total).masked_fill(score.isneginf(), 0)
    wanted = [one for one in (unary, pair) if one.requires_grad]
    found = iter(slopes((total * weight).sum(), wanted, again=True))
    return [next(found) if one.requires_grad else None for one in (unary, pair)]


def _listed(trees: Trees) -> np.ndarray:
    """[B, N]: which nodes exist."""
    there = np.zeros(trees.parent.shape, dtype=bool)
    for example, count in enumerate(trees.count):
        there[example, trees.order[example, :count]] = True
    return there


def _plain(unary: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as the kernel reads them: of one type."""
    dtype = torch.float64 if unary.dtype == torch.float64 else torch.float32
    return unary.detach().to(dtype).contiguous(), pair.detach().to(dtype).contiguous()

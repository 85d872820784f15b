"""Trees on the CPU: torch tensors around the native kernel, which works in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from energyml.native import trees as kernels

# Multiply-adds below which a second thread costs more than it brings.
WORTH_A_THREAD = 2_000_000


@dataclass(frozen=True)
class Trees:
    """The trees of a batch, as arrays over the nodes of each example.

    Attributes:
        parent: [B, N] int64: -1 for roots and for nodes that do not exist.
        edge: [B, N] int64: the edge that joins a node to its parent; -1 for none.
        order: [B, N] int64: the nodes that exist, by height, so that children come before parents.
        height: [B, N] int64: 0 for leaves.
        swapped: [B, N] uint8: whether a node is the second end of that edge.
        count: [B] int64: how many nodes exist.
    """

    parent: np.ndarray
    edge: np.ndarray
    order: np.ndarray
    height: np.ndarray
    swapped: np.ndarray
    count: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them, in the order in which native code takes them."""
        return self.parent, self.edge, self.order, self.height, self.swapped, self.count


def order_trees(ends: np.ndarray, exists: np.ndarray) -> Trees | None:
    """Root the trees of a batch; `None` when some edges make a cycle.  Cost: linear in nodes and edges.

    Args:
        ends: [B, E, 2] int64: the ends of each edge; one with an end that is no node does not exist.
        exists: [B, N] bool: which nodes exist.
    """
    batch, nodes = exists.shape
    ends, there = np.ascontiguousarray(ends, dtype=np.int64), np.ascontiguousarray(exists).view(np.uint8)
    if kernels is None:
        parent, edge, order, height = np.full((4, batch, nodes), -1, dtype=np.int64)
        swapped, count = np.zeros((batch, nodes), dtype=np.uint8), np.zeros(batch, dtype=np.int64)
        trees = Trees(parent, edge, order, height, swapped, count)
        fine = all(_order_tree(trees, number, ends[number], exists[number]) for number in range(batch))
    else:
        parent, edge, order, height = np.empty((4, batch, nodes), dtype=np.int64)
        trees = Trees(
            parent, edge, order, height, np.empty((batch, nodes), dtype=np.uint8), np.empty(batch, dtype=np.int64)
        )
        fine = not kernels.order_forest(batch, nodes, ends.shape[1], ends, there, *trees.arrays)
    return trees if fine else None


def _order_tree(trees: Trees, number: int, ends: np.ndarray, exists: np.ndarray) -> bool:
    """Root the trees of one example: the twin of `order_forest` in forest.h; whether there is no cycle."""
    joined: list[dict[int, int]] = [{} for _ in exists]
    for row, (one, other) in enumerate(ends.tolist()):
        if not (0 <= one < len(exists) and 0 <= other < len(exists)):
            continue
        if one == other or other in joined[one]:
            return False
        joined[one][other] = joined[other][one] = row
    done = [node for node in np.flatnonzero(exists).tolist() if len(joined[node]) <= 1]
    height = [0] * len(exists)
    for node in done:  # a queue: nodes enter when one neighbour is left, so that trees are as low as can be
        for above, row in joined[node].items():
            trees.parent[number, node], trees.edge[number, node] = above, row
            trees.swapped[number, node] = ends[row, 1] == node
            height[above] = max(height[above], height[node] + 1)
            del joined[above][node]
            if len(joined[above]) == 1:
                done.append(above)
        joined[node] = {}
    done.sort(key=lambda node: (trees.parent[number, node] < 0, height[node]))
    trees.order[number, : len(done)], trees.height[number], trees.count[number] = done, height, len(done)
    return len(done) == int(exists.sum())


@dataclass
class Swept:
    """What a sweep found.

    Attributes:
        total: [B] float64: log Z, log-probabilities or the best scores.
        unary: the gradient by the unaries.
        pair: the gradient by the pairs.
        labels: [B, N] of the best answers; 0 for nodes that do not exist.
    """

    total: Tensor
    unary: Tensor | None = None
    pair: Tensor | None = None
    labels: Tensor | None = None


def sweep(
    trees: Trees,
    unary: Tensor,
    pair: Tensor,
    *,
    weights: Tensor | None = None,
    pairs: bool = False,
    maximise: bool = False,
    answers: Tensor | None = None,
) -> Swept:
    """Messages to the roots, and back where gradients or labels are wanted.  Cost: O(B N C²).

    Args:
        trees: the trees.
        unary: [B, N, C] float32 or float64, contiguous.
        pair: [B or 1, E or 1, C, C] of the same type, contiguous, E at least 1: rows are labels of an edge's first end.
        weights: [B] float64: weights of the gradients of log Z; without them there are none.
        pairs: whether the gradient by the pair scores is wanted too.
        maximise: the best answer and its score in place of log Z.
        answers: [B, N] int64, contiguous: the log-probabilities of these labels of all cells in place of log Z; -inf,
            with zero gradients, where one is forbidden, and NaN where one is no label.
    """
    assert kernels is not None
    batch, nodes, labels = unary.shape
    work = batch * nodes * labels * labels
    threads = max(1, min(torch.get_num_threads(), batch, work // WORTH_A_THREAD))
    found = Swept(torch.empty(batch, dtype=torch.float64, device="cpu"))
    example = pair.stride(0) if pair.shape[0] > 1 else 0
    edge = labels * labels if pair.shape[1] > 1 else 0
    apart: Tensor | None = None
    stride = 0
    if weights is not None:
        found.unary = torch.zeros_like(unary)
        if pairs:
            found.pair = unary.new_zeros(pair.shape[0] if example else threads, *pair.shape[1:])
            stride = found.pair.stride(0)
            apart = unary.new_zeros(threads, labels, labels) if not example and not edge else None
    if maximise:
        found.labels = torch.zeros(batch, nodes, dtype=torch.int64, device="cpu")
    if batch == 0:  # tables by example are empty then, and are not to be read
        return found
    kernels.sweep_forest(
        int(unary.dtype == torch.float64), batch, nodes, labels, *trees.arrays, unary.data_ptr(), pair.data_ptr(),
        example, edge, found.total.data_ptr(), _pointer(weights), _pointer(found.unary), _pointer(found.pair), stride,
        _pointer(apart), _pointer(found.labels), _pointer(answers), threads,
    )  # fmt: skip
    if found.pair is not None and not example and threads > 1:
        found.pair = found.pair.sum(0, keepdim=True)
    return found


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

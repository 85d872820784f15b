"""Which factors a batch has and which cells they join: what follows from the structure alone, as arrays.

Rows are examples where all of them share one structure, or where a single sequence is counted by its present cells.
Otherwise the batch is one row: the disjoint union of its examples, so that each may have a graph of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.bind.batch import Along, Batch
from energyml.bind.views import TableView
from energyml.grounded.grounding import Group, Sources
from energyml.ir.graph import Edges, Graph


@dataclass(frozen=True, eq=False)
class Part:
    """Elements of one term that stand at the factors of a block.

    Attributes:
        term: the number of the term.
        rows: [E] the example of each factor in a union, else `None`.
        elements: [E] which element of the term's index set each factor is.
        axes: for each cell of the term's scope, the slot of the block that it stands at; cells that coincide share it.
    """

    term: int
    rows: np.ndarray | None
    elements: np.ndarray
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """Factors over the same kinds of cells; terms over the same cells are added up in one block.

    Attributes:
        variables: the variable of each slot.
        scope: [E, slots] the cells, numbered within their variables.
        rows: [E] the example of each factor in a union, else `None`.
        parts: the terms whose tables are added.
    """

    variables: tuple[str, ...]
    scope: np.ndarray
    rows: np.ndarray | None
    parts: list[Part]


@dataclass(eq=False)
class Skeleton:
    """The factors of a batch.

    Attributes:
        counts: how many cells each variable has in a row.
        blocks: factors of two and more cells.
        singles: factors of several cells that coincide, so that they are about one cell.
        kept: what others derive from this structure and want to keep (schedules, probabilities of edges).
    """

    counts: dict[str, int]
    blocks: list[Block]
    singles: list[Block]
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def starts(self) -> dict[str, int]:
        """The number of each variable's first cell, when all cells of a row are numbered."""
        ends = np.cumsum([0, *self.counts.values()]).tolist()
        return dict(zip(self.counts, ends, strict=False))

    def numbered(self, block: Block) -> np.ndarray:
        """[E, slots]: the cells of a block, numbered over all variables."""
        starts = self.starts
        numbered: np.ndarray = block.scope + np.array([starts[name] for name in block.variables])
        return numbered


def on_device(values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """An array as a tensor on a device, of its own type or another one.

    It may be kept for calls that want gradients, which refuse what inference mode has made.
    """
    with torch.inference_mode(False):
        if device.type == "cpu":
            made = torch.from_numpy(np.ascontiguousarray(values))
        else:
            kind = torch.float64 if values.dtype.kind == "f" else torch.int64
            made = torch.tensor(values.tolist(), device=device, dtype=kind).reshape(values.shape)
        return made if dtype is None else made.to(dtype)


def ranked_dim(graph: Graph, terms: Sequence[TableView], batch: Batch) -> str | None:
    """The dim of a single masked sequence without run-time edges: counted by present cells, its structure is fixed."""
    if not batch.masks or len(graph.discrete) != 1 or len(graph.discrete[0].dims) != 1:
        return None
    if any(isinstance(binding, Edges) for term in terms for binding in term.term.domain):
        return None
    return graph.discrete[0].dims[0]


def along_cells(graph: Graph, batch: Batch, dim: str) -> Along:
    """A dim as its only variable counts it."""
    return batch.frame(((dim, (graph.discrete[0].name,)),))[dim]


def compacted(batch: Batch, dim: str, along: Along) -> Batch:
    """The batch when positions are present cells: lengths, and no masks."""
    return replace(batch, masks={}, along={**batch.along, dim: Along(along.size, along.count)}, _frames={}, _cells={})


def build(sources: Sources, groups: Sequence[Group], size: int, union: bool) -> Skeleton:
    """The factors of all groups of examples.

    Args:
        sources: the terms of two and more cells.
        groups: the examples by structure.
        size: how many examples there are.
        union: whether examples differ, so that they become one row.
    """
    cells = sources.cells
    each = {name: prod(cells.shapes[name]) for name in sources.variables}
    made = Skeleton({name: count * (size if union else 1) for name, count in each.items()}, [], [])
    known: dict[tuple[Any, ...], Block] = {}
    for number, (term, _) in enumerate(sources.terms):
        names = tuple(ref.variable for ref in term.term.scope)
        starts = np.array([cells.start[name] for name in names])
        rows: list[np.ndarray] = []
        elements: list[np.ndarray] = []
        scopes: list[np.ndarray] = []
        for group in groups:
            structure = group.structure
            first, last = np.searchsorted(structure.sources, [number, number + 1])
            begin, end = structure.scopes.starts[first], structure.scopes.starts[last]
            scope = structure.scopes.members[begin:end].reshape(-1, len(names)) - starts
            own = structure.elements[first:last]
            if union:
                count = np.array([each[name] for name in names])
                scope = (scope[None] + group.rows[:, None, None] * count).reshape(-1, len(names))
                rows.append(np.repeat(group.rows, len(own)))
                own = np.tile(own, len(group.rows))
            elements.append(own)
            scopes.append(scope)
        if scopes:
            joined = np.concatenate(rows) if union else None
            _add(made, known, number, names, joined, np.concatenate(elements), np.concatenate(scopes))
    return made


def _add(
    made: Skeleton,
    known: dict[tuple[Any, ...], Block],
    number: int,
    names: tuple[str, ...],
    rows: np.ndarray | None,
    elements: np.ndarray,
    scope: np.ndarray,
) -> None:
    """Add a term's elements, those with coinciding cells apart from the others."""
    first = np.tile(np.arange(len(names)), (len(scope), 1))
    for late in range(1, len(names)):
        for early in range(late - 1, -1, -1):
            if names[late] == names[early]:
                first[:, late] = np.where(scope[:, late] == scope[:, early], first[:, early], first[:, late])
    patterns = np.unique(first, axis=0) if len(first) else first
    starts = made.starts
    for pattern in patterns:
        here = np.flatnonzero((first == pattern).all(1))
        slots = [slot for slot in range(len(names)) if pattern[slot] == slot]
        # The order of slots is that of the first factor's cells: so terms with swapped scopes meet in one block.
        slots.sort(key=lambda slot: starts[names[slot]] + scope[here[0], slot])
        variables = tuple(names[slot] for slot in slots)
        own = np.ascontiguousarray(scope[here][:, slots])
        where = None if rows is None else rows[here]
        axes = tuple(slots.index(int(slot)) for slot in pattern)
        key = (variables, own.tobytes())
        if key not in known:
            known[key] = Block(variables, own, where, [])
            (made.blocks if len(slots) > 1 else made.singles).append(known[key])
        known[key].parts.append(Part(number, where, elements[here], axes))

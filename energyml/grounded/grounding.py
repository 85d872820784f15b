"""Which cells each element of each table touches, example by example, as the elimination needs it.

Where positions do not depend on the data (no gaps, no run-time edges), all examples share one structure of the padded
sizes, and elements that do not exist have a table of zeros.  Otherwise examples are grouped by their structure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod

import numpy as np
import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.places import owner_of
from energyml.bind.views import TableView
from energyml.caching import BoundedCache
from energyml.diagnostics import QueryRefused
from energyml.execution import as_numpy, is_recording
from energyml.ir.graph import Affine, Binding, Edges, Graph
from energyml.model.types import Extent
from energyml.native.planning import Scopes, gathered

# Structures that are cached: they come back, in fixed graphs always, in run-time graphs often.
LARGEST_CACHE = 512


@dataclass(frozen=True)
class Factor:
    """One ground factor: the table it comes from, and which element of that table's index set it is."""

    source: int
    element: int


@dataclass(frozen=True, eq=False)
class Structure:
    """The factors of one example, sorted by the tables they come from.

    Attributes:
        sources: [F] int64: the table that each factor comes from.
        elements: [F] int64: which element of that table's index set it is.
        scopes: the cells of each factor.
        arities: how many cells the factors of each table have.
        sizes: how many labels each cell has.
        absent: cells that do not exist.
    """

    sources: np.ndarray
    elements: np.ndarray
    scopes: Scopes
    arities: tuple[int, ...]
    sizes: tuple[int, ...]
    absent: frozenset[int]

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """Where the factors come from, one by one."""
        return tuple(map(Factor, self.sources.tolist(), self.elements.tolist()))


@dataclass(frozen=True)
class Group:
    """Examples of one structure: their numbers in the batch."""

    rows: np.ndarray
    structure: Structure
    key: bytes


class Cells:
    """Numbers for all cells of a batch: those of the first variable, row by row, then those of the next."""

    def __init__(self, graph: Graph, batch: Batch) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.start: dict[str, int] = {}
        self.count = 0
        for variable in graph.discrete:
            shape = self.shapes[variable.name] = tuple([batch.size_of(dim) for dim in variable.dims])
            self.start[variable.name] = self.count
            self.count += prod(shape)

    def span(self, variable: str) -> slice:
        """The numbers of a variable's cells."""
        return slice(self.start[variable], self.start[variable] + prod(self.shapes[variable]))


class Sources:
    """The tables of a batch: those of the terms, and behind them one for the cells of each variable.

    Args:
        graph: whose cells are numbered.
        terms: the terms, each with the batch that says where its elements stand.
        batch: says which cells exist.
        traced: whether code is compiled, which holds edges that the model fixed as constants.
    """

    def __init__(
        self, graph: Graph, terms: Sequence[tuple[TableView, Batch]], batch: Batch, traced: bool = False
    ) -> None:
        self.graph, self.terms, self.batch, self.traced = graph, terms, batch, traced
        self.cells = Cells(graph, batch)
        self.variables = list(self.cells.shapes)
        self._is_fixed: bool | None = None

    # Cached by hand: `cached_property` holds a lock, which compiled code cannot.
    @property
    def fixed(self) -> bool:
        """Whether all examples share one structure that follows from the sizes alone, and from what is constant."""
        if self._is_fixed is None:
            listed = not self.traced and any(term.gathered for term, _ in self.terms)
            self._is_fixed = not listed and all(_fixed(term, batch, self.traced) for term, batch in self.terms)
        return self._is_fixed

    @cached_property
    def label_counts(self) -> dict[str, int]:
        """How many labels each variable's cells may take."""
        sets = self.graph.label_sets
        return {v.name: len(sets[v.type.element].labels or ()) for v in self.graph.discrete}

    @cached_property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of the index set of each table."""
        return (*[term.domain_sizes(batch) for term, batch in self.terms], *self.cells.shapes.values())

    @property
    def key(self) -> tuple[object, ...]:
        """What the shared structure of a batch depends on."""
        return len(self.terms), self.domains

    def scopes(self, number: int) -> np.ndarray:
        """[B or 1, elements, arity]: the cells of a term's elements; one without all of its cells does not exist."""
        if self.covered(number):
            span = self.cells.span(self.terms[number][0].term.scope[0].variable)
            return np.arange(span.start, span.stop).reshape(1, -1, 1)
        return term_scopes(*self.terms[number], self.cells)

    def covered(self, number: int) -> bool:
        """Whether a term has one element for each cell of a variable, in the same order."""
        term, batch = self.terms[number]
        if batch.whole and not term.constants:
            return term.covers
        return term.covers and not batch.masks and term.valid(batch) is None

    def groups(self, known: Callable[[bytes, Callable[[], Structure]], Structure]) -> list[Group]:
        """The examples by structure; `known` remembers structures by their keys."""
        size = self.batch.size
        if self.fixed:
            make = partial(
                self._structure, lambda: [_fixed_scopes(term, batch, self.cells) for term, batch in self.terms]
            )
            return [Group(np.arange(size), known(b"", make), b"")]
        scopes = [self.scopes(number) for number in range(len(self.terms))]
        if all(one.shape[0] == 1 for one in scopes) and self._complete():
            only = [one[0] for one in scopes]
            key = b"".join([one.tobytes() for one in only])
            return [Group(np.arange(size), known(key, lambda: self._structure(lambda: only)), key)]
        scopes = [np.broadcast_to(one, (size, *one.shape[1:])) for one in scopes]
        exists = self.exists()
        flat = [one.reshape(size, prod(one.shape[1:])) for one in scopes]
        rows = np.ascontiguousarray(np.concatenate([*flat, exists.astype(np.int64)], 1))
        found: dict[bytes, list[int]] = {}
        for number in range(size):
            found.setdefault(rows[number].tobytes(), []).append(number)
        groups = []
        for key, members in found.items():
            first = members[0]
            make = partial(self._structure, lambda first=first: [one[first] for one in scopes], exists[first])  # type: ignore[misc]
            groups.append(Group(np.array(members), known(key, make), key))
        return groups

    def _complete(self) -> bool:
        """Whether all cells exist."""
        return self.batch.whole or all(self.batch.cells(v.name, v.dims) is None for v in self.graph.discrete)

    def _structure(self, scopes: Callable[[], Sequence[np.ndarray]], exists: np.ndarray | None = None) -> Structure:
        """From the cells [elements, arity] of each term; an element with a cell that there is not does not exist."""
        places: list[np.ndarray | tuple[int, int]] = [*scopes()]
        sizes = list[int]()
        for name in self.variables:
            span = self.cells.span(name)
            sizes += [self.label_counts[name]] * (span.stop - span.start)
            if exists is None:
                places.append((span.start, span.stop))
            else:
                own = np.arange(span.start, span.stop)
                places.append(np.where(exists[span], own, -1).reshape(-1, 1))
        sources, elements, found = gathered(places, self.cells.count)
        absent = frozenset() if exists is None else frozenset(np.flatnonzero(~exists).tolist())
        arities = (*[len(term.term.scope) for term, _ in self.terms], *[1 for _ in self.variables])
        return Structure(sources, elements, found, arities, tuple(sizes), absent)

    def exists(self) -> np.ndarray:
        """[B, cells] which cells exist."""
        if self._complete():
            return np.ones((self.batch.size, self.cells.count), dtype=bool)
        parts = [
            self.batch.cells_exist(v.dims, v.name).reshape(self.batch.size, prod(self.cells.shapes[v.name]))
            for v in self.graph.discrete
        ]
        return _read(torch.cat(parts, 1)) if parts else np.zeros((self.batch.size, 0), dtype=bool)


class StructureCache:
    """Structures of examples, found when they are first met."""

    def __init__(self) -> None:
        self._known: BoundedCache[tuple[object, ...], Structure] = BoundedCache(LARGEST_CACHE)

    def groups(self, sources: Sources) -> list[Group]:
        """The examples of a batch by structure."""
        return sources.groups(lambda key, make: self._known.once((sources.key, key), make))


def _read(structure: Tensor) -> np.ndarray:
    """Positions that decide which cells a factor touches; refused where `vmap` maps over them."""
    found = as_numpy(structure if structure.is_cpu else structure.cpu())
    if found is None and is_recording():
        raise QueryRefused(
            "which cells the factors touch depends on edges or masks, whose numbers are not there while a program is "
            "recorded; give edges that hold for all calls to the model, as in `model.fix(edges=...)`, and compile with "
            "`torch.compile`"
        )
    if found is None:
        raise QueryRefused(
            "`vmap` maps over edges or masks, so that each call would have a graph of its own; give the examples to "
            "one call, along its batch axis, where every example may have its own graph"
        )
    return found


def _plain_edges(term: TableView, batch: Batch, cells: Cells) -> np.ndarray | None:
    """[B, E, arity]: the cells of a term over the ends of edges, where nothing but their range says which exist."""
    ends, binding = term.ends, term.term.domain[0] if term.ends is not None else None
    if ends is None or not isinstance(binding, Edges) or batch.masks:
        return None
    if not batch.whole and any(batch.along[dim].count is not None for dim in (*binding.dims, binding.over)):
        return None
    rows = _read(batch.fixed.get(binding.source, batch.tensors[binding.source]))
    if ends != tuple(range(rows.shape[2])):
        rows = rows[:, :, list(ends)]
    if len(cells.shapes) == 1:
        return rows
    sizes = np.array([cells.shapes[ref.variable][0] for ref in term.term.scope])
    starts = np.array([cells.start[ref.variable] for ref in term.term.scope])
    return np.where((rows >= 0) & (rows < sizes), rows + starts, -1)


def _fixed(term: TableView, batch: Batch, edges: bool = False) -> bool:
    """Whether the positions of a term's cells follow from the padded sizes alone, or from fixed `edges` too."""
    frame = term.frame(batch)
    if any(isinstance(one, Edges) and not (edges and one.source in batch.fixed) for one in term.term.domain):
        return False
    for ref in term.term.scope:
        for affine, axis in zip(ref.indices, term.graph.variables[ref.variable].type.index_axes, strict=True):
            along = frame.get(axis.extent.name)
            if along is not None and along.order is not None:
                return False
            if affine.index is None and affine.offset < 0 and along is not None and along.count is not None:
                return False
    return True


def _fixed_scopes(term: TableView, batch: Batch, cells: Cells) -> np.ndarray:
    """[elements, arity]: the cells of each element, from sizes alone."""
    sizes = term.domain_sizes(batch)
    domain = term.term.domain
    columns = []
    for ref in term.term.scope:
        axes = term.graph.variables[ref.variable].type.index_axes
        places = [
            _fixed_place(affine, axis.extent, domain, sizes, batch)
            for affine, axis in zip(ref.indices, axes, strict=True)
        ]
        columns.append(_numbered(cells, ref.variable, places, sizes))
    return np.stack(columns, -1).reshape(prod(sizes), len(columns))


def _fixed_place(
    affine: Affine, extent: Extent, domain: tuple[Binding, ...], sizes: Sequence[int], batch: Batch
) -> np.ndarray:
    last = batch.size_of(extent.name) + extent.offset - 1
    owner = owner_of(affine, domain)
    if owner is None:
        place = np.array(affine.offset if affine.offset >= 0 else last + 1 + affine.offset)
        return np.where((place < 0) | (place > last), -1, place).reshape([1] * len(domain))
    shape = [1] * len(domain)
    shape[owner] = sizes[owner]
    return (np.arange(sizes[owner]) + affine.offset).reshape(shape)


def _numbered(cells: Cells, variable: str, places: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """The numbers of the cells at positions of one variable, -1 where a position is -1."""
    total, fine = np.zeros([1] * len(sizes), dtype=np.int64), np.ones([1] * len(sizes), dtype=bool)
    for place, size in zip(places, cells.shapes[variable], strict=True):
        total, fine = total * size + place, fine & (place >= 0) & (place < size)
    return np.broadcast_to(np.where(fine, total + cells.start[variable], -1), sizes)


def term_scopes(term: TableView, batch: Batch, cells: Cells) -> np.ndarray:
    """[B or 1, elements, arity]: the cells of each element, no cells where it does not exist; one copy to the host."""
    plain = _plain_edges(term, batch, cells)
    if plain is not None:
        return plain
    if _fixed(term, batch) and term.valid(batch) is None:
        return _fixed_scopes(term, batch, cells)[None]
    sizes = term.domain_sizes(batch)
    lead = (batch.size, *sizes)
    valid = term.valid(batch)
    columns = []
    for number, ref in enumerate(term.term.scope):
        total = torch.zeros([1] * len(lead), dtype=torch.long, device=batch.device)
        for place, size in zip(term.cells(batch, number), cells.shapes[ref.variable], strict=True):
            total = total * size + place
        columns.append((total + cells.start[ref.variable]).expand(lead))
    made = torch.stack(columns, -1)
    if valid is not None:
        made = made.masked_fill(~valid.unsqueeze(-1), -1)
    return _read(made.reshape(batch.size, prod(sizes), len(columns)))


def masked_table(term: TableView, batch: Batch, table: Tensor) -> Tensor:
    """A table with zeros where an element of its index set does not exist."""
    valid = term.valid(batch)
    if valid is None:
        return table
    return torch.where(valid.reshape(*valid.shape, *([1] * len(term.term.scope))), table, 0)


def spread_cells(cells: Cells, values: Tensor, variables: Sequence[str]) -> Mapping[str, Tensor]:
    """Values [..., cells] as one tensor [..., *dims] for each variable."""
    return {name: values[..., cells.span(name)].unflatten(-1, cells.shapes[name] or (1,)) if cells.shapes[name]
            else values[..., cells.start[name]] for name in variables}  # fmt: skip

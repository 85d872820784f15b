"""Grounding: the cells and factors of one example, for analysis, for the oracle and for drawing.

Positions are those of the caller's tensors.  Along the single dim of a sequence, absent positions are skipped and
neighbours are the next present ones; in a grid, a factor that touches an absent cell vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from energyml.diagnostics import EnergyError
from energyml.ir.graph import Affine, Binding, Edges, Graph, Range, Term
from energyml.model.declared import CellRef, Variable
from energyml.model.expression import At
from energyml.model.types import Extent

Position = tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """The sizes of one example.

    Attributes:
        sizes: the size of each observed or fixed dim (a free dim: the length under consideration).
        nested: the sizes of each nested dim, one for each position of the dim it is nested in.
        edges: the rows of each edge input.
        absent: the absent positions of each variable's cells.
    """

    sizes: Mapping[str, int]
    nested: Mapping[str, Sequence[int]] = field(default_factory=dict)
    edges: Mapping[str, Sequence[Position]] = field(default_factory=dict)
    absent: Mapping[str, frozenset[Position]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a variable; `labels` names its label set."""

    variable: str
    position: Position
    labels: str

    def __str__(self) -> str:
        return f"{self.variable}[{', '.join(map(str, self.position))}]" if self.position else self.variable


@dataclass(frozen=True, slots=True)
class GroundFactor:
    """One grounded factor: the cells it touches, and the position of each index of its term.

    Attributes:
        term: the term's name.
        cells: the numbers of its cells, in the order of the scope.
        places: for each index as written in the spec (`t+1`, `-1`) and the extent of the axis it stands on: a position
            of the caller's tensors.
        element: which element of the index set it is: the value of each range (along a sequence it counts present
            positions) and the row of each list of edges.
    """

    term: str
    cells: tuple[int, ...]
    places: Mapping[tuple[Affine, Extent], int]
    element: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroundGraph:
    """All cells and factors of one example; terms over whole variables are left out, as they touch every cell."""

    cells: tuple[Cell, ...]
    factors: tuple[GroundFactor, ...]

    def neighbours(self) -> list[set[int]]:
        """The primal graph: for each cell the cells it shares a factor with."""
        adjacent: list[set[int]] = [set() for _ in self.cells]
        for factor in self.factors:
            for cell in factor.cells:
                adjacent[cell].update(other for other in factor.cells if other != cell)
        return adjacent


def extent_of(graph: Graph, instance: Instance) -> tuple[float, float]:
    """At most how many cells and factors an example has; inf where a size is not known.  Nothing is grounded."""
    sizes = {name: float(dim.size) for name, dim in graph.dims.items() if dim.size is not None}
    sizes.update({name: float(size) for name, size in instance.sizes.items()})
    sizes.update({name: float(max(each, default=0)) for name, each in instance.nested.items()})
    edges = {name: float(len(rows)) for name, rows in instance.edges.items()}

    def count(binding: Binding) -> float:
        if isinstance(binding, Edges):
            return edges.get(binding.source, sizes.get(binding.over, math.inf))
        return sizes.get(binding.dim, math.inf)

    cells = sum(math.prod(sizes.get(dim, math.inf) for dim in v.dims) for v in graph.discrete)
    return cells, sum(math.prod(map(count, term.domain)) for term in graph.terms)


def ground(graph: Graph, instance: Instance) -> GroundGraph:
    """Ground every discrete term; cost linear in the number of factors."""
    return _Grounding(graph, instance).run()


class _Grounding:
    def __init__(self, graph: Graph, instance: Instance) -> None:
        self.graph, self.instance = graph, instance
        self.cells: list[Cell] = []
        self.index: dict[tuple[str, Position], int] = {}
        self.present: dict[str, list[int]] = {}

    def run(self) -> GroundGraph:
        for variable in self.graph.discrete:
            for position in self._positions(variable):
                self.index[variable.name, position] = len(self.cells)
                self.cells.append(Cell(variable.name, position, variable.type.element))
        factors = [factor for term in self.graph.terms for factor in self._factors(term)]
        return GroundGraph(tuple(self.cells), tuple(factors))

    def size(self, dim: str) -> int:
        """The size of a dim that is not nested."""
        declared = self.graph.dims[dim]
        if declared.kind == "fixed" and declared.size is not None:
            return declared.size
        if dim not in self.instance.sizes:
            raise EnergyError(f"the size of `{dim}` is needed here; give it, as in `--size {dim}=10`")
        return self.instance.sizes[dim]

    def _positions(self, variable: Variable) -> Iterator[Position]:
        absent = self.instance.absent.get(variable.name, frozenset())
        for position in self._grid(variable.dims):
            if position not in absent:
                yield position

    def _grid(self, dims: tuple[str, ...]) -> Iterator[Position]:
        if not dims:
            yield ()
            return
        last = self.graph.dims[dims[-1]]
        for head in self._grid(dims[:-1]):
            if last.kind == "nested":
                outer = dims.index(last.within or "")
                sizes = self.instance.nested.get(last.name)
                if sizes is None:
                    raise EnergyError(
                        f"`{last.name}` has one size for each position of `{last.within}`, and none are given; "
                        "without sizes the lifted graph can still be drawn and explained"
                    )
                length = sizes[head[outer]]
            else:
                length = self.size(last.name)
            for i in range(length):
                yield (*head, i)

    # ------------------------------------------------------------------------------------------------------- factors

    def _factors(self, term: Term) -> Iterator[GroundFactor]:
        if not term.scope or any(len(ref.indices) < len(self.graph.variables[ref.variable].dims) for ref in term.scope):
            return
        steps = self._sequence_positions(term)
        gathered = frozenset(
            end for binding in term.domain if isinstance(binding, Edges) for end in (*binding.ends, binding.index)
        )
        keys = [(ref.variable, tuple(self._scope_indices(ref))) for ref in term.scope]
        indices = tuple(dict.fromkeys([*(pair for _, pairs in keys for pair in pairs), *_value_indices(term)]))
        for assignment in self._assignments(term.domain, steps):
            places = self._places(indices, assignment, steps, gathered)
            cells = None if places is None else self._cells(keys, places)
            if places is not None and cells is not None:
                yield GroundFactor(term.name, cells, places, tuple(assignment[b.index] for b in term.domain))

    def _sequence_positions(self, term: Term) -> dict[str, list[int]]:
        """For each dim that is the only dim of a variable in scope: its present positions, in order."""
        steps: dict[str, list[int]] = {}
        for ref in term.scope:
            dims = self.graph.variables[ref.variable].dims
            if len(dims) == 1 and self.graph.dims[dims[0]].kind != "nested":
                absent = self.instance.absent.get(ref.variable, frozenset())
                here = [i for i in range(self.size(dims[0])) if (i,) not in absent]
                known = steps.get(dims[0])
                steps[dims[0]] = here if known is None else [i for i in known if i in set(here)]
        return steps

    def _assignments(self, domain: tuple[Binding, ...], steps: dict[str, list[int]]) -> Iterator[dict[str, int]]:
        """Values of all bound indices; for sequences they count present positions, for edges they are positions."""
        if not domain:
            yield {}
            return
        *front, last = domain
        for outer in self._assignments(tuple(front), steps):
            if isinstance(last, Range):
                for value in range(self._extent(last, front, outer, steps) - last.shrink):
                    yield {**outer, last.index: value}
            else:
                yield from self._edge_rows(last, outer)

    def _extent(self, binding: Range, front: list[Binding], outer: dict[str, int], steps: dict[str, list[int]]) -> int:
        dim = self.graph.dims[binding.dim]
        if dim.kind == "nested":
            over = next(b for b in front if isinstance(b, Range) and b.dim == dim.within)
            place = steps[over.dim][outer[over.index]] if over.dim in steps else outer[over.index]
            return self.instance.nested[dim.name][place]
        return len(steps[binding.dim]) if binding.dim in steps else self.size(binding.dim)

    def _edge_rows(self, binding: Edges, outer: dict[str, int]) -> Iterator[dict[str, int]]:
        rows = self.instance.edges.get(binding.source)
        if rows is None:
            raise EnergyError(
                f"the edges of `{binding.source}` are known only at run time, and none are given; "
                "without sizes the lifted graph can still be drawn and explained"
            )
        sizes = [self.size(dim) for dim in binding.dims]
        for number, row in enumerate(rows):
            if all(0 <= end < size for end, size in zip(row, sizes, strict=True)):
                yield {**outer, binding.index: number, **dict(zip(binding.ends, row, strict=True))}

    def _places(
        self,
        indices: Sequence[tuple[Affine, Extent]],
        assignment: dict[str, int],
        steps: dict[str, list[int]],
        gathered: frozenset[str],
    ) -> dict[tuple[Affine, Extent], int] | None:
        """The position of each index, or `None` when one of them stands for nothing."""
        places: dict[tuple[Affine, Extent], int] = {}
        for key in indices:
            place = self._place(*key, assignment, steps, gathered)
            if place is None:
                return None
            places[key] = place
        return places

    def _cells(
        self,
        keys: Sequence[tuple[str, tuple[tuple[Affine, Extent], ...]]],
        places: Mapping[tuple[Affine, Extent], int],
    ) -> tuple[int, ...] | None:
        """The cells of a scope, or `None` when one of them is absent."""
        cells: list[int] = []
        for variable, pairs in keys:
            cell = self.index.get((variable, tuple(places[pair] for pair in pairs)))
            if cell is None:
                return None
            cells.append(cell)
        return tuple(cells)

    def _scope_indices(self, ref: CellRef) -> Iterator[tuple[Affine, Extent]]:
        axes = self.graph.variables[ref.variable].type.index_axes
        for affine, axis in zip(ref.indices, axes, strict=True):
            yield affine, axis.extent

    def _place(
        self,
        affine: Affine,
        extent: Extent,
        assignment: dict[str, int],
        steps: dict[str, list[int]],
        gathered: frozenset[str],
    ) -> int | None:
        """The position that an index stands for, or `None` when there is none.

        A bound index stays inside its axis, as its range says; a constant counts from the start or the end of the axis.
        """
        if affine.index is not None and affine.index in gathered:
            return assignment[affine.index]
        ordered = steps.get(extent.name)
        if affine.index is not None:
            value = assignment[affine.index] + affine.offset
            return ordered[value] if ordered is not None else value
        length = (len(ordered) if ordered is not None else self.size(extent.name)) + extent.offset
        value = affine.offset if affine.offset >= 0 else length + affine.offset
        if not 0 <= value < length:
            return None
        return ordered[value] if ordered is not None else value


def _value_indices(term: Term) -> Iterator[tuple[Affine, Extent]]:
    """The indices that a term's table is subscripted with, and the extents of the axes that they consume."""
    pending = list(term.expressions())
    while pending:
        value = pending.pop()
        if isinstance(value, At):
            for affine, axis in zip(value.indices, value.base.type.index_axes, strict=False):
                yield affine, axis.extent
        pending.extend(value.parts)


__all__ = ["Cell", "GroundFactor", "GroundGraph", "Instance", "Position", "ground"]

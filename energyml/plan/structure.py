"""Structure recognition: what kind of graph the terms make, found once, named, and read by everybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from energyml.diagnostics import EnergyError
from energyml.ir.graph import Edges, Graph, Range, Term
from energyml.ir.ground import Instance, ground
from energyml.plan.cost import Sizes
from energyml.plan.width import is_forest, min_fill
from energyml.queries import View

LARGEST_GROUNDING = 20_000
LARGEST_FIXED = 400


class Shape(Enum):
    """The shape of the discrete part that tables make."""

    EMPTY = "no discrete cells"
    INDEPENDENT = "independent cells"
    CHAIN = "chain"
    GRID = "grid"
    RUNTIME = "graph known at run time"
    FOREST = "forest"
    GENERAL = "general graph"


@dataclass(frozen=True)
class Structure:
    """Structure facts.

    Attributes:
        shape: of the tables and constraints alone.
        order: the order of a chain; 1 for a first-order chain.
        dim: the dim that a chain runs along.
        width: the induced width, where it is known without a grounded instance or was found on one.
        order_of_elimination: an elimination order on the grounded instance, where one was grounded.
        families: the kinds of terms: `factors`, `gaussian`, `stepwise`, `masked`, `black box`, `constraints`.
        views: the views that every term offers.
        lacking: for each view that some term does not offer, the first such term.
        latent: names of the latent variables.
        free: names of dims that are part of the answer.
        local: whether the whole score is one locally normalised sequence, so that Z = 1.
        sizes: known sizes by symbol: dims, and label sets as `|Letter|`.
        cells: for each discrete variable its name, its dims and its label set, for formulas of cost.
    """

    shape: Shape
    order: int = 0
    dim: str | None = None
    width: int | None = None
    order_of_elimination: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    views: frozenset[View] = frozenset()
    lacking: Mapping[View, str] = field(default_factory=dict)
    latent: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    local: bool = False
    sizes: Sizes = field(default_factory=dict)
    cells: tuple[tuple[str, tuple[str, ...], str], ...] = ()

    @property
    def has_field(self) -> bool:
        """Whether the model has a continuous part."""
        return "gaussian" in self.families

    @property
    def has_tables(self) -> bool:
        """Whether factors or constraints make a graph of their own."""
        return self.shape is not Shape.EMPTY and bool({"factors", "constraints"}.intersection(self.families))

    def describe(self) -> list[str]:
        """The facts as lines for people."""
        lines: list[str] = []
        if self.has_tables:
            lines.append(self._shape_line())
            if self.width is not None:
                lines.append(f"induced width: {self.width}")
            elif self.shape is Shape.GRID:
                lines.append(f"induced width: min({', '.join(self.cells[0][1])})")
        lines += [f"has {_FAMILY_LINES[family]}" for family in self.families if family in _FAMILY_LINES]
        if self.local:
            lines.append("locally normalised as a whole: Z = 1")
        if self.latent:
            lines.append(f"sums out: {', '.join(self.latent)}")
        if self.free:
            lines.append(f"part of the answer: the length {', '.join(self.free)}")
        return lines

    def _shape_line(self) -> str:
        if self.shape is Shape.CHAIN:
            return f"chain of order {self.order} along {self.dim}"
        return str(self.shape.value)


_FAMILY_LINES = {
    "gaussian": "a Gaussian field: a quadratic score, solved as a linear system",
    "stepwise": "a stepwise score: each label depends on all labels before it",
    "masked": "a masked-LM score: each label depends on all others",
    "black box": "a black box: any label may depend on any other",
    "constraints": "hard constraints",
}
_FAMILIES = {
    "table": "factors", "forbid": "constraints", "scheme": "constraints", "linear": "gaussian", "quadratic": "gaussian",
    "stepwise": "stepwise", "masked": "masked", "black box": "black box",
}  # fmt: skip


def recognise(graph: Graph, instance: Instance | None = None) -> Structure:
    """Find the structure from the lifted graph; a grounded instance settles what the lifted form leaves open.

    Cost: linear in the terms; with an instance also min-fill on its primal graph.
    """
    tables = [term for term in graph.terms if View.TABLE in term.views]
    families = tuple(dict.fromkeys(_FAMILIES[term.kind] for term in graph.terms))
    views = frozenset(View).intersection(*(term.views for term in graph.terms)) if graph.terms else frozenset(View)
    lacking = {view: next(t.name for t in graph.terms if view not in t.views) for view in View if view not in views}
    shape, order, dim = _shape(graph, tables)
    lone = graph.terms[0] if len(graph.terms) == 1 else None
    made = Structure(
        shape=shape,
        order=order,
        dim=dim,
        width=_lifted_width(shape, order),
        families=families,
        views=views,
        lacking=lacking,
        latent=tuple(v.name for v in graph.variables.values() if v.kind == "latent"),
        free=tuple(d.name for d in graph.dims.values() if d.kind == "free"),
        local=lone is not None and getattr(lone.body, "normalize", "") == "local",
        sizes=_known_sizes(graph, instance),
        cells=tuple((v.name, v.dims, v.type.element) for v in graph.discrete),
    )
    if instance is None and _fixed_cells(graph) <= LARGEST_FIXED:
        instance = Instance({})
    return _with_instance(graph, made, instance) if instance is not None else made


def _fixed_cells(graph: Graph) -> float:
    """How many cells the discrete variables have when every size is fixed in the file; infinite otherwise."""
    total = 0.0
    for variable in graph.discrete:
        sizes = [float(graph.dims[d].size or 0) if graph.dims[d].kind == "fixed" else math.inf for d in variable.dims]
        total += math.prod(sizes)
    return total


def _known_sizes(graph: Graph, instance: Instance | None) -> dict[str, float]:
    sizes: dict[str, float] = {"B": 1.0}
    for name, labels in graph.label_sets.items():
        if labels.labels is not None:
            sizes[f"|{name}|"] = float(len(labels.labels))
    for name, dim in graph.dims.items():
        if dim.size is not None:
            sizes[name] = float(dim.size)
    if instance is not None:
        sizes.update({name: float(size) for name, size in instance.sizes.items()})
    return sizes


def _shape(graph: Graph, tables: list[Term]) -> tuple[Shape, int, str | None]:
    if not graph.discrete:
        return Shape.EMPTY, 0, None
    coupled = [term for term in tables if len(set(map(str, term.scope))) > 1]
    if not coupled:
        return Shape.INDEPENDENT, 0, _common_dim(graph)
    if any(isinstance(binding, Edges) for term in coupled for binding in term.domain):
        return Shape.RUNTIME, 0, None
    spans = [_affine_spans(graph, term) for term in coupled]
    if any(span is None for span in spans):
        return Shape.GENERAL, 0, None
    dims = {dim for span in spans if span for dim in span}
    lone_variable = len(graph.discrete) == 1
    if len(dims) == 1 and lone_variable and all(len(v.dims) == 1 for v in graph.discrete):
        order = max(width for span in spans if span for width in span.values())
        return (Shape.CHAIN, order, dims.pop()) if order else (Shape.GENERAL, 0, None)
    if len(dims) == 2 and lone_variable and all(max(span.values()) <= 1 for span in spans if span):
        return Shape.GRID, 1, None
    return Shape.GENERAL, 0, None


def _common_dim(graph: Graph) -> str | None:
    dims = {v.dims for v in graph.discrete}
    only = next(iter(dims)) if len(dims) == 1 else ()
    return only[0] if len(only) == 1 else None


def _affine_spans(graph: Graph, term: Term) -> dict[str, int] | None:
    """For each dim: how far the cells of a scope reach along it; `None` where they are no neighbours."""
    ranges = {binding.index: binding for binding in term.domain if isinstance(binding, Range)}
    spans: dict[str, int] = {}
    for axis in range(max((len(ref.indices) for ref in term.scope), default=0)):
        offsets: dict[str, list[int]] = {}
        for ref in term.scope:
            if axis >= len(ref.indices) or ref.indices[axis].index not in ranges:
                return None
            affine = ref.indices[axis]
            offsets.setdefault(str(affine.index), []).append(affine.offset)
        if len(offsets) != 1:
            return None
        index, values = next(iter(offsets.items()))
        spans[ranges[index].dim] = max(values) - min(values)
    return spans or None


def _lifted_width(shape: Shape, order: int) -> int | None:
    if shape in (Shape.EMPTY, Shape.INDEPENDENT):
        return 0
    return order if shape is Shape.CHAIN else None


def _with_instance(graph: Graph, structure: Structure, instance: Instance) -> Structure:
    """What a grounded instance adds: the elimination order, its width, and whether a run-time graph is a forest."""
    if structure.shape in (Shape.EMPTY, Shape.INDEPENDENT):
        return structure
    try:
        made = ground(graph, instance)
    except EnergyError:
        return structure
    if len(made.cells) > LARGEST_GROUNDING:
        return structure
    neighbours = made.neighbours()
    found = min_fill(neighbours)
    assert found is not None
    shape = structure.shape
    if shape in (Shape.RUNTIME, Shape.GENERAL) and is_forest(neighbours):
        shape = Shape.FOREST
    names = tuple(str(made.cells[cell]) for cell in found.order)
    return replace(structure, shape=shape, width=found.width, order_of_elimination=names)

"""Structure recognition: what kind of graph the terms make, found once, named, and read by everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from energyml.diagnostics import EnergyError
from energyml.ir.fields import coupled_fields
from energyml.ir.graph import Edges, Graph, Range, Term
from energyml.ir.ground import GroundGraph, Instance, extent_of, ground
from energyml.plan.cost import Sizes
from energyml.plan.elimination import Program, TooWide, make_program
from energyml.plan.fields import FieldFacts, facts_of
from energyml.plan.width import is_forest
from energyml.queries import View

LARGEST_GROUNDING = 20_000
MOST_FACTORS = 1_000_000
# The memory that orders are looked for in when none is named: that of `exact` unless told otherwise.
USUAL = 2048.0 * 2**20


class Shape(Enum):
    """The shape of the discrete part that tables make."""

    EMPTY = "no discrete cells"
    INDEPENDENT = "independent cells"
    CHAIN = "chain"
    GRID = "grid"
    RUNTIME = "graph known at run time"
    FOREST = "forest"
    GENERAL = "general graph"


class Ground:
    """One example of a model, grounded when somebody asks; orders are looked for when somebody asks for them.

    Args:
        graph: the model.
        instance: the sizes of the example.
    """

    def __init__(self, graph: Graph, instance: Instance) -> None:
        self.graph, self.instance = graph, instance
        self._programs: dict[float, Program | TooWide] = {}

    @cached_property
    def cells(self) -> GroundGraph | None:
        """Cells and factors; `None` where the instance leaves something open, or is too large to look at."""
        cells, factors = extent_of(self.graph, self.instance)
        if cells > LARGEST_GROUNDING or factors > MOST_FACTORS:
            return None
        try:
            return ground(self.graph, self.instance)
        except EnergyError:
            return None

    @cached_property
    def label_counts(self) -> tuple[int, ...] | None:
        """How many labels each cell has; `None` before the label sets are known."""
        if self.cells is None:
            return None
        counts = {name: len(one.labels) for name, one in self.graph.label_sets.items() if one.labels is not None}
        known = [counts.get(cell.labels) for cell in self.cells.cells]
        return None if None in known else tuple(count for count in known if count is not None)

    def program(self, budget: float = USUAL) -> Program | TooWide | None:
        """The elimination within a budget of bytes for one example; `None` where nothing is grounded.

        Label sets that are not known yet count as two labels: the width is right, the bytes are not.
        """
        if self.cells is None:
            return None
        if budget not in self._programs:
            sizes = self.label_counts or (2,) * len(self.cells.cells)
            try:
                made: Program | TooWide = make_program([f.cells for f in self.cells.factors], sizes, budget=budget)
            except TooWide as wide:
                made = wide
            self._programs[budget] = made
        return self._programs[budget]


@dataclass(frozen=True)
class Structure:
    """Structure facts.

    Attributes:
        shape: of the tables and constraints alone.
        order: the order of a chain; 1 for a first-order chain.
        dim: the dim that a chain runs along.
        ground: one example, where its sizes are known.
        families: the kinds of terms: `factors`, `gaussian`, `stepwise`, `masked`, `black box`, `constraints`.
        views: the views that every term offers.
        lacking: for each view that some term does not offer, the first such term.
        latent: names of the latent variables.
        free: names of dims that are part of the answer.
        local: whether the whole score is one locally normalised sequence, so that Z = 1.
        sizes: known sizes by symbol: dims, and label sets as `|Letter|`.
        cells: for each discrete variable its name, its dims and its label set, for formulas of cost.
        fields: what is known about the couplings of each Gaussian field.
    """

    shape: Shape
    order: int = 0
    dim: str | None = None
    ground: Ground | None = field(default=None, compare=False)
    families: tuple[str, ...] = ()
    views: frozenset[View] = frozenset()
    lacking: Mapping[View, str] = field(default_factory=dict)
    latent: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    local: bool = False
    sizes: Sizes = field(default_factory=dict)
    cells: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    fields: tuple[FieldFacts, ...] = ()

    @property
    def is_sequence(self) -> bool:
        """Whether it is one variable along one dim whose tables join neighbours at most: a first-order chain."""
        if self.latent or len(self.cells) != 1:
            return False
        alone = self.shape is Shape.INDEPENDENT and self.dim is not None
        return alone or (self.shape is Shape.CHAIN and self.order == 1)

    @cached_property
    def width(self) -> int | None:
        """The induced width: of the lifted graph, or of the best order found on an example; `None` where unknown."""
        if self.shape in (Shape.EMPTY, Shape.INDEPENDENT):
            return 0
        if self.shape is Shape.CHAIN:
            return self.order
        made = self.ground.program() if self.ground is not None else None
        return made.width if isinstance(made, Program) else None

    @cached_property
    def order_of_elimination(self) -> tuple[str, ...]:
        """The cells in the order of their elimination, where an example was grounded."""
        made = self.ground.program() if self.ground is not None and self.has_tables else None
        if not isinstance(made, Program) or self.ground is None or self.ground.cells is None:
            return ()
        return tuple(str(self.ground.cells.cells[cell]) for cell in made.order)

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
        lines += [f"couplings of {facts.name}: {facts.describe()}" for facts in self.fields]
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
    sizes = _known_sizes(graph, instance)
    made = Structure(
        shape=shape,
        order=order,
        dim=dim,
        families=families,
        views=views,
        lacking=lacking,
        latent=tuple(v.name for v in graph.variables.values() if v.kind == "latent"),
        free=tuple(d.name for d in graph.dims.values() if d.kind == "free"),
        local=lone is not None and getattr(lone.body, "normalize", "") == "local",
        sizes=sizes,
        cells=tuple((v.name, v.dims, v.type.element) for v in graph.discrete),
        fields=tuple(facts_of(coupled, sizes) for coupled in coupled_fields(graph)),
    )
    if instance is None and all(graph.dims[d].kind == "fixed" for v in graph.discrete for d in v.dims):
        instance = Instance({})
    return _with_instance(graph, made, instance) if instance is not None else made


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


def _with_instance(graph: Graph, structure: Structure, instance: Instance) -> Structure:
    """What an example of known sizes adds: where orders can be found, and whether a general graph is a forest."""
    if structure.shape is Shape.EMPTY:
        return structure
    example = Ground(graph, instance)
    shape = structure.shape
    if shape in (Shape.RUNTIME, Shape.GENERAL) and example.cells is not None and is_forest(example.cells.neighbours()):
        shape = Shape.FOREST
    return replace(structure, shape=shape, ground=example)

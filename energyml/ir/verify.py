"""Verification: what must hold of every graph, however it was made.

The checker guards the road from text; this guards all that builds or rewrites a graph afterwards.  `verify` looks at
names, scopes, index ranges and bodies; the types of expressions are in `energyml.ir.expressions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from energyml.cards import registry
from energyml.diagnostics import EnergyError
from energyml.ir.expressions import Surroundings, index_problem, problems_of
from energyml.ir.graph import (
    BlackBox,
    CellRef,
    Edges,
    Forbidden,
    Graph,
    Linear,
    MaskedEnergy,
    Quadratic,
    Range,
    SchemeRule,
    Stepwise,
    Table,
    Term,
)
from energyml.model.declared import Condition, Net, NetSignature, Variable
from energyml.model.expression import Affine, At, Expression, Potential, Relaxed
from energyml.model.schemes import SCHEMES
from energyml.model.types import REAL, Axis, EdgeType, MaskedType, StepType, TensorType


class IRError(EnergyError):
    """A graph that breaks the rules of the IR; `problems` has one sentence for each break."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(f"the graph is not sound ({count}):{lines}")


def verify(graph: Graph) -> None:
    """Raise `IRError` with every problem of a graph; linear in its size."""
    problems = [*_declarations(graph), *_lets(graph), *_repeated(graph)]
    for term in graph.terms:
        found = _TermCheck(graph, term).run()
        problems += [f"term `{term.name}`: {problem}" for problem in found]
    if problems:
        raise IRError(problems)


def _repeated(graph: Graph) -> list[str]:
    counts = Counter(term.name for term in graph.terms)
    return [f"term `{name}`: {count} terms have this name" for name, count in counts.items() if count > 1]


# --------------------------------------------------------------------------------------------------------- declarations


def _declarations(graph: Graph) -> list[str]:
    problems: list[str] = []
    for kind in ("label_sets", "dims", "inputs", "variables", "nets", "params", "lets"):
        problems += [
            f"`{name}` is entered under the name `{one.name}`"
            for name, one in getattr(graph, kind).items()
            if one.name != name
        ]
    for labels in graph.label_sets.values():
        if labels.labels is not None and not labels.labels:
            problems.append(f"label set `{labels.name}`: it has no labels")
        if labels.source not in ("given", "data") and labels.source not in graph.nets:
            problems.append(f"label set `{labels.name}`: unknown network `{labels.source}`")
    for dim in graph.dims.values():
        if dim.kind == "nested" and dim.within not in graph.dims:
            problems.append(f"dim `{dim.name}`: unknown dim `{dim.within}`")
        if dim.kind in ("fixed", "free") and (dim.size is None or dim.size < 1):
            problems.append(f"dim `{dim.name}`: a {dim.kind} dim needs a size of at least 1")
    for what, name, types in _declared_types(graph):
        problems += [f"{what} `{name}`: {problem}" for one in types for problem in _unknown_names(graph, one)]
    problems += [problem for variable in graph.variables.values() for problem in _readout(graph, variable)]
    return problems


def _declared_types(graph: Graph) -> Iterable[tuple[str, str, tuple[object, ...]]]:
    for given in graph.inputs.values():
        yield "input", given.name, (given.type,)
    for variable in graph.variables.values():
        yield variable.kind, variable.name, (variable.type,)
    for param in graph.params.values():
        yield "param", param.name, (param.type,)
    for net in graph.nets.values():
        declared = net.declared
        types = (*declared.inputs, declared.output) if isinstance(declared, NetSignature) else (declared,)
        yield "net", net.name, (*types, *_option_types(net))


def _option_types(net: Net) -> Iterable[TensorType]:
    """The axes among a network's options, such as `out: Tag`."""
    for value in net.selection.options.values():
        if isinstance(value, tuple) and all(isinstance(axis, Axis) for axis in value):
            yield TensorType(REAL, value)


def _unknown_names(graph: Graph, declared: object) -> list[str]:
    """The label sets and dims that a declared type names but the graph lacks."""
    labels: set[str] = set()
    dims: set[str] = set()
    match declared:
        case TensorType(element=element, axes=axes):
            labels |= {element} - {REAL} | {axis.extent.name for axis in axes if axis.extent.kind == "labels"}
            dims |= {axis.extent.name for axis in axes if axis.extent.kind == "dim"}
        case EdgeType(ends=ends, over=over):
            dims |= {*ends, over}
        case StepType(labels=name) | MaskedType(labels=name):
            labels.add(name)
    unknown = [f"unknown label set `{name}`" for name in sorted(labels - graph.label_sets.keys())]
    return unknown + [f"unknown dim `{name}`" for name in sorted(dims - graph.dims.keys())]


def _readout(graph: Graph, variable: Variable) -> list[str]:
    readout = variable.readout
    if readout is None:
        return []
    field = graph.variables.get(readout.field)
    if field is None or field.kind != "field":
        return [f"output `{variable.name}`: unknown field `{readout.field}`"]
    if readout.over not in [axis.extent.name for axis in field.type.label_axes]:
        return [f"output `{variable.name}`: `{field.name}` has no axis over `{readout.over}`"]
    return []


def _lets(graph: Graph) -> list[str]:
    """A let may use those before it."""
    problems = []
    known: set[str] = set()
    for let in graph.lets.values():
        around = Surroundings(graph, lets=known)
        problems += [f"let `{let.name}`: {problem}" for problem in problems_of(let.value, around)]
        known.add(let.name)
    return problems


# ---------------------------------------------------------------------------------------------------------------- terms


class _TermCheck:
    """The check of one term; collects sentences."""

    def __init__(self, graph: Graph, term: Term) -> None:
        self.graph, self.term = graph, term
        self.found: list[str] = []
        self.bound: dict[str, tuple[str, int | None]] = {}

    def run(self) -> list[str]:
        """All problems of the term."""
        if not self.term.gain:
            self.say("it has no gain")
        if not self.term.scope:
            self.say("its scope is empty")
        for binding in self.term.domain:
            if isinstance(binding, Range):
                self.range_binding(binding)
            else:
                self.edge_binding(binding)
        self.body()
        return list(dict.fromkeys(self.found))

    def say(self, problem: str) -> None:
        self.found.append(problem)

    # -------------------------------------------------------------------------------------------------- index sets

    def bind(self, index: str, dim: str, shrink: int | None) -> None:
        if index in self.bound:
            self.say(f"the index `{index}` is bound twice")
        self.bound[index] = (dim, shrink)

    def range_binding(self, binding: Range) -> None:
        dim = self.graph.dims.get(binding.dim)
        if dim is None:
            self.say(f"unknown dim `{binding.dim}` in `{binding}`")
        elif dim.kind == "nested" and dim.within not in [over for over, _ in self.bound.values()]:
            self.say(f"an index over `{dim.within}` must come before `{binding}`")
        if binding.shrink < 0:
            self.say(f"`{binding.index}` runs past `{binding.dim}`")
        self.bind(binding.index, binding.dim, binding.shrink)

    def edge_binding(self, binding: Edges) -> None:
        source = self.graph.inputs.get(binding.source)
        if source is None:
            self.say(f"unknown input `{binding.source}` in `{binding}`")
        elif not isinstance(source.type, EdgeType):
            self.say(f"`{binding.source}` is `{source.type}`, no list of edges")
        elif (source.type.ends, source.type.over) != (binding.dims, binding.over):
            bound_as = EdgeType(binding.dims, binding.over)
            self.say(f"`{binding.source}` is `{source.type}`, but it is bound as `{bound_as}`")
        if len(binding.ends) != len(binding.dims):
            self.say(f"`{binding}` has ends: {len(binding.ends)}, dims: {len(binding.dims)}")
        self.bind(binding.index, binding.over, 0)
        for end, dim in zip(binding.ends, binding.dims, strict=False):
            self.bind(end, dim, None)

    # ------------------------------------------------------------------------------------------------------ scopes

    def variable(self, name: str, *kinds: str) -> Variable | None:
        variable = self.graph.variables.get(name)
        if variable is None:
            self.say(f"unknown variable `{name}`")
        elif variable.kind not in kinds:
            self.say(f"`{name}` is {_a(variable.kind)}, expected {' or '.join(map(_a, kinds))}")
            return None
        return variable

    def cell(self, ref: CellRef) -> None:
        variable = self.variable(ref.variable, "output", "latent")
        if variable is None:
            return
        axes = variable.type.index_axes
        if len(ref.indices) != len(axes):
            self.say(f"`{ref}` has indices: {len(ref.indices)}, but `{variable.name}` has index axes: {len(axes)}")
            return
        for index, axis in zip(ref.indices, axes, strict=True):
            problem = index_problem(self.graph, index, axis, self.bound)
            if problem:
                self.say(f"`{ref}`: {problem}")

    def cells(self) -> None:
        """The scope of a term over cells: distinct, and every index set has a use in the cells or in the table."""
        for ref in self.term.scope:
            self.cell(ref)
        counts = Counter((ref.variable, ref.indices) for ref in self.term.scope)
        for (name, indices), count in counts.items():
            if count > 1:
                self.say(f"`{CellRef(name, indices)}` occurs {count} times in the scope")
        used = {index.index for ref in self.term.scope for index in ref.indices}
        used |= {index.index for value in self.term.expressions() for index in _indices(value)}
        for binding in self.term.domain:
            if not used.intersection((binding.index, *getattr(binding, "ends", ()))):
                self.say(f"the index `{binding.index}` does not occur in the scope")

    def whole(self, names: tuple[str, ...], *kinds: str) -> None:
        """The scope of a term over whole variables."""
        for name in names:
            self.variable(name, *kinds)
        if self.term.domain:
            self.say(f"a {self.term.kind} term is added once, but it has an index set")
        if self.term.scope != tuple(CellRef(name) for name in names):
            self.say(f"its scope must be the whole of {', '.join(f'`{name}`' for name in names)}")

    # ------------------------------------------------------------------------------------------------------ bodies

    def expression(self, value: Expression, *, relaxable: tuple[str, ...] = (), potentials: bool = False) -> bool:
        around = Surroundings(self.graph, self.bound, relaxable, self.graph.lets.keys(), potentials)
        problems = list(problems_of(value, around))
        for problem in problems:
            self.say(problem)
        return not problems

    def body(self) -> None:
        body = self.term.body
        match body:
            case Table():
                self.table(body)
            case Forbidden():
                self.forbidden(body)
            case SchemeRule():
                self.scheme(body)
            case Linear(field=field, value=value):
                self.whole((field,), "field")
                variable = self.graph.variables.get(field)
                sound = self.expression(value)
                if variable and sound and value.type.without_roles() != variable.type.without_roles():
                    self.say(f"`{value}` is `{value.type}`, but `{field}` is `{variable.type}`")
            case Quadratic():
                self.quadratic(body)
            case Stepwise():
                self.stepwise(body)
            case MaskedEnergy():
                self.whole((body.variable,), "output", "latent")
                self.network(body.net, "masked", body.variable)
                self.given(body.given)
            case BlackBox():
                self.black_box(body)

    def table(self, body: Table) -> None:
        self.cells()
        sound = self.expression(body.value, potentials=True)
        labels = [v.type.element if (v := self.graph.variables.get(ref.variable)) else "" for ref in self.term.scope]
        if isinstance(body.value, Potential):
            self.potential_table(body, body.value, labels)
        elif sound and all(labels):
            self.label_axes(body, labels)

    def potential_table(self, body: Table, value: Potential, labels: list[str]) -> None:
        card = registry.find("potential", value.potential)
        if card is not None and not getattr(card, "table", False):
            self.say(f"`{value.potential}` couples a field; it is no table")
        if len(labels) != 2 or len(set(labels)) != 1:
            self.say(f"`{value.potential}` needs a scope of two cells over one label set")
        if body.order != (0, 1):
            self.say(f"the order of a potential is (0, 1), found {body.order}")
        if value.type.axes:
            self.say(f"`{value}` needs a single number as its weight, found `{value.type}`")

    def label_axes(self, body: Table, labels: list[str]) -> None:
        """Each cell reads its own axis of the table, over its own labels and of its own role."""
        made = body.value.type
        if made.element != REAL or made.index_axes or made.number_axes:
            self.say(f"`{body.value}` is `{made}`, but a table has label axes only")
            return
        axes = made.label_axes
        if sorted(body.order) != list(range(len(axes))) or len(body.order) != len(labels):
            self.say(
                f"the order {body.order} is no matching of the cells ({len(labels)}) and the label axes ({len(axes)})"
            )
            return
        by_role = any(axis.role for axis in axes)
        for ref, name, place in zip(self.term.scope, labels, body.order, strict=True):
            axis = axes[place]
            if axis.extent.name != name:
                self.say(f"`{ref}` has labels `{name}`, but it reads the axis `{axis}`")
            elif by_role and ref.role is not None and axis.role != ref.role:
                self.say(f"`{ref}` reads the axis `{axis}`, which has another role")
            elif (ref.role is None or not by_role) and labels.count(name) > 1:
                self.say(f"`{ref}` needs a role, as {labels.count(name)} cells of the scope are over `{name}`")

    def forbidden(self, body: Forbidden) -> None:
        self.cells()
        if not body.conditions:
            self.say("it has no conditions")
        in_scope = {(ref.variable, ref.indices) for ref in self.term.scope}
        for condition in body.conditions:
            for ref in (condition.cell, condition.other):
                if ref is not None and (ref.variable, ref.indices) not in in_scope:
                    self.say(f"`{ref}` is compared but not in the scope")
            self.condition(condition)

    def condition(self, condition: Condition) -> None:
        variable = self.graph.variables.get(condition.cell.variable)
        other = self.graph.variables.get(condition.other.variable) if condition.other else None
        if (condition.label is None) == (condition.other is None):
            self.say("a condition compares with a label or with another cell")
        elif variable and other and variable.type.element != other.type.element:
            self.say(f"`{condition}` compares cells of different label sets")
        elif variable and condition.label is not None:
            known = self.graph.label_sets.get(variable.type.element)
            if known and known.labels and condition.operator in ("=", "!=") and condition.label not in known.labels:
                self.say(f"`{condition.label}` is not a label of `{known.name}`")

    def scheme(self, body: SchemeRule) -> None:
        if body.scheme not in SCHEMES:
            self.say(f"unknown scheme `{body.scheme}`")
        self.cells()
        indices = tuple(index for ref in self.term.scope for index in ref.indices)
        step = self.term.domain[0].index if len(self.term.domain) == 1 else ""
        expected = {
            "first": (Affine(None, 0),),
            "next": (Affine(step), Affine(step, 1)),
            "last": (Affine(None, -1),),
        }[body.part]
        if indices != expected or len(self.term.variables) != 1:
            form = {"first": "y[0]", "next": "y[t], y[t+1]", "last": "y[-1]"}[body.part]
            self.say(f"a `{body.part}` rule is over `{form}` of one sequence")

    def quadratic(self, body: Quadratic) -> None:
        self.whole((body.field,), "field")
        for coupling in body.couplings:
            if not isinstance(coupling, Potential):
                self.say(f"`{coupling}` is no coupling")
                continue
            self.expression(coupling, potentials=True)
            card = registry.find("potential", coupling.potential)
            if card is not None and not getattr(card, "coupling", False):
                self.say(f"`{coupling.potential}` is no coupling")
        if self.expression(body.ridge) and body.ridge.type != TensorType(REAL):
            self.say(f"the ridge is one number, found `{body.ridge.type}`")

    def network(self, name: str, role: str, variable: str) -> None:
        net = self.graph.nets.get(name)
        scored = self.graph.variables.get(variable)
        if net is None:
            self.say(f"unknown network `{name}`")
        elif net.role != role:
            self.say(f"`{name}` is a {net.role} network, expected a {role} network")
        elif scored and isinstance(net.declared, StepType | MaskedType) and net.declared.labels != scored.type.element:
            self.say(f"`{name}` is `{net.declared}`, but `{variable}` is over `{scored.type.element}`")
        if scored is not None and len(scored.dims) != 1:
            self.say(f"`{variable}` is `{scored.type}`, no sequence")

    def given(self, given: tuple[Expression, ...]) -> None:
        for value in given:
            self.expression(value)

    def stepwise(self, body: Stepwise) -> None:
        self.whole((body.variable,), "output", "latent")
        self.network(body.net, "step", body.variable)
        self.given(body.given)
        variable = self.graph.variables.get(body.variable)
        labels = self.graph.label_sets.get(variable.type.element) if variable else None
        if body.end is not None and labels and labels.labels and body.end not in labels.labels:
            self.say(f"the end `{body.end}` is not a label of `{labels.name}`")
        dims = [self.graph.dims.get(dim) for dim in variable.dims] if variable else []
        if body.end is None and any(dim is not None and dim.kind == "free" for dim in dims):
            self.say("a sequence of free length needs an end label")

    def black_box(self, body: BlackBox) -> None:
        self.whole(body.variables, "output", "latent")
        if self.expression(body.value, relaxable=body.variables) and body.value.type != TensorType(REAL):
            self.say(f"a score is one number, found `{body.value.type}`")
        read = _relaxations(body.value)
        for name in body.variables:
            if all(one.variable != name for one in read):
                self.say(f"`{name}` is in the scope, but the score does not read it")
        if body.relaxable != all(one.soft for one in read):
            self.say("it is relaxable if and only if it reads nothing but `soft(...)`")


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _indices(value: Expression) -> list[Affine]:
    own = value.indices if isinstance(value, At) else ()
    return [*own, *(index for part in value.parts for index in _indices(part))]


def _relaxations(value: Expression) -> list[Relaxed]:
    return [
        *([value] if isinstance(value, Relaxed) else []),
        *(one for part in value.parts for one in _relaxations(part)),
    ]


__all__ = ["IRError", "verify"]

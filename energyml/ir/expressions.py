"""The types of expressions in a graph, checked from the leaves up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from energyml.cards import registry
from energyml.ir.graph import Graph
from energyml.model.expression import (
    Affine,
    Apply,
    At,
    Combine,
    Constant,
    Expression,
    Potential,
    Reference,
    Relaxed,
)
from energyml.model.types import REAL, Axis, EdgeType, TensorType, labels_axis
from energyml.model.typing import BadArguments, joined, result_type

# Index -> the dim that it runs over, and by how much its range is shorter (None for the end of an edge).
Bound: TypeAlias = Mapping[str, tuple[str, int | None]]


@dataclass(frozen=True)
class Surroundings:
    """Where an expression stands.

    Attributes:
        graph: what its names refer to.
        bound: the indices of its term.
        relaxable: the variables that `soft` and `hard` may read.
        lets: the named tensors that it may use.
        potentials: whether it may be a potential.
    """

    graph: Graph
    bound: Bound = field(default_factory=dict)
    relaxable: tuple[str, ...] = ()
    lets: AbstractSet[str] = frozenset()
    potentials: bool = False


def parts_of(roots: Iterable[Expression], graph: Graph) -> Iterator[Expression]:
    """Some expressions and all that they are made of; each named tensor is looked into once."""
    left, named = list(roots), set[str]()
    while left:
        one = left.pop()
        yield one
        left += one.parts
        if isinstance(one, Reference) and one.kind == "let" and one.name not in named:
            named.add(one.name)
            left.append(graph.lets[one.name].value)


def problems_of(value: Expression, around: Surroundings) -> Iterator[str]:
    """Why an expression is not sound, a sentence for each reason; the parts of an unsound part are not judged again."""
    if isinstance(value, Potential) and not around.potentials:
        yield f"`{value}` stands for a whole table or coupling and cannot be part of an expression"
    parts = value.parts[1:] if isinstance(value, Potential) and _runs_along_edges(value) else value.parts
    inner = [one for part in parts for one in problems_of(part, replace(around, potentials=False))]
    yield from inner if inner else _own_problems(value, around)


def _own_problems(value: Expression, around: Surroundings) -> Iterator[str]:
    match value:
        case Constant(value=number):
            if value.type != TensorType(REAL) or not math.isfinite(number):
                yield f"the constant {number} must be a finite number without axes"
        case Reference():
            yield from _reference(value, around)
        case Relaxed():
            yield from _relaxed(value, around)
        case Apply():
            yield from _apply(value, around)
        case Potential():
            yield from _potential(value, around)
        case At():
            yield from _at(value, around)
        case Combine():
            yield from _combine(value)


def _reference(value: Reference, around: Surroundings) -> Iterator[str]:
    graph = around.graph
    declared: TensorType | EdgeType | None = None
    if value.kind == "input" and value.name in graph.inputs:
        declared = graph.inputs[value.name].type
    elif value.kind == "param" and value.name in graph.params:
        declared = graph.params[value.name].type
    elif value.kind == "let" and value.name in graph.lets:
        declared = graph.lets[value.name].value.type
        if value.name not in around.lets:
            yield f"the let `{value.name}` is used before it is defined"
    if declared is None:
        yield f"unknown {value.kind} `{value.name}`"
    elif declared != value.type:
        yield f"`{value.name}` is declared `{declared}`, but referred to as `{value.type}`"


def _relaxed(value: Relaxed, around: Surroundings) -> Iterator[str]:
    variable = around.graph.variables.get(value.variable)
    if variable is None:
        yield f"unknown variable `{value.variable}`"
    elif value.variable not in around.relaxable:
        yield f"`{value}` reads a variable that is not in the scope"
    else:
        labels = labels_axis(variable.type.element)
        expected = TensorType(REAL, (*variable.type.axes, labels)) if value.soft else variable.type
        if value.type != expected:
            yield f"`{value}` is `{expected}`, but typed `{value.type}`"


def _apply(value: Apply, around: Surroundings) -> Iterator[str]:
    net = around.graph.nets.get(value.net)
    if net is None:
        yield f"unknown network `{value.net}`"
        return
    if net.role != "function":
        yield f"`{net.name}` is a {net.role} network, expected a function network"
        return
    try:
        result = result_type(net, tuple(argument.type for argument in value.arguments))
    except BadArguments as problem:
        yield f"`{net.name}` {problem}"
        return
    if result != value.type:
        yield f"`{value}` is `{result}`, but typed `{value.type}`"


def _runs_along_edges(value: Potential) -> bool:
    return bool(getattr(registry.find("potential", value.potential), "edges", False))


def _potential(value: Potential, around: Surroundings) -> Iterator[str]:
    if registry.find("potential", value.potential) is None:
        yield f"unknown potential `{value.potential}`"
        return
    along = _runs_along_edges(value)
    if len(value.arguments) != 1 + along:
        yield f"`{value}` needs {'a list of edges and a weight' if along else 'one weight'}"
        return
    if along:
        yield from _edge_list(value.arguments[0], around)
    weight = value.arguments[-1].type
    if value.type != weight:
        yield f"`{value}` has the type of its weight, `{weight}`, but it is typed `{value.type}`"


def _edge_list(value: Expression, around: Surroundings) -> Iterator[str]:
    """The first argument of a potential that runs along edges: an input of that type."""
    given = around.graph.inputs.get(value.name) if isinstance(value, Reference) and value.kind == "input" else None
    if given is None or not isinstance(given.type, EdgeType):
        yield f"`{value}` is no list of edges"
    elif value.type != given.type.as_tensor():
        yield f"`{value}` is declared `{given.type}`, but typed `{value.type}`"


def _at(value: At, around: Surroundings) -> Iterator[str]:
    if isinstance(value.base, At | Combine | Constant):
        yield f"`{value}`: subscripts stand on names and calls"
        return
    axes = value.base.type.index_axes
    if not 0 < len(value.indices) <= len(axes):
        yield f"`{value}` has indices: {len(value.indices)}, but `{value.base}` has index axes: {len(axes)}"
        return
    remaining = list(value.base.type.axes)
    for index, axis in zip(value.indices, axes, strict=False):
        remaining.remove(axis)
        problem = index_problem(around.graph, index, axis, around.bound)
        if problem:
            yield f"`{value}`: {problem}"
    expected = TensorType(value.base.type.element, tuple(remaining))
    if value.type != expected:
        yield f"`{value}` is `{expected}`, but typed `{value.type}`"


def _combine(value: Combine) -> Iterator[str]:
    if len(value.operands) < 2 or len(value.operators) != len(value.operands) - 1:
        yield f"the operands ({len(value.operands)}) and the operators ({len(value.operators)}) do not alternate"
        return
    made: TensorType | None = value.operands[0].type
    for operator, operand in zip(value.operators, value.operands[1:], strict=True):
        if operator not in ("+", "-", "*", "/"):
            yield f"unknown operator `{operator}`"
            return
        before = made
        made = (
            joined(made, operator, operand.type)
            if made is not None and made.element == operand.type.element == REAL
            else None
        )
        if made is None:
            yield f"`{value}`: `{operator}` cannot join `{before}` and `{operand.type}`"
            return
    if made != value.type:
        yield f"`{value}` is `{made}`, but typed `{value.type}`"


def index_problem(graph: Graph, index: Affine, axis: Axis, bound: Bound) -> str | None:
    """Why an index cannot stand on an axis, or `None` when it can.

    An index over `D-a` plus k stays on an axis over `D-b` when 0 <= k <= a-b.
    """
    dim = graph.dims.get(axis.extent.name)
    if dim is None:
        return f"unknown dim `{axis.extent.name}`"
    if index.index is None:
        return "a nested dim has no common positions" if dim.kind == "nested" else None
    if index.index not in bound:
        return f"the index `{index.index}` is not bound"
    over, shrink = bound[index.index]
    if over != dim.name:
        return f"the index `{index.index}` runs over `{over}`, but the axis is over `{dim.name}`"
    room = 0 if shrink is None else shrink + axis.extent.offset
    if shrink is None and axis.extent.offset:
        return f"the end of an edge may lie outside `{axis.extent}`"
    if not 0 <= index.offset <= room:
        return f"`{index}` leaves `{axis.extent}`"
    return None


__all__ = ["Bound", "Surroundings", "index_problem", "parts_of", "problems_of"]

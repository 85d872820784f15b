"""Typing of tensor expressions: one pass, no inference variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from energyml.cards import registry
from energyml.cards.options import constant, found
from energyml.diagnostics import Note, Span
from energyml.model.context import Context
from energyml.model.declared import Binding, Edges, Net, NetSignature, Range
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
    scalar,
)
from energyml.model.names import kind_word
from energyml.model.potentials import PotentialCard
from energyml.model.types import REAL, Axis, EdgeType, TensorType, labels_axis
from energyml.nets.cards import BadArguments, NetCard
from energyml.syntax import tree as t


@dataclass
class Indices:
    """The indices that a term binds: name -> (dim, how much shorter its range is; None for run-time positions)."""

    bound: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def add(self, binding: Binding) -> None:
        """Enter the indices of a binding."""
        if isinstance(binding, Range):
            self.bound[binding.index] = (binding.dim, binding.shrink)
        else:
            assert isinstance(binding, Edges)
            self.bound[binding.index] = (binding.over, 0)
            for end, dim in zip(binding.ends, binding.dims, strict=True):
                self.bound[end] = (dim, None)


@dataclass
class Place:
    """Where an expression stands: which indices are bound, which variables may be relaxed, whether potentials are allowed."""

    indices: Indices = field(default_factory=Indices)
    relaxable: tuple[str, ...] = ()
    potentials: bool = False


def expression(context: Context, node: t.Value, place: Place) -> Expression | None:
    """The typed expression of a value, or `None` after reporting why there is none."""
    number = constant(node)
    if number is not None:
        return scalar(float(number))
    match node:
        case t.Name():
            return _name(context, node)
        case t.Call():
            return _call(context, node, place)
        case t.Subscript():
            return _subscript(context, node, place)
        case t.Group(inner=inner):
            return expression(context, inner, place)
        case t.Signed(operator=operator, operand=operand):
            inner_value = expression(context, operand, place)
            if inner_value is None or operator == "+":
                return inner_value
            return _combine(context, node.span, (scalar(-1.0), inner_value), ("*",))
        case t.Chained(operands=operands, operators=operators):
            parts = [expression(context, operand, place) for operand in operands]
            if any(part is None for part in parts):
                return None
            return _combine(context, node.span, tuple(cast("list[Expression]", parts)), operators)
    context.complain("E0226", node.span, found=found(node))
    return None


def _name(context: Context, node: t.Name) -> Expression | None:
    name = node.text
    entry = context.names.find(node)
    if entry is None:
        return None
    if entry.kind == "input":
        declared = context.inputs.get(name)
        if declared is None:
            return None
        if isinstance(declared.type, EdgeType):
            note = Note(f"`{name}` is declared here", entry.span)
            context.complain("E0219", node.span, name=name, kind="list of edges", notes=[note],
                             help=f"bind it in an index set: `[e = (i, j) in {name}]`")  # fmt: skip
            return None
        return Reference(declared.type, "input", name)
    if entry.kind == "param":
        parameter = context.params.get(name)
        return Reference(parameter.type, "param", name) if parameter else None
    if entry.kind == "let":
        let = context.lets.get(name)
        if let is None:
            if name not in context.names.poisoned:
                context.complain("E0105", node.span, name=name, notes=[Note(f"`{name}` is defined here", entry.span)])
            return None
        return Reference(let.value.type, "let", name)
    note = Note(f"`{name}` is declared here", entry.span)
    remedy = {
        "net": f"call it: `{name}(...)`",
        "output": f"scores read a variable through a scope, or as `soft({name})` inside `score`",
        "latent": f"scores read a variable through a scope, or as `soft({name})` inside `score`",
    }.get(entry.kind, "")
    context.complain("E0219", node.span, name=name, kind=kind_word(entry.kind), notes=[note], help=remedy)
    return None


# ----------------------------------------------------------------------------------------------------------------- calls


def _call(context: Context, node: t.Call, place: Place) -> Expression | None:
    name = node.function.text
    if name in ("soft", "hard"):
        return _relaxed(context, node, place)
    if name not in context.names.table and registry.find("potential", name) is not None:
        return _potential(context, node, place)
    entry = context.names.table.get(name)
    if entry is None and name not in context.names.poisoned and registry.find("net", name) is not None:
        context.complain("E0102", node.function.span, what="network", name=name,
                         help=f"`{name}` is in the catalogue; declare one first: `net {name}1 = {name}(...)`")  # fmt: skip
        return None
    if context.names.find(node.function, "net") is None:
        for argument in node.positional:
            expression(context, argument, place)
        return None
    net = context.nets.get(name)
    if node.options:
        context.complain("E0402", node.options[0].key.span, card=name, option=node.options[0].key.text,
                         help=f"options of a network are given where it is declared: `net {name} = ...`")  # fmt: skip
        return None
    parts = [expression(context, argument, place) for argument in node.positional]
    if net is None or any(part is None for part in parts):
        return None
    return _apply(context, node, net, tuple(cast("list[Expression]", parts)))


def _apply(context: Context, node: t.Call, net: Net, parts: tuple[Expression, ...]) -> Expression | None:
    note = Note(f"`{net.name}` is declared here", net.span)
    if net.role != "function":
        context.complain("E0219", node.function.span, name=net.name, kind=f"{net.role} network", notes=[note])
        return None
    if net.declared is not None:
        return _apply_declared(context, node, net, parts, note)
    try:
        result = result_type(net, tuple(part.type for part in parts))
    except BadArguments as problem:
        at = node.positional[problem.position].span if problem.position is not None else node.span
        context.complain("E0217", at, net=net.name, problem=str(problem), notes=[note])
        return None
    return Apply(result, net.name, parts)


def result_type(net: Net, arguments: tuple[TensorType, ...]) -> TensorType:
    """The type of a function network applied to tensors; raises `BadArguments`."""
    if isinstance(net.declared, NetSignature):
        wanted = tuple(one.without_roles() for one in net.declared.inputs)
        if wanted != tuple(one.without_roles() for one in arguments):
            raise BadArguments(f"takes `{net.declared}`, found ({', '.join(map(str, arguments))})")
        return net.declared.output
    card = cast("NetCard", net.selection.card)
    if net.role != "function" or card.result is None:
        raise BadArguments(f"is a {net.role} network and cannot be called")
    return card.result(arguments, net.selection)


def _apply_declared(
    context: Context, node: t.Call, net: Net, parts: tuple[Expression, ...], note: Note
) -> Expression | None:
    assert isinstance(net.declared, NetSignature)
    expected = net.declared.inputs
    if len(expected) != len(parts):
        takes = f"{len(expected)} argument{'s' if len(expected) != 1 else ''}"
        context.complain("E0218", node.span, net=net.name, expected=takes, found=len(parts), notes=[note])
        return None
    for wanted, part, argument in zip(expected, parts, node.positional, strict=True):
        if wanted.without_roles() != part.type.without_roles():
            context.complain("E0217", argument.span, net=net.name, problem=f"takes `{wanted}`, found `{part.type}`", notes=[note])
            return None
    return Apply(net.declared.output, net.name, parts)


def _relaxed(context: Context, node: t.Call, place: Place) -> Expression | None:
    word = node.function.text
    argument = node.positional[0] if len(node.arguments) == 1 and node.positional else None
    if not isinstance(argument, t.Name) or not place.relaxable:
        help_text = "" if place.relaxable else "relaxed labels are read inside `score NAME (y) = ...`"
        context.complain("E0315", node.span, word=word, help=help_text)
        return None
    if context.names.find(argument, "output", "latent") is None:
        return None
    variable = context.variables.get(argument.text)
    if variable is None:
        return None
    if argument.text not in place.relaxable:
        context.complain("E0324", argument.span, name=argument.text, problem="not listed in the parentheses of this score",
                         help=f"add it: `({', '.join((*place.relaxable, argument.text))})`")  # fmt: skip
        return None
    labels = labels_axis(variable.type.element)
    made = TensorType(REAL, (*variable.type.axes, labels)) if word == "soft" else variable.type
    return Relaxed(made, argument.text, word == "soft")


def _potential(context: Context, node: t.Call, place: Place) -> Expression | None:
    name = node.function.text
    card = cast("PotentialCard", registry.find("potential", name))
    if not place.potentials:
        context.complain("E0227", node.span, name=name, problem="stands for a whole table or coupling, so it cannot be part of a larger expression or argument")
        return None
    parts = [expression(context, argument, Place(place.indices)) for argument in node.positional]
    if node.options or not parts or (len(parts) != 1 and name != "sparse"):
        context.complain("E0227", node.span, name=name, problem="takes one weight without a key, as in `potts(w)`")
        return None
    if any(part is None for part in parts):
        return None
    made = tuple(cast("list[Expression]", parts))
    return Potential(made[0].type, card.name, made)


# ------------------------------------------------------------------------------------------------------------ subscripts


def _subscript(context: Context, node: t.Subscript, place: Place) -> Expression | None:
    base = expression(context, node.base, place)
    if base is None:
        return None
    axes = base.type.index_axes
    if len(node.indices) > len(axes):
        context.complain("E0211", node.span, value=base, count=len(axes), given=len(node.indices))
        return None
    indices = [index(context, item, axis, place.indices) for item, axis in zip(node.indices, axes, strict=False)]
    if any(item is None for item in indices):
        return None
    consumed = axes[: len(indices)]
    remaining = list(base.type.axes)
    for axis in consumed:
        remaining.remove(axis)
    return At(TensorType(base.type.element, tuple(remaining)), base, tuple(cast("list[Affine]", indices)))


def index(context: Context, node: t.Index, axis: Axis, indices: Indices) -> Affine | None:
    """Check one index against the axis that it consumes."""
    dim, longest = axis.extent.name, -axis.extent.offset
    if node.name is None:
        if context.dims.get(dim) is not None and context.dims[dim].kind == "nested":
            context.complain("E0209", node.span, index=node.offset, dim=dim, problem="a nested dim has no common position")
            return None
        return Affine(None, node.offset)
    name = node.name.text
    if name not in indices.bound:
        if name not in context.names.poisoned:
            _unbound(context, node.name, indices)
        return None
    indices.used.add(name)
    over, shrink = indices.bound[name]
    if over != dim:
        notes = [Note(f"`{name}` is bound here", indices.places[name])] if name in indices.places else []
        context.complain("E0212", node.span, index=name, found=over, expected=dim, notes=notes)
        return None
    if shrink is None:
        if node.offset or longest:
            context.complain("E0209", node.span, index=Affine(name, node.offset), dim=axis.extent,
                             problem="the end of an edge has no neighbours", help=f"write `{name}`")  # fmt: skip
            return None
        return Affine(name)
    return _in_range(context, node, axis, indices, shrink - longest)


def _unbound(context: Context, ident: t.Ident, indices: Indices) -> None:
    from energyml.diagnostics import did_you_mean

    guess = did_you_mean(ident.text, indices.bound) if indices.bound else None
    context.complain("E0208", ident.span, index=ident.text, help=f"did you mean `{guess}`?" if guess else None)


def _in_range(context: Context, node: t.Index, axis: Axis, indices: Indices, room: int) -> Affine | None:
    assert node.name is not None
    name, offset = node.name.text, node.offset
    if 0 <= offset <= room:
        return Affine(name, offset)
    dim = indices.bound[name][0]
    notes = [Note(f"`{name}` is bound here", indices.places[name])] if name in indices.places else []
    if offset < 0:
        problem, help_text = "positions before the first do not exist", f"shift the term: let `{name}` be the earliest position"
    else:
        needed = offset - axis.extent.offset
        problem = f"the last value of `{name}` has no position {offset:+d} on `{axis.extent}`" if offset else f"`{name}` runs past `{axis.extent}`"
        help_text = f"bind `{name} in {dim}-{needed}`"
    context.complain("E0209", node.span, index=Affine(name, offset), dim=axis.extent, problem=problem, help=help_text, notes=notes)
    return None


# ------------------------------------------------------------------------------------------------------------ arithmetic


def _combine(
    context: Context, span: Span, parts: tuple[Expression, ...], operators: tuple[str, ...]
) -> Expression | None:
    for part in parts:
        if isinstance(part, Potential):
            context.complain("E0227", span, name=part.potential, problem="cannot be combined with other values here")
            return None
        if part.type.element != REAL:
            context.complain("E0225", span, value=part)
            return None
    made = parts[0].type
    for operator, part in zip(operators, parts[1:], strict=True):
        whole = joined(made, operator, part.type)
        if whole is None:
            problem = (
                "one of them must be a single number" if operator in "*/" else "both need the same axes, as nothing broadcasts"
            )
            context.complain("E0220", span, operator=operator, left=made, right=part.type, problem=problem)
            return None
        made = whole
    if all(isinstance(part, Constant) for part in parts):
        context.complain("E0226", span, found="a number out of range")
        return None
    return Combine(made, parts, operators)


def joined(left: TensorType, operator: str, right: TensorType) -> TensorType | None:
    """The type of two tensors joined by an operator, or `None` where they cannot be."""
    if operator in "+-":
        return left if left.without_roles() == right.without_roles() else None
    if not right.axes:
        return left
    return right if not left.axes and operator == "*" else None

"""Typing of tensor expressions: one pass, no inference variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from energyml.cards import registry
from energyml.cards.options import constant, found
from energyml.diagnostics import Note, Span, join_names
from energyml.model.context import Context
from energyml.model.declared import Net, NetSignature
from energyml.model.expression import (
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
from energyml.model.names import Declared, kind_word, with_article
from energyml.model.potentials import PotentialCard
from energyml.model.selections import options
from energyml.model.subscripts import Indices, subscripts
from energyml.model.types import REAL, Axis, EdgeType, TensorType, labels_axis
from energyml.nets.cards import BadArguments, NetCard
from energyml.syntax import tree as t

NO_INDICES = Indices(bindable=False)


@dataclass
class Place:
    """Where an expression stands.

    Attributes:
        indices: the indices that are bound there.
        relaxable: the variables that `soft` and `hard` may read.
        potentials: whether the whole of it may be a potential.
    """

    indices: Indices = field(default_factory=lambda: NO_INDICES)
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
            value = expression(context, operand, place)
            if value is None or operator == "+":
                return value
            return _combine(context, node.span, (scalar(-1.0), value), ("*",), (node.span, operand.span))
        case t.Chained(operands=operands, operators=operators):
            parts = _all(expression(context, operand, place) for operand in operands)
            if parts is None:
                return None
            return _combine(context, node.span, parts, operators, [operand.span for operand in operands])
    context.complain("E0226", node.span, found=found(node))
    return None


def _all(parts: Iterable[Expression | None]) -> tuple[Expression, ...] | None:
    """All expressions, or `None` when any has failed; every one is checked in any case."""
    made = list(parts)
    sound = tuple(part for part in made if part is not None)
    return sound if len(sound) == len(made) else None


def origin(context: Context, value: Expression) -> list[Note]:
    """A note on where a tensor comes from, for a message about its type."""
    match value:
        case Reference(name=name) | Apply(net=name):
            return context.declared_here(name)
        case At(base=base):
            return origin(context, base)
        case Combine(operands=operands):
            notes = [note for operand in operands for note in origin(context, operand)]
            return list(dict.fromkeys(notes))
    return []


# ---------------------------------------------------------------------------------------------------------------- names


def _name(context: Context, node: t.Name) -> Expression | None:
    name = node.text
    if name in context.term_names and name not in context.names.table:
        remedy = "a score is made of tensors; only options such as `scale:` refer to terms"
        context.complain("E0219", node.span, name=name, kind="a term", help=remedy)
        return None
    if name not in context.names.table and name not in context.names.poisoned:
        context.names.unknown_tensor(node)
        return None
    entry = context.names.find(node)
    if entry is None:
        return None
    if entry.kind == "param" and name in context.params:
        return Reference(context.params[name].type, "param", name)
    if entry.kind == "let":
        return _let(context, node, entry)
    if entry.kind == "input" and name in context.inputs:
        declared = context.inputs[name].type
        if isinstance(declared, TensorType):
            return Reference(declared, "input", name)
        _no_tensor(context, node, "a list of edges", f"bind it in an index set: `[e = (i, j) in {name}]`")
        return None
    remedy = {
        "net": f"call it: `{name}(...)`",
        "output": f"a table reads it through its scope; a `score` reads it as `soft({name})`",
        "latent": f"a table reads it through its scope; a `score` reads it as `soft({name})`",
        "dim": "sizes are not part of a score",
    }.get(entry.kind, "")
    _no_tensor(context, node, with_article(kind_word(entry.kind)), remedy)
    return None


def _let(context: Context, node: t.Name, entry: Declared) -> Expression | None:
    let = context.lets.get(node.text)
    if let is None:
        note = Note(f"`{node.text}` is defined here", entry.span)
        context.complain("E0105", node.span, name=node.text, notes=[note])
        return None
    return Reference(let.value.type, "let", node.text)


def _no_tensor(context: Context, node: t.Name, kind: str, remedy: str) -> None:
    notes = context.declared_here(node.text)
    context.complain("E0219", node.span, name=node.text, kind=kind, notes=notes, help=remedy)


# ---------------------------------------------------------------------------------------------------------------- calls


def _call(context: Context, node: t.Call, place: Place) -> Expression | None:
    name = node.function.text
    known = name in context.names.table or name in context.names.poisoned
    if name in ("soft", "hard") and not known:
        return _relaxed(context, node, place)
    if not known and registry.find("potential", name) is not None:
        return _potential(context, node, place)
    inside = Place(place.indices, place.relaxable)
    arguments = [expression(context, argument, inside) for argument in node.positional]
    if not known and _in_catalogue(context, node.function):
        return None
    if context.names.find(node.function, "net") is None:
        return None
    if node.options:
        key = node.options[0].key
        remedy = f"the options of a network stand where it is declared: `net {name} = ...`"
        context.complain("E0402", key.span, card=name, option=key.text, help=remedy, notes=context.declared_here(name))
        return None
    net = context.nets.get(name)
    parts = _all(arguments)
    return None if net is None or parts is None else _apply(context, node, net, parts)


def _in_catalogue(context: Context, node: t.Name) -> bool:
    """Whether an undeclared name is, or almost is, a word of the catalogue; reports it if so."""
    if registry.find("net", node.text) is not None:
        remedy = f"`{node.text}` is a kind of network; declare one first: `net f = {node.text}(...)`"
    elif context.names.guess(node.text, context.names.likely("net")):
        return False
    else:
        guess = context.names.guess(node.text, ["soft", "hard", *(card.name for card in registry.every("potential"))])
        if guess is None:
            return False
        remedy = f"did you mean `{guess}`?"
    context.complain("E0102", node.span, what="network", name=node.text, help=remedy)
    return True


def _apply(context: Context, node: t.Call, net: Net, parts: tuple[Expression, ...]) -> Expression | None:
    notes = context.declared_here(net.name)
    if net.role != "function":
        user = {"step": "`sequence y { step: ... }`", "masked": "`masked y { conditionals: ... }`"}[net.role]
        _no_tensor(context, node.function, f"a {net.role} network", f"it is used by name, in {user}")
        return None
    try:
        result = result_type(net, tuple(part.type for part in parts))
    except BadArguments as problem:
        if problem.position is None:
            context.complain("E0218", node.span, net=net.name, problem=problem, notes=notes)
        else:
            at = node.positional[problem.position].span
            context.complain("E0217", at, net=net.name, problem=problem, notes=notes)
        return None
    return Apply(result, net.name, parts)


def result_type(net: Net, arguments: tuple[TensorType, ...]) -> TensorType:
    """The type of a function network applied to tensors; raises `BadArguments`."""
    if isinstance(net.declared, NetSignature):
        return _declared_result(net.declared, arguments)
    card = cast("NetCard", net.selection.card)
    if net.role != "function" or card.result is None:
        raise BadArguments(f"is a {net.role} network and cannot be called")
    return card.result(arguments, net.selection)


def _declared_result(declared: NetSignature, arguments: tuple[TensorType, ...]) -> TensorType:
    count = len(declared.inputs)
    if count != len(arguments):
        raise BadArguments(f"takes {count} argument{'s' if count != 1 else ''}, found {len(arguments)}")
    for position, (wanted, argument) in enumerate(zip(declared.inputs, arguments, strict=True)):
        if wanted.without_roles() != argument.without_roles():
            raise BadArguments(f"takes `{wanted}`, found `{argument}`", position)
    return declared.output


def _relaxed(context: Context, node: t.Call, place: Place) -> Expression | None:
    word = node.function.text
    if not place.relaxable:
        remedy = "a black box over a whole variable is written `score NAME (y) = f(soft(y))`"
        context.complain("E0315", node.span, problem=f"`{word}` stands only inside `score`", help=remedy)
        return None
    argument = node.positional[0] if len(node.arguments) == 1 and node.positional else None
    if not isinstance(argument, t.Name):
        problem = f"`{word}` takes the name of one variable of this score"
        remedy = f"write `{word}({place.relaxable[0]})`"
        context.complain("E0315", node.span, problem=problem, help=remedy)
        return None
    if argument.text not in place.relaxable:
        if context.names.find(argument, "output", "latent") is None:
            return None
        remedy = f"add it: `({', '.join((*place.relaxable, argument.text))})`"
        problem = "not listed in the parentheses of this score"
        context.complain("E0324", argument.span, name=argument.text, problem=problem, help=remedy)
        return None
    variable = context.variables.get(argument.text)
    if variable is None or variable.kind == "field":
        return None  # it was reported where it is listed
    soft = word == "soft"
    labels = labels_axis(variable.type.element)
    return Relaxed(TensorType(REAL, (*variable.type.axes, labels)) if soft else variable.type, argument.text, soft)


# ----------------------------------------------------------------------------------------------------------- potentials


def _potential(context: Context, node: t.Call, place: Place) -> Expression | None:
    name = node.function.text
    card = cast("PotentialCard", registry.find("potential", name))
    if not place.potentials:
        _no_part(context, node.span, name)
        return None
    if len(node.positional) != 1 + card.edges or (node.options and not card.options):
        example = f"{name}(link, w)" if card.edges else f"{name}(w)"
        takes = "a list of edges and a weight" if card.edges else "one weight"
        context.complain("E0227", node.span, name=name, problem=f"takes {takes}", help=f"write `{example}`")
        return None
    given = options(context, card, node.options, node.span)
    if given is None:
        return None
    edges = _edges(context, name, node.positional[0]) if card.edges else None
    if card.edges and edges is None:
        return None
    weight = expression(context, node.positional[-1], Place(place.indices))
    if weight is None:
        return None
    if weight.type.element != REAL:
        context.complain("E0225", node.positional[-1].span, value=weight, notes=origin(context, weight))
        return None
    return Potential(weight.type, name, (edges, weight) if edges else (weight,), tuple(given.items()))


def _edges(context: Context, name: str, node: t.Value) -> Expression | None:
    """The list of edges that a coupling runs along."""
    if isinstance(node, t.Name):
        if context.names.find(node) is None:
            return None
        declared = context.inputs[node.text].type if node.text in context.inputs else None
        if isinstance(declared, EdgeType):
            return Reference(declared.as_tensor(), "input", node.text)
    known = [given.name for given in context.inputs.values() if isinstance(given.type, EdgeType)]
    remedy = f"declared: {join_names(known, 'and')}" if known else "declare one: `input link : edge(T, T)[E]`"
    context.complain("E0227", node.span, name=name, problem="takes the name of a list of edges first", help=remedy)
    return None


def _no_part(context: Context, span: Span, name: str) -> None:
    problem = "stands for a whole table or coupling and cannot be part of another expression"
    remedy = f"scale its weight instead, as in `{name}(2 * w)`, or give it a term of its own"
    context.complain("E0227", span, name=name, problem=problem, help=remedy)


# ----------------------------------------------------------------------------------------------------------- subscripts


def _subscript(context: Context, node: t.Subscript, place: Place) -> Expression | None:
    base = expression(context, node.base, Place(place.indices, place.relaxable))
    if base is None:
        return None
    axes = base.type.index_axes
    if len(node.indices) > len(axes):
        too_many(context, node.indices[len(axes)].span, str(base), base.type, origin(context, base))
        return None
    indices = subscripts(context, node.indices, axes, place.indices)
    if indices is None:
        return None
    remaining = list(base.type.axes)
    for axis in axes[: len(indices)]:
        remaining.remove(axis)
    return At(TensorType(base.type.element, tuple(remaining)), base, indices)


def too_many(context: Context, span: Span, value: str, type_: TensorType, notes: list[Note]) -> None:
    """Report an index without an axis to consume."""
    count = len(type_.index_axes)
    has = {0: "no axis that an index could consume", 1: "one axis for indices"}.get(count, f"{count} axes for indices")
    remedy = "leave the subscript out: a table without that axis is shared over positions" if count == 0 else ""
    context.complain("E0211", span, value=value, type=type_, has=has, notes=notes, help=remedy)


# ----------------------------------------------------------------------------------------------------------- arithmetic


def _combine(
    context: Context, span: Span, parts: tuple[Expression, ...], operators: tuple[str, ...], spans: Sequence[Span]
) -> Expression | None:
    for part, at in zip(parts, spans, strict=True):
        if isinstance(part, Potential):
            _no_part(context, at, part.potential)
            return None
        if part.type.element != REAL:
            context.complain("E0225", at, value=part, notes=origin(context, part))
            return None
    if all(isinstance(part, Constant) for part in parts):
        context.complain("E0226", span, found="a number that is not finite")
        return None
    made = parts[0].type
    for operator, part, at in zip(operators, parts[1:], spans[1:], strict=True):
        whole = joined(made, operator, part.type)
        if whole is None:
            problem = _why_apart(made, operator, part.type)
            context.complain(
                "E0220",
                spans[0].to(at),
                notes=origin(context, Combine(made, parts, operators)),
                operator=operator,
                left=made,
                right=part.type,
                problem=problem,
            )
            return None
        made = whole
    return Combine(made, parts, operators)


def joined(left: TensorType, operator: str, right: TensorType) -> TensorType | None:
    """The type of two tensors joined by an operator, or `None` where they cannot be."""
    if operator in "+-":
        return _same_axes(left, right)
    if not right.axes:
        return left
    return right if not left.axes and operator == "*" else None


def _same_axes(left: TensorType, right: TensorType) -> TensorType | None:
    """Axes of the same extents in the same order, whose roles agree wherever both have one."""
    if left.without_roles() != right.without_roles():
        return None
    pairs = list(zip(left.axes, right.axes, strict=True))
    if any(one.role and other.role and one.role != other.role for one, other in pairs):
        return None
    return TensorType(left.element, tuple(Axis(one.extent, one.role or other.role) for one, other in pairs))


def _why_apart(left: TensorType, operator: str, right: TensorType) -> str:
    if operator == "/":
        return "the divisor must be a single number"
    if operator == "*":
        return "one of them must be a single number"
    if left.without_roles() == right.without_roles():
        return "their roles differ"
    return "both need the same axes, as nothing broadcasts"


__all__ = ["BadArguments", "Place", "expression", "joined", "origin", "result_type", "too_many"]

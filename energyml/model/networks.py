"""Declarations of networks: their options, their declared types, and what can be known without importing them."""

from __future__ import annotations

import re
from typing import cast

from energyml.cards.card import Selection
from energyml.model.context import Context
from energyml.model.declarations import is_first
from energyml.model.declared import Net, NetSignature
from energyml.model.selections import selection
from energyml.model.types import Axis, MaskedType, StepType
from energyml.nets.cards import BadArguments, NetCard, NetRole
from energyml.syntax import tree as t

_PYTHON_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

NetType = NetSignature | StepType | MaskedType


def net_decl(context: Context, node: t.NetDecl) -> None:
    """Check `net`."""
    if not is_first(context, node.name):
        return
    name = node.name.text
    chosen = selection(context, "net", node.call.function, node.call.arguments)
    declared = _net_type(context, node.type) if node.type else None
    if chosen is None or (node.type is not None and declared is None) or not _options_fit(context, node, chosen):
        context.names.poison(name)
        return
    if chosen.name == "python":
        sound = _python(context, node, chosen)
    else:
        sound = declared is None or _as_declared(context, node, chosen, declared)
    if not sound:
        context.names.poison(name)
        return
    card = cast("NetCard", chosen.card)
    role = card.role if declared is None else _role(declared)
    context.nets[name] = Net(name, chosen, role, declared, node.name.span)


def _role(declared: NetType) -> NetRole:
    if isinstance(declared, NetSignature):
        return "function"
    return "step" if isinstance(declared, StepType) else "masked"


def _options_fit(context: Context, node: t.NetDecl, chosen: Selection) -> bool:
    """Whether the options fit each other, and axes among them have a fixed size."""
    places = {option.key.text: option.value.span for option in node.call.options}
    for key, value in chosen.options.items():
        for axis in value if isinstance(value, tuple) else ():
            dim = context.dims.get(axis.extent.name) if isinstance(axis, Axis) and axis.extent.kind == "dim" else None
            if dim is not None and dim.kind != "fixed":
                problem = f"`{key}` has fixed sizes, and `{dim.name}` is {dim.kind}"
                remedy = "leave it out: a network keeps the dims of its arguments"
                notes = context.declared_here(dim.name)
                context.complain("E0205", places[key], notes=notes, help=remedy, extent=axis.extent, problem=problem)
                return False
    problems = cast("NetCard", chosen.card).misfits(chosen)
    for key, expected in problems.items():
        at = places.get(key, node.call.span)
        context.complain("E0403", at, option=key, expected=expected, found=f"`{chosen[key]}`")
    return not problems


def _python(context: Context, node: t.NetDecl, chosen: Selection) -> bool:
    if node.type is None:
        context.complain("E0221", node.call.function.span, name=node.name.text)
        return False
    target = str(chosen["target"])
    if not _PYTHON_TARGET.fullmatch(target):
        context.complain("E0411", node.call.arguments[0].span, target=target)
        return False
    return True


def _as_declared(context: Context, node: t.NetDecl, chosen: Selection, declared: NetType) -> bool:
    """Whether a network of the catalogue has the type that it is declared with."""
    assert node.type is not None
    card = cast("NetCard", chosen.card)
    if card.role != _role(declared):
        found = f"is a {card.role} network"
    elif isinstance(declared, NetSignature) and card.result is not None:
        try:
            result = card.result(declared.inputs, chosen)
        except BadArguments as problem:
            found = str(problem)
        else:
            if result.without_roles() == declared.output.without_roles():
                return True
            found = f"gives `{result}`"
    else:
        return True
    context.complain("E0222", node.type.span, name=node.name.text, declared=declared, card=chosen.name, found=found)
    return False


def _net_type(context: Context, node: t.Signature | t.Type) -> NetType | None:
    if isinstance(node, t.Signature):
        inputs = [context.tensor_type(item) for item in node.inputs]
        output = context.tensor_type(node.output)
        sound = tuple(item for item in inputs if item is not None)
        return NetSignature(sound, output) if output is not None and len(sound) == len(inputs) else None
    if node.element.text in ("step", "conditionals") and len(node.parameters) == 1 and not node.axes:
        labels = context.names.find(node.parameters[0], "labels")
        if labels is None:
            return None
        return StepType(labels.name) if node.element.text == "step" else MaskedType(labels.name)
    context.complain("E0229", node.span, found=context.report.source.excerpt(node.span))
    return None

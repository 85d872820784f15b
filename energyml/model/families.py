"""The families with a block of options: chain, gaussian, sequence, masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from energyml.cards import registry
from energyml.diagnostics import Note, did_you_mean, join_names
from energyml.model.context import Context
from energyml.model.declared import Chain, CheckedTerm, Gaussian, Masked, Sequence, Variable
from energyml.model.expression import Expression, Potential, scalar
from energyml.model.terms import name_term, unknown_label
from energyml.model.typing import Place, expression
from energyml.model.types import REAL, Axis, Extent, MaskedType, StepType, TensorType, labels_axis
from energyml.syntax import tree as t

# `linear` and `quadratic` are the two halves of `gaussian`, as the text of a graph writes them.
_OPTIONS = {
    "chain": ("unary", "pair", "start", "end"),
    "gaussian": ("unary", "pair", "ridge", "bounded"),
    "linear": ("unary",),
    "quadratic": ("pair", "ridge", "bounded"),
    "sequence": ("step", "given", "normalize", "end"),
    "masked": ("conditionals", "energy", "given"),
}
_REQUIRED = {
    "chain": ("pair",),
    "gaussian": ("unary",),
    "linear": ("unary",),
    "quadratic": (),
    "sequence": ("step",),
    "masked": ("conditionals",),
}
_VARIABLES = {
    "chain": ("output", "latent"),
    "gaussian": ("field",),
    "linear": ("field",),
    "quadratic": ("field",),
    "sequence": ("output", "latent"),
    "masked": ("output", "latent"),
}


def family(context: Context, node: t.FamilyStmt) -> CheckedTerm | None:
    """Check a family statement: its variable, its options, then what they mean."""
    values = _options(context, node)
    variable = _variable(context, node)
    if variable is None or values is None:
        return None
    check: dict[str, Callable[[Context, t.FamilyStmt, Variable, dict[str, t.Value]], CheckedTerm | None]] = {
        "chain": _chain,
        "gaussian": _gaussian,
        "linear": _linear,
        "quadratic": _quadratic,
        "sequence": _sequence,
        "masked": _masked,
    }
    return check[node.kind](context, node, variable, values)


def _options(context: Context, node: t.FamilyStmt) -> dict[str, t.Value] | None:
    known = _OPTIONS[node.kind]
    values: dict[str, t.Value] = {}
    sound = True
    for option in node.block.options:
        key = option.key.text
        if key not in known:
            guess = did_you_mean(key, known)
            remedy = f"did you mean `{guess}`?" if guess else f"its options are {join_names(known, 'and')}"
            context.complain("E0307", option.key.span, family=node.kind, option=key, help=remedy)
            sound = False
        elif key in values:
            context.complain("E0406", option.key.span, option=key)
            sound = False
        else:
            values[key] = option.value
    for key in _REQUIRED[node.kind]:
        if key not in values and sound:
            context.complain("E0308", node.span, family=node.kind, option=key)
            sound = False
    return values if sound else None


def _variable(context: Context, node: t.FamilyStmt) -> Variable | None:
    entry = context.names.find(node.variable, "output", "latent", "field")
    variable = context.variables.get(node.variable.text)
    if entry is None or variable is None:
        return None
    if variable.kind not in _VARIABLES[node.kind]:
        expected = "a field" if _VARIABLES[node.kind] == ("field",) else "an output or latent"
        note = Note(f"`{variable.name}` is declared here", variable.span)
        found = "an output" if variable.kind == "output" else f"a {variable.kind}"
        context.complain("E0309", node.variable.span, family=node.kind, expected=expected, name=variable.name, found=found, notes=[note])
        return None
    if variable.kind != "field" and len(variable.dims) != 1:
        note = Note(f"`{variable.name}` is declared here", variable.span)
        context.complain("E0306", node.variable.span, family=node.kind, name=variable.name, type=variable.type, notes=[note])
        return None
    return variable


def _shaped(
    context: Context, node: t.FamilyStmt, option: str, value: t.Value, allowed: tuple[TensorType, ...]
) -> Expression | None:
    """An expression whose type is one of a few; roles are compared where the allowed type has them."""
    made = expression(context, value, Place())
    if made is None:
        return None
    for wanted in allowed:
        if made.type == wanted or (not any(a.role for a in wanted.axes) and made.type.without_roles() == wanted):
            return made
    expected = " or ".join(f"`{one}`" for one in allowed)
    context.complain("E0325", value.span, option=option, family=node.kind, expected=expected, found=f"`{made.type}`")
    return None


def _chain(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Chain | None:
    labels, index = variable.type.element, variable.type.axes[0]
    cell_type = TensorType(REAL, (labels_axis(labels),))
    pair_axes = (labels_axis(labels, "from"), labels_axis(labels, "to"))
    gaps = Axis(Extent("dim", index.extent.name, -1))
    allowed = {
        "unary": (TensorType(REAL, (Axis(index.extent), labels_axis(labels))), cell_type),
        "pair": (TensorType(REAL, pair_axes), TensorType(REAL, (gaps, *pair_axes))),
        "start": (cell_type,),
        "end": (cell_type,),
    }
    made = {key: _shaped(context, node, key, value, allowed[key]) for key, value in values.items()}
    named = [name_term(context, f"{variable.name}.{key}", node.variable.span) for key in values]
    if any(one is None for one in made.values()) or not all(named):
        return None
    pair = cast("Expression", made["pair"])
    return Chain(variable.name, made.get("unary"), pair, made.get("start"), made.get("end"), node.span)


# --------------------------------------------------------------------------------------------------------------- fields


def _gaussian(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Gaussian | None:
    linear = _linear(context, node, variable, values)
    quadratic = _quadratic(context, node, variable, values)
    named = [name_term(context, f"{variable.name}.{key}", node.variable.span) for key in ("unary", "pair") if key in values]
    if linear is None or quadratic is None or not all(named):
        return None
    return replace(quadratic, unary=linear.unary)


def _linear(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Gaussian | None:
    unary = _shaped(context, node, "unary", values["unary"], (variable.type.without_roles(),))
    return None if unary is None else Gaussian(variable.name, unary, (), scalar(1.0), True, node.span)


def _quadratic(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Gaussian | None:
    couplings = _couplings(context, node, values["pair"]) if "pair" in values else ()
    ridge = scalar(1.0) if "ridge" not in values else _shaped(context, node, "ridge", values["ridge"], (TensorType(REAL),))
    bounded = _word(context, node, "bounded", values, ("true", "false"))
    if couplings is None or ridge is None or bounded is None:
        return None
    return Gaussian(variable.name, scalar(0.0), couplings, ridge, bounded == "true", node.span)


def _couplings(context: Context, node: t.FamilyStmt, value: t.Value) -> tuple[Expression, ...] | None:
    parts: tuple[t.Value, ...] = (value,)
    if isinstance(value, t.Chained):
        if any(operator != "+" for operator in value.operators):
            context.complain("E0325", value.span, option="pair", family=node.kind, expected="couplings joined by `+`", found="another operator")
            return None
        parts = value.operands
    made: list[Expression] = []
    for part in parts:
        one = expression(context, part, Place(potentials=True))
        if one is None:
            return None
        card = registry.find("potential", one.potential) if isinstance(one, Potential) else None
        if not getattr(card, "coupling", False):
            known = [card.name for card in registry.every("potential") if getattr(card, "coupling", False)]
            context.complain("E0325", part.span, option="pair", family=node.kind, expected=f"a coupling: {join_names(known)}", found=f"`{one.type}`")
            return None
        made.append(one)
    return tuple(made)


# ------------------------------------------------------------------------------------------------- sequences and masked


def _sequence(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Sequence | None:
    step = _network(context, node, "step", values, variable, "step")
    given = _given(context, values)
    normalize = _word(context, node, "normalize", values, ("local", "global"))
    end = _end_label(context, node, variable, values)
    named = name_term(context, f"{variable.name}.sequence", node.variable.span)
    if step is None or given is None or normalize is None or end is False or not named:
        return None
    mode = cast("str", normalize)
    return Sequence(variable.name, step, given, "local" if mode == "local" else "global", cast("str | None", end), node.span)


def _end_label(
    context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]
) -> str | None | bool:
    """The end label; `None` when there is none and none is needed, False after a complaint."""
    dim = context.dims.get(variable.dims[0])
    if "end" not in values:
        if dim is not None and dim.kind == "free":
            note = Note(f"`{dim.name}` is declared here", dim.span)
            context.complain("E0312", node.span, dim=dim.name, name=variable.name, notes=[note])
            return False
        return None
    value = values["end"]
    label = value.value if isinstance(value, t.String) else value.text if isinstance(value, t.Name) else None
    if label is None:
        context.complain("E0325", value.span, option="end", family=node.kind, expected="a label", found="an expression")
        return False
    label_set = context.label_sets.get(variable.type.element)
    if label_set is not None and label_set.labels is not None and label not in label_set.labels:
        unknown_label(context, value.span, label, label_set.name)
        return False
    return label


def _masked(context: Context, node: t.FamilyStmt, variable: Variable, values: dict[str, t.Value]) -> Masked | None:
    net = _network(context, node, "conditionals", values, variable, "masked")
    given = _given(context, values)
    energy = _word(context, node, "energy", values, ("raw", "local"))
    named = name_term(context, f"{variable.name}.masked", node.variable.span)
    if net is None or given is None or energy is None or not named:
        return None
    return Masked(variable.name, net, "raw" if energy == "raw" else "local", given, node.span)


def _network(
    context: Context, node: t.FamilyStmt, option: str, values: dict[str, t.Value], variable: Variable, role: str
) -> str | None:
    value = values[option]
    if not isinstance(value, t.Name):
        context.complain("E0325", value.span, option=option, family=node.kind, expected="the name of a network", found="an expression")
        return None
    if context.names.find(value, "net") is None:
        return None
    net = context.nets.get(value.text)
    if net is None:
        return None
    note = Note(f"`{net.name}` is declared here", net.span)
    if net.role != role:
        context.complain("E0310", value.span, option=option, expected=role, name=net.name, found=net.role, notes=[note])
        return None
    if isinstance(net.declared, StepType | MaskedType) and net.declared.labels != variable.type.element:
        context.complain("E0325", value.span, option=option, family=node.kind, expected=f"a network over `{variable.type.element}`",
                         found=f"`{net.declared}`", notes=[note])  # fmt: skip
        return None
    return net.name


def _given(context: Context, values: dict[str, t.Value]) -> tuple[Expression, ...] | None:
    if "given" not in values:
        return ()
    made = expression(context, values["given"], Place())
    return None if made is None else (made,)


def _word(
    context: Context, node: t.FamilyStmt, option: str, values: dict[str, t.Value], words: tuple[str, ...]
) -> str | None:
    """One of a few words; the first is the default."""
    if option not in values:
        return words[0]
    value = values[option]
    if isinstance(value, t.Name) and value.text in words:
        return value.text
    context.complain("E0325", value.span, option=option, family=node.kind, expected=join_names(words), found="something else")
    return None

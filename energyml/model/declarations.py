"""Declarations: label sets, dims, inputs, variables, networks, parameters."""

from __future__ import annotations

import re

from energyml.cards.card import Selection
from energyml.cards.options import Option, Text, Whole, constant
from energyml.diagnostics import Note
from energyml.model.context import Context
from energyml.model.declared import Dim, Input, LabelSet, Net, NetSignature, Param, Readout, Variable
from energyml.model.types import REAL, EdgeType, MaskedType, StepType, TensorType
from energyml.syntax import tree as t

_PYTHON_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

LARGEST_LABEL_SET = 1_000_000


def collect_names(context: Context, spec: t.Spec) -> None:
    """First pass: every declared name with its kind, so that declarations may come in any order."""
    for statement in spec.statements:
        match statement:
            case t.LabelsDecl():
                context.names.declare(statement.name, "labels")
            case t.DimDecl():
                for item in statement.items:
                    context.names.declare(item.name, "dim")
            case t.InputDecl():
                context.names.declare(statement.name, "input")
            case t.VariableDecl():
                context.names.declare(statement.name, statement.kind)
            case t.NetDecl():
                context.names.declare(statement.name, "net")
            case t.ParamDecl():
                context.names.declare(statement.name, "param")
            case t.LetDecl():
                context.names.declare(statement.name, "let")
            case t.IncludeStmt():
                context.complain("E0104", statement.span)
    for name in spec.broken:
        if name not in context.names.table:
            context.names.poison(name)


def is_first(context: Context, ident: t.Ident) -> bool:
    """Whether this is the declaration that owns its name."""
    entry = context.names.table.get(ident.text)
    return entry is not None and entry.span == ident.span


# ------------------------------------------------------------------------------------------------------------ label sets


def labels_decl(context: Context, node: t.LabelsDecl) -> None:
    """Check `labels`."""
    if not is_first(context, node.name):
        return
    name = node.name.text
    match node.members:
        case t.LabelList(labels=members):
            labels = _listed(context, node, members)
        case t.LabelRange(first=first, last=last):
            labels = _ranged(context, node, first, last)
        case t.LabelSource():
            _sourced(context, node, node.members)
            return
    if labels is None:
        context.names.poison(name)
    else:
        context.label_sets[name] = LabelSet(name, labels, span=node.name.span)


def _listed(context: Context, node: t.LabelsDecl, members: tuple[t.Ident | t.String, ...]) -> tuple[str, ...] | None:
    if not members:
        context.complain("E0107", node.span, name=node.name.text)
        return None
    seen: dict[str, t.Ident | t.String] = {}
    for member in members:
        text = member.text if isinstance(member, t.Ident) else member.value
        if text in seen:
            note = Note("it is given here first", seen[text].span)
            context.complain("E0106", member.span, label=text, name=node.name.text, notes=[note])
        else:
            seen[text] = member
    return tuple(seen)


def _ranged(context: Context, node: t.LabelsDecl, first: t.String, last: t.String) -> tuple[str, ...] | None:
    if len(first.value) != 1 or len(last.value) != 1 or first.value > last.value:
        context.complain("E0108", node.members.span, first=first.value, last=last.value)
        return None
    return tuple(chr(point) for point in range(ord(first.value), ord(last.value) + 1))


_DATA_OPTIONS = (
    Option("min", Whole(), 1, "how often a label must occur to be kept"),
    Option("most", Whole(), None, "how many labels are kept, the most frequent first"),
    Option("unknown", Text(), None, "the label of everything else"),
    Option("pad", Text(), None, "an extra label"),
    Option("end", Text(), None, "an extra label that ends a sequence"),
)


def _sourced(context: Context, node: t.LabelsDecl, source: t.LabelSource) -> None:
    from energyml.cards.card import Card

    name = node.name.text
    if source.name.text == "data":
        card = Card("reader", "data", "labels found in the data", _DATA_OPTIONS)
        options = context.options(card, source.arguments, source.span)
        context.label_sets[name] = LabelSet(name, None, "data", options or {}, node.name.span)
        return
    entry = context.names.find(source.name, "net")
    if entry is None:
        context.names.poison(name)
        return
    context.label_sets[name] = LabelSet(name, None, source.name.text, {}, node.name.span)


# ------------------------------------------------------------------------------------------------------------------ dims


def dim_decl(context: Context, node: t.DimDecl) -> None:
    """Check `dim`."""
    for item in node.items:
        if not is_first(context, item.name):
            continue
        size: int | None = None
        if item.size is not None:
            if not isinstance(item.size.value, int) or not 1 <= item.size.value <= 10**9:
                context.complain("E0111", item.size.span, name=item.name.text, found=item.size.text)
                context.names.poison(item.name.text)
                continue
            size = item.size.value
        within = item.within.text if item.within else None
        context.dims[item.name.text] = Dim(item.name.text, item.kind, size, within, item.name.span)


def check_nested_dims(context: Context, node: t.DimDecl) -> None:
    """Check what dims are nested in, once all are known."""
    for item in node.items:
        if item.within is None or item.name.text not in context.dims:
            continue
        entry = context.names.find(item.within, "dim")
        outer = context.dims.get(item.within.text)
        if entry is not None and outer is not None and (outer.kind not in ("observed", "fixed") or outer.name == item.name.text):
            note = Note(f"`{outer.name}` is declared here", outer.span)
            kind = "the same dim" if outer.name == item.name.text else f"a {outer.kind} dim"
            context.complain("E0110", item.within.span, name=item.name.text, within=outer.name, kind=kind, notes=[note])


# ------------------------------------------------------------------------------------------------ inputs and variables


def input_decl(context: Context, node: t.InputDecl) -> None:
    """Check `input`."""
    if not is_first(context, node.name):
        return
    made = _edge_type(context, node.type) if node.type.element.text == "edge" else context.tensor_type(node.type)
    if made is None:
        context.names.poison(node.name.text)
    else:
        context.inputs[node.name.text] = Input(node.name.text, made, node.name.span)


def _edge_type(context: Context, node: t.Type) -> EdgeType | None:
    ends = [context.names.find(parameter, "dim") for parameter in node.parameters]
    if len(node.parameters) < 2:
        context.complain("E0203", node.span, problem="it needs the dims of at least two ends")
        return None
    if len(node.axes) != 1 or node.axes[0].extent.name is None or node.axes[0].extent.offset:
        context.complain("E0203", node.span, problem="it has one axis, the dim that counts the edges")
        return None
    over = context.names.find(node.axes[0].extent.name, "dim")
    if over is None or any(end is None for end in ends):
        return None
    return EdgeType(tuple(end.name for end in ends if end), over.name)


def variable_decl(context: Context, node: t.VariableDecl) -> None:
    """Check `output`, `latent` and `field`."""
    if not is_first(context, node.name):
        return
    name, kind = node.name.text, node.kind
    made = context.tensor_type(node.type)
    if made is None or not _variable_type(context, node, made):
        context.names.poison(name)
        return
    readout = _readout(context, node, made) if node.readout else None
    context.variables[name] = Variable(name, kind, made, readout, node.name.span)


def _variable_type(context: Context, node: t.VariableDecl, made: TensorType) -> bool:
    name, kind = node.name.text, node.kind
    if kind == "field":
        if made.element != REAL:
            context.complain("E0207", node.type.span, kind="field", name=name, expected="`real` elements", found=made)
            return False
        return True
    if made.element == REAL:
        context.complain("E0207", node.type.span, kind=kind, name=name, expected="a label set as elements", found=made,
                         help="use `field` for real values")  # fmt: skip
        return False
    for axis_node, axis in zip(node.type.axes, made.axes, strict=True):
        if axis.extent.kind != "dim" or axis.extent.offset:
            context.complain("E0206", axis_node.span, kind=kind, name=name, extent=axis.extent)
            return False
    return True


def _readout(context: Context, node: t.VariableDecl, made: TensorType) -> Readout | None:
    assert node.readout is not None
    field = context.names.find(node.readout.field, "field")
    over = context.names.find(node.readout.over, "labels")
    if field is None or over is None:
        return None
    return Readout(field.name, over.name)


def check_readout(context: Context, node: t.VariableDecl) -> None:
    """Check that a read-out has the type of its output, once the field is known."""
    variable = context.variables.get(node.name.text)
    if variable is None or variable.readout is None or node.readout is None:
        return
    field = context.variables.get(variable.readout.field)
    if field is None:
        return
    over = variable.readout.over
    labels = [axis for axis in field.type.label_axes if axis.extent.name == over]
    remaining = TensorType(over, tuple(axis for axis in field.type.axes if axis not in labels))
    problem = ""
    if len(labels) != 1:
        problem = f"`{field.name}` has {len(labels)} axes over `{over}`"
    elif remaining.without_roles() != variable.type.without_roles():
        problem = f"it gives `{remaining}`"
    if problem:
        note = Note(f"`{field.name}` is declared here", field.span)
        context.complain("E0223", node.readout.span, field=field.name, over=over, expected=variable.type, problem=problem, notes=[note])


# ---------------------------------------------------------------------------------------------- networks and parameters


def net_decl(context: Context, node: t.NetDecl) -> None:
    """Check `net`."""
    if not is_first(context, node.name):
        return
    name = node.name.text
    selection = context.selection("net", node.call.function, node.call.arguments, node.call.span)
    declared = _net_type(context, node.type) if node.type else None
    if selection is None or (node.type is not None and declared is None):
        context.names.poison(name)
        return
    role = getattr(selection.card, "role", "function")
    if selection.name == "python":
        if not _python_net(context, node, selection):
            context.names.poison(name)
            return
        if isinstance(declared, StepType):
            role = "step"
        elif isinstance(declared, MaskedType):
            role = "masked"
    elif declared is not None and role != _declared_role(declared):
        assert node.type is not None
        context.complain("E0222", node.type.span, name=name, declared=declared, card=selection.name, found=f"a {role} network")
    context.nets[name] = Net(name, selection, role, declared, node.name.span)


def _declared_role(declared: NetSignature | StepType | MaskedType) -> str:
    return {NetSignature: "function", StepType: "step", MaskedType: "masked"}[type(declared)]


def _python_net(context: Context, node: t.NetDecl, selection: Selection) -> bool:
    if node.type is None:
        context.complain("E0221", node.span, name=node.name.text)
        return False
    target = str(selection["target"])
    if not _PYTHON_TARGET.fullmatch(target):
        context.complain("E0411", node.call.arguments[0].span, target=target)
        return False
    return True


def _net_type(context: Context, node: t.Signature | t.Type) -> NetSignature | StepType | MaskedType | None:
    if isinstance(node, t.Signature):
        inputs = [context.tensor_type(item) for item in node.inputs]
        output = context.tensor_type(node.output)
        if output is None or any(item is None for item in inputs):
            return None
        return NetSignature(tuple(item for item in inputs if item), output)
    if node.element.text in ("step", "conditionals") and len(node.parameters) == 1 and not node.axes:
        labels = context.names.find(node.parameters[0], "labels")
        if labels is None:
            return None
        return StepType(labels.name) if node.element.text == "step" else MaskedType(labels.name)
    context.complain("E0201", node.span, name=node.element.text, help="write `(Input[T]) -> real[T, Tag]`, `step(Tag)` or `conditionals(Tag)`")
    return None


def param_decl(context: Context, node: t.ParamDecl) -> None:
    """Check `param`."""
    if not is_first(context, node.name):
        return
    made = context.tensor_type(node.type)
    if made is not None and made.element != REAL:
        context.complain("E0207", node.type.span, kind="param", name=node.name.text, expected="`real` elements", found=made)
        made = None
    if made is not None:
        for axis_node, axis in zip(node.type.axes, made.axes, strict=True):
            dim = context.dims.get(axis.extent.name) if axis.extent.kind == "dim" else None
            if dim is not None and dim.kind != "fixed":
                note = Note(f"`{dim.name}` is declared here", dim.span)
                context.complain("E0205", axis_node.span, extent=axis.extent, notes=[note],
                                 problem=f"a parameter's size must be fixed, and `{dim.name}` is {dim.kind}")  # fmt: skip
                made = None
                break
    initial = _initial(context, node)
    if made is None:
        context.names.poison(node.name.text)
        return
    context.params[node.name.text] = Param(node.name.text, made, initial, node.name.span)


def _initial(context: Context, node: t.ParamDecl) -> Selection | None:
    if node.initial is None:
        return None
    if constant(node.initial) is not None:
        name = t.Name(node.initial.span, "constant")
        return context.selection("init", name, (node.initial,), node.initial.span)
    if isinstance(node.initial, t.Name | t.Call):
        return context.select("init", node.initial)
    context.complain("E0403", node.initial.span, option="the initial value", expected="a number or one of zeros, normal, uniform",
                     found="an expression", help="")  # fmt: skip
    return None

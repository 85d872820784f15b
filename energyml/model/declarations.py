"""Declarations: label sets, dims, inputs, variables, parameters."""

from __future__ import annotations

from energyml.cards.card import Card, Selection
from energyml.cards.options import Option, Text, Whole, constant, found
from energyml.diagnostics import Note
from energyml.model.context import Context
from energyml.model.declared import Dim, Input, LabelSet, Param, Readout, Variable
from energyml.model.selections import options, select, selection
from energyml.model.types import REAL, Axis, EdgeType, TensorType
from energyml.syntax import tree as t

LARGEST_DIM = 10**9
LARGEST_RANGE = 100_000


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


# ----------------------------------------------------------------------------------------------------------- label sets


def labels_decl(context: Context, node: t.LabelsDecl) -> None:
    """Check `labels`."""
    if not is_first(context, node.name):
        return
    name = node.name.text
    match node.members:
        case t.LabelList(labels=members):
            labels = _listed(context, node, members)
        case t.LabelRange(first=first, last=last):
            labels = _ranged(context, node, first.value, last.value)
        case t.LabelSource():
            _sourced(context, node, node.members)
            return
    if labels is None:
        context.names.poison(name)
    else:
        context.label_sets[name] = LabelSet(name, labels, span=node.name.span)


def _listed(context: Context, node: t.LabelsDecl, members: tuple[t.Ident | t.String, ...]) -> tuple[str, ...] | None:
    if not members:
        context.complain("E0107", node.members.span, name=node.name.text)
        return None
    seen: dict[str, t.Ident | t.String] = {}
    for member in members:
        text = member.text if isinstance(member, t.Ident) else member.value
        first = seen.setdefault(text, member)
        if first is not member:
            note = Note("it is given here first", first.span)
            context.complain("E0106", member.span, label=text, name=node.name.text, notes=[note])
    return tuple(seen)


def _ranged(context: Context, node: t.LabelsDecl, first: str, last: str) -> tuple[str, ...] | None:
    problem = ""
    if len(first) != 1 or len(last) != 1:
        problem = "both ends are single characters"
    elif first > last:
        problem = f"'{first}' comes after '{last}'"
    elif ord(last) - ord(first) >= LARGEST_RANGE:
        problem = f"it has more than {LARGEST_RANGE} labels"
    elif first <= "\udfff" and last >= "\ud800":
        problem = "it runs over characters that no text can hold"
    if problem:
        context.complain("E0108", node.members.span, first=first, last=last, problem=problem)
        return None
    return tuple(chr(point) for point in range(ord(first), ord(last) + 1))


_FROM_DATA = Card("reader", "data", "labels found in the data", (
    Option("min", Whole(), 1, "how often a label must occur to be kept"),
    Option("most", Whole(), None, "how many labels are kept, the most frequent first"),
    Option("subwords", Whole(), None, "divide words into pieces, as many different ones as this, by byte-pair merges"),
    Option("unknown", Text(), None, "the label of everything else"),
    Option("pad", Text(), None, "an extra label"),
    Option("end", Text(), None, "an extra label that ends a sequence"),
))  # fmt: skip


def _sourced(context: Context, node: t.LabelsDecl, source: t.LabelSource) -> None:
    name = node.name.text
    if source.name.text == "data":
        given = options(context, _FROM_DATA, source.arguments, source.name.span)
        if given and "most" in given and "subwords" in given:
            expected = "nothing beside `subwords`, which says how many pieces there are"
            remedy = "leave one of the two out"
            context.complain(
                "E0403", source.span, option="most", expected=expected, found=f"{given['most']}", help=remedy
            )
        context.label_sets[name] = LabelSet(name, None, "data", given or {}, node.name.span)
        return
    entry = context.names.table.get(source.name.text)
    if source.name.text in context.names.poisoned:
        context.names.poison(name)
        return
    if entry is None or entry.kind != "net":
        guess = context.names.guess(source.name.text, ["data", *context.names.likely("net")])
        remedy = f"did you mean `{guess}`?" if guess else ""
        notes = context.declared_here(source.name.text)
        context.complain("E0109", source.name.span, name=source.name.text, notes=notes, help=remedy or None)
        context.names.poison(name)
        return
    context.names.used.add(source.name.text)
    context.label_sets[name] = LabelSet(name, None, source.name.text, {}, node.name.span)


def check_label_source(context: Context, node: t.LabelsDecl) -> None:
    """Check that a network brings labels of its own, once it is known."""
    source = node.members
    if not isinstance(source, t.LabelSource) or source.name.text not in context.nets:
        return
    net = context.nets[source.name.text]
    notes = context.declared_here(net.name)
    if net.role != "masked" or net.selection.name not in ("transformers", "python"):
        remedy = "only `transformers` and `python` networks with masked conditionals bring their own labels"
        context.complain("E0109", source.name.span, name=net.name, notes=notes, help=remedy)
    elif source.arguments:
        remedy = "leave the parentheses out: the network says what its labels are"
        context.complain("E0109", source.span, name=f"{net.name}(...)", notes=notes, help=remedy)


# ----------------------------------------------------------------------------------------------------------------- dims


def dim_decl(context: Context, node: t.DimDecl) -> None:
    """Check `dim`."""
    for item in node.items:
        if not is_first(context, item.name):
            continue
        name, size = item.name.text, item.size.value if item.size else None
        if item.size is not None and not (isinstance(size, int) and 1 <= size <= LARGEST_DIM):
            context.complain("E0111", item.size.span, name=name, found=item.size.text)
            context.names.poison(name)
            continue
        within = item.within.text if item.within else None
        fixed = size if isinstance(size, int) else None
        context.dims[name] = Dim(name, item.kind, fixed, within, item.name.span)


def check_nested_dims(context: Context, node: t.DimDecl) -> None:
    """Check what dims are nested in, once all are known."""
    for item in node.items:
        if item.within is None or item.name.text not in context.dims:
            continue
        name, within = item.name.text, item.within.text
        outer = context.dims.get(within)
        found_outer = context.names.find(item.within, "dim") is not None and outer is not None
        if found_outer and outer is not None and outer.kind in ("observed", "fixed"):
            continue
        if found_outer and outer is not None:
            outside = "itself" if within == name else f"`{within}`, which is a {outer.kind} dim"
            notes = [] if within == name else context.declared_here(within)
            context.complain("E0110", item.within.span, name=name, outside=outside, notes=notes)
        context.names.poison(name)
        del context.dims[name]


# ------------------------------------------------------------------------------------------------- inputs and variables


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
    if len(node.parameters) < 2:
        context.complain("E0203", node.span, problem="a list of edges names the dims of at least two ends")
        return None
    if len(node.axes) != 1 or node.axes[0].extent.name is None or node.axes[0].extent.offset:
        context.complain("E0203", node.span, problem="a list of edges has one axis, the dim that counts them")
        return None
    idents = [*node.parameters, node.axes[0].extent.name]
    found_all = [context.names.find(ident, "dim") is not None for ident in idents]
    if not all(found_all):
        return None
    for ident in idents:
        dim = context.dims.get(ident.text)
        if dim is not None and dim.kind not in ("observed", "fixed"):
            problem = f"edges lie between positions that are given, and `{dim.name}` is {dim.kind}"
            context.complain("E0203", ident.span, problem=problem, notes=context.declared_here(dim.name), help="")
            return None
    *ends, over = (ident.text for ident in idents)
    return EdgeType(tuple(ends), over)


def variable_decl(context: Context, node: t.VariableDecl) -> None:
    """Check `output`, `latent` and `field`."""
    if not is_first(context, node.name):
        return
    name, kind = node.name.text, node.kind
    made = context.tensor_type(node.type)
    sound, readout = _readout(context, node)
    if made is None or not sound or not _variable_type(context, node, made):
        context.names.poison(name)
        return
    context.variables[name] = Variable(name, kind, made, readout, node.name.span)


def _variable_type(context: Context, node: t.VariableDecl, made: TensorType) -> bool:
    name, kind = node.name.text, node.kind
    if (kind == "field") != (made.element == REAL):
        expected = "`real` elements" if kind == "field" else "labels as elements"
        remedy = "use `output` for labels" if kind == "field" else "use `field` for real values"
        context.complain("E0207", node.type.span, kind=kind, name=name, expected=expected, found=made, help=remedy)
        return False
    for axis_node, axis in zip(node.type.axes, made.axes, strict=True):
        if kind != "field" and (axis.extent.kind != "dim" or axis.extent.offset):
            context.complain("E0206", axis_node.span, kind=kind, name=name, extent=axis.extent, help=_as_dim(axis))
            return False
    return True


def _as_dim(axis: Axis) -> str:
    """How to write an axis of a variable that is not a whole dim."""
    if axis.extent.kind == "number":
        return f"declare `dim K = {axis.extent.offset}` and write `K`"
    if axis.extent.kind == "labels":
        return "labels are what the cells hold: they stand before the brackets"
    return f"write `{axis.extent.name}`; a term may leave positions out, as in `[t in {axis.extent}]`"


def _readout(context: Context, node: t.VariableDecl) -> tuple[bool, Readout | None]:
    """Whether the read-out is sound by itself, and what it is; most variables have none."""
    if node.readout is None:
        return True, None
    if node.kind != "output":
        problem = f"only an output is read out of a field, and `{node.name.text}` is a {node.kind}"
        context.complain("E0223", node.readout.span, problem=problem)
        return False, None
    field = context.names.find(node.readout.field, "field")
    over = context.names.find(node.readout.over, "labels")
    return (True, Readout(field.name, over.name)) if field and over else (False, None)


def check_readout(context: Context, node: t.VariableDecl) -> None:
    """Check that a read-out has the type of its output, once the field is known."""
    variable = context.variables.get(node.name.text)
    if variable is None or variable.readout is None or node.readout is None or not is_first(context, node.name):
        return
    field, over = context.variables.get(variable.readout.field), variable.readout.over
    if field is None:
        return
    labels = [axis for axis in field.type.label_axes if axis.extent.name == over]
    remaining = TensorType(over, tuple(axis for axis in field.type.axes if axis not in labels))
    if len(labels) != 1:
        problem = f"`{field.name}` is `{field.type}`, which has {'several axes' if labels else 'no axis'} over `{over}`"
    elif remaining.without_roles() != variable.type.without_roles():
        problem = f"`argmax {field.name} over {over}` gives `{remaining}`, but `{variable.name}` is `{variable.type}`"
    else:
        return
    context.complain("E0223", node.readout.span, problem=problem, notes=context.declared_here(field.name))


# ----------------------------------------------------------------------------------------------------------- parameters


def param_decl(context: Context, node: t.ParamDecl) -> None:
    """Check `param`."""
    if not is_first(context, node.name):
        return
    name = node.name.text
    made = context.tensor_type(node.type)
    initial = _initial(context, node)
    if made is not None and made.element != REAL:
        context.complain("E0207", node.type.span, kind="param", name=name, expected="`real` elements", found=made)
        made = None
    if made is None or not _fixed_size(context, node, made):
        context.names.poison(name)
        return
    context.params[name] = Param(name, made, initial, node.name.span)


def _fixed_size(context: Context, node: t.ParamDecl, made: TensorType) -> bool:
    for axis_node, axis in zip(node.type.axes, made.axes, strict=True):
        dim = context.dims.get(axis.extent.name) if axis.extent.kind == "dim" else None
        if dim is not None and dim.kind != "fixed":
            problem = f"a parameter has a fixed size, and `{dim.name}` is {dim.kind}"
            remedy = "leave the axis out: a tensor without it is shared over positions"
            notes = context.declared_here(dim.name)
            context.complain("E0205", axis_node.span, extent=axis.extent, notes=notes, problem=problem, help=remedy)
            return False
    return True


def _initial(context: Context, node: t.ParamDecl) -> Selection | None:
    if node.initial is None:
        return None
    if constant(node.initial) is not None:
        return selection(context, "init", t.Name(node.initial.span, "constant"), (node.initial,))
    if isinstance(node.initial, t.Name | t.Call):
        return select(context, "init", node.initial)
    expected = "a number, `zeros`, `normal(...)` or `uniform(...)`"
    context.complain("E0403", node.initial.span, option=node.name.text, expected=expected, found=found(node.initial))
    return None

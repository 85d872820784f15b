"""Index sets and scopes: which cells a term touches, and how its table's axes meet them."""

from __future__ import annotations

from collections.abc import Sequence

from energyml.cards import registry
from energyml.diagnostics import Note, Span, join_names
from energyml.model.context import Context
from energyml.model.declared import Binding, CellRef, Edges, Range, Variable
from energyml.model.expression import At, Combine, Expression, Potential
from energyml.model.subscripts import Indices, subscripts
from energyml.model.types import REAL, Axis, EdgeType
from energyml.model.typing import origin, too_many
from energyml.syntax import tree as t

# ----------------------------------------------------------------------------------------------------------- index sets


def domain(context: Context, binders: Sequence[t.Binder]) -> tuple[tuple[Binding, ...] | None, Indices]:
    """Check the index set of a term; indices whose binding is at fault are known as such."""
    indices = Indices()
    bindings: list[Binding] = []
    for node in binders:
        idents = [node.index, *(node.ends if isinstance(node, t.EdgeBinder) else ())]
        distinct = [_bind(context, ident, indices) for ident in idents]
        made = _range(context, node, indices) if isinstance(node, t.RangeBinder) else _edges(context, node)
        if made is None or not all(distinct):
            indices.unknown.update(ident.text for ident in idents)
        else:
            bindings.append(made)
            indices.add(made)
    return (None if indices.unknown else tuple(bindings)), indices


def _bind(context: Context, ident: t.Ident, indices: Indices) -> bool:
    if ident.text in indices.places:
        note = Note(f"`{ident.text}` is bound here first", indices.places[ident.text])
        context.complain("E0303", ident.span, index=ident.text, notes=[note])
        return False
    indices.places[ident.text] = ident.span
    return True


def _range(context: Context, node: t.RangeBinder, indices: Indices) -> Range | None:
    name = node.dim.text
    source = context.inputs.get(name)
    if source is not None and isinstance(source.type, EdgeType):
        ends = ", ".join("ijkl"[: len(source.type.ends)])
        remedy = f"write `[{node.index.text} = ({ends}) in {name}]`"
        problem = f"`{name}` is a list of edges, whose ends need an index each"
        context.complain("E0203", node.span, problem=problem, help=remedy, notes=context.declared_here(name))
        return None
    if context.names.find(node.dim, "dim") is None or not context.shorter_dim(node, name, node.offset):
        return None
    dim = context.dims.get(name)
    if dim is None:
        return None
    if dim.kind == "nested" and not _nested_range(context, node, dim.within or "", indices):
        return None
    return Range(node.index.text, name, -node.offset)


def _nested_range(context: Context, node: t.RangeBinder, within: str, indices: Indices) -> bool:
    """Whether it is clear which position's elements an index over a nested dim counts."""
    outer = indices.over(within)
    if len(outer) == 1:
        indices.outer[node.index.text] = outer[0]
        return True
    if indices.unknown:
        return False
    name = node.dim.text
    note = Note(f"`{name}` has one size for each position of `{within}`", context.dims[name].span)
    if outer:
        problem = f"{join_names(outer, 'and')} both run over `{within}`, so it is not clear whose `{name}` is meant"
    else:
        problem = f"an index over `{within}` must come before it"
    context.complain("E0205", node.dim.span, extent=name, notes=[note], problem=problem)
    return False


def _edges(context: Context, node: t.EdgeBinder) -> Edges | None:
    if context.names.find(node.source, "input") is None:
        return None
    source = context.inputs.get(node.source.text)
    if source is None:
        return None
    notes = context.declared_here(source.name)
    if not isinstance(source.type, EdgeType):
        problem = f"`{source.name}` is `{source.type}`, no list of edges"
        context.complain("E0203", node.source.span, problem=problem, notes=notes)
        return None
    if len(source.type.ends) != len(node.ends):
        context.complain(
            "E0304", node.span, notes=notes, source=source.name, expected=len(source.type.ends), found=len(node.ends)
        )
        return None
    ends = tuple(end.text for end in node.ends)
    return Edges(node.index.text, ends, source.name, source.type.over, source.type.ends)


# ---------------------------------------------------------------------------------------------------------------- cells


def scorable(context: Context, span: Span, variable: Variable) -> bool:
    """Whether a term may score a variable; the read-out of a field follows from the field."""
    if variable.readout is None:
        return True
    field = variable.readout.field
    notes = context.declared_here(variable.name)
    context.complain("E0327", span, name=variable.name, field=field, notes=notes)
    return False


def cell(context: Context, node: t.Cell, indices: Indices, role: t.Ident | None = None) -> CellRef | None:
    """Check one cell of a scope."""
    name = node.variable.text
    if context.names.find(node.variable, "output", "latent", "field") is None or name not in context.variables:
        return None
    variable = context.variables[name]
    notes = context.declared_here(name)
    if name in indices.unscorable:
        return None
    if variable.kind == "field":
        context.complain("E0326", node.variable.span, name=name, notes=notes)
        indices.unscorable.add(name)
        return None
    if not scorable(context, node.variable.span, variable):
        indices.unscorable.add(name)
        return None
    axes = variable.type.index_axes
    if len(node.indices) > len(axes):
        too_many(context, node.indices[len(axes)].span, name, variable.type, notes)
        return None
    if len(node.indices) < len(axes):
        _missing_index(context, node, axes, indices, notes)
        return None
    made = subscripts(context, node.indices, axes, indices)
    return None if made is None else CellRef(name, made, role.text if role else None)


def _missing_index(context: Context, node: t.Cell, axes: Sequence[Axis], indices: Indices, notes: list[Note]) -> None:
    if indices.unknown:
        return
    name, given = node.variable.text, len(node.indices)
    written = [context.report.source.excerpt(index.span) for index in node.indices]
    wanted = [*written, *(_index_for(axis, indices) for axis in axes[given:])]
    remedy = f"write `{name}[{', '.join(wanted)}]`"
    unbound = [axis for axis in axes[given:] if not indices.over(axis.extent.name)]
    if unbound:
        remedy += f" with `[{', '.join(f'{_index_for(axis, indices)} in {axis.extent}' for axis in unbound)}]`"
    context.complain("E0210", node.span, value=name, axis=axes[given], help=remedy, notes=notes)


def _index_for(axis: Axis, indices: Indices) -> str:
    """An index that runs over an axis: a bound one, or the first letter of its dim."""
    bound = indices.over(axis.extent.name)
    letter = axis.extent.name[0].lower()
    return bound[0] if bound else letter if letter != axis.extent.name else f"{letter}_"


# ---------------------------------------------------------------------------------------------------- tables and scopes


def scope_order(
    context: Context, node: t.FactorStmt, scope: tuple[CellRef, ...], value: Expression, indices: Indices
) -> tuple[int, ...] | None:
    """For each cell of the scope, the label axis of the table that it reads; mismatches are reported."""
    labels = [context.variables[ref.variable].type.element for ref in scope]
    if isinstance(value, Potential):
        return _potential_order(context, node, labels, value)
    if not _finished(context, node, value, indices):
        return None
    found = [axis.extent.name for axis in value.type.label_axes]
    if sorted(found) != sorted(labels):
        context.complain(
            "E0213",
            node.value.span,
            notes=[*_scope_notes(context, scope), *origin(context, value)],
            found=_axes_over(found),
            expected=_cells_over(labels),
        )
        return None
    return _matched(context, node, scope, labels, value)


def _matched(
    context: Context, node: t.FactorStmt, scope: tuple[CellRef, ...], labels: list[str], value: Expression
) -> tuple[int, ...] | None:
    """Match cells and axes: by role where the cell has one, else by a label set that occurs once."""
    axes = value.type.label_axes
    order: list[int] = []
    for item, ref, name in zip(node.scope, scope, labels, strict=True):
        if ref.role is not None and any(axis.role for axis in axes):
            place = _by_role(context, item, ref.role, name, value, order)
        elif labels.count(name) == 1:
            place = next(i for i, axis in enumerate(axes) if axis.extent.name == name)
        else:
            _ambiguous(context, node, item, name, value)
            return None
        if place is None:
            return None
        order.append(place)
    return tuple(order)


def _by_role(
    context: Context, item: t.ScopeItem, role: str, labels: str, value: Expression, taken: list[int]
) -> int | None:
    axes = value.type.label_axes
    place = next((i for i, axis in enumerate(axes) if axis.role == role), None)
    variable = item.cell.variable.text
    if place is None:
        known = [axis.role for axis in axes if axis.role]
        guess = context.names.guess(role, known)
        problem = f"the table has no axis with the role `{role}`"
        remedy = f"did you mean `{guess}`?" if guess else f"its roles are {join_names(known, 'and')}"
    elif axes[place].extent.name != labels:
        over = axes[place].extent
        problem, remedy = f"the axis `{role}` is over `{over}`, but `{variable}` is over `{labels}`", ""
    elif place in taken:
        problem, remedy = f"two cells have the role `{role}`", "give each cell the role of its own axis"
    else:
        return place
    assert item.role is not None
    context.complain("E0215", item.role.span, problem=problem, help=remedy, notes=origin(context, value))
    return None


def _ambiguous(context: Context, node: t.FactorStmt, item: t.ScopeItem, labels: str, value: Expression) -> None:
    axes = [axis for axis in value.type.label_axes if axis.extent.name == labels]
    cells = [one.cell for one in node.scope if context.variables[one.cell.variable.text].type.element == labels]
    excerpts = [context.report.source.excerpt(one.span) for one in cells]
    roles = [axis.role or "..." for axis in axes]
    if all(axis.role for axis in axes):
        pairs = ", ".join(f"{role}: {text}" for role, text in zip(roles, excerpts, strict=False))
        remedy = f"give the roles of the table, as in `({pairs})`"
    else:
        remedy = f"give the table's axes roles, as in `[from: {labels}, to: {labels}]`, and the cells too"
    context.complain("E0214", item.span, count=len(cells), labels=labels, help=remedy, notes=origin(context, value))


def _finished(context: Context, node: t.FactorStmt, value: Expression, indices: Indices) -> bool:
    """Whether nothing but label axes is left of a table."""
    if value.type.element != REAL:
        context.complain("E0225", node.value.span, value=value, notes=origin(context, value))
        return False
    if value.type.index_axes:
        axis = value.type.index_axes[0]
        remedy = _subscripted(value, indices)
        context.complain("E0210", node.value.span, value=value, axis=axis, help=remedy, notes=origin(context, value))
        return False
    if value.type.number_axes:
        axis = value.type.number_axes[0]
        remedy = "end with a network whose `out:` is the label set of the scope"
        context.complain("E0216", node.value.span, value=value, axis=axis, help=remedy, notes=origin(context, value))
        return False
    return True


def _subscripted(value: Expression, indices: Indices) -> str:
    """How to consume the index axes that are left over."""
    if isinstance(value, Combine):
        return "subscript its parts"
    given = list(map(str, value.indices)) if isinstance(value, At) else []
    base = value.base if isinstance(value, At) else value
    wanted = ", ".join([*given, *(_index_for(axis, indices) for axis in value.type.index_axes)])
    return f"write `{base}[{wanted}]`"


def _potential_order(
    context: Context, node: t.FactorStmt, labels: list[str], value: Potential
) -> tuple[int, ...] | None:
    remedy = ""
    if not getattr(registry.find("potential", value.potential), "table", False):
        problem = "couples the cells of a field; it is no table for a factor"
    elif len(labels) != 2 or labels[0] != labels[1]:
        problem = f"needs a scope of two cells over one label set, found {_cells_over(labels)}"
    elif value.type.axes:
        problem = f"takes a single number as its weight, found `{value.type}`"
        remedy = "subscript the weight" if value.type.index_axes == value.type.axes else ""
    else:
        return (0, 1)
    context.complain("E0227", node.value.span, name=value.potential, problem=problem, help=remedy)
    return None


def _axes_over(labels: list[str]) -> str:
    if not labels:
        return "no label axes"
    return f"{'a label axis' if len(labels) == 1 else 'label axes'} over {join_names(labels, 'and')}"


def _cells_over(labels: list[str]) -> str:
    return f"{'a cell' if len(labels) == 1 else 'cells'} over {join_names(labels, 'and')}"


def _scope_notes(context: Context, scope: tuple[CellRef, ...]) -> list[Note]:
    names = dict.fromkeys(ref.variable for ref in scope)
    variables = [context.variables[name] for name in names]
    return [Note(f"`{variable.name}` is declared `{variable.type}`", variable.span) for variable in variables]

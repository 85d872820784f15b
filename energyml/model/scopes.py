"""Index sets and scopes: which cells a term touches, and how its table's axes meet them."""

from __future__ import annotations

from energyml.diagnostics import Note, join_names
from energyml.model.context import Context
from energyml.model.declared import Binding, CellRef, Edges, Range
from energyml.model.expression import Affine, Expression, Potential
from energyml.model.typing import Indices, index
from energyml.model.types import REAL, EdgeType
from energyml.syntax import tree as t


def domain(context: Context, binders: tuple[t.Binder, ...]) -> tuple[tuple[Binding, ...], Indices] | None:
    """Check the index set of a term."""
    indices = Indices()
    bindings: list[Binding] = []
    sound = True
    for node in binders:
        idents = [node.index, *(node.ends if isinstance(node, t.EdgeBinder) else ())]
        for ident in idents:
            if ident.text in indices.places:
                note = Note(f"`{ident.text}` is bound here first", indices.places[ident.text])
                context.complain("E0303", ident.span, index=ident.text, notes=[note])
                sound = False
            indices.places.setdefault(ident.text, ident.span)
        made = _range(context, node, indices) if isinstance(node, t.RangeBinder) else _edges(context, node)
        if made is None:
            sound = False
        else:
            bindings.append(made)
            indices.add(made)
    return (tuple(bindings), indices) if sound else None


def _range(context: Context, node: t.RangeBinder, indices: Indices) -> Range | None:
    entry = context.names.find(node.dim, "dim")
    if entry is None:
        return None
    if node.offset > 0:
        context.complain("E0205", node.span, extent=f"{node.dim.text}{node.offset:+d}", problem="an index cannot run past its dim")
        return None
    dim = context.dims.get(node.dim.text)
    if dim is None:
        return None
    if dim.kind == "nested" and dim.within not in {over for over, _ in indices.bound.values()}:
        note = Note(f"`{dim.name}` has one size for each position of `{dim.within}`", dim.span)
        context.complain("E0205", node.dim.span, extent=dim.name, notes=[note],
                         problem=f"an index over `{dim.within}` must come before it")  # fmt: skip
        return None
    return Range(node.index.text, dim.name, -node.offset)


def _edges(context: Context, node: t.EdgeBinder) -> Edges | None:
    if context.names.find(node.source, "input") is None:
        return None
    source = context.inputs.get(node.source.text)
    if source is None:
        return None
    note = Note(f"`{source.name}` is declared here", source.span)
    if not isinstance(source.type, EdgeType):
        context.complain("E0203", node.source.span, problem=f"`{source.name}` is `{source.type}`", notes=[note])
        return None
    if len(source.type.ends) != len(node.ends):
        context.complain("E0304", node.span, source=source.name, expected=len(source.type.ends), found=len(node.ends), notes=[note])
        return None
    return Edges(node.index.text, tuple(end.text for end in node.ends), source.name, source.type.over, source.type.ends)


def cell(context: Context, node: t.Cell, indices: Indices, role: t.Ident | None = None) -> CellRef | None:
    """Check one cell of a scope."""
    entry = context.names.find(node.variable, "output", "latent", "field")
    if entry is None:
        return None
    variable = context.variables.get(node.variable.text)
    if variable is None:
        return None
    if variable.kind == "field":
        note = Note(f"`{variable.name}` is declared here", variable.span)
        context.complain("E0326", node.span, name=variable.name, notes=[note])
        return None
    axes = variable.type.index_axes
    if len(node.indices) > len(axes):
        context.complain("E0211", node.span, value=variable.name, count=len(axes), given=len(node.indices))
        return None
    if len(node.indices) < len(axes):
        missing = axes[len(node.indices)]
        note = Note(f"`{variable.name}` is declared here", variable.span)
        hint = ", ".join(axis.extent.name.lower() for axis in axes)
        context.complain("E0210", node.span, value=variable.name, axis=missing, hint=hint, notes=[note])
        return None
    made: list[Affine] = []
    for item, axis in zip(node.indices, axes, strict=True):
        one = index(context, item, axis, indices)
        if one is None:
            return None
        made.append(one)
    return CellRef(variable.name, tuple(made), role.text if role else None)


def scope_order(
    context: Context, node: t.FactorStmt, scope: tuple[CellRef, ...], value: Expression
) -> tuple[int, ...] | None:
    """For each cell of the scope, the label axis of the table that it reads; mismatches are reported."""
    labels = [context.variables[ref.variable].type.element for ref in scope]
    if isinstance(value, Potential):
        return _potential_order(context, node, labels, value)
    if not _finished(context, node, value):
        return None
    axes = list(value.type.label_axes)
    found = [axis.extent.name for axis in axes]
    if sorted(found) != sorted(labels):
        expected = join_names(labels, "and")
        context.complain("E0213", node.value.span, found=join_names(found, "and") or "none", expected=expected, notes=_scope_notes(context, scope))
        return None
    order: list[int] = []
    for item, ref, name in zip(node.scope, scope, labels, strict=True):
        position = _matching_axis(context, node, item, ref, name, value, order)
        if position is None:
            return None
        order.append(position)
    return tuple(order)


def _matching_axis(
    context: Context, node: t.FactorStmt, item: t.ScopeItem, ref: CellRef, labels: str, value: Expression, taken: list[int]
) -> int | None:
    axes = value.type.label_axes
    if ref.role is not None:
        named = [i for i, axis in enumerate(axes) if axis.role == ref.role]
        if named and axes[named[0]].extent.name == labels and named[0] not in taken:
            return named[0]
        if named:
            problem = f"it is over `{axes[named[0]].extent.name}`" if axes[named[0]].extent.name != labels else "another cell has it already"
            assert item.role is not None
            context.complain("E0215", item.role.span, role=f"{ref.role}` for `{ref.variable}", help=problem)
            return None
        if any(axis.role for axis in axes):
            assert item.role is not None
            roles = [axis.role for axis in axes if axis.role]
            context.complain("E0215", item.role.span, role=ref.role, help=f"its roles are {join_names(roles, 'and')}")
            return None
    same = [i for i, axis in enumerate(axes) if axis.extent.name == labels and i not in taken]
    if sum(axis.extent.name == labels for axis in axes) == 1:
        return same[0]
    roles = [axis.role or "role" for axis in axes if axis.extent.name == labels]
    cells = [item_.cell for item_ in node.scope]
    hint = ", ".join(f"{role}: {context.report.source.excerpt(c.span)}" for role, c in zip(roles, cells, strict=False))
    context.complain("E0214", item.span, count=len(roles), labels=labels, hint=hint)
    return None


def _finished(context: Context, node: t.FactorStmt, value: Expression) -> bool:
    if value.type.element != REAL:
        context.complain("E0225", node.value.span, value=value)
        return False
    if value.type.index_axes:
        axis = value.type.index_axes[0]
        bound = {b.dim.text: b.index.text for b in node.binders if isinstance(b, t.RangeBinder)}
        bound |= {context.inputs[b.source.text].type.over: b.index.text  # type: ignore[union-attr]
                  for b in node.binders if isinstance(b, t.EdgeBinder) and b.source.text in context.inputs}  # fmt: skip
        hint = ", ".join(bound.get(a.extent.name, a.extent.name.lower()) for a in value.type.index_axes)
        context.complain("E0210", node.value.span, value=value, axis=axis, hint=hint)
        return False
    if value.type.number_axes:
        context.complain("E0216", node.value.span, value=value, axis=value.type.number_axes[0],
                         help="give the network `out:` the label set of the scope")  # fmt: skip
        return False
    return True


def _potential_order(
    context: Context, node: t.FactorStmt, labels: list[str], value: Potential
) -> tuple[int, ...] | None:
    from energyml.cards import registry

    card = registry.find("potential", value.potential)
    if not getattr(card, "table", False):
        context.complain("E0227", node.value.span, name=value.potential, problem="couples a field; it is no table for a factor")
        return None
    if len(labels) != 2 or labels[0] != labels[1]:
        context.complain("E0227", node.value.span, name=value.potential, problem="needs a scope of two cells over one label set")
        return None
    if value.type.axes:
        context.complain("E0227", node.value.span, name=value.potential, problem=f"takes a single number as its weight, found `{value.type}`")
        return None
    return (0, 1)


def _scope_notes(context: Context, scope: tuple[CellRef, ...]) -> list[Note]:
    names = dict.fromkeys(ref.variable for ref in scope)
    return [Note(f"`{name}` is declared `{context.variables[name].type}`", context.variables[name].span) for name in names]

"""The couplings of a Gaussian field: what may stand in `pair:`, and over which axes their weights run."""

from __future__ import annotations

from collections.abc import Callable

from energyml.cards import registry
from energyml.diagnostics import join_names
from energyml.model.context import Context
from energyml.model.declared import Variable
from energyml.model.expression import Expression, Potential, Reference
from energyml.model.types import EdgeType, TensorType
from energyml.model.typing import Place, expression, origin
from energyml.syntax import tree as t


def read(context: Context, value: t.Value, field: Variable) -> tuple[Expression, ...] | None:
    """Check a sum of couplings."""
    parts: tuple[t.Value, ...] = (value,)
    if isinstance(value, t.Chained):
        other = next((operator for operator in value.operators if operator != "+"), None)
        if other is not None:
            _reject(context, value, "couplings joined by `+`", f"`{other}`")
            return None
        parts = value.operands
    made = [_coupling(context, part, field) for part in parts]
    sound = tuple(one for one in made if one is not None)
    return sound if len(sound) == len(made) else None


def _coupling(context: Context, node: t.Value, field: Variable) -> Expression | None:
    made = expression(context, node, Place(potentials=True))
    if made is None:
        return None
    known = [card.name for card in registry.every("potential") if getattr(card, "coupling", False)]
    if not isinstance(made, Potential) or made.potential not in known:
        _reject(context, node, f"a coupling: {join_names(known)}", f"`{made.type}`")
        return None
    problem = _WEIGHTS[made.potential](context, made, field)
    if problem:
        notes = [*origin(context, made.arguments[0]), *context.declared_here(field.name)]
        context.complain("E0227", node.span, name=made.potential, problem=problem, notes=notes)
        return None
    return made


def _reject(context: Context, node: t.Value, expected: str, given: str) -> None:
    context.complain("E0325", node.span, option="pair", family="gaussian", expected=expected, found=given, help="")


# -------------------------------------------------------------------------------------------------------------- weights


def _dims(made: TensorType) -> tuple[str, ...]:
    return tuple(str(axis.extent) for axis in made.index_axes)


def _over(dims: tuple[str, ...]) -> str:
    return join_names(dims, "and") if dims else "no dim"


def _embeddings(context: Context, made: Potential, field: Variable) -> str:
    """`potts` and `lowrank`: a vector for each position of the field."""
    if _dims(made.type) != field.dims:
        return f"takes a vector for each position over {_over(field.dims)}, found `{made.type}`"
    return (
        "" if made.type.number_axes else f"takes vectors, so its weight needs an axis of numbers; found `{made.type}`"
    )


def _constant_or_local(context: Context, made: Potential, field: Variable) -> str:
    """`smooth`: one weight, or weights over the positions of the field."""
    if not made.type.axes or _dims(made.type) == field.dims:
        return ""
    return f"takes a single number or weights over {_over(field.dims)}, found `{made.type}`"


def _matrix(context: Context, made: Potential, field: Variable) -> str:
    """`dense`: a matrix over the cells of the field."""
    twice = sorted(str(axis.extent) for axis in (*field.type.axes, *field.type.axes))
    if sorted(str(axis.extent) for axis in made.type.axes) == twice:
        return ""
    return f"takes a matrix over the cells of `{field.name}`, each of its axes twice; found `{made.type}`"


def _on_edges(context: Context, made: Potential, field: Variable) -> str:
    """`sparse`: edges between positions of the field, and one weight or a weight for each edge."""
    edges = made.arguments[0]
    assert isinstance(edges, Reference)
    declared = context.inputs[edges.name].type
    assert isinstance(declared, EdgeType)
    if len(field.dims) != 1 or any(end != field.dims[0] for end in declared.ends) or len(declared.ends) != 2:
        return f"takes edges between the positions of `{field.name}`, found `{declared}`"
    if made.type.axes and _dims(made.type) != (declared.over,):
        return f"takes a single number or a weight for each `{declared.over}`, found `{made.type}`"
    return ""


_WEIGHTS: dict[str, Callable[[Context, Potential, Variable], str]] = {
    "potts": _embeddings,
    "lowrank": _embeddings,
    "smooth": _constant_or_local,
    "dense": _matrix,
    "sparse": _on_edges,
}

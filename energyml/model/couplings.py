"""The couplings of a Gaussian field: what may stand in `pair:`, and over which axes their weights run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from energyml.cards import registry
from energyml.diagnostics import did_you_mean, join_names
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
            remedy = "what scales a coupling, and its sign, stands inside: `smooth(2 * w)`"
            _reject(context, value, "couplings joined by `+`", f"`{other}`", remedy)
            return None
        parts = value.operands
    made = [_coupling(context, part, field) for part in parts]
    sound = tuple(one for one in made if one is not None)
    return sound if len(sound) == len(made) else None


def _coupling(context: Context, node: t.Value, field: Variable) -> Expression | None:
    known = [card.name for card in registry.every("potential") if getattr(card, "coupling", False)]
    expected = f"a coupling: {join_names(known)}"
    word = node.function.text if isinstance(node, t.Call) else None
    if word is not None and word not in known and word not in context.names.table:
        guess = did_you_mean(word, known)
        _reject(context, node, expected, f"`{word}(...)`", f"did you mean `{guess}`?" if guess else "")
        return None
    made = expression(context, node, Place(potentials=True))
    if made is None:
        return None
    if not isinstance(made, Potential) or made.potential not in known:
        remedy = "vectors of positions couple by `potts(e)` or `lowrank(e)`, weights of neighbours by `smooth(w)`"
        _reject(context, node, expected, f"`{made.type}`", remedy)
        return None
    problem = _WEIGHTS[made.potential](context, made, field)
    if problem:
        notes = [*origin(context, made.arguments[0]), *context.declared_here(field.name)]
        help = _remedy(made.potential, field)
        context.complain("E0227", node.span, name=made.potential, problem=problem, notes=notes, help=help)
        return None
    return made


def _reject(context: Context, node: t.Value, expected: str, given: str, remedy: str) -> None:
    context.complain("E0325", node.span, option="pair", family="gaussian", expected=expected, found=given, help=remedy)


def _remedy(coupling: str, field: Variable) -> str | None:
    """A type that the coupling takes."""
    match coupling:
        case "potts" | "lowrank":
            return f"give it a tensor `real[{', '.join((*field.dims, '16'))}]`, or a network with `out: 16`"
        case "dense":
            axes = [str(axis.extent) for axis in field.type.axes]
            roles = [f"row{i}: {axis}" for i, axis in enumerate(axes)]
            roles += [f"column{i}: {axis}" for i, axis in enumerate(axes)]
            return f"give it a tensor `real[{', '.join(roles)}]`"
        case "sparse" if len(field.dims) != 1:
            return "lists of edges couple fields along one dim; `smooth` couples neighbours of a grid"
    return None


# -------------------------------------------------------------------------------------------------------------- weights


def _dims(made: TensorType) -> tuple[str, ...]:
    return tuple(str(axis.extent) for axis in made.index_axes)


def _over(dims: tuple[str, ...]) -> str:
    return join_names(dims, "and") if dims else "no dim"


def _embeddings(context: Context, made: Potential, field: Variable) -> str:
    """`lowrank`: a vector for each position of the field, or for each of its cells."""
    if _dims(made.type) != field.dims:
        return f"takes a vector for each position over {_over(field.dims)}, found `{made.type}`"
    if not made.type.number_axes:
        return f"takes vectors, so its weight needs an axis of numbers; found `{made.type}`"
    labels = sorted(str(axis.extent) for axis in made.type.label_axes)
    if labels and labels != sorted(str(axis.extent) for axis in field.type.label_axes):
        return f"takes vectors of positions, or of all cells of `{field.name}`, found `{made.type}`"
    return ""


def _positions(context: Context, made: Potential, field: Variable) -> str:
    """`potts`: a vector for each position of the field, the same for all labels."""
    if made.type.label_axes:
        return f"couples labels by vectors of positions, without an axis of labels; found `{made.type}`"
    return _embeddings(context, made, field)


def directions(dims: int, diagonals: bool) -> tuple[tuple[int, ...], ...]:
    """The steps from a cell of a grid to its neighbours, one of each opposite pair: the axes, then diagonals."""
    steps = [step for step in product((0, 1, -1), repeat=dims) if next((s for s in step if s), 0) == 1]
    along = [step for step in reversed(steps) if sum(map(abs, step)) == 1]
    return (*along, *(step for step in steps if step not in along and diagonals))


def _constant_or_local(context: Context, made: Potential, field: Variable) -> str:
    """`smooth`: weights for each position, each direction, both or neither."""
    count = len(directions(len(field.dims), dict(made.options).get("diagonals", False)))
    numbers = [axis.extent.offset for axis in made.type.number_axes]
    local = _dims(made.type) in ((), field.dims)
    if local and not made.type.label_axes and numbers in ([], [count]):
        return ""
    return (
        f"takes a single number, or weights over {_over(field.dims)} or over an axis of {count} (its directions), "
        f"or both; found `{made.type}`"
    )


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
    "potts": _positions,
    "lowrank": _embeddings,
    "smooth": _constant_or_local,
    "dense": _matrix,
    "sparse": _on_edges,
}

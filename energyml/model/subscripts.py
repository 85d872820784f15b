"""Indices: which ones a term binds, and whether a subscript stays inside the axis that it consumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from energyml.diagnostics import Note, Span
from energyml.model.context import Context
from energyml.model.declared import Binding, Dim, Range
from energyml.model.expression import Affine
from energyml.model.types import Axis
from energyml.syntax import tree as t


@dataclass
class Indices:
    """The indices that a term binds.

    Attributes:
        bound: name -> the dim it runs over, and how much shorter its range is (None for a position known at run time).
        outer: an index over a nested dim -> the index of the position whose elements it counts.
        places: where each is bound.
        unknown: names whose own binding is at fault; nothing more is said about them.
        unscorable: variables that were reported in this term; nothing more is said about them either.
        bindable: whether the statement has an index set at all.
    """

    bound: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    unscorable: set[str] = field(default_factory=set)
    bindable: bool = True

    def add(self, binding: Binding) -> None:
        """Enter the indices of a binding."""
        if isinstance(binding, Range):
            self.bound[binding.index] = (binding.dim, binding.shrink)
            return
        self.bound[binding.index] = (binding.over, 0)
        for end, dim in zip(binding.ends, binding.dims, strict=True):
            self.bound[end] = (dim, None)

    def over(self, dim: str) -> list[str]:
        """The indices that run over a dim, those of ranges only."""
        return [name for name, (over, shrink) in self.bound.items() if over == dim and shrink is not None]

    def bound_here(self, name: str) -> list[Note]:
        """A note that points at the place where an index is bound."""
        return [Note(f"`{name}` is bound here", self.places[name])] if name in self.places else []


def subscripts(
    context: Context, nodes: Sequence[t.Index], axes: Sequence[Axis], indices: Indices
) -> tuple[Affine, ...] | None:
    """Check indices against the axes that they consume, in order; there may be fewer indices than axes."""
    if _swapped(context, nodes, axes, indices):
        return None
    made = [_index(context, node, axis, indices) for node, axis in zip(nodes, axes, strict=False)]
    sound = tuple(one for one in made if one is not None)
    if len(sound) < len(made):
        return None
    by_dim = {axis.extent.name: one for axis, one in zip(axes, sound, strict=False)}
    counted = [_of_its_outer(context, node, axis, indices, by_dim) for node, axis in zip(nodes, axes, strict=False)]
    return sound if all(counted) else None


def _swapped(context: Context, nodes: Sequence[t.Index], axes: Sequence[Axis], indices: Indices) -> bool:
    """Whether the right indices stand in the wrong order; reported as one mistake."""
    named = [node for node in nodes if node.name is not None and node.name.text in indices.bound]
    over = [indices.bound[node.name.text][0] for node in named if node.name is not None]
    wanted = [axis.extent.name for axis in axes]
    if len(named) < len(nodes) or len(nodes) < len(axes) or over == wanted or sorted(over) != sorted(wanted):
        return False
    if len(set(wanted)) < len(wanted):
        return False
    order = [context.report.source.excerpt(named[over.index(dim)].span) for dim in wanted]
    wrong = next(i for i, dim in enumerate(wanted) if over[i] != dim)
    index = named[wrong].name
    assert index is not None
    remedy = f"write `[{', '.join(order)}]`"
    notes = indices.bound_here(index.text)
    at = nodes[wrong].span
    context.complain("E0212", at, index=index.text, found=over[wrong], expected=wanted[wrong], help=remedy, notes=notes)
    return True


def _index(context: Context, node: t.Index, axis: Axis, indices: Indices) -> Affine | None:
    dim = context.dims.get(axis.extent.name)
    if node.name is None:
        return _constant(context, node, axis, dim)
    name = node.name.text
    if name in indices.unknown:
        return None
    if name not in indices.bound:
        _unbound(context, node.name, axis, indices)
        return None
    over, shrink = indices.bound[name]
    if over != axis.extent.name:
        notes = indices.bound_here(name)
        context.complain("E0212", node.span, index=name, found=over, expected=axis.extent.name, notes=notes)
        return None
    if shrink is None:
        return _end_of_edge(context, node, axis, name)
    return _in_range(context, node, axis, indices, name, shrink)


def _constant(context: Context, node: t.Index, axis: Axis, dim: Dim | None) -> Affine | None:
    """A position counted from the start or, negative, from the end."""
    problem = ""
    if dim is not None and dim.kind == "nested":
        problem = f"`{dim.name}` has other sizes at other positions, so a fixed position may not exist"
    elif dim is not None and dim.size is not None:
        size = dim.size + axis.extent.offset
        if not -size <= node.offset < size:
            problem = f"it has {dim.positions(-axis.extent.offset)}"
    if not problem:
        return Affine(None, node.offset)
    notes = context.declared_here(axis.extent.name)
    context.complain("E0209", node.span, index=node.offset, dim=axis.extent, problem=problem, notes=notes)
    return None


def _unbound(context: Context, ident: t.Ident, axis: Axis, indices: Indices) -> None:
    guess = context.names.guess(ident.text, indices.bound) if indices.bound else None
    if guess:
        remedy = f"did you mean `{guess}`?"
    elif indices.bindable:
        remedy = f"bind it in the term's index set: `[{ident.text} in {axis.extent}]`"
    else:
        remedy = "leave the subscript out here: only factors and `forbid` have an index set"
    context.complain("E0208", ident.span, index=ident.text, help=remedy, notes=indices.bound_here(guess or ""))
    if not guess and indices.bindable:
        indices.unknown.add(ident.text)  # one binding mends every use


def _end_of_edge(context: Context, node: t.Index, axis: Axis, name: str) -> Affine | None:
    if not node.offset and not axis.extent.offset:
        return Affine(name)
    problem = "the end of an edge may be any position, the last one too"
    remedy = f"write `{name}`: an edge leads to its own ends only" if node.offset else ""
    context.complain("E0209", node.span, help=remedy, index=Affine(name, node.offset), dim=axis.extent, problem=problem)
    return None


def _in_range(context: Context, node: t.Index, axis: Axis, indices: Indices, name: str, shrink: int) -> Affine | None:
    """For `i in D-a`, `x[i+k]` on extent `D-b` is legal when `0 <= k <= a-b`."""
    made, dim = Affine(name, node.offset), axis.extent.name
    if 0 <= node.offset <= shrink + axis.extent.offset:
        return made
    if node.offset < 0:
        back = -node.offset
        problem = f"at the first `{name}` there is no `{made}`"
        remedy = f"let `{name}` be the earlier position: `[{name} in {dim}-{back}]` with `{name}` and `{name}+{back}`"
    else:
        problem = (
            f"at the last `{name}` there is no `{made}`" if node.offset else f"it runs over `{_range(dim, shrink)}`"
        )
        remedy = f"bind `{name} in {dim}-{node.offset - axis.extent.offset}`"
    context.complain(
        "E0209", node.span, help=remedy, notes=indices.bound_here(name), index=made, dim=axis.extent, problem=problem
    )
    return None


def _of_its_outer(context: Context, node: t.Index, axis: Axis, indices: Indices, by_dim: dict[str, Affine]) -> bool:
    """Whether an index over a nested dim stands beside the very position whose elements it counts."""
    dim = context.dims.get(axis.extent.name)
    if dim is None or dim.kind != "nested" or node.name is None or node.name.text not in indices.outer:
        return True
    outer = indices.outer[node.name.text]
    beside = by_dim.get(dim.within or "")
    if beside is None or beside == Affine(outer):
        return True
    problem = f"it counts the positions of `{dim.name}` at `{outer}`, and this is at `{beside}`"
    notes = indices.bound_here(node.name.text)
    context.complain("E0209", node.span, index=node.name.text, dim=axis.extent, problem=problem, notes=notes)
    return False


def _range(dim: str, shrink: int) -> str:
    return f"{dim}-{shrink}" if shrink else dim

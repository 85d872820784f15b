"""What checking knows so far: the report, the names, and the declarations behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from energyml import errors
from energyml.diagnostics import Note, Report, Span
from energyml.model.declared import Dim, Input, LabelSet, Let, Net, Param, Variable
from energyml.model.names import VARIABLES, Names
from energyml.model.types import REAL, Axis, Extent, TensorType
from energyml.syntax import tree as t


@dataclass
class Context:
    """The state of one check.

    Attributes:
        report: where findings go.
        names: the symbol table.
        term_names: the names of all terms, for options such as `scale: y.unary`.
        incomplete: whether damaged statements were left out, so that a term may be missing without anybody's fault.
    """

    report: Report
    names: Names
    label_sets: dict[str, LabelSet] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    nets: dict[str, Net] = field(default_factory=dict)
    params: dict[str, Param] = field(default_factory=dict)
    lets: dict[str, Let] = field(default_factory=dict)
    term_names: dict[str, Span] = field(default_factory=dict)
    incomplete: bool = False

    def complain(
        self, code: str, span: Span | None, *, notes: Iterable[Note] = (), help: str | None = None, **facts: object
    ) -> None:
        """Report a finding in the catalogue's wording."""
        self.report.add(errors.diagnostic(code, span, notes=notes, help=help, caret=None, **facts))

    def declared_here(self, name: str) -> list[Note]:
        """A note that points at the declaration of a name, where it has one."""
        entry = self.names.table.get(name)
        return [Note(f"`{name}` is declared here", entry.span)] if entry else []

    def names_of(self, kind: str) -> list[str]:
        """The names of a kind; `variable` covers outputs, latents and fields."""
        if kind == "term":
            return list(self.term_names)
        return self.names.of_kind(*(VARIABLES if kind == "variable" else (kind,)))

    # ---------------------------------------------------------------------------------------------------------- extents

    def extent(self, node: t.Extent) -> Extent | None:
        """Check an extent."""
        if node.name is None:
            return self._number(node)
        name = node.name.text
        entry = self.names.table.get(name)
        if name in self.names.poisoned:
            self.names.used.add(name)
            return None
        if entry is None:
            self._unknown_extent(node.name)
            return None
        if self.names.find(node.name, "dim", "labels") is None:
            return None
        if entry.kind == "dim":
            return Extent("dim", name, node.offset) if self.shorter_dim(node, name, node.offset) else None
        if node.offset:
            self.complain("E0205", node.span, extent=_shifted(name, node.offset), problem="a label set has no offset")
            return None
        return Extent("labels", name)

    def _number(self, node: t.Extent) -> Extent | None:
        if node.offset < 1:
            self.complain("E0205", node.span, extent=node.offset, problem="a size is at least 1")
            return None
        return Extent("number", "", node.offset)

    def shorter_dim(self, node: t.Node, name: str, offset: int) -> bool:
        """Whether a dim plus a constant is no longer than the dim, and not empty; complains where it is."""
        if offset > 0:
            remedy = f"write `{name}`, or declare a longer dim"
            problem = f"it is longer than `{name}` itself"
            self.complain("E0205", node.span, extent=_shifted(name, offset), help=remedy, problem=problem)
            return False
        dim = self.dims.get(name)
        if dim is not None and dim.size is not None and dim.size + offset < 1:
            problem = f"`{name}` has {dim.positions()}, so nothing is left"
            notes = self.declared_here(name)
            self.complain("E0205", node.span, extent=_shifted(name, offset), problem=problem, notes=notes)
            return False
        return True

    def _unknown_extent(self, ident: t.Ident) -> None:
        guess = self.names.guess(ident.text, self.names.likely("dim", "labels"))
        remedy = f"did you mean `{guess}`?" if guess else f"declare it: `dim {ident.text}`"
        self.complain("E0204", ident.span, name=ident.text, help=remedy, notes=self.declared_here(guess or ""))
        if not guess:
            self.names.poison(ident.text)

    # ------------------------------------------------------------------------------------------------------------ types

    def axes(self, nodes: Sequence[t.Axis], element: str = REAL) -> tuple[Axis, ...] | None:
        """Check a list of axes, those of `element` where they belong to a type."""
        extents = [self.extent(node.extent) for node in nodes]
        made = [
            Axis(extent, node.role.text if node.role else None)
            for node, extent in zip(nodes, extents, strict=True)
            if extent
        ]
        if len(made) < len(nodes) or not self._told_apart(nodes, made, element) or not self._nested_after(nodes, made):
            return None
        return tuple(made)

    def _told_apart(self, nodes: Sequence[t.Axis], axes: list[Axis], element: str) -> bool:
        """Whether axes over the same dim or label set have different roles."""
        for place, (node, axis) in enumerate(zip(nodes, axes, strict=True)):
            twins = [i for i, other in enumerate(axes) if other.extent == axis.extent and i != place]
            if axis.extent.kind == "number" or not twins:
                continue
            type_ = TensorType(element, tuple(axes))
            if axis.role is None:
                self.complain("E0202", node.span, type=type_, extent=axis.extent)
                return False
            if any(axes[twin].role == axis.role for twin in twins if twin < place):
                self.complain("E0224", node.span, type=type_, extent=axis.extent, role=axis.role)
                return False
        return True

    def _nested_after(self, nodes: Sequence[t.Axis], axes: list[Axis]) -> bool:
        """Whether an axis over a nested dim comes after one over the dim that it is nested in."""
        before: set[str] = set()
        for node, axis in zip(nodes, axes, strict=True):
            dim = self.dims.get(axis.extent.name) if axis.extent.kind == "dim" else None
            if dim is not None and dim.kind == "nested" and dim.within not in before:
                note = Note(f"`{dim.name}` has one size for each position of `{dim.within}`", dim.span)
                remedy = f"write `{dim.within}, {dim.name}`"
                problem = f"an axis over `{dim.within}` must come before it"
                self.complain("E0205", node.span, extent=axis.extent, notes=[note], help=remedy, problem=problem)
                return False
            before.add(axis.extent.name)
        return True

    def tensor_type(self, node: t.Type) -> TensorType | None:
        """Check a type whose elements are reals or labels."""
        element = node.element.text
        sound = self._element(node)
        axes = self.axes(node.axes, element)
        return TensorType(element, axes) if sound and axes is not None else None

    def _element(self, node: t.Type) -> bool:
        element = node.element.text
        if element in self.names.poisoned:
            return False
        if element == "edge":
            self.complain("E0203", node.span, problem="only an input can be a list of edges")
            return False
        if element != REAL and element not in self.names.table:
            guess = self.names.guess(element, [REAL, *self.names.likely("labels")])
            remedy = f"did you mean `{guess}`?" if guess else f"declare it: `labels {element} = {{...}}`"
            notes = self.declared_here(guess or "")
            self.complain("E0201", node.element.span, name=element, help=remedy, notes=notes)
            if not guess:
                self.names.poison(element)
            return False
        if element != REAL and self.names.find(node.element, "labels") is None:
            return False
        if node.parameters:
            self.complain("E0228", node.span, name=element)
            return False
        return True


def _shifted(name: str, offset: int) -> str:
    return f"{name}{offset:+d}"

"""What checking knows so far: the report, the names, and the declarations behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from energyml import errors
from energyml.cards import registry
from energyml.cards.card import Card, CardKind, Selection
from energyml.cards.options import BadOption
from energyml.diagnostics import Note, Report, Span, did_you_mean, join_names
from energyml.model.declared import Dim, Input, LabelSet, Let, Net, Param, Variable
from energyml.model.names import Names
from energyml.model.types import Axis, Extent, TensorType
from energyml.syntax import tree as t

_KIND_TITLES = {
    "net": "network", "backend": "inference backend", "objective": "training objective", "reader": "data reader",
    "init": "initial value", "stop": "stop rule", "balance": "balance",
}  # fmt: skip


@dataclass
class Context:
    """The state of one check; also the `Surroundings` that option values are read in."""

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

    def complain(self, code: str, span: Span | None, *, notes: Iterable[Note] = (), help: str | None = None, **facts: object) -> None:
        """Report a finding in the catalogue's wording."""
        self.report.add(errors.diagnostic(code, span, notes=notes, help=help, **facts))

    # ------------------------------------------------------------------------------------------------- types and axes

    def extent(self, node: t.Extent) -> Extent | None:
        """Check an extent."""
        if node.name is None:
            if node.offset < 1:
                self.complain("E0205", node.span, extent=node.offset, problem="a size is at least 1")
                return None
            return Extent("number", "", node.offset)
        name = node.name.text
        entry = self.names.table.get(name)
        if entry is None or entry.kind not in ("labels", "dim"):
            self._unknown_extent(node.name, entry is not None)
            return None
        self.names.used.add(name)
        if entry.kind == "labels":
            if node.offset:
                self.complain("E0205", node.span, extent=f"{name}{node.offset:+d}", problem="a label set has no offset")
                return None
            return Extent("labels", name)
        if node.offset > 0:
            self.complain("E0205", node.span, extent=f"{name}{node.offset:+d}", problem="an axis cannot be longer than its dim")
            return None
        return Extent("dim", name, node.offset)

    def _unknown_extent(self, ident: t.Ident, exists: bool) -> None:
        if ident.text in self.names.poisoned:
            return
        if exists:
            self.names.find(ident, "dim", "labels")
            return
        guess = did_you_mean(ident.text, self.names.of_kind("dim", "labels"))
        notes = [Note(f"`{guess}` is declared here", self.names.table[guess].span)] if guess else []
        remedy = f"did you mean `{guess}`?" if guess else f"declare it: `dim {ident.text}`"
        self.complain("E0204", ident.span, name=ident.text, help=remedy, notes=notes)

    def axes(self, nodes: tuple[t.Axis, ...]) -> tuple[Axis, ...] | None:
        """Check a list of axes; part of `Surroundings`."""
        axes: list[Axis] = []
        for node in nodes:
            extent = self.extent(node.extent)
            if extent is None:
                return None
            axes.append(Axis(extent, node.role.text if node.role else None))
        return tuple(axes)

    def tensor_type(self, node: t.Type) -> TensorType | None:
        """Check a type whose elements are reals or labels."""
        if node.parameters:
            self.complain("E0201", node.span, name=f"{node.element.text}(...)")
            return None
        element = node.element.text
        if element != "real":
            entry = self.names.table.get(element)
            if element in self.names.poisoned:
                return None
            if entry is None:
                guess = did_you_mean(element, ["real", *self.names.of_kind("labels")])
                remedy = f"did you mean `{guess}`?" if guess else f"declare it: `labels {element} = {{...}}`"
                self.complain("E0201", node.element.span, name=element, help=remedy)
                return None
            if entry.kind != "labels":
                self.names.find(node.element, "labels")
                return None
            self.names.used.add(element)
        axes = self.axes(node.axes)
        if axes is None:
            return None
        self._equal_axes(node, TensorType(element, axes))
        return TensorType(element, axes)

    def _equal_axes(self, node: t.Type, made: TensorType) -> None:
        seen: set[tuple[str, str | None]] = set()
        for axis_node, axis in zip(node.axes, made.axes, strict=True):
            if axis.extent.kind == "number":
                continue
            twins = [other for other in made.axes if other.extent == axis.extent]
            repeated = (str(axis.extent), axis.role) in seen
            if len(twins) > 1 and (axis.role is None or repeated):
                self.complain("E0202", axis_node.span, type=made, extent=axis.extent)
                return
            seen.add((str(axis.extent), axis.role))

    # ------------------------------------------------------------------------------------------------------- options

    def select(self, kind: str, value: t.Value) -> Selection | None:
        """Check a nested choice; part of `Surroundings`."""
        if isinstance(value, t.Call):
            return self.selection(kind, value.function, value.arguments, value.span)  # type: ignore[arg-type]
        assert isinstance(value, t.Name)
        return self.selection(kind, value, (), value.span)  # type: ignore[arg-type]

    def selection(
        self, kind: CardKind, name: t.Name | t.Ident, arguments: Sequence[t.Value | t.Option], span: Span
    ) -> Selection | None:
        """Check a card's name and its options."""
        card = registry.find(kind, name.text)
        if card is None:
            known = [known.name for known in registry.every(kind)]
            guess = did_you_mean(name.text, known)
            remedy = f"did you mean `{guess}`?" if guess else f"known: {join_names(known, 'and')}"
            self.complain("E0401", name.span, kind=_KIND_TITLES.get(kind, kind), name=name.text, help=remedy)
            return None
        options = self.options(card, arguments, span)
        return None if options is None else Selection(card, options)

    def options(self, card: Card, arguments: Sequence[t.Value | t.Option], span: Span) -> dict[str, Any] | None:
        """Check the options of a card; every bad one is reported."""
        given: dict[str, Any] = {}
        sound = True
        position = 0
        free = getattr(card, "any_options", False)
        for argument in arguments:
            if isinstance(argument, t.Option):
                key, value, place = argument.key.text, argument.value, argument.key.span
            elif position < card.positional:
                key, value, place = card.options[position].name, argument, argument.span
                position += 1
            else:
                expected = f"at most {card.positional} values" if card.positional else "no value"
                self.complain("E0405", argument.span, card=card.name, expected=expected, found="another one",
                              help=self._positional_hint(card))  # fmt: skip
                sound = False
                continue
            if key in given:
                self.complain("E0406", place, option=key)
                sound = False
                continue
            given[key], fine = self._read_option(card, key, value, place, free)
            sound = sound and fine
        for option in card.options:
            if option.required and option.name not in given:
                self.complain("E0404", span, card=card.name, option=option.name, summary=option.summary)
                sound = False
        return given if sound else None

    def _positional_hint(self, card: Card) -> str:
        return f"write `key: value`; options: {join_names([o.name for o in card.options], 'and')}" if card.options else ""

    def _read_option(self, card: Card, key: str, value: t.Value, place: Span, free: bool) -> tuple[Any, bool]:
        option = card.option(key)
        if option is None and free:
            return self._free_option(key, value)
        if option is None:
            known = [o.name for o in card.options]
            guess = did_you_mean(key, known)
            listed = f"its options are {join_names(known, 'and')}" if known else "it takes no options"
            self.complain("E0402", place, card=card.name, option=key, help=f"did you mean `{guess}`?" if guess else listed)
            return None, False
        try:
            result = option.type.read(value, Around(self))
        except BadOption as problem:
            self.complain("E0403", problem.span, option=key, expected=problem.expected, found=problem.found, help=problem.help)
            return None, False
        for name in _names_in(value):
            self.names.used.add(name)
        return result, result is not None

    def _free_option(self, key: str, value: t.Value) -> tuple[Any, bool]:
        """An option that is passed on to Python: a number, a string, a truth value or a label set's name."""
        from energyml.cards.options import constant

        number = constant(value)
        if number is not None:
            return number, True
        if isinstance(value, t.String):
            return value.value, True
        if isinstance(value, t.Name):
            self.names.used.add(value.text)
            return {"true": True, "false": False}.get(value.text, value.text), True
        self.complain("E0403", value.span, option=key, expected="a number, a string, a word or `true`/`false`", found="an expression", help="")
        return None, False

    # ---------------------------------------------------------------------------------------------- Surroundings.names

    def names_of(self, kind: str) -> list[str]:
        """The names of a kind; `variable` covers outputs, latents and fields."""
        if kind == "term":
            return list(self.term_names)
        kinds = ("output", "latent", "field") if kind == "variable" else (kind,)
        return self.names.of_kind(*kinds)


class Around:
    """A `Surroundings` for option values: a context under the protocol's names."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def names(self, kind: str) -> Iterable[str]:
        """The declared names of a kind."""
        return self.context.names_of(kind)

    def select(self, kind: str, value: t.Value) -> Any:
        """A nested choice."""
        return self.context.select(kind, value)

    def axes(self, axes: tuple[t.Axis, ...]) -> Any:
        """A list of axes."""
        return self.context.axes(axes)


def _names_in(value: t.Value) -> Iterable[str]:
    if isinstance(value, t.Name):
        yield value.text
    elif isinstance(value, t.Axes):
        yield from (axis.extent.name.text for axis in value.axes if axis.extent.name)

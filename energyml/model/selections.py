"""Cards that a spec names, with their options: one set of rules for networks, choices and what is nested in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from energyml.cards import registry
from energyml.cards.card import Card, CardKind, Selection
from energyml.cards.groups import GroupOf
from energyml.cards.options import BadOption, NameOf, Option, constant, found
from energyml.diagnostics import Span, join_names
from energyml.model.context import Context
from energyml.syntax import tree as t

_KIND_TITLES = {
    "net": "network", "backend": "inference backend", "objective": "training objective", "reader": "data reader",
    "init": "initial value", "stop": "stop rule", "mixing": "mixing rule",
}  # fmt: skip
_COUNTS = ("no value", "one value", "two values")

Argument = t.Value | t.Option


class Around:
    """A `Surroundings` for option values: a context under the protocol's names."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def names(self, kind: str) -> Iterable[str]:
        """The declared names of a kind; `label` gives the labels of all outputs, where they are known."""
        return _known_labels(self.context) if kind == "label" else self.context.names_of(kind)

    def select(self, kind: str, value: t.Value) -> Selection | None:
        """A nested choice."""
        return select(self.context, cast("CardKind", kind), value)

    def axes(self, axes: tuple[t.Axis, ...]) -> Any:
        """A list of axes."""
        return self.context.axes(axes)


def _known_labels(context: Context) -> list[str]:
    label_sets = [context.label_sets.get(v.type.element) for v in context.variables.values() if v.kind != "field"]
    if any(labels is None or labels.labels is None for labels in label_sets):
        return []
    return [label for labels in label_sets if labels is not None for label in labels.labels or ()]


def select(context: Context, kind: CardKind, value: t.Value) -> Selection | None:
    """Check a card that is written as a name or a call."""
    if isinstance(value, t.Call):
        return selection(context, kind, value.function, value.arguments)
    assert isinstance(value, t.Name)
    return selection(context, kind, value, ())


def selection(
    context: Context, kind: CardKind, name: t.Name | t.Ident, arguments: Sequence[Argument]
) -> Selection | None:
    """Check a card's name and its options."""
    card = registry.find(kind, name.text)
    if card is None:
        known = [known.name for known in registry.every(kind)]
        guess = context.names.guess(name.text, known)
        remedy = f"did you mean `{guess}`?" if guess else f"known: {join_names(known, 'and')}"
        context.complain("E0401", name.span, kind=_KIND_TITLES.get(kind, kind), name=name.text, help=remedy)
        return None
    read = options(context, card, arguments, name.span)
    return None if read is None else Selection(card, read)


def options(context: Context, card: Card, arguments: Sequence[Argument], span: Span) -> dict[str, Any] | None:
    """Check the options of a card; every bad one is reported, and `None` returned if there is any."""
    given: dict[str, Any] = {}
    keys: dict[str, Span] = {}
    sound, misplaced = True, False
    for key, value, place in _with_keys(context, card, arguments):
        if key is None:
            sound, misplaced = False, True
        elif key in keys:
            context.complain("E0406", place, option=key)
            sound = False
        else:
            keys[key] = place
            given[key] = _read(context, card, key, value, place)
            sound = sound and given[key] is not None
    missing = [option for option in card.options if option.required and option.name not in keys]
    if missing and not misplaced:
        _missing(context, card, missing, span)
        sound = False
    return given if sound else None


def _listed(card: Card) -> str:
    names = [option.name for option in card.options]
    if not names:
        return "it takes no options"
    return f"its option{'s are' if len(names) > 1 else ' is'} {join_names(names, 'and')}"


def _missing(context: Context, card: Card, missing: list[Option], span: Span) -> None:
    names = join_names([option.name for option in missing], "and")
    options = f"option{'s' if len(missing) > 1 else ''} {names}"
    written = ", ".join(f"{option.name}: ..." for option in missing)
    remedy = f"write `{card.name}({written})`"
    if len(missing) == 1:
        remedy += f", {missing[0].summary}"
    context.complain("E0404", span, card=card.name, options=options, help=remedy)


def _with_keys(
    context: Context, card: Card, arguments: Sequence[Argument]
) -> Iterable[tuple[str | None, t.Value, Span]]:
    """Each argument with its key and its place; a value too many is reported and has no key."""
    position = 0
    for argument in arguments:
        if isinstance(argument, t.Option):
            yield argument.key.text, argument.value, argument.key.span
        elif position < card.positional:
            yield card.options[position].name, argument, argument.span
            position += 1
        else:
            remedy = f"write `key: value`; {_listed(card)}" if card.options else _listed(card)
            count = _COUNTS[card.positional] if card.positional < len(_COUNTS) else f"{card.positional} values"
            context.complain("E0405", argument.span, card=card.name, count=count, help=remedy)
            yield None, argument, argument.span
            return


def _read(context: Context, card: Card, key: str, value: t.Value, place: Span) -> Any:
    """The value of an option, or `None` after a complaint."""
    option = card.option(key)
    if option is None:
        if getattr(card, "any_options", False):
            return _passed_on(context, key, value)
        known = [option.name for option in card.options]
        guess = context.names.guess(key, known)
        remedy = f"did you mean `{guess}`?" if guess else _listed(card)
        context.complain("E0402", place, card=card.name, option=key, help=remedy)
        return None
    try:
        result = option.type.read(value, Around(context))
    except BadOption as problem:
        if not (context.incomplete and isinstance(option.type, NameOf | GroupOf)):
            context.complain(
                "E0403", problem.span, help=problem.help, option=key, expected=problem.expected, found=problem.found
            )
        return None
    context.names.used.update(_names_in(value))
    return result


def _passed_on(context: Context, key: str, value: t.Value) -> Any:
    """An option that is passed on to Python: a number, a string, a truth value or a word."""
    number = constant(value)
    if number is not None:
        return number
    if isinstance(value, t.String):
        return value.value
    if isinstance(value, t.Name):
        context.names.used.add(value.text)
        return {"true": True, "false": False}.get(value.text, value.text)
    expected = "a number, a string, a word or `true`/`false`"
    context.complain("E0403", value.span, option=key, expected=expected, found=found(value))
    return None


def _names_in(value: t.Value) -> Iterable[str]:
    if isinstance(value, t.Name):
        yield value.text
    elif isinstance(value, t.Axes):
        yield from (axis.extent.name.text for axis in value.axes if axis.extent.name)

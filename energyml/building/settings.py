"""Python values as options: numbers, words, texts, nested choices.

A Python string can mean a word (`attention: bahdanau`) or a text (`columns: 'word y'`).  The card of what is chosen
knows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, cast

from energyml.building.parts import (
    Part,
    call,
    common_home,
    ident,
    is_number,
    is_word,
    key,
    name_of,
    number,
    string,
    wrong,
)
from energyml.building.tensors import Expression, Net, Variable
from energyml.building.types import Dim, Labels, Setting
from energyml.cards import registry
from energyml.cards.card import CardKind
from energyml.cards.options import AnyOf, CardOf, Label, OptionType, Text, Word
from energyml.diagnostics import NOWHERE
from energyml.syntax import tree as t


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(Part):
    """A name with options, `adam(lr: 0.001)`: what it means depends on the option that it is given to."""

    kind = "choice"
    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        given = [*map(repr, self.arguments), *(f"{key}={value!r}" for key, value in self.options.items())]
        return f"{self.name}({', '.join(given)})"


def choose(name: str, /, *arguments: Any, **options: Any) -> Chosen:
    """A choice inside another one: `optimizer=em.choose("adam", lr=1e-3)`."""
    word = ident(name, "the name of a choice").text
    return Chosen(common_home(arguments, options), word, arguments, options)


def spread(low: float, high: float) -> Setting:
    """A range of numbers, `low..high`."""
    return Setting(None, t.Range(NOWHERE, _end(low, "em.spread"), _end(high, "em.spread")))


def schedule(first: float, last: float) -> Setting:
    """A number that moves during training or sampling, `first -> last`."""
    return Setting(None, t.Schedule(NOWHERE, _end(first, "em.schedule"), _end(last, "em.schedule")))


def _end(value: float, place: str) -> t.Value:
    if not is_number(value):
        raise wrong(f"`{place}`", "two numbers", value)
    return number(value, f"`{place}`")


def arguments(
    kind: CardKind | None, name: str, positional: Sequence[Any], options: Mapping[str, Any]
) -> tuple[tuple[t.Value, ...], tuple[t.Option, ...]]:
    """Positional and keyword arguments of something named, as values and options; `kind` None takes texts only."""
    card = registry.find(kind, name) if kind is not None else None
    free = Text() if kind is None or getattr(card, "any_options", False) else None
    types: dict[str, OptionType] = {option.name: option.type for option in card.options} if card else {}
    by_position = list(types.values())[: card.positional] if card else []
    placed = [
        setting(value, wanted or free, f"an argument of `{name}`")
        for value, wanted in zip_longest(positional, by_position[: len(positional)])
    ]
    keyed = [_option(word, value, types.get(word, free), f"`{name}`") for word, value in options.items()]
    return tuple(placed), tuple(keyed)


def _option(word: str, value: Any, wanted: OptionType | None, place: str) -> t.Option:
    return t.Option(NOWHERE, key(word, f"a key of {place}"), setting(value, wanted, f"`{word}` of {place}"))


def setting(value: Any, wanted: OptionType | None, place: str) -> t.Value:
    """The value of an option."""
    match value:
        case bool():
            return t.Name(NOWHERE, "true" if value else "false")
        case str():
            return t.Name(NOWHERE, value) if _is_bare(value, wanted) else string(value, place)
        case Chosen():
            placed, keyed = arguments(_card_kind(value.name, wanted), value.name, value.arguments, value.options)
            return call(value.name, (*placed, *keyed)) if placed or keyed else t.Name(NOWHERE, value.name)
        case Labels() | Net() | Dim():
            return name_of(value.name)
        case Variable():
            return name_of(value.node.variable)
        case Setting() | Expression():
            return value.node
        case Mapping():
            return t.Block(NOWHERE, tuple(_option(word, item, None, place) for word, item in value.items()))
    if is_number(value):
        return number(value, place)
    raise wrong(place, "a number, a string, a truth value, a declared name, `em.choose(...)` or a dict", value)


def _is_bare(text: str, wanted: OptionType | None) -> bool:
    """Whether a string stands for a word of the language rather than for a text in quotes."""
    if not all(map(is_word, text.split("."))):
        return False
    types = _alternatives(wanted)
    if not any(isinstance(one, Text | Label) for one in types):
        return True
    words = [word for one in types if isinstance(one, Word) for word in one.words]
    return text in words or any(registry.find(kind, text) for kind in _card_kinds(types))


def _card_kind(name: str, wanted: OptionType | None) -> CardKind | None:
    kinds = list(_card_kinds(_alternatives(wanted)))
    return next((kind for kind in kinds if registry.find(kind, name)), kinds[0] if kinds else None)


def _card_kinds(types: Iterable[OptionType]) -> Iterable[CardKind]:
    return (cast("CardKind", one.kind) for one in types if isinstance(one, CardOf))


def _alternatives(wanted: OptionType | None) -> tuple[OptionType, ...]:
    if isinstance(wanted, AnyOf):
        return tuple(inner for one in wanted.types for inner in _alternatives(one))
    return () if wanted is None else (wanted,)

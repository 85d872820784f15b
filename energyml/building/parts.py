"""What every part of a built spec is made of: the builder it belongs to, words, numbers, and how misuse is said."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

from energyml.diagnostics import NOWHERE, EnergyError
from energyml.grammar import STATEMENT_WORDS
from energyml.syntax import spelling
from energyml.syntax import tree as t

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """Base: something that belongs to a builder, or to none if it is made of numbers and words alone."""

    kind: ClassVar[str] = "part"
    home: object | None


P = TypeVar("P", bound=Part)


def wrong(place: str, expected: str, found: object) -> TypeError:
    """A Python object where another kind of object belongs."""
    return TypeError(f"{place}: expected {expected}, found {described(found)}")


def described(found: object) -> str:
    """An object in a message."""
    if isinstance(found, Part):
        return f"the {found.kind} `{found!r}`"
    return f"{reprlib.repr(found)} ({type(found).__name__})"


def required(kind: type[P], given: object, place: str, example: str = "") -> P:
    """An argument that must be a part of one kind."""
    if not isinstance(given, kind):
        article = "an" if kind.kind[0] in "aeiou" else "a"
        raise wrong(place, f"{article} {kind.kind}" + (f" such as `{example}`" if example else ""), given)
    return given


def all_parts(given: object) -> Iterator[Part]:
    """The parts inside an argument, at any depth of lists, mappings and slices."""
    match given:
        case Part():
            yield given
        case Mapping():
            yield from all_parts(list(given.values()))
        case list() | tuple():
            for item in given:
                yield from all_parts(item)
        case slice():
            yield from all_parts(given.stop)


def common_home(*given: object) -> object | None:
    """The builder that all parts of some arguments belong to."""
    home: object | None = None
    for part in all_parts(given):
        if part.home is not None and home is not None and part.home is not home:
            raise EnergyError(f"{described(part)} belongs to another builder than what it is combined with")
        home = home if part.home is None else part.home
    return home


def is_word(text: str) -> bool:
    """Whether a text is a name of the language."""
    return _WORD.fullmatch(text) is not None and text not in STATEMENT_WORDS


def ident(text: object, place: str) -> t.Ident:
    """A name."""
    if not isinstance(text, str):
        raise wrong(place, "a name", text)
    if not is_word(text):
        why = "it is a word of the language" if text in STATEMENT_WORDS else "a name is letters, digits and _"
        raise EnergyError(f"{place}: {text!r} cannot be a name: {why}")
    return t.Ident(NOWHERE, text)


def key(text: object, place: str) -> t.Ident:
    """A role or the key of an option: any text that can be written."""
    return t.Ident(NOWHERE, string(text, place).value)


def string(text: object, place: str) -> t.String:
    """A text in quotes."""
    if not isinstance(text, str):
        raise wrong(place, "a string", text)
    if not spelling.has_spelling(text):
        raise EnergyError(f"{place}: {text!r} cannot be written: it has a line break, or both kinds of quotes")
    return t.String(NOWHERE, text)


def number(value: Any, place: str) -> t.Value:
    """A number; numpy's are as good as Python's."""
    made = int(value) if isinstance(value, Integral) else float(value)
    if not math.isfinite(made):
        raise EnergyError(f"{place}: {made} is no number of the language")
    if made < 0 or (isinstance(made, float) and math.copysign(1, made) < 0):
        return t.Signed(NOWHERE, "-", t.Number(NOWHERE, repr(-made), -made))
    return t.Number(NOWHERE, repr(made), made)


def is_number(value: object) -> bool:
    """Whether an object is a number; truth values are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(value: object, place: str) -> int:
    """A whole number."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise wrong(place, "a whole number", value)


def size(value: object, place: str) -> int:
    """A whole number of at least 1."""
    made = whole(value, place)
    if made < 1:
        raise EnergyError(f"{place}: a size is at least 1, found {made}")
    return made


def name_of(node: t.Ident) -> t.Name:
    """A declared name as a value."""
    return t.Name(NOWHERE, node.text)


def call(function: str, arguments: Iterable[t.Value | t.Option]) -> t.Call:
    """`function(argument, ...)`."""
    return t.Call(NOWHERE, t.Name(NOWHERE, function), tuple(arguments))


def shifted(name: t.Ident | None, offset: int) -> str:
    """A name plus a constant: `t+1`."""
    if name is None:
        return str(offset)
    return f"{name.text}{offset:+d}" if offset else name.text


def listed(given: object, place: str, of: str) -> Sequence[Any]:
    """A list or tuple: nothing else that happens to be iterable."""
    if not isinstance(given, list | tuple):
        raise wrong(place, f"a list of {of}", given)
    return given

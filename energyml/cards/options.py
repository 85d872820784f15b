"""Typed options: one set of rules for the file, the command line and Python.

An `OptionType` reads a value of the syntax tree and returns a plain Python value, or raises `BadOption` with what was
expected.  What a name in a value refers to (a label set, a network, a term) is asked of a `Surroundings`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from energyml.diagnostics import Span, did_you_mean, join_names
from energyml.syntax import spelling
from energyml.syntax import tree as t


class BadOption(Exception):
    """A value that an option does not take."""

    def __init__(self, span: Span, expected: str, found: str, help: str = "") -> None:
        self.span, self.expected, self.found, self.help = span, expected, found, help
        super().__init__(f"expected {expected}, found {found}")


class Surroundings(Protocol):
    """What an option's value may refer to."""

    def names(self, kind: str) -> Iterable[str]:
        """The declared names of a kind: `labels`, `dim`, `net`, `term`, `input`, `variable`; `label` gives labels."""

    def select(self, kind: str, value: t.Value) -> Any:
        """Check a nested choice such as `adam(lr: 0.1)` against the cards of a kind."""

    def axes(self, axes: tuple[t.Axis, ...]) -> Any:
        """Check a list of axes."""


@dataclass(frozen=True)
class OptionType(ABC):
    """Base: a description for messages, and a reader."""

    @abstractmethod
    def describe(self) -> str:
        """What the option takes, for people."""

    @abstractmethod
    def read(self, value: t.Value, around: Surroundings) -> Any:
        """The plain value, or `BadOption`."""


def constant(value: t.Value) -> int | float | None:
    """The number that a value without names stands for, or `None`."""
    match value:
        case t.Number(value=number):
            return number
        case t.Group(inner=inner):
            return constant(inner)
        case t.Signed(operator=operator, operand=operand):
            inner_number = constant(operand)
            return None if inner_number is None else (-inner_number if operator == "-" else inner_number)
        case t.Power(base=base, exponent=exponent):
            return _power(constant(base), exponent)
        case t.Chained(operands=operands, operators=operators):
            return _chain([constant(operand) for operand in operands], operators)
    return None


def _power(base: int | float | None, exponent: int | float) -> int | float | None:
    if base is None or abs(exponent) > 1024:
        return None
    try:
        result = float(base) ** exponent
    except (OverflowError, ZeroDivisionError):
        return None
    if isinstance(result, complex) or not math.isfinite(result):
        return None
    return int(result) if isinstance(base, int) and exponent >= 0 and float(result).is_integer() else result


def _chain(numbers: list[int | float | None], operators: tuple[str, ...]) -> int | float | None:
    total = numbers[0]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if total is None or number is None or (operator == "/" and number == 0):
            return None
        if operator == "+":
            total = total + number
        elif operator == "-":
            total = total - number
        elif operator == "*":
            total = total * number
        else:
            total = total / number
    return total if total is None or math.isfinite(total) else None


LONGEST_EXCERPT = 40


def found(value: t.Value) -> str:
    """A value in an error message."""
    match value:
        case t.String(value=text):
            return f"the string {spelling.quoted(text)}" if len(text) <= LONGEST_EXCERPT else "a long string"
        case t.Call(function=function):
            return f"a call of `{function.text}`"
        case t.Block():
            return "a block"
        case t.Subscript():
            return "a subscript"
    text = _written(value)
    return f"`{text}`" if text and len(text) <= LONGEST_EXCERPT else "an expression"


def _written(value: t.Value | t.Axis) -> str:
    """A short value as it was written; empty when it has parts that are not short."""
    match value:
        case t.Number(text=text) | t.Name(text=text):
            return text
        case t.Signed(operator=operator, operand=operand):
            return _joined(operator, operand)
        case t.Group(inner=inner):
            return _joined("(", inner, ")")
        case t.Range(low=low, high=high):
            return _joined(low, "..", high)
        case t.Schedule(first=first, last=last):
            return _joined(first, " -> ", last)
        case t.Power(base=base, exponent=exponent):
            return _joined(base, f"^{spelling.number(exponent)}")
        case t.Chained(operands=operands, operators=operators):
            parts: list[t.Value | str] = [operands[0]]
            for operator, operand in zip(operators, operands[1:], strict=True):
                parts += [f" {operator} ", operand]
            return _joined(*parts)
    return ""


def _joined(*parts: t.Value | str) -> str:
    written = [part if isinstance(part, str) else _written(part) for part in parts]
    return "".join(written) if all(written) else ""


@dataclass(frozen=True)
class Whole(OptionType):
    """A whole number within bounds."""

    low: int = 1
    high: int | None = None

    def describe(self) -> str:
        """What the option takes."""
        return "a whole number" + _bounds(self.low, self.high)

    def read(self, value: t.Value, around: Surroundings) -> int:
        """The number."""
        number = constant(value)
        if not isinstance(number, int) or number < self.low or (self.high is not None and number > self.high):
            raise BadOption(value.span, self.describe(), found(value))
        return number


@dataclass(frozen=True)
class Real(OptionType):
    """A real number within bounds."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False

    def describe(self) -> str:
        """What the option takes."""
        if self.open_low and self.low is not None and self.high is None:
            return f"a number above {self.low:g}"
        return "a number" + _bounds(self.low, self.high)

    def read(self, value: t.Value, around: Surroundings) -> float:
        """The number."""
        number = constant(value)
        if number is None or not self._inside(number):
            raise BadOption(value.span, self.describe(), found(value))
        return float(number)

    def _inside(self, number: float) -> bool:
        if self.low is not None and (number < self.low or (self.open_low and number == self.low)):
            return False
        return self.high is None or number <= self.high


@dataclass(frozen=True)
class Flag(OptionType):
    """`true` or `false`."""

    def describe(self) -> str:
        """What the option takes."""
        return "`true` or `false`"

    def read(self, value: t.Value, around: Surroundings) -> bool:
        """The truth value."""
        if isinstance(value, t.Name) and value.text in ("true", "false"):
            return value.text == "true"
        raise BadOption(value.span, self.describe(), found(value))


@dataclass(frozen=True)
class Word(OptionType):
    """One of a few words."""

    words: tuple[str, ...]

    def describe(self) -> str:
        """What the option takes."""
        return join_names(self.words)

    def read(self, value: t.Value, around: Surroundings) -> str:
        """The word."""
        if isinstance(value, t.Name) and value.text in self.words:
            return value.text
        text = value.text if isinstance(value, t.Name) else value.value if isinstance(value, t.String) else ""
        guess = did_you_mean(text, self.words) if text else None
        raise BadOption(value.span, self.describe(), found(value), f"did you mean `{guess}`?" if guess else "")


@dataclass(frozen=True)
class Text(OptionType):
    """A quoted string."""

    def describe(self) -> str:
        """What the option takes."""
        return "a string in quotes"

    def read(self, value: t.Value, around: Surroundings) -> str:
        """The string's text."""
        if isinstance(value, t.String):
            return value.value
        help_text = f"write '{value.text}'" if isinstance(value, t.Name) else ""
        raise BadOption(value.span, self.describe(), found(value), help_text)


@dataclass(frozen=True)
class Label(OptionType):
    """One label: a word or a quoted string."""

    def describe(self) -> str:
        """What the option takes."""
        return "a label"

    def read(self, value: t.Value, around: Surroundings) -> str:
        """The label's text."""
        if isinstance(value, t.String):
            return value.value
        if isinstance(value, t.Name) and "." not in value.text:
            return value.text
        raise BadOption(value.span, self.describe(), found(value))


@dataclass(frozen=True)
class NameOf(OptionType):
    """The name of something that the file declares."""

    kind: str

    def describe(self) -> str:
        """What the option takes."""
        return f"the name of a {self.kind}"

    def read(self, value: t.Value, around: Surroundings) -> str:
        """The name."""
        known = list(around.names(self.kind))
        if isinstance(value, t.Name) and value.text in known:
            return value.text
        guess = did_you_mean(value.text, known) if isinstance(value, t.Name) else None
        listed = f"declared: {join_names(known, 'and')}" if known else f"this file declares no {self.kind}"
        raise BadOption(value.span, self.describe(), found(value), f"did you mean `{guess}`?" if guess else listed)


@dataclass(frozen=True)
class Axes(OptionType):
    """The fixed axes of a result: a label set, a size, or a list of axes such as `[from: Tag, to: Tag]`."""

    def describe(self) -> str:
        """What the option takes."""
        return "a label set, a size, or a list of axes such as `[from: Tag, to: Tag]`"

    def read(self, value: t.Value, around: Surroundings) -> Any:
        """The axes, checked by the surroundings."""
        if isinstance(value, t.Axes):
            return around.axes(value.axes)
        if isinstance(value, t.Name):
            ident = t.Ident(value.span, value.text)
            return around.axes((t.Axis(value.span, None, t.Extent(value.span, ident, 0)),))
        if isinstance(value, t.Number) and isinstance(value.value, int) and value.value > 0:
            return around.axes((t.Axis(value.span, None, t.Extent(value.span, None, value.value)),))
        remedy = f"write `{value.value}` without quotes" if isinstance(value, t.String) else ""
        raise BadOption(value.span, self.describe(), found(value), remedy)


@dataclass(frozen=True)
class Spread:
    """The value of a range option."""

    low: float
    high: float


@dataclass(frozen=True)
class Annealed:
    """The value of a schedule option: it moves from `first` to `last` during training or sampling."""

    first: float
    last: float


@dataclass(frozen=True)
class RangeOf(OptionType):
    """`low..high`."""

    inner: OptionType

    def describe(self) -> str:
        """What the option takes."""
        return f"a range `low..high`, each end {self.inner.describe()}"

    def read(self, value: t.Value, around: Surroundings) -> Spread:
        """Both ends."""
        if not isinstance(value, t.Range):
            raise BadOption(value.span, self.describe(), found(value))
        low, high = self.inner.read(value.low, around), self.inner.read(value.high, around)
        if low > high:
            raise BadOption(value.span, self.describe(), f"a range from {low:g} down to {high:g}")
        return Spread(low, high)


@dataclass(frozen=True)
class Scheduled(OptionType):
    """A number, or `first -> last`."""

    inner: OptionType

    def describe(self) -> str:
        """What the option takes."""
        return f"{self.inner.describe()}, or a schedule `first -> last`"

    def read(self, value: t.Value, around: Surroundings) -> Any:
        """The number, or the schedule."""
        if isinstance(value, t.Schedule):
            return Annealed(self.inner.read(value.first, around), self.inner.read(value.last, around))
        try:
            return self.inner.read(value, around)
        except BadOption as problem:
            ends = (_written(value.low), _written(value.high)) if isinstance(value, t.Range) else ()
            remedy = f"write `{' -> '.join(ends)}`" if all(ends) and ends else problem.help
            raise BadOption(problem.span, self.describe(), problem.found, remedy) from None


@dataclass(frozen=True)
class CardOf(OptionType):
    """A nested choice: a card's name with its own options."""

    kind: str

    def describe(self) -> str:
        """What the option takes."""
        article = "an" if self.kind[0] in "aeiou" else "a"
        return f"{article} {self.kind}"

    def read(self, value: t.Value, around: Surroundings) -> Any:
        """The selection."""
        if isinstance(value, t.Name | t.Call):
            return around.select(self.kind, value)
        help_text = f"write `{value.value}` without quotes" if isinstance(value, t.String) else ""
        raise BadOption(value.span, self.describe(), found(value), help_text)


@dataclass(frozen=True)
class Weights(OptionType):
    """`{label: number, ...}`; no number is negative."""

    def describe(self) -> str:
        """What the option takes."""
        return "a block `{label: number, ...}`"

    def read(self, value: t.Value, around: Surroundings) -> dict[str, float]:
        """The numbers by label."""
        if not isinstance(value, t.Block):
            raise BadOption(value.span, self.describe(), found(value))
        return {label: Real(0).read(option.value, around) for label, option in by_label(value, around)}


def by_label(block: t.Block, around: Surroundings) -> Iterator[tuple[str, t.Option]]:
    """The options of a block whose keys are labels, each once."""
    known = list(dict.fromkeys(around.names("label")))
    seen: set[str] = set()
    for option in block.options:
        key = option.key.text
        if known and key not in known:
            guess = did_you_mean(key, known)
            remedy = f"did you mean `{guess}`?" if guess else ""
            raise BadOption(option.key.span, "labels of an output", f"`{key}`", remedy)
        if key in seen:
            raise BadOption(option.key.span, "each label once", f"`{key}` again")
        seen.add(key)
        yield key, option


@dataclass(frozen=True)
class AnyOf(OptionType):
    """The first of several types that reads the value."""

    types: tuple[OptionType, ...]

    def describe(self) -> str:
        """What the option takes."""
        return " or ".join(kind.describe() for kind in self.types)

    def read(self, value: t.Value, around: Surroundings) -> Any:
        """The value by the first type that fits."""
        for kind in self.types:
            try:
                return kind.read(value, around)
            except BadOption:
                continue
        raise BadOption(value.span, self.describe(), found(value))


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()


@dataclass(frozen=True)
class Option:
    """An option of a card."""

    name: str
    type: OptionType
    default: Any = REQUIRED
    summary: str = ""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    def describe(self) -> str:
        """`name: type = default`."""
        shown = "" if self.required or self.default is None else f" = {show(self.default, self.type)}"
        return f"{self.name}: {self.type.describe()}{shown}"


def show(value: Any, kind: OptionType | None = None) -> str:
    """A checked value in the language's own spelling; the type of its option knows texts from words."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return spelling.number(value)
        case str():
            return spelling.quoted(value) if _wants_quotes(kind, value) else value
        case Spread(low=low, high=high):
            return f"{spelling.number(low)}..{spelling.number(high)}"
        case Annealed(first=first, last=last):
            return f"{spelling.number(first)} -> {spelling.number(last)}"
        case Mapping():
            return "{" + ", ".join(f"{spelling.key(key)}: {show(item)}" for key, item in value.items()) + "}"
        case (only,) if getattr(only, "stands_alone", False):
            return str(only)  # `out: Letter` for `out: [Letter]`
        case tuple():
            return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value)


def show_free(value: Any) -> str:
    """An option that is passed on to Python: texts have quotes, and 1.0 keeps its point."""
    if isinstance(value, str):
        return spelling.quoted(value)
    return repr(value) if isinstance(value, float) else show(value)


def _wants_quotes(kind: OptionType | None, value: str) -> bool:
    if isinstance(kind, AnyOf):
        word = any(isinstance(one, Word) and value in one.words for one in kind.types)
        return not word and any(_wants_quotes(one, value) for one in kind.types)
    return isinstance(kind, Text | Label)


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        return f" of at least {low:g}"
    return f" of at most {high:g}" if high is not None else ""

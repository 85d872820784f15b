"""Where a message points, what it says, and how it is drawn.

A `Diagnostic` is a value: a stable code, a message, the span it is about, notes that point at other places, a remedy.
Its wording comes from the catalogue in `energyml.errors`; this module only knows how to carry and to render it.
"""

from __future__ import annotations

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Severity = Literal["error", "warning"]

TAB_WIDTH = 4
LONGEST_LINE = 160
MANY_CANDIDATES = 1000
MOST_DRAWN = 200


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of character offsets in one source."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


NOWHERE = Span(0, 0)


@dataclass(frozen=True)
class Source:
    """A text with a name; knows lines and columns.  A leading byte-order mark is no part of the text."""

    name: str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line (counted from 1) without its line break."""
        start = self._line_starts[number - 1]
        end = self._line_starts[number] if number < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def excerpt(self, span: Span) -> str:
        """The text inside a span."""
        return self.text[span.start : span.end]


@dataclass(frozen=True, slots=True)
class Note:
    """A remark beside a diagnostic; with a span it points at another declaration."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a source.

    Attributes:
        code: a stable code such as ``E0201``; ``energyml explain-error`` has a page for it.
        message: one line, in the file's own names.
        span: the place, or ``None`` when the whole file is meant.
        label: a few words under the caret.
        notes: other places or facts involved.
        help: the likely fix.
        severity: an error stops the road, a warning does not.
    """

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    notes: tuple[Note, ...] = ()
    help: str = ""
    severity: Severity = "error"

    def as_json(self, source: Source) -> dict[str, Any]:
        """The diagnostic as plain data for editors: lines and columns count from 1, ends are exclusive."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "label": self.label,
            "range": _range(source, self.span),
            "notes": [{"message": note.message, "range": _range(source, note.span)} for note in self.notes],
            "help": self.help,
        }


def _range(source: Source, span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    (line, column), (end_line, end_column) = source.position(span.start), source.position(span.end)
    return {
        "file": source.name,
        "start": {"line": line, "column": column},
        "end": {"line": end_line, "column": end_column},
    }


class EnergyError(Exception):
    """Base of every error that energyml raises on purpose; its text is meant for people."""


class QueryRefused(EnergyError):
    """A query that a backend does not answer for a model, with the reason."""


class PackageMissing(EnergyError):
    """An optional package that is needed here and is not installed."""

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        remedy = f"pip install 'energyml[{extra}]'"
        super().__init__(f"{purpose} needs the package `{package}`, which is not installed: {remedy}")


class ShapeError(EnergyError, ValueError):
    """A tensor whose shape is not the one that is needed."""


class SpecError(EnergyError):
    """A spec that cannot be used, with all independent diagnostics about it."""

    def __init__(self, source: Source, diagnostics: Sequence[Diagnostic]) -> None:
        self.source = source
        self.diagnostics = tuple(diagnostics)
        super().__init__(render_all(source, self.diagnostics))


@dataclass
class Report:
    """Collects the diagnostics of one run over one source, in the order of their places."""

    source: Source
    found: list[Diagnostic] = field(default_factory=list)
    _seen: set[tuple[str, Span | None]] = field(default_factory=set, init=False, repr=False)

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep a diagnostic unless the same code was already reported at the same place."""
        key = (diagnostic.code, diagnostic.span)
        if key not in self._seen:
            self._seen.add(key)
            self.found.append(diagnostic)

    @property
    def errors(self) -> list[Diagnostic]:
        """Only the diagnostics that stop the road."""
        return [d for d in self.found if d.severity == "error"]

    def ordered(self) -> list[Diagnostic]:
        """All diagnostics by place."""
        return sorted(self.found, key=lambda d: (d.span or NOWHERE).start)

    def raise_errors(self) -> None:
        """Raise `SpecError` if any error was found."""
        if self.errors:
            raise SpecError(self.source, self.ordered())


# ----------------------------------------------------------------------------------------------------------- rendering


def render(source: Source, diagnostic: Diagnostic) -> str:
    """Draw one diagnostic as plain text with carets."""
    lines = [f"{diagnostic.severity}[{diagnostic.code}]: {_printable(diagnostic.message)}"]
    if diagnostic.span is not None:
        lines += _excerpt(source, diagnostic.span, diagnostic.label, "^")
    for note in diagnostic.notes:
        lines.append(f"note: {_printable(note.message)}")
        if note.span is not None:
            lines += _excerpt(source, note.span, "", "-")
    if diagnostic.help:
        lines.append(f"help: {_printable(diagnostic.help)}")
    return "\n".join(lines)


def render_all(source: Source, diagnostics: Iterable[Diagnostic]) -> str:
    """Draw many diagnostics, the first `MOST_DRAWN` of them, with a closing count of all."""
    drawn = list(diagnostics)
    errors = sum(d.severity == "error" for d in drawn)
    warnings = len(drawn) - errors
    counts = [_count(errors, "error")] if errors else []
    counts += [_count(warnings, "warning")] if warnings else []
    body = "\n\n".join(render(source, d) for d in drawn[:MOST_DRAWN])
    if len(drawn) > MOST_DRAWN:
        body += f"\n\nThe first {MOST_DRAWN} findings are shown; {len(drawn) - MOST_DRAWN} more follow."
    return f"{body}\n\n{source.name}: {', '.join(counts)}" if drawn else f"{source.name}: no errors"


def render_json(source: Source, diagnostics: Iterable[Diagnostic]) -> str:
    """All diagnostics of a source as one JSON document."""
    return json.dumps({"file": source.name, "diagnostics": [d.as_json(source) for d in diagnostics]}, indent=2)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _excerpt(source: Source, span: Span, label: str, mark: str) -> list[str]:
    line, column = source.position(span.start)
    end_line, end_column = source.position(span.end)
    text = source.line(line)
    last = end_column - 1 if end_line == line else len(text)
    width = max(1, last - (column - 1))
    text, column, width = _window(text, column, width)
    before = _printable(text[: column - 1])
    marked = _printable(text[column - 1 : column - 1 + width])
    shown = before + marked + _printable(text[column - 1 + width :])
    number = str(line)
    margin = " " * len(number)
    carets = " " * len(before) + mark * max(1, len(marked))
    if end_line != line:
        carets += "..."
    return [
        f"{margin}--> {source.name}:{line}:{source.position(span.start)[1]}",
        f"{margin} |",
        f"{number} | {shown}".rstrip(),
        f"{margin} | {carets}{' ' + label if label else ''}",
    ]


def _window(text: str, column: int, width: int) -> tuple[str, int, int]:
    """Cut a very long line down to the part around the mark."""
    if len(text) <= LONGEST_LINE:
        return text, column, width
    start = max(0, column - 1 - LONGEST_LINE // 2)
    cut = text[start : start + LONGEST_LINE]
    column -= start
    if start > 0:
        cut, column = "..." + cut[3:], max(column, 1)
    return cut, column, max(1, min(width, len(cut) - column + 1))


def _printable(text: str) -> str:
    expanded = text.replace("\t", " " * TAB_WIDTH)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in expanded)


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most like a word, if any is close enough to be what was meant."""
    known = list(dict.fromkeys(candidates))
    by_fold = {candidate.casefold(): candidate for candidate in known}
    if word.casefold() in by_fold:
        return by_fold[word.casefold()]
    if len(known) > MANY_CANDIDATES:
        known = [one for one in known if one[:1] == word[:1] and abs(len(one) - len(word)) <= 2]
    close = difflib.get_close_matches(word[:80], known, n=1, cutoff=0.6)
    return close[0] if close else None


def join_names(names: Iterable[str], conjunction: str = "or") -> str:
    """`a`, `b` or `c`, in backticks."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) <= 1:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {conjunction} {quoted[-1]}"

"""Files of numbers: fast to read, and exact about the place when something is wrong.

A file is parsed as a whole by NumPy, about 40 MB a second; where a number stands is only found out for a message.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt

from energyml import errors
from energyml.diagnostics import Note, Source, Span, SpecError
from energyml.driver import SpecFileError

Readable: TypeAlias = str | Path | IO[str] | IO[bytes]
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_NUMBER = rb"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"
_NO_NUMBER = re.compile(rb"(?<!\S)(?!" + _NUMBER + rb"(?!\S))\S+")
_LARGE_EXPONENT = re.compile(rb"[eE][-+]?\d{3}")
_WORD = re.compile(rb"\S+")
_COMMENT = re.compile(rb"#[^\n]*")
_LONGEST_SHOWN = 24
LARGEST = 2**53  # whole numbers up to here are exact
_SMALLEST = float(np.finfo(np.float64).tiny)


class ModelFileError(SpecError):
    """A file of numbers that cannot be used; the message shows the place."""


def read_bytes(source: Readable) -> tuple[str, bytes]:
    """The name of a file or stream for messages, and its bytes without a byte-order mark."""
    if isinstance(source, str | Path):
        try:
            return str(source), Path(source).read_bytes().removeprefix(b"\xef\xbb\xbf")
        except OSError as problem:
            raise SpecFileError(f"{source}: {(problem.strerror or str(problem)).lower()}") from problem
    text = source.read()
    name = getattr(source, "name", "<stream>")
    if isinstance(text, str):
        return str(name), text.removeprefix("\ufeff").encode("latin-1", "replace")  # a byte for each character
    return str(name), text.removeprefix(b"\xef\xbb\xbf")


def fail(name: str, raw: bytes, code: str, span: Span | None, notes: Iterable[Note] = (), **facts: object) -> SpecError:
    """The error about a place in a file."""
    help_text = facts.pop("help", None)
    found = errors.diagnostic(code, span, notes=notes, help=help_text, **facts)  # type: ignore[arg-type]
    return ModelFileError(Source(name, raw.decode("latin-1")), [found])


def first_word(name: str, raw: bytes, expected: str) -> re.Match[bytes]:
    """The first word of a text; a file without one, or that is no text, is refused."""
    word = _WORD.search(raw)
    if word is None:
        help_text = "the file is empty: is it the right one?"
        raise fail(name, raw, "E0701", None, expected=expected, found="nothing", help=help_text)
    if b"\0" in raw or not word[0].isascii():
        help_text = "the file is not text: if it is compressed, unpack it first"
        span = Span(word.start(), word.start() + 1)
        shown = raw[: word.start() + _LONGEST_SHOWN]
        raise fail(name, shown, "E0701", span, expected=expected, found="binary data", help=help_text)
    return word


def without_comments(raw: bytes) -> bytes:
    """The same bytes with spaces instead of what stands between `#` and the end of a line."""
    return _COMMENT.sub(lambda match: b" " * len(match[0]), raw) if b"#" in raw else raw


@dataclass
class Numbers:
    """The numbers of a file.

    Attributes:
        name: the file, for messages.
        raw: its bytes.
        start: where the numbers start.
        values: the numbers [n].
    """

    name: str
    raw: bytes
    start: int
    values: Floats

    @classmethod
    def read(cls, name: str, raw: bytes, start: int = 0) -> Numbers:
        """Parse what stands behind `start`: numbers, separated by white space."""
        text = raw[start:]
        made = cls(name, raw, start, np.zeros(0))
        if not text.strip():
            return made
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # what older versions of NumPy do instead of raising
                made.values = np.fromstring(text, dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            bad = _NO_NUMBER.search(raw, start)
            span = Span(*bad.span()) if bad else None
            raise made.fail("E0703", span, expected="a number", found=_shown(bad[0] if bad else b"")) from None
        return made

    def __len__(self) -> int:
        return len(self.values)

    # ---------------------------------------------------------------------------------------------------------- places

    def spans(self, numbers: Iterable[int]) -> list[Span]:
        """Where some numbers stand; linear in the size of the file."""
        characters = np.frombuffer(self.raw, np.uint8)[self.start :]
        ink = ~((characters == 32) | ((characters >= 9) & (characters <= 13)))
        edges = np.flatnonzero(np.diff(ink, prepend=False, append=False)) + self.start
        return [Span(int(edges[2 * number]), int(edges[2 * number + 1])) for number in numbers]

    def span(self, number: int) -> Span:
        """Where a number stands; behind the last one, the end of the file."""
        if number >= len(self):
            end = len(self.raw.rstrip())
            return Span(end, end)
        return self.spans([number])[0]

    def text(self, number: int) -> str:
        """A number as the file has it."""
        span = self.span(number)
        return _shown(self.raw[span.start : span.end])

    def fail(
        self, code: str, place: int | Span | None, notes: Iterable[tuple[str, int]] = (), **facts: object
    ) -> SpecError:
        """The error about a number or another place; notes are about numbers."""
        span = self.span(place) if isinstance(place, int) else place
        drawn = [Note(message, self.span(number)) for message, number in notes]
        return fail(self.name, self.raw, code, span, drawn, **facts)

    # ---------------------------------------------------------------------------------------------------------- checks

    def whole(
        self, number: int, what: str, least: int = 0, most: int = LARGEST, notes: Iterable[tuple[str, int]] = ()
    ) -> int:
        """A whole number within bounds."""
        if number >= len(self):
            raise self.fail("E0702", number, notes, expected=what)
        value = float(self.values[number])
        if not np.isfinite(value) or value != int(value):
            raise self.fail("E0703", number, notes, expected=f"a whole number, {what}", found=self.text(number))
        if not least <= value <= most:
            bounds = f"at least {least}" if value < least and most == LARGEST else f"between {least} and {most}"
            raise self.fail("E0704", number, notes, what=what, bounds=bounds, found=self.text(number))
        return int(value)

    def wholes(
        self,
        places: slice | Integers,
        what: Callable[[int], str],
        least: int = 0,
        most: int | Integers = LARGEST,
        notes: Iterable[tuple[str, int]] = (),
    ) -> Integers:
        """Whole numbers within bounds, of places that exist; `what` says what the k-th of them is."""
        values = self.values[places]
        good = (values == np.floor(values)) & (values >= least) & (values <= most)
        if not good.all():
            first = int(np.argmin(good))
            place = places.start + first if isinstance(places, slice) else int(places[first])
            limit = most if isinstance(most, int) else int(most[first])
            self.whole(place, what(first), least, limit, notes)
        return values.astype(np.int64)

    def logs(self, places: Integers, what: Callable[[int], str]) -> Floats:
        """The logarithms of table values, -inf for 0; numbers beyond the range of a double are read all the same.

        Args:
            places: [n] which numbers they are.
            what: says what the k-th of them is.
        """
        values = self.values[places]
        good = values >= 0
        if not good.all():
            first = int(np.argmin(good))
            raise self.fail("E0706", int(places[first]), what=what(first), found=self.text(int(places[first])))
        with np.errstate(divide="ignore"):
            logs: Floats = np.log(values)
        odd = np.flatnonzero((values < _SMALLEST) | (values == np.inf))
        if len(odd) and (self._has_extremes() or np.isinf(values[odd]).any()):
            for number, span in zip(odd.tolist(), self.spans(places[odd].tolist()), strict=True):
                logs[number] = self._extreme(span, what, number)
        return logs

    def _has_extremes(self) -> bool:
        """Whether a zero may be a number that is too small for a double; most files can be told fast to have none."""
        exponents = (b"e" in self.raw or b"E" in self.raw) and _LARGE_EXPONENT.search(self.raw, self.start)
        return bool(exponents) or b"0" * 300 in self.raw

    def _extreme(self, span: Span, what: Callable[[int], str], number: int) -> float:
        """The logarithm of a number that a double cannot hold, such as 1e-400."""
        text = self.raw[span.start : span.end]
        try:
            value = Decimal(text.decode("ascii"))
            log = float(value.ln()) if value else -np.inf
        except ArithmeticError:  # an exponent that nothing can hold
            log = np.inf
        if log == np.inf:
            raise self.fail("E0706", span, what=what(number), found=_shown(text))
        return log


def _shown(token: bytes) -> str:
    """A token for a message: printable, and not too long."""
    text = token.decode("latin-1")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."

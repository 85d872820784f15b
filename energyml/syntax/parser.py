"""Text -> syntax tree, with every independent syntax mistake reported in one run.

A statement starts with its reserved word at the start of a line, so a file is cut into statements first and each is
parsed on its own: a mistake in one never hides a mistake in another, and parsing is linear in the length of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice, pairwise
from typing import Any

from lark import Lark, TextSlice
from lark.exceptions import UnexpectedInput

from energyml import errors, grammar
from energyml.diagnostics import Diagnostic, Report, Source, Span, did_you_mean
from energyml.syntax import tree as t
from energyml.syntax.convert import convert
from energyml.syntax.mistakes import Refusal, diagnose
from energyml.syntax.separators import Separators

DEEPEST_NESTING = 40
LARGEST_FILE = 8_000_000
MOST_GUESSES = 200

_STATEMENT_START = re.compile(rf"^[ \t]*({'|'.join(grammar.STATEMENT_WORDS)})\b(?![ \t]*:)", re.MULTILINE)
_NOTHING = re.compile(r"(?:[ \t\f\r\n]++|#[^\n]*+)*+")
_STRING_OR_COMMENT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|(#[^\n]*)")
_NESTING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|#[^\n]*|([(\[{])|([)\]}])")
_TWO_WORDS = re.compile(r"^[ \t]*([A-Za-z_]\w*)[ \t]+[A-Za-z_]", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@cache
def parser() -> Lark:
    """The one parser of the language, read from the prepared tables when they match the grammar."""
    return grammar.load_parser(Separators())


class Unlined(str):
    """A text without line numbers: Lark would count all lines before a statement, which is quadratic in a file."""

    __slots__ = ()

    def count(self, *_: object) -> int:
        """No lines, whatever is asked for; spans are offsets, and `Source` finds their lines."""
        return 0


def parse(source: Source, report: Report) -> t.Spec:
    """Parse a file; mistakes go to the report, and what could be read is returned.

    Cost: linear in the length of the text.
    """
    text = Unlined(source.text)
    whole = Span(0, len(text))
    if len(text) > LARGEST_FILE:
        report.add(errors.diagnostic("E0010", None, size=len(text), limit=LARGEST_FILE))
        return t.Spec(whole, ())
    statements: list[t.Statement] = []
    broken: list[str] = []
    for piece in _rejoined(text, _pieces(text)):
        statements += piece.statements
        if piece.problem is not None:
            report.add(piece.problem)
            broken += _declared_words(text[piece.read_to : piece.end])
    return t.Spec(whole, tuple(statements), _comments(text), tuple(broken))


def parse_choices(source: Source, report: Report) -> tuple[t.Choice, ...]:
    """Parse `mean_field(steps: 20), exact`: the words of a choice outside a file."""
    # Programs write the same few words for every model and every call.
    return _known_choices(source.text) or tuple(_parse_start(source, report, "choices"))


@lru_cache(maxsize=256)
def _known_choices(text: str) -> tuple[t.Choice, ...]:
    """The choices of a text without mistakes; nothing for others, which are reported where they stand."""
    source = Source("<choice>", text)
    return tuple(_parse_start(source, Report(source), "choices"))


def parse_value(source: Source, report: Report) -> t.Value | None:
    """Parse one option value, as after `--set key=`."""
    found = _parse_start(source, report, "value")
    return found[0] if found else None


# -------------------------------------------------------------------------------------------------------------- pieces


@dataclass(frozen=True)
class _Piece:
    """A range of the text that was parsed on its own, what could be read of it, and what is wrong with it."""

    start: int
    end: int
    statements: list[t.Statement]
    problem: Diagnostic | None = None

    @property
    def read_to(self) -> int:
        return self.statements[-1].span.end if self.statements else self.start


def _pieces(text: str) -> Iterator[_Piece]:
    """Every statement on its own; a damaged one is cut again where a line looks like a misspelt statement."""
    for start, end in _statement_ranges(text):
        piece = _parse_piece(text, start, end)
        cuts = _misspelt_starts(text, start, end) if piece.problem is not None else []
        if not cuts:
            yield piece
            continue
        for first, last in pairwise([start, *cuts, end]):
            yield _parse_piece(text, first, last)


def _statement_ranges(text: str) -> Iterator[tuple[int, int]]:
    starts = [match.start() for match in _STATEMENT_START.finditer(text)]
    if not starts or not _NOTHING.fullmatch(text, 0, starts[0]):
        starts.insert(0, 0)
    return pairwise([*starts, len(text)])


def _parse_piece(text: str, start: int, end: int) -> _Piece:
    try:
        return _Piece(start, end, _parse_statements(text, start, end))
    except (UnexpectedInput, Refusal) as problem:
        diagnostic = diagnose(parser(), text, start, end, problem)
        return _Piece(start, end, _salvage(text, start, diagnostic), diagnostic)


def _parse_statements(text: str, start: int, end: int) -> list[t.Statement]:
    _check_depth(text, start, end)
    made = parser().parse(TextSlice(text, start, end), start="statements")
    return [convert(child) for child in made.children]


def _parse_start(source: Source, report: Report, start: str) -> list[Any]:
    """The nodes of a whole text, or nothing and the mistake in the report."""
    text = source.text
    try:
        _check_depth(text, 0, len(text))
        made = parser().parse(text, start=start)
        return [convert(node) for node in ([made] if start == "value" else made.children)]
    except (UnexpectedInput, Refusal) as problem:
        report.add(diagnose(parser(), text, 0, len(text), problem, start.removesuffix("s")))
        return []


def _check_depth(text: str, start: int, end: int) -> None:
    """Refuse absurd nesting before anything recursive sees it."""
    depth = 0
    for match in _NESTING.finditer(text, start, end):
        depth += bool(match.group(1)) - bool(match.group(2))
        if depth > DEEPEST_NESTING:
            raise Refusal(errors.diagnostic("E0006", Span(match.start(), match.end()), limit=DEEPEST_NESTING))


# ------------------------------------------------------------------------------------------------------------ recovery


def _salvage(text: str, start: int, diagnostic: Diagnostic) -> list[t.Statement]:
    """The statements before a line that does not start one (`dim T` before a misspelt `outptu`)."""
    if diagnostic.code != "E0008" or diagnostic.span is None:
        return []
    try:
        return _parse_statements(text, start, diagnostic.span.start)
    except (UnexpectedInput, Refusal):
        return []


def _misspelt_starts(text: str, start: int, end: int) -> list[int]:
    """Where lines outside brackets begin with a word that is almost a statement's: `outptu y`, after `start`."""
    found = []
    depth, scanned = 0, start
    for match in islice(_TWO_WORDS.finditer(text, start, end), MOST_GUESSES):
        depth += sum(bool(m.group(1)) - bool(m.group(2)) for m in _NESTING.finditer(text, scanned, match.start()))
        scanned = match.start()
        word = match.group(1)
        known = word in grammar.STATEMENT_WORDS or word.upper() in grammar.SOFT_WORDS
        if match.start() > start and depth == 0 and not known and did_you_mean(word, grammar.STATEMENT_WORDS):
            found.append(match.start())
    return found


def _rejoined(text: str, pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """The pieces, with a statement that was cut inside its brackets put together again.

    A reserved word that starts a line cuts, even where a bracket is open: if what follows is a mistake such as an
    option without its colon, then the first half lacks a closing bracket and the last one has a bracket too many.
    """
    row = list(pieces)
    at = 0
    while at < len(row):
        last = _other_half(text, row, at)
        yield row[at] if last == at else _parse_piece(text, row[at].start, row[last].end)
        at = last + 1


def _other_half(text: str, row: list[_Piece], at: int) -> int:
    """The place of the piece that closes what the piece at a place left open, or that place itself."""
    opened = _unclosed(row[at])
    if opened is None:
        return at
    for place in range(at + 1, len(row)):
        stray = _stray_closer(text, row[place].start, row[place].end)
        if stray is not None:
            return place if text[opened] + stray in ("()", "[]", "{}") else at
        if _unclosed(row[place]) is not None or text[row[place].start] not in " \t":
            break
    return at


def _unclosed(piece: _Piece) -> int | None:
    """Where the bracket is that a piece leaves open."""
    problem = piece.problem
    return problem.span.start if problem is not None and problem.code == "E0004" and problem.span else None


def _stray_closer(text: str, start: int, end: int) -> str | None:
    """The first bracket of a range that closes more than was opened."""
    depth = 0
    for match in _NESTING.finditer(text, start, end):
        depth += bool(match.group(1)) - bool(match.group(2))
        if depth < 0:
            return match.group()
    return None


def _declared_words(text: str) -> list[str]:
    """The names that a damaged statement would have declared, so that their uses are not reported too."""
    words = _WORD.findall(text.split("=")[0] if not text.lstrip().startswith("dim") else text)
    if not words:
        return []
    return words[1:] if words[0] == "dim" else words[1:2]


def _comments(text: str) -> tuple[t.Comment, ...]:
    found = []
    for match in _STRING_OR_COMMENT.finditer(text):
        if match.group(1) is None:
            continue
        line_start = text.rfind("\n", 0, match.start()) + 1
        own_line = not text[line_start : match.start()].strip()
        found.append(t.Comment(Span(match.start(), match.end()), match.group(1).rstrip(), own_line))
    return tuple(found)

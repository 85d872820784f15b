"""Text -> syntax tree, with every independent syntax mistake reported in one run.

A statement starts with its reserved word at the start of a line, so a file is cut into statements first and each is parsed on
its own: a mistake in one never hides a mistake in another, and parsing is linear in the length of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from lark import Lark, TextSlice, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from energyml import errors, grammar
from energyml.diagnostics import Diagnostic, Note, Report, Source, Span, did_you_mean
from energyml.grammar.mistakes import MISTAKES
from energyml.syntax import tree as t
from energyml.syntax.convert import ConversionError, convert
from energyml.syntax.separators import CLOSERS, OPENERS, Separators

DEEPEST_NESTING = 40
LARGEST_FILE = 8_000_000

_STATEMENT_START = re.compile(rf"^[ \t]*({'|'.join(grammar.STATEMENT_WORDS)})\b(?![ \t]*:)", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|(#[^\n]*)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SYMBOLS = {
    "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`", "LBRACE": "`{`", "RBRACE": "`}`", "COMMA": "`,`",
    "COLON": "`:`", "DOT": "`.`", "EQUAL": "`=`", "SUM_OP": "`+` or `-`", "PRODUCT_OP": "`*` or `/`",
    "COMPARISON": "`!=`, `~` or `!~`", "CIRCUMFLEX": "`^`", "IDENT_WORD": "a name", "NUMBER": "a number",
    "STRING": "a string", "$END": "the end of the statement", "CHOICE_KIND": "a statement",
    "ARROW": "`->`", "DOTS": "`..`", "AT_MOST": "`<=`",
}  # fmt: skip
_OPEN_TEXT = {"LPAR": "(", "LSQB": "[", "LBRACE": "{"}
_CLOSE_TEXT = {"RPAR": ")", "RSQB": "]", "RBRACE": "}"}


@cache
def parser() -> Lark:
    """The one parser of the language, read from the prepared tables when they match the grammar."""
    return grammar.load_parser(Separators())


def parse(source: Source, report: Report) -> t.Spec:
    """Parse a file; mistakes go to the report, and what could be read is returned.

    Cost: linear in the length of the text.
    """
    text = source.text
    whole = Span(0, len(text))
    if len(text) > LARGEST_FILE:
        report.add(errors.diagnostic("E0010", None, size=len(text), limit=LARGEST_FILE))
        return t.Spec(whole, ())
    statements: list[t.Statement] = []
    broken: list[str] = []
    unclosed = False
    for start, end in _statement_ranges(text):
        found, problem = _parse_range(text, start, end)
        statements += found
        if problem is None:
            unclosed = False
            continue
        if not (unclosed and problem.code == "E0005"):
            report.add(problem)
        unclosed = problem.code == "E0004"
        broken += _declared_words(text[found[-1].span.end if found else start : end])
    return t.Spec(whole, tuple(statements), _comments(text), tuple(broken))


def parse_choices(source: Source, report: Report) -> tuple[t.Choice, ...]:
    """Parse `mean_field(steps: 20), exact`: the words of a choice outside a file."""
    return _parse_start(source, report, "choices")


def parse_value(source: Source, report: Report) -> t.Value | None:
    """Parse one option value, as after `--set key=`."""
    return _parse_start(source, report, "value") or None


def _parse_start(source: Source, report: Report, start: str) -> Any:
    try:
        _check_depth(source.text, 0, len(source.text))
        made = parser().parse(source.text, start=start)
        return convert(made) if start == "value" else tuple(convert(child) for child in made.children)
    except (UnexpectedInput, ConversionError, _Refused) as problem:
        report.add(_diagnose(source.text, 0, len(source.text), problem, start))
        return ()


class _Refused(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(diagnostic.message)


def _statement_ranges(text: str) -> Iterator[tuple[int, int]]:
    starts = [match.start() for match in _STATEMENT_START.finditer(text)]
    if not starts or _first_word(text, 0, starts[0]) is not None:
        starts.insert(0, 0)
    ends = [*starts[1:], len(text)]
    yield from zip(starts, ends, strict=True)


def _first_word(text: str, start: int, end: int) -> str | None:
    """The first thing in a range that is neither blank nor comment."""
    for line in text[start:end].splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return stripped
    return None


def _parse_range(text: str, start: int, end: int) -> tuple[list[t.Statement], Diagnostic | None]:
    try:
        _check_depth(text, start, end)
        made = parser().parse(TextSlice(text, start, end), start="statements")
        return [convert(child) for child in made.children], None
    except (UnexpectedInput, ConversionError, _Refused) as problem:
        diagnostic = _diagnose(text, start, end, problem, "statements")
        return _salvage(text, start, diagnostic), diagnostic


def _salvage(text: str, start: int, diagnostic: Diagnostic) -> list[t.Statement]:
    """The statements before a line that does not start one (`dim T` before a misspelt `outptu`)."""
    if diagnostic.code != "E0008" or diagnostic.span is None:
        return []
    try:
        made = parser().parse(TextSlice(text, start, diagnostic.span.start), start="statements")
        return [convert(child) for child in made.children]
    except (UnexpectedInput, ConversionError):
        return []


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


# ------------------------------------------------------------------------------------------------------------- mistakes


def _check_depth(text: str, start: int, end: int) -> None:
    """Refuse absurd nesting before anything recursive sees it."""
    depth = 0
    inside = False
    position = start
    for match in re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|#[^\n]*|[(\[{]|[)\]}]").finditer(text, start, end):
        character = match.group()
        position = match.start()
        if character in "([{":
            depth += 1
            inside = depth > DEEPEST_NESTING
        elif character in ")]}":
            depth -= 1
        if inside:
            raise _Refused(errors.diagnostic("E0006", Span(position, position + 1), limit=DEEPEST_NESTING))


def _diagnose(text: str, start: int, end: int, problem: Exception, rule: str) -> Diagnostic:
    if isinstance(problem, ConversionError | _Refused):
        return problem.diagnostic
    if isinstance(problem, UnexpectedCharacters):
        return _bad_character(text, problem)
    assert isinstance(problem, UnexpectedToken)
    token = problem.token
    stack, stray = _brackets(text, start, end)
    if stray is not None and (token.type == "$END" or (token.start_pos or 0) >= (stray.start_pos or 0)):
        return errors.diagnostic("E0005", _token_span(stray), bracket=str(stray))
    if token.type == "$END" and stack:
        opener = stack[-1]
        closer = _CLOSE_TEXT[OPENERS[opener.type]]
        return errors.diagnostic("E0004", _token_span(opener), bracket=str(opener), closer=closer)
    return _labelled(text, start, problem, token, rule) or _unexpected(text, start, end, problem, token)


def _token_span(token: Token) -> Span:
    begin = token.start_pos or 0
    return Span(begin, token.end_pos if token.end_pos is not None else begin)


def _bad_character(text: str, problem: UnexpectedCharacters) -> Diagnostic:
    at = problem.pos_in_stream or 0
    character = text[at]
    if character in "'\"":
        line_end = text.find("\n", at)
        stop = len(text) if line_end < 0 else line_end
        return errors.diagnostic("E0003", Span(at, max(at + 1, stop)), quote=character)
    help_text = _LOOKALIKES.get(character, "")
    shown = character if character.isprintable() else f"\\x{ord(character):02x}"
    return errors.diagnostic("E0002", Span(at, at + 1), character=shown, point=f"U+{ord(character):04X}", help=help_text)


_LOOKALIKES = {
    "\u2018": "write a plain quote `'`", "\u2019": "write a plain quote `'`", "\u201c": "write a plain quote `\"`",
    "\u201d": "write a plain quote `\"`", "\u2212": "write a plain minus `-`", "\u2013": "write a plain minus `-`",
    "\u2192": "write `->`", "\u2264": "write `<=`", "\u00d7": "write `*`", "\u2026": "write `..`",
    ";": "a statement ends where the next one starts; leave the `;` out", "\ufeff": "remove the byte-order mark",
    "&": "write `and`", "@": "names are made of letters, digits and `_`", "|": "write one `forbid` for each alternative",
}  # fmt: skip


def _brackets(text: str, start: int, end: int) -> tuple[list[Token], Token | None]:
    """The brackets that stay open, and the first closer that closes nothing or the wrong bracket."""
    stack: list[Token] = []
    try:
        for token in parser().lex(text[start:end]):
            placed = Token(
                token.type, token.value, (token.start_pos or 0) + start, end_pos=(token.end_pos or 0) + start
            )
            if token.type in OPENERS:
                stack.append(placed)
            elif token.type in CLOSERS:
                if not stack or stack[-1].type != CLOSERS[token.type]:
                    return stack, placed
                stack.pop()
    except UnexpectedInput:
        pass
    return stack, None


def _labelled(text: str, start: int, problem: UnexpectedToken, token: Token, rule: str) -> Diagnostic | None:
    """The labelled mistake whose example fails in the same parser state, if there is one."""
    if rule != "statements" or _starts_line(text, token, start):
        return None
    label = problem.match_examples(
        lambda example: parser().parse(example, start="statements"), MISTAKES, use_accepts=False
    )
    if label is None:
        return None
    return errors.diagnostic(label, _token_span(token), found=_shown(token))


def _starts_line(text: str, token: Token, start: int) -> bool:
    at = token.start_pos or 0
    line_start = text.rfind("\n", 0, at) + 1
    return token.type != "$END" and not text[max(line_start, start) : at].strip()


def _unexpected(text: str, start: int, end: int, problem: UnexpectedToken, token: Token) -> Diagnostic:
    span = _token_span(token)
    if token.type == "$END":
        stop = start + len(text[start:end].rstrip())
        span = Span(max(start, stop - 1), stop)
    if _starts_line(text, token, start) and not _open_before(text, start, span.start):
        return _not_a_statement(token, span)
    expected = sorted({name for name in (_terminal(e) for e in problem.accepts or problem.expected) if name})
    keyword = str(token) in grammar.STATEMENT_WORDS
    if keyword and "a name" in expected:
        return errors.diagnostic("E0011", span, word=str(token))
    wanted = ", ".join(expected[:-1]) + (" or " if len(expected) > 1 else "") + (expected[-1] if expected else "")
    return errors.diagnostic("E0001", span, found=_shown(token), expected=wanted or "something else")


def _open_before(text: str, start: int, at: int) -> bool:
    return bool(_brackets(text, start, at)[0])


def _not_a_statement(token: Token, span: Span) -> Diagnostic:
    guess = did_you_mean(str(token), grammar.STATEMENT_WORDS)
    remedy = f"did you mean `{guess}`?" if guess else ""
    notes = () if guess else (Note("statements start with " + ", ".join(grammar.STATEMENT_WORDS)),)
    return errors.diagnostic("E0008", span, word=_shown(token), help=remedy, notes=notes)


def _shown(token: Token) -> str:
    if token.type == "$END":
        return "the end of the statement"
    value = str(token)
    return f"`{value if len(value) <= 30 else value[:30] + '...'}`"


def _terminal(name: str) -> str | None:
    if name in _SYMBOLS:
        return _SYMBOLS[name]
    if name in grammar.SOFT_WORDS:
        return f"`{name.lower()}`" if name in ("FROM", "FREE", "IN", "OVER", "THEN", "AND", "ARGMAX") else None
    return None

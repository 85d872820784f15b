"""A failed parse -> one diagnostic in plain words.

`diagnose` asks a row of small functions, from the most telling sign to the least: brackets that do not match, a line
that starts no statement, a mistake known by example (`energyml.grammar.mistakes`), and at last what could be read here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from lark import Lark, TextSlice, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from energyml import errors, grammar
from energyml.diagnostics import Diagnostic, Note, Span, did_you_mean
from energyml.grammar.mistakes import GAPS, HINTS, MISTAKES
from energyml.syntax.separators import CLOSERS, OPENERS

LONGEST_SHOWN = 30
STATEMENT = "statement"

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_COMMENT_SIGNS = ("//", "/*")
_LABEL_CHARACTER = re.compile(r"[^\s,{}()\[\]'\"#=~]")


class Refusal(Exception):
    """A text that was turned down before or after the parser, with its diagnostic."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(diagnostic.message)


def diagnose(
    lark: Lark, text: str, start: int, end: int, problem: UnexpectedInput | Refusal, what: str = STATEMENT
) -> Diagnostic:
    """Say what is wrong with `text[start:end]`, which `lark` could not parse as a statement, or `what` it should be.

    Cost: linear in the length of the range.
    """
    if isinstance(problem, Refusal):
        return problem.diagnostic
    if isinstance(problem, UnexpectedCharacters):
        return _bad_character(text, problem.pos_in_stream or start)
    assert isinstance(problem, UnexpectedToken)
    failure = Failure(lark, text, start, problem, tuple(_tokens(lark, text, start, end)), what)
    for look in _SIGNS:
        diagnostic = look(failure)
        if diagnostic is not None:
            return diagnostic
    return _unexpected(failure)


@dataclass(frozen=True)
class Failure:
    """Where a parse failed: the parser's complaint, and all tokens of the range as far as they can be read."""

    lark: Lark
    text: str
    start: int
    problem: UnexpectedToken
    tokens: tuple[Token, ...]
    what: str

    @property
    def token(self) -> Token:
        """The token that could not be read; of type `$END` when the statement ends too early."""
        token: Token = self.problem.token
        return token

    @property
    def at_end(self) -> bool:
        """Whether the statement ended too early."""
        return self.token.type == "$END"

    @cached_property
    def before(self) -> tuple[Token, ...]:
        """The tokens that were read."""
        return self.tokens if self.at_end else tuple(t for t in self.tokens if _at(t) < _at(self.token))

    @property
    def previous(self) -> Token | None:
        """The last token that was read."""
        return self.before[-1] if self.before else None

    @property
    def after(self) -> Token | None:
        """The token behind the one that could not be read."""
        return next((t for t in self.tokens if not self.at_end and _at(t) > _at(self.token)), None)

    @property
    def span(self) -> Span:
        """The token that could not be read, or the last one of a statement that ends too early."""
        if self.at_end:
            return _span(self.previous) if self.previous else Span(self.start, self.start)
        return _span(self.token)

    @property
    def found(self) -> str:
        """The token as messages show it."""
        if self.at_end:
            return f"the end of the {self.what}"
        if self.token.type == "COMMA" and self.text[_at(self.token)] != ",":
            return "a line break"
        return _shown(str(self.token))

    @cached_property
    def accepts(self) -> frozenset[str]:
        """The kinds of tokens that could stand here."""
        return frozenset(self.problem.accepts or self.problem.expected)

    @property
    def starts_line(self) -> bool:
        """Whether only blanks stand before the token on its line."""
        line_start = self.text.rfind("\n", 0, _at(self.token)) + 1
        return not self.at_end and not self.text[max(line_start, self.start) : _at(self.token)].strip()


# ---------------------------------------------------------------------------------------------------------- characters


def _bad_character(text: str, at: int) -> Diagnostic:
    character = text[at]
    if character in "'\"":
        line_end = text.find("\n", at)
        stop = len(text) if line_end < 0 else line_end
        return errors.diagnostic("E0003", Span(at, at + len(text[at:stop].rstrip())), quote=f"`{character}`")
    shown = character if character.isprintable() else f"\\x{ord(character):02x}"
    point = f"U+{ord(character):04X}"
    return errors.diagnostic("E0002", Span(at, at + 1), character=shown, point=point, help=_replacement(character))


def _replacement(character: str) -> str:
    """What the writer of a foreign character most likely wanted."""
    if character in _LOOKALIKES:
        return _LOOKALIKES[character]
    plain = unicodedata.normalize("NFKC", character)
    if plain != character and plain.isascii() and plain.isprintable():
        return "write a plain space" if plain.isspace() else f"write a plain `{plain}`"
    if character.isalnum():
        return "names are made of the letters a to z and A to Z, digits and `_`; put other text in quotes"
    return ""


# Advice -> the characters that it is for.
_ADVICE = {
    "write a plain quote `'`": "\u2018\u2019`",
    'write a plain quote `"`': "\u201c\u201d",
    "write a plain minus `-`": "\u2212\u2013\u2014",
    "write `->`": "\u2192\u21d2",
    "write `<=`": "\u2264",
    "write `!=`": "\u2260",
    "write `*`": "\u00d7\u00b7",
    "write `..`": "\u2026",
    "write `in`": "\u2208",
    "write `and`": "\u2227&",
    "write `!=` or `!~`": "!",
    "write one `forbid` for each alternative": "\u2228|",
    "a comment starts with `#`": "%",
    "put a label that is not a plain word in quotes": "$",
    "remove the byte-order mark": "\ufeff",
    "leave the `;` out: commas or line breaks separate items, and the next statement ends this one": ";",
    "a dim is bounded by `<=`, and labels are compared by `=`, `!=`, `~` and `!~`": "<>",
}
_LOOKALIKES = {character: advice for advice, characters in _ADVICE.items() for character in characters}


# ------------------------------------------------------------------------------------------------------------ brackets


def _bracket(failure: Failure) -> Diagnostic | None:
    """A closing bracket, up to the failure, that closes nothing or the wrong bracket."""
    upto = failure.before if failure.at_end else (*failure.before, failure.token)
    open_brackets, stray = _match_brackets(upto)
    if stray is None:
        return None
    if not open_brackets:
        return errors.diagnostic("E0005", _span(stray), bracket=str(stray))
    opener = open_brackets[-1]
    note = Note(f"`{opener}` was opened here", _span(opener))
    closer = _CLOSING[str(opener)]
    return errors.diagnostic("E0023", _span(stray), bracket=str(opener), closer=closer, found=str(stray), notes=[note])


def _unclosed(failure: Failure) -> Diagnostic | None:
    """A bracket that is still open where the statement ends."""
    open_brackets, _ = _match_brackets(failure.before)
    if not failure.at_end or not open_brackets:
        return None
    opener = open_brackets[-1]
    return errors.diagnostic("E0004", _span(opener), bracket=str(opener), closer=_CLOSING[str(opener)])


def _match_brackets(tokens: Iterable[Token]) -> tuple[list[Token], Token | None]:
    """The brackets that stay open, and the first closer that closes nothing or the wrong bracket."""
    stack: list[Token] = []
    for token in tokens:
        if token.type in OPENERS:
            stack.append(token)
        elif token.type in CLOSERS:
            if not stack or stack[-1].type != CLOSERS[token.type]:
                return stack, token
            stack.pop()
    return stack, None


# --------------------------------------------------------------------------------------------------------------- lines


def _comment_sign(failure: Failure) -> Diagnostic | None:
    """A comment as other languages write it."""
    at = _at(failure.token)
    for begin in (at, max(failure.start, at - 1)):
        sign = failure.text[begin : begin + 2]
        if sign in _COMMENT_SIGNS or (sign == "--" and begin == at and failure.starts_line):
            return errors.diagnostic("E0026", Span(begin, begin + 2), found=f"`{sign}`")
    return None


def _stray_line(failure: Failure) -> Diagnostic | None:
    """A line after a whole statement that does not start another one."""
    whole = failure.what == STATEMENT and (not failure.before or "$END" in failure.accepts)
    if not whole or not failure.starts_line or _match_brackets(failure.before)[0]:
        return None
    guess = did_you_mean(str(failure.token), grammar.STATEMENT_WORDS)
    if guess:
        return errors.diagnostic("E0008", failure.span, word=failure.found, help=f"did you mean `{guess}`?")
    if failure.after is not None and failure.after.type == "EQUAL":
        remedy = f"write `let {failure.token} = ...` to name a tensor"
        return errors.diagnostic("E0008", failure.span, word=failure.found, help=remedy)
    note = Note("statements start with " + ", ".join(grammar.STATEMENT_WORDS))
    return errors.diagnostic("E0008", failure.span, word=failure.found, notes=[note])


# ------------------------------------------------------------------------------------------------- mistakes by example

_Where = tuple[int, ...]


@dataclass(frozen=True)
class Examples:
    """Where the examples fail: the top of the parser's stack, with or without the kind of token that stands there."""

    mistakes: dict[tuple[_Where, str], str]
    gaps: dict[_Where, str]
    hints: dict[tuple[_Where, str], str]


@lru_cache(maxsize=4)
def examples(lark: Lark) -> Examples:
    """The labelled examples, each parsed once."""
    mistakes = {(_where(p), _kind(p.token)): code for code, p in _failures(lark, MISTAKES)}
    gaps = {_where(p): code for code, p in _failures(lark, GAPS)}
    hints = {(_where(p), _kind(p.token)): hint for hint, p in _failures(lark, HINTS)}
    return Examples(mistakes, gaps, hints)


def _failures(lark: Lark, table: dict[str, list[str]]) -> Iterator[tuple[str, UnexpectedToken]]:
    for label, texts in table.items():
        for text in texts:
            try:
                lark.parse(text, start="statements")
            except UnexpectedToken as problem:
                yield label, problem


def _where(problem: UnexpectedToken) -> _Where:
    """The two states on top of the parser's stack: one alone is shared by many rules."""
    return tuple(problem.interactive_parser.parser_state.state_stack[-2:])


def _kind(token: Token) -> str:
    return "RESERVED" if str(token) in grammar.STATEMENT_WORDS else token.type


def _wrong_equals(failure: Failure) -> Diagnostic | None:
    """`==` or `:=`; inside brackets the `:` of an option is meant."""
    span = _around(failure, re.compile("[=:]"))
    symbol = failure.text[span.start : span.end]
    if failure.at_end or len(symbol) < 2 or symbol.strip(":=") or "=" not in symbol:
        return None
    return errors.diagnostic("E0012" if _match_brackets(failure.before)[0] else "E0015", span, found=_shown(symbol))


def _known_mistake(failure: Failure) -> Diagnostic | None:
    """A mistake whose example fails at the same place with the same kind of token."""
    code = examples(failure.lark).mistakes.get((_where(failure.problem), _kind(failure.token)))
    return _labelled(code, failure) if code else None


def _known_gap(failure: Failure) -> Diagnostic | None:
    """A place where one thing only is missing, whatever stands there instead."""
    code = examples(failure.lark).gaps.get(_where(failure.problem))
    return _labelled(code, failure) if code else None


def _known_need(failure: Failure) -> Diagnostic | None:
    """A place where only one kind of token can stand."""
    code = _ONLY.get(failure.accepts)
    return _labelled(code, failure) if code else None


_ONLY = {frozenset({"EQUAL"}): "E0014", frozenset({"LBRACE"}): "E0018", frozenset({"COLON"}): "E0022"}


def _labelled(code: str, failure: Failure) -> Diagnostic:
    if code == "E0016" and failure.token == "for":
        code = "E0017"
    if code == "E0025":
        span = _around(failure, _LABEL_CHARACTER)
        label = failure.text[span.start : span.end]
        return errors.diagnostic(code, span, found=_shown(label), quoted=_shown(f"'{label}'"))
    remedy = _remedy(failure)
    return errors.diagnostic(code, failure.span, found=failure.found, key=failure.previous or "", help=remedy)


def _remedy(failure: Failure) -> str | None:
    """The remedy of the example that fails at the same place."""
    return examples(failure.lark).hints.get((_where(failure.problem), _kind(failure.token)))


def _around(failure: Failure, kept: re.Pattern[str]) -> Span:
    """The token and the characters that touch it and match."""
    begin, stop = failure.span.start, failure.span.end
    while begin > failure.start and kept.match(failure.text[begin - 1]):
        begin -= 1
    while stop < len(failure.text) and kept.match(failure.text[stop]):
        stop += 1
    return Span(begin, stop)


# ----------------------------------------------------------------------------------------------------- everything else


def _reserved_word(failure: Failure) -> Diagnostic | None:
    """A statement's word where only a name can stand, or as an argument, where it can only be a key."""
    hint = _hint(failure) or None
    if "IDENT_WORD" in failure.accepts and _kind(failure.token) == "RESERVED":
        return errors.diagnostic("E0011", failure.span, word=str(failure.token), help=hint)
    previous = failure.previous
    if previous is not None and failure.accepts == {"COLON"} and _kind(previous) == "RESERVED":
        return errors.diagnostic("E0011", _span(previous), word=str(previous), help=hint)
    return None


def _unfinished(failure: Failure) -> Diagnostic | None:
    """A statement that ends too early."""
    if not failure.at_end:
        return None
    wanted = _wanted(failure)
    return errors.diagnostic("E0024", failure.span, what=failure.what, expected=wanted, help=_hint(failure))


def _unexpected(failure: Failure) -> Diagnostic:
    wanted = _wanted(failure)
    return errors.diagnostic("E0001", failure.span, found=failure.found, expected=wanted, help=_hint(failure))


def _hint(failure: Failure) -> str:
    """The remedy by example, or for a sign that other languages use."""
    remedy = _remedy(failure)
    if remedy is not None:
        return remedy
    around = failure.text[max(failure.start, failure.span.start - 1) : failure.span.end + 1]
    return next((hint for pattern, hint in _FOREIGN if pattern.search(around)), "")


_FOREIGN = (
    (re.compile(r"\*\*"), "write `^` for a power"),
    (re.compile(r"\d\.$|\d\.[^.\d]"), "write digits on both sides of the point, as in `5.0`"),
    (re.compile(r"(?:^|[^.\w])\.\d"), "write digits on both sides of the point, as in `0.5`"),
    (re.compile(r"\]\["), "write all indices in one pair of brackets, as in `x[t, s]`"),
    (re.compile(r"\)[\[(]"), "name the inner part with `let` first"),
    (re.compile(r",,"), "remove one comma"),
)

# What a message calls the tokens, in the order in which it lists them.
_CALLED: dict[str, tuple[str, ...]] = {
    "VALUE": ("a value",), "IDENT_WORD": ("a name",), "NUMBER": ("a number",), "STRING": ("a string",),
    "OPERATOR": ("an operator",), "SUM_OP": ("`+`", "`-`"), "PRODUCT_OP": ("`*`", "`/`"), "CIRCUMFLEX": ("`^`",),
    "COMMA": ("`,`",), "COLON": ("`:`",), "EQUAL": ("`=`",), "COMPARISON": ("`!=`", "`~`", "`!~`"),
    "AT_MOST": ("`<=`",), "ARROW": ("`->`",), "DOTS": ("`..`",), "DOT": ("`.`",),
    "LPAR": ("`(`",), "LSQB": ("`[`",), "LBRACE": ("`{`",),
    **{word: (f"`{word.lower()}`",) for word in grammar.SOFT_WORDS},
    "RPAR": ("`)`",), "RSQB": ("`]`",), "RBRACE": ("`}`",), "$END": ("the end of the {what}",),
}  # fmt: skip
_STARTS_VALUE = frozenset({"LPAR", "LSQB", "LBRACE", "NUMBER", "STRING", "IDENT_WORD"})
_OPERATORS = frozenset({"SUM_OP", "PRODUCT_OP", "CIRCUMFLEX", "ARROW", "DOTS"})
_CONTINUES_VALUE = _OPERATORS | {"LPAR", "LSQB", "DOT"}
_ENDS_LIST = frozenset({"COMMA", *CLOSERS})


def _wanted(failure: Failure) -> str:
    """The tokens that could stand at a place, in words: `a name, `,` or `)``."""
    kinds = _summed_up(failure.accepts)
    called = [word.replace("{what}", failure.what) for kind in _CALLED if kind in kinds for word in _CALLED[kind]]
    if len(called) <= 1:
        return "".join(called) or "something else"
    return f"{', '.join(called[:-1])} or {called[-1]}"


def _summed_up(accepts: frozenset[str]) -> frozenset[str]:
    """Fewer kinds that say the same: a value, an operator, a name."""
    if accepts >= _STARTS_VALUE:
        return (accepts & _ENDS_LIST) | {"VALUE"}
    if "PRODUCT_OP" in accepts:
        operator = frozenset() if accepts & _ENDS_LIST else frozenset({"OPERATOR"})
        return (accepts - _CONTINUES_VALUE) | operator
    if "IDENT_WORD" in accepts:
        as_key = accepts & {"CHOICE_KIND"}
        return accepts - frozenset(grammar.SOFT_WORDS) - ({"STRING"} if as_key else frozenset())
    if "NUMBER" in accepts:
        return accepts - {"SUM_OP"}
    return accepts


_SIGNS: tuple[Callable[[Failure], Diagnostic | None], ...] = (
    _bracket,
    _unclosed,
    _comment_sign,
    _stray_line,
    _wrong_equals,
    _known_mistake,
    _reserved_word,
    _known_gap,
    _known_need,
    _unfinished,
)


# -------------------------------------------------------------------------------------------------------------- tokens


def _tokens(lark: Lark, text: str, start: int, end: int) -> Iterator[Token]:
    """The tokens of a range, as far as they can be read; `Lark.lex` would build its lexer anew each time."""
    reading = lark.parse_interactive(TextSlice(text, start, end), start="statements")
    try:
        yield from reading.lexer_thread.lex(reading.parser_state)  # type: ignore[no-untyped-call]
    except UnexpectedInput:
        return


def _at(token: Token) -> int:
    return token.start_pos or 0


def _span(token: Token) -> Span:
    return Span(_at(token), token.end_pos if token.end_pos is not None else _at(token))


def _shown(text: str) -> str:
    return f"`{text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + '...'}`"

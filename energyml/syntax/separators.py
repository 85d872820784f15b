"""Newlines as separators: inside brackets a line break can stand where a comma could."""

from __future__ import annotations

from collections.abc import Iterator

from lark import Token

OPENERS = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
CLOSERS = {closer: opener for opener, closer in OPENERS.items()}

# Of the words that are also names, only `in` has a meaning inside brackets: `[t in T]`.
_ENDS_ITEM = {"IDENT_WORD", "NUMBER", "STRING", "FROM", "FREE", "OVER", "ARGMAX", "THEN", "AND", *CLOSERS}
_CONTINUES_ITEM = {"IN"}
_STARTS_ITEM_SYMBOLS = {"NUMBER", "STRING", "LBRACE"}


def ends_item(token: Token) -> bool:
    """Whether a token before a line break can be the last one of an item."""
    return token.type in _ENDS_ITEM


def starts_item(token: Token) -> bool:
    """Whether a token after a line break begins a new item rather than continuing the last one."""
    if token.type in _STARTS_ITEM_SYMBOLS:
        return True
    return token.type not in _CONTINUES_ITEM and token.value[:1].isidentifier()


class Separators:
    """Lark post-lexer: drops newlines, or turns them into commas where two items stand on two lines."""

    always_accept = ("NEWLINE",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Yield the stream without newlines."""
        depth = 0
        broke_line: Token | None = None
        previous: Token | None = None
        for token in stream:
            if token.type == "NEWLINE":
                broke_line = broke_line or token
                continue
            separates = depth > 0 and broke_line and previous and ends_item(previous) and starts_item(token)
            if separates and broke_line is not None:
                yield Token.new_borrow_pos("COMMA", ",", broke_line)
            if token.type in OPENERS:
                depth += 1
            elif token.type in CLOSERS:
                depth = max(0, depth - 1)
            broke_line, previous = None, token
            yield token

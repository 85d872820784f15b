"""How single values are spelt in the language, such that reading them gives the same value again."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def number(value: float) -> str:
    """The shortest spelling that reads back to the same number; whole numbers are written without a point."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def quoted(text: str) -> str:
    """A text in quotes.  The language has no escapes: a text with a line break or with both quotes has no spelling."""
    mark = '"' if "'" in text else "'"
    return f"{mark}{text}{mark}"


def key(text: str) -> str:
    """A role or a key: a plain word as it is, anything else in quotes."""
    return text if _WORD.fullmatch(text) else quoted(text)


def label(text: str) -> str:
    """A label of a list: as a key, but the words that start statements need quotes."""
    from energyml.grammar import STATEMENT_WORDS

    return quoted(text) if text in STATEMENT_WORDS else key(text)


def has_spelling(text: str) -> bool:
    """Whether a text can be written in quotes."""
    return "\n" not in text and not ("'" in text and '"' in text)

"""How a line of text becomes tokens."""

from __future__ import annotations

import re

_WORDS = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")


def tokens(text: str, split: str, lower: bool = False) -> list[str]:
    """The tokens of a line.

    Args:
        text: the line.
        split: `blanks`; `words` (runs of letters and digits, inner apostrophes and hyphens included, and every other
            character on its own); or `characters` (blanks left out).
        lower: whether the text is made lower-case first.
    """
    if lower:
        text = text.lower()
    if split == "words":
        return _WORDS.findall(text)
    return text.split() if split == "blanks" else list("".join(text.split()))

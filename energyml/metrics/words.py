"""Words from pieces of words."""

from __future__ import annotations

from collections.abc import Collection, Iterable

BEGIN = "▁"


def joined(pieces: Iterable[str], apart: Collection[str | None] = ()) -> list[str]:
    """The words of pieces: `▁` begins one; labels that are `apart`, such as an end label, are words of their own."""
    words: list[str] = []
    inside = False
    for piece in pieces:
        if piece in apart:
            words.append(piece)
            inside = False
        elif piece.startswith(BEGIN) or not inside:
            words.append(piece.removeprefix(BEGIN))
            inside = True
        else:
            words[-1] += piece
    return [word for word in words if word]


__all__ = ["BEGIN", "joined"]

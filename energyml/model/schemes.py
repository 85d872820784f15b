"""Labelling schemes: which label may follow which, read from the labels' own prefixes.

A label is `O`, or a prefix and a type joined by `-`, as in `B-NP`.  Sources: Ramshaw & Marcus 1995 (IOB), Ratinov &
Roth 2009 (BILOU, here with the letters of BIOES).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OUTSIDE = "O"


@dataclass(frozen=True)
class LabellingScheme:
    """The prefixes of a scheme.

    Attributes:
        prefixes: all prefixes that labels may have.
        continues: prefixes that go on with a span, so they must follow one that is open.
        opens: prefixes after which the span is still open.
        must_close: whether an open span must be continued (BIOES) or may simply stop (BIO).
    """

    prefixes: str
    continues: str
    opens: str
    must_close: bool


SCHEMES: dict[str, LabellingScheme] = {
    "bio": LabellingScheme("BI", "I", "BI", False),
    "bioes": LabellingScheme("BIES", "IE", "BI", True),
    "bilou": LabellingScheme("BILU", "IL", "BI", True),
}


def split(label: str) -> tuple[str, str]:
    """Prefix and type of a label; `O` has no type."""
    prefix, dash, kind = label.partition("-")
    return (prefix, kind) if dash else (label, "")


def misfit(scheme: LabellingScheme, label: str) -> str | None:
    """Why a label does not belong to a scheme, or `None` when it does."""
    if label == OUTSIDE:
        return None
    prefix, kind = split(label)
    if not kind:
        return "it has no type after a `-`"
    if len(prefix) != 1 or prefix not in scheme.prefixes:
        return f"its prefix is none of {', '.join(scheme.prefixes)}"
    return None


def may_follow(scheme: LabellingScheme, before: str, after: str) -> bool:
    """Whether a label may stand right after another."""
    first, first_kind = split(before)
    second, second_kind = split(after)
    is_open = first in scheme.opens and before != OUTSIDE
    if second in scheme.continues and after != OUTSIDE:
        return is_open and first_kind == second_kind
    return not (scheme.must_close and is_open)


def may_start(scheme: LabellingScheme, label: str) -> bool:
    """Whether a label may stand first."""
    return label == OUTSIDE or split(label)[0] not in scheme.continues


def may_end(scheme: LabellingScheme, label: str) -> bool:
    """Whether a label may stand last."""
    return label == OUTSIDE or not (scheme.must_close and split(label)[0] in scheme.opens)


def forbidden_pairs(scheme: LabellingScheme, labels: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs of labels that may not stand next to each other, in order; quadratic in the number of labels."""
    return [(a, b) for a in labels for b in labels if not may_follow(scheme, a, b)]

"""One kind of error: its code, its wording and its page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """An entry of the catalogue.

    Attributes:
        code: stable for ever; a code is never used again for something else.
        title: what is wrong, in general.
        message: what is wrong here; `{facts}` are filled in where it is reported.
        help: the usual remedy, also with facts; a place may give a better one.
        label: a few words under the caret.
        why: the page's explanation.
        bad: a complete spec that shows the error.
        good: the same spec, mended.
        severity: `error` or `warning`.
    """

    code: str
    title: str
    message: str
    help: str = ""
    label: str = ""
    why: str = ""
    bad: str = ""
    good: str = ""
    severity: str = "error"

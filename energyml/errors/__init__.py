"""The catalogue of errors: all wording in one place, a stable code each, a page each (`energyml explain-error`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from energyml.diagnostics import Diagnostic, Note, Severity, Span
from energyml.errors import choices, data, files, graphs, names, running, scores, syntax, types
from energyml.errors.kind import Kind

_MODULES = (syntax, names, types, scores, choices, running, graphs, files, data)

CATALOGUE: dict[str, Kind] = {kind.code: kind for module in _MODULES for kind in module.KINDS}


def diagnostic(
    code: str,
    span: Span | None,
    *,
    notes: Iterable[Note] = (),
    help: str | None = None,
    caret: str | None = None,
    **facts: object,
) -> Diagnostic:
    """Word a finding: the kind's message with the facts filled in; `help` and `caret` replace its own."""
    kind = CATALOGUE[code]
    return Diagnostic(
        code=code,
        message=kind.message.format(**facts),
        span=span,
        label=kind.label.format(**facts) if caret is None else caret,
        notes=tuple(notes),
        help=(kind.help.format(**facts) if help is None else help),
        severity=cast("Severity", kind.severity),
    )


__all__ = ["CATALOGUE", "Kind", "diagnostic"]

"""The page of an error code, for `energyml explain-error` and docs/errors.md."""

from __future__ import annotations

from energyml.errors.kind import Kind


def page(kind: Kind) -> str:
    """A page as Markdown that also reads well in a terminal."""
    parts = [f"{kind.code}: {kind.title}", kind.why]
    if kind.bad:
        parts.append(f"Shows it:\n\n{_quoted(kind.bad)}")
    if kind.good:
        parts.append(f"Mended:\n\n{_quoted(kind.good)}")
    return "\n\n".join(part for part in parts if part)


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").splitlines())

"""Names in scope: what is declared where, and what to say about a name that is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from energyml import errors
from energyml.diagnostics import Diagnostic, Note, Report, Span, did_you_mean, join_names
from energyml.syntax import tree as t

BUILT_IN_WORDS = ("real", "edge", "soft", "hard", "true", "false", "step", "conditionals")

_KIND_WORDS = {
    "labels": "label set", "dim": "dim", "input": "input", "output": "output", "latent": "latent", "field": "field",
    "net": "network", "param": "parameter", "let": "named tensor", "term": "term", "variable": "variable",
}  # fmt: skip


def kind_word(kind: str) -> str:
    """A declaration's kind in a message."""
    return _KIND_WORDS.get(kind, kind)


@dataclass(frozen=True)
class Declared:
    """A name, its kind and its place."""

    name: str
    kind: str
    span: Span


@dataclass
class Names:
    """The symbol table of one file.

    A name whose own declaration is at fault is *poisoned*: its uses are not reported again.
    """

    report: Report
    table: dict[str, Declared] = field(default_factory=dict)
    poisoned: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def declare(self, ident: t.Ident, kind: str) -> bool:
        """Enter a name; a second declaration is reported and changes nothing."""
        if ident.text in BUILT_IN_WORDS:
            self.report.add(errors.diagnostic("E0114", ident.span, name=ident.text))
            return False
        known = self.table.get(ident.text)
        if known is not None:
            note = Note(f"`{ident.text}` is declared here first", known.span)
            self.report.add(errors.diagnostic("E0101", ident.span, name=ident.text, notes=[note]))
            return False
        self.table[ident.text] = Declared(ident.text, kind, ident.span)
        return True

    def poison(self, name: str) -> None:
        """Silence later messages about a name."""
        self.poisoned.add(name)

    def of_kind(self, *kinds: str) -> list[str]:
        """The declared names of some kinds."""
        return [name for name, entry in self.table.items() if entry.kind in kinds]

    def find(self, ident: t.Ident | t.Name, *kinds: str) -> Declared | None:
        """The declaration that a use refers to; problems are reported, `None` is returned."""
        entry = self.table.get(ident.text)
        if entry is not None and (not kinds or entry.kind in kinds):
            self.used.add(ident.text)
            return None if ident.text in self.poisoned else entry
        if entry is None and ident.text in self.poisoned:
            return None
        self.report.add(self._complaint(ident, entry, kinds))
        return None

    def _complaint(self, ident: t.Ident | t.Name, entry: Declared | None, kinds: Iterable[str]) -> Diagnostic:
        wanted = [kind_word(kind) for kind in kinds]
        if entry is not None:
            self.used.add(ident.text)
            note = Note(f"`{ident.text}` is declared here", entry.span)
            expected = " or ".join(wanted)
            return errors.diagnostic(
                "E0103", ident.span, name=ident.text, found=kind_word(entry.kind), expected=expected, notes=[note]
            )
        candidates = self.of_kind(*kinds) if kinds else list(self.table)
        guess = did_you_mean(ident.text, candidates)
        notes = [Note(f"`{guess}` is declared here", self.table[guess].span)] if guess else []
        if guess:
            help_text = f"did you mean `{guess}`?"
        else:
            help_text = f"declared here: {join_names(candidates, 'and')}" if 0 < len(candidates) <= 12 else ""
        what = " or ".join(wanted) or "name"
        return errors.diagnostic("E0102", ident.span, what=what, name=ident.text, help=help_text, notes=notes)

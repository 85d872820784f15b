"""Names in scope: what is declared where, and what to say about a name that is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from energyml import errors
from energyml.diagnostics import Diagnostic, Note, Report, Span, did_you_mean, join_names
from energyml.syntax import tree as t

BUILT_IN_WORDS = ("real", "edge", "soft", "hard", "true", "false", "step", "conditionals")
VARIABLES = ("output", "latent", "field")
MOST_LISTED = 12
MOST_GUESSES = 100

_KIND_WORDS = {
    "labels": "label set",
    "latent": "latent variable",
    "net": "network",
    "param": "parameter",
    "let": "named tensor",
}
_HOW_TO_DECLARE = {
    "labels": "labels {name} = {{...}}",
    "dim": "dim {name}",
    "net": "net {name} = ...",
    "output": "output {name} : Labels[T]",
    "input": "input {name} : real[T]",
    "field": "field {name} : real[H, W]",
}


def kind_word(kind: str) -> str:
    """A declaration's kind in a message."""
    return _KIND_WORDS.get(kind, kind)


def with_article(word: str) -> str:
    """`a dim`, `an output`."""
    return f"an {word}" if word[:1] in "aeiou" else f"a {word}"


def one_of(kinds: Sequence[str]) -> str:
    """`an output, a latent variable or a field`."""
    words = [with_article(kind_word(kind)) for kind in kinds]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


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

    def declare(self, ident: t.Ident, kind: str) -> None:
        """Enter a name; a second declaration is reported and changes nothing."""
        if ident.text in BUILT_IN_WORDS:
            self.report.add(errors.diagnostic("E0114", ident.span, name=ident.text))
            self.poison(ident.text)
            return
        known = self.table.get(ident.text)
        if known is None:
            self.table[ident.text] = Declared(ident.text, kind, ident.span)
            return
        note = Note(f"`{ident.text}` is first declared here, as {with_article(kind_word(known.kind))}", known.span)
        self.report.add(errors.diagnostic("E0101", ident.span, name=ident.text, notes=[note]))
        if known.kind != kind:
            self.poison(ident.text)  # nobody knows which of the two a use means

    def poison(self, name: str) -> None:
        """Silence later messages about a name."""
        self.poisoned.add(name)

    def guess(self, word: str, candidates: Iterable[str]) -> str | None:
        """What was meant by a word; after very many findings nobody reads on, and guessing would take long."""
        return did_you_mean(word, candidates) if self.is_guessing else None

    @property
    def is_guessing(self) -> bool:
        """Whether messages still say what may have been meant."""
        return len(self.report.found) < MOST_GUESSES

    def of_kind(self, *kinds: str) -> list[str]:
        """The declared names of some kinds."""
        return [name for name, entry in self.table.items() if entry.kind in kinds]

    def likely(self, *kinds: str) -> list[str]:
        """The declared names of some kinds, or of all, that a message may list; none after very many findings."""
        if not self.is_guessing:
            return []
        return self.of_kind(*kinds) if kinds else list(self.table)

    def find(self, ident: t.Ident | t.Name, *kinds: str) -> Declared | None:
        """The declaration that a use refers to; problems are reported, `None` is returned."""
        entry = self.table.get(ident.text)
        if entry is not None:
            self.used.add(ident.text)
        if ident.text in self.poisoned:
            return None
        if entry is not None and (not kinds or entry.kind in kinds):
            return entry
        self.report.add(self._unknown(ident, kinds) if entry is None else self._wrong_kind(ident, entry, kinds))
        return None

    def _wrong_kind(self, ident: t.Ident | t.Name, entry: Declared, kinds: Sequence[str]) -> Diagnostic:
        note = Note(f"`{ident.text}` is declared here", entry.span)
        found = with_article(kind_word(entry.kind))
        return errors.diagnostic(
            "E0103", ident.span, name=ident.text, found=found, expected=one_of(kinds), notes=[note]
        )

    def unknown_tensor(self, ident: t.Name) -> None:
        """Report a name in an expression that nothing declares."""
        guess = self.guess(ident.text, self.table)
        tensors = self.likely("input", "param", "let")
        if guess:
            remedy, notes = f"did you mean `{guess}`?", [Note(f"`{guess}` is declared here", self.table[guess].span)]
        else:
            listed = f"declared tensors: {join_names(tensors, 'and')}" if 0 < len(tensors) <= MOST_LISTED else ""
            remedy, notes = listed or f"declare it: `param {ident.text} : real[...]`", []
            self.poison(ident.text)
        self.report.add(errors.diagnostic("E0102", ident.span, what="name", name=ident.text, help=remedy, notes=notes))

    def _unknown(self, ident: t.Ident | t.Name, kinds: Sequence[str]) -> Diagnostic:
        candidates = self.likely(*kinds)
        guess = self.guess(ident.text, candidates)
        notes = [Note(f"`{guess}` is declared here", self.table[guess].span)] if guess else []
        what = (
            "variable"
            if len(kinds) > 1 and set(kinds) <= set(VARIABLES)
            else " or ".join(map(kind_word, kinds)) or "name"
        )
        if guess:
            remedy = f"did you mean `{guess}`?"  # every use has to be mended
        else:
            remedy = self._candidates(ident.text, candidates, kinds)
            self.poison(ident.text)  # one declaration mends every use
        return errors.diagnostic("E0102", ident.span, what=what, name=ident.text, help=remedy, notes=notes)

    @staticmethod
    def _candidates(name: str, candidates: list[str], kinds: Sequence[str]) -> str:
        if 0 < len(candidates) <= MOST_LISTED:
            return f"declared in this file: {join_names(candidates, 'and')}"
        form = _HOW_TO_DECLARE.get(kinds[0]) if kinds and not candidates else None
        return f"declare it: `{form.format(name=name)}`" if form else ""

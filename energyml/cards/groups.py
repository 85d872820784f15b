"""Groups of declared names: `y.unary + y.start`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from energyml.cards.options import BadOption, OptionType, Surroundings, found
from energyml.diagnostics import did_you_mean, join_names
from energyml.syntax import tree as t


@dataclass(frozen=True)
class Group:
    """The value of a group option: names, written as a sum."""

    names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __str__(self) -> str:
        return " + ".join(self.names)


@dataclass(frozen=True)
class GroupOf(OptionType):
    """Names of things that the file declares, joined by `+`.

    Attributes:
        kinds: what they may be: `term`, `net`, `param`.
        word: what they are called in messages.
    """

    kinds: tuple[str, ...]
    word: str

    def describe(self) -> str:
        """What the option takes."""
        return f"the name of a {self.word}, or several joined by `+`"

    def read(self, value: t.Value, around: Surroundings) -> Group:
        """The names, each of them declared."""
        parts = value.operands if isinstance(value, t.Chained) and set(value.operators) == {"+"} else (value,)
        known = [name for kind in self.kinds for name in around.names(kind)]
        names = []
        for part in parts:
            if not isinstance(part, t.Name) or part.text not in known:
                guess = did_you_mean(part.text, known) if isinstance(part, t.Name) else None
                listed = f"declared: {join_names(known, 'and')}" if known else f"this file declares no {self.word}"
                remedy = f"did you mean `{guess}`?" if guess else listed
                raise BadOption(part.span, self.describe(), found(part), remedy)
            names.append(part.text)
        return Group(tuple(dict.fromkeys(names)))


__all__ = ["Group", "GroupOf"]

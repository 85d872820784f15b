"""Cards: the torch-free description of everything that a spec can name.

A network, a backend, an objective, a decoder, a reader, an optimiser: each is a card (what it is called, which options
it takes, what it needs and gives) and an implementation that is imported only when a model is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from energyml.cards.options import Option, OptionType, show, show_free

CardKind = Literal[
    "net", "backend", "objective", "decoder", "reader", "optimizer", "balance", "stop", "init", "potential", "cost",
    "mixing", "architecture", "metric", "procedure",
]  # fmt: skip


@dataclass(frozen=True)
class Card:
    """What can be known about a named thing without importing it.

    Attributes:
        kind: which list it belongs to.
        name: the word that a spec uses.
        summary: one line for tables and help.
        options: what it takes; the first `positional` of them may be given without their key.
        positional: how many options may be given by position.
        implementation: `module:attribute`, imported when a model is built; `None` where this version has only the card.
        source: paper and section, where there is one.
    """

    kind: CardKind
    name: str
    summary: str
    options: tuple[Option, ...] = ()
    positional: int = 0
    implementation: str | None = None
    source: str = ""

    def option(self, name: str) -> Option | None:
        """The option of that name."""
        for option in self.options:
            if option.name == name:
                return option
        return None

    def defaults(self) -> dict[str, Any]:
        """The values of the options that have a default."""
        return {option.name: option.default for option in self.options if not option.required}

    def signature(self) -> str:
        """`name(option: type = default, ...)`."""
        return f"{self.name}({', '.join(option.describe() for option in self.options)})" if self.options else self.name


@dataclass(frozen=True)
class Selection:
    """A card with checked options: what a choice in a file, on the command line or in Python becomes."""

    card: Card
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The card's name."""
        return self.card.name

    def __getitem__(self, option: str) -> Any:
        """The value of an option: what was given, else its default."""
        if option in self.options:
            return self.options[option]
        known = self.card.option(option)
        return None if known is None or known.required else known.default

    def __str__(self) -> str:
        given = ", ".join(f"{key}: {self._shown(key, value)}" for key, value in self.options.items())
        return f"{self.name}({given})" if given else self.name

    def _shown(self, key: str, value: Any) -> str:
        option = self.card.option(key)
        return show_free(value) if option is None else show(value, option.type)


__all__ = ["Card", "CardKind", "Option", "OptionType", "Selection"]

"""What every reader is: fields that it gives, and examples from files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from energyml.cards.card import Selection
from energyml.data.files import Root

Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Field:
    """Something that a reader gives for each example.

    Attributes:
        name: a declared input or output of this name gets it.
        role: as what it is given to the only declaration that no name fits.
        scale: what its numbers are multiplied with, as pixels of a byte with 1/255.
    """

    name: str
    role: Literal["input", "output", "either", "named"] = "named"
    scale: float | None = None


@dataclass(slots=True)
class Example:
    """One example as a reader gives it.

    Attributes:
        values: by field: tokens (a list of strings), nested lists, or a NumPy array of numbers.
        file: the file, as messages show it.
        line: its first line there, 0 for a file without lines.
        lines: the line of each position, where positions have lines of their own.
        fold: the fold that the file itself assigns.
    """

    values: dict[str, Any]
    file: str
    line: int = 0
    lines: Sequence[int] = field(default=())
    fold: int | None = None

    def place(self, position: int | None = None) -> str:
        """`file:line` of the example, or of a position of it."""
        inside = position is not None and position < len(self.lines)
        line = self.lines[position] if inside and position is not None else self.line
        return f"{self.file}:{line}" if line else self.file


@dataclass
class Division:
    """Examples by split, and what a person should know about how they were divided."""

    parts: dict[Split, list[Example]]
    notes: list[str] = field(default_factory=list)


class Reader(ABC):
    """Reads one format.

    Args:
        options: the checked options of the reader's card.
        root: where relative paths start.

    Attributes:
        words: the field whose tokens are spelled out for a declaration that runs over the characters of a word.
        names_declarations: whether the spec's author wrote the names of the fields, so that each must be declared.
    """

    words: str | None = None
    names_declarations = False

    def __init__(self, options: Selection, root: Root) -> None:
        self.options, self.root = options, root

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...] | None:
        """What it gives; `None` when it gives whatever is declared (JSON)."""

    @abstractmethod
    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """The examples of the files, one at a time.

        Args:
            files: as many as `files` gives.
            wanted: the fields that are read; an input file for prediction need not have the others.
        """

    @abstractmethod
    def files(self, split: Split) -> tuple[str, ...] | None:
        """The files of a split, or `None` when it has none of its own."""

    def divide(self, wanted: Collection[Split], fields: Collection[str]) -> Division:
        """The examples of the wanted splits."""
        from energyml.data.splits import divide

        return divide(self, wanted, fields)


class FileReader(Reader):
    """A reader of one file, whose validation and test examples may be in other files."""

    def files(self, split: Split) -> tuple[str, ...] | None:
        """`path`, and what `validation` and `test` name."""
        named = self.options["path" if split == "train" else split]
        return (named,) if isinstance(named, str) else None

"""Token columns, as of the CoNLL shared tasks: a token a line, a blank line between sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from energyml.data.files import Line, lines
from energyml.data.problems import BadData
from energyml.data.readers.reader import Example, Field, FileReader

SKIPPED = "_"
DOCUMENT_START = "-DOCSTART-"


class Conll(FileReader):
    """Columns under the names of `columns`, in the file's order; `_` skips a column.

    Columns are separated by tabs where a line has any, else by blanks. There are no comments: in tweets, tokens start
    with `#`. CoNLL-2003's `-DOCSTART-` lines are left out. The characters of the first column fill a declaration that
    runs over the characters of a word.
    """

    words = "column 1"  # a name that no declaration has: the first column may be skipped and spelled out all the same
    names_declarations = True

    @property
    def names(self) -> list[str]:
        """What the columns hold."""
        return str(self.options["columns"]).split()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The named columns."""
        return tuple(Field(name) for name in self.names if name != SKIPPED)

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A sentence at a time."""
        names = self.names
        columns: list[list[str]] = [[] for _ in names]
        numbers: list[int] = []
        fewest = _fewest(names, wanted)
        file = ""
        for line in lines(self.root, files[0]):
            file = line.file
            text = line.text
            if not text.strip():
                if numbers:
                    yield self._example(names, columns, numbers, file)
                    columns, numbers = [[] for _ in names], []
                continue
            found = text.split("\t") if "\t" in text else text.split()
            if found[0] == DOCUMENT_START:
                continue
            if not fewest <= len(found) <= len(names):
                raise _ragged(line, len(names), len(found))
            if "" in found:
                raise BadData("E0805", place=line.place, expected=f"{len(names)} columns", found="an empty one")
            for column, one in zip(columns, found, strict=False):
                column.append(one)
            numbers.append(line.number)
        if numbers:
            yield self._example(names, columns, numbers, file)

    def _example(self, names: list[str], columns: list[list[str]], numbers: list[int], file: str) -> Example:
        values = dict(zip(names, columns, strict=True))
        values[self.words] = columns[0]
        return Example(values, file, numbers[0], numbers)


def _fewest(names: Sequence[str], wanted: Collection[str] | None) -> int:
    """How many columns a line must have: all, or for prediction up to the last one that is wanted."""
    read = [place for place, name in enumerate(names, start=1) if wanted is None or name in wanted]
    named = [name for name in names if name != SKIPPED]
    return len(names) if wanted is None or len(read) == len(named) else max(read, default=1)


def _ragged(line: Line, expected: int, found: int) -> BadData:
    columns = f"{expected} columns" if expected != 1 else "1 column"
    return BadData("E0805", place=line.place, expected=columns, found=str(found))

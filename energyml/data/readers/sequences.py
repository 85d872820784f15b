"""One sequence a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from energyml.data.files import lines
from energyml.data.readers.reader import Example, Field, FileReader
from energyml.data.readers.tokens import tokens


class Lines(FileReader):
    """The tokens of each line, as the field `line`: the only output, else the only input.  Blank lines are left out."""

    words = "line"

    @property
    def fields(self) -> tuple[Field, ...]:
        """One field."""
        return (Field("line", "either"),)

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A line at a time."""
        split, lower = self.options["split"], self.options["lower"]
        for line in lines(self.root, files[0]):
            found = tokens(line.text, split, lower)
            if found:
                yield Example({"line": found}, line.file, line.number)

"""CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from energyml.data.files import lines
from energyml.data.problems import BadData
from energyml.data.readers.reader import Example, Field, FileReader

COLUMNS = 10
FORM, LEMMA, UPOS, XPOS, FEATS, DEPREL = 1, 2, 3, 4, 5, 7
EMPTY = "_"
NAMED = {"form": FORM, "lemma": LEMMA, "upos": UPOS, "xpos": XPOS, "feats": FEATS, "deprel": DEPREL}
JOINED = "upos_feats"


class Conllu(FileReader):
    """The fields `form`, `lemma`, `upos`, `xpos`, `feats`, `deprel` and `upos_feats` of each word.

    `#` starts a comment here. Multiword tokens (`1-2`) and empty nodes (`1.1`) are left out: their parts, and the words
    around them, are the words of the sentence. `upos_feats` is the tag with its features, `NOUN|Number=Sing`: the fine
    labels that stand in for supertags.
    """

    words = "form"

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields; the form goes to the only other input, the chosen labels to the only other output."""
        chosen = self.options["labels"]
        roles = {"form": "input", chosen: "output"}
        return tuple(Field(name, roles.get(name, "named")) for name in (*NAMED, JOINED))  # type: ignore[arg-type]

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A sentence at a time."""
        rows: list[list[str]] = []
        numbers: list[int] = []
        file = ""
        for line in lines(self.root, files[0]):
            file = line.file
            if not line.text.strip():
                if rows:
                    yield _example(rows, numbers, file)
                    rows, numbers = [], []
                continue
            if line.text.startswith("#"):
                continue
            row = line.text.split("\t")
            if len(row) != COLUMNS:
                facts = {"expected": f"{COLUMNS} columns", "found": str(len(row))}
                raise BadData(
                    "E0805", place=line.place, help="columns of CoNLL-U are separated by single tabs", **facts
                )
            number = row[0]
            if number.isdecimal():
                rows.append(row)
                numbers.append(line.number)
            elif not number.replace("-", "").replace(".", "").isdecimal():
                raise BadData("E0806", place=line.place, expected="the number of a word", found=number)
        if rows:
            yield _example(rows, numbers, file)


def _example(rows: list[list[str]], numbers: list[int], file: str) -> Example:
    columns = list(zip(*rows, strict=True))
    values = {name: list(columns[place]) for name, place in NAMED.items()}
    pairs = zip(columns[UPOS], columns[FEATS], strict=True)
    values[JOINED] = [tag if feats == EMPTY else f"{tag}|{feats}" for tag, feats in pairs]
    return Example(values, file, numbers[0], numbers)

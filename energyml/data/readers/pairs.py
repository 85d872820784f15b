"""Parallel text: two files whose lines belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePosixPath

from energyml.data.files import GZIP_ENDING, lines
from energyml.data.problems import BadData
from energyml.data.readers.reader import Division, Example, Field, Reader, Split
from energyml.data.readers.tokens import tokens


class Pairs(Reader):
    """The fields `source` and `target` of each pair of lines: the only input and the only output.

    `validation` and `test` name files without their endings, which are those of the training files: with `train.de` and
    `train.en`, `validation: 'val'` means `val.de` and `val.en`. Pairs with an empty side are left out. `longest` leaves
    long pairs out of training alone: what a model is judged by stays as it is.
    """

    words = "source"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The two sides."""
        return (Field("source", "input"), Field("target", "output"))

    def files(self, split: Split) -> tuple[str, ...] | None:
        """Both files of a split."""
        sides = (str(self.options["source"]), str(self.options["target"]))
        if split == "train":
            return sides
        stem = self.options[split]
        if not isinstance(stem, str):
            return None
        return tuple(stem + PurePosixPath(side.removesuffix(GZIP_ENDING)).suffix for side in sides)

    def divide(self, wanted: Collection[Split], fields: Collection[str]) -> Division:
        """As of every reader, less what is too long to train on."""
        found = super().divide(wanted, fields)
        longest, train = self.options["longest"], found.parts.get("train", [])
        if longest is not None and train:
            kept = [one for one in train if max(len(side) for side in one.values.values()) <= longest]
            if not kept:
                raise BadData("E0811", problem=f"every pair for training is longer than {longest} tokens")
            if len(kept) < len(train):
                found.notes.append(f"train: {len(train) - len(kept):,} pairs longer than {longest} tokens are left out")
            found.parts["train"] = kept
        return found

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A pair at a time; where the target is not wanted, its file is not read."""
        split, lower = self.options["split"], self.options["lower"]
        if wanted is not None and "target" not in wanted:
            for line in lines(self.root, files[0]):  # empty lines too: predictions are read line by line
                yield Example({"source": tokens(line.text, split, lower)}, line.file, line.number)
            return
        for number, (first, second) in enumerate(zip_longest(*(lines(self.root, one) for one in files)), start=1):
            if first is None or second is None:
                longer, shorter = (files[1], files[0]) if first is None else (files[0], files[1])
                names = {"shorter": self.root.shown(shorter), "longer": self.root.shown(longer)}
                raise BadData("E0813", line=number - 1, **names)
            source, target = tokens(first.text, split, lower), tokens(second.text, split, lower)
            if source and target:
                yield Example({"source": source, "target": target}, first.file, number)

"""Taskar's handwritten words in the columns of `letter.data` (Taskar, Guestrin & Koller 2003)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from energyml.data.files import Line, lines
from energyml.data.problems import BadData
from energyml.data.readers.reader import Division, Example, Field, FileReader, Split
from energyml.data.splits import checked

HEAD = 6  # id, letter, next id, word id, position, fold
PIXELS = 128
COLUMNS = HEAD + PIXELS
HEIGHT, WIDTH = 16, 8
BRIGHTEST = 255
LAST = "-1"
_NEXT, _WORD, _FOLD = 2, 3, 5


class Letters(FileReader):
    """A letter a line: `image` (16 x 8 pixels of a letter each) and `letter`.

    A word ends where the next id is -1 or the word id changes. One fold is for validation, one for testing, the others
    are for training; by default folds 0, 1 and 2 to 9.
    """

    words = "letter"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The images are the only input, the letters the only output."""
        return (Field("image", "input"), Field("letter", "output"))

    def files(self, split: Split) -> tuple[str, ...] | None:
        """All splits are in one file."""
        return (self.options["path"],) if split == "train" else None

    def divide(self, wanted: Collection[Split], fields: Collection[str]) -> Division:
        """By the folds that the file assigns."""
        validation, test = self.options["fold"], self.options["test"]
        test = test if test is not None else int(validation != 1)
        if validation == test:
            raise BadData("E0811", problem=f"fold {test} cannot be for validation and for testing")
        files = (self.options["path"],)
        parts: dict[Split, list[Example]] = {"train": [], "validation": [], "test": []}
        for example in checked(self.read(files, fields), self, files):
            held = example.fold in (validation, test)
            split: Split = "train" if not held else "validation" if example.fold == validation else "test"
            parts[split].append(example)
        notes = [f"folds: {validation} for validation, {test} for testing, the others for training"]
        for split in wanted:
            if not parts[split]:
                raise BadData("E0811", problem=f"no word is in a fold for {split}")
        return Division({split: parts[split] for split in wanted}, notes)

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """A word at a time."""
        images: list[NDArray[np.uint8]] = []
        letters: list[str] = []
        numbers: list[int] = []
        before: list[str] = []
        file = ""
        for line in lines(self.root, files[0]):
            if not line.text.strip():
                continue
            file = line.file
            head, pixels = _parsed(line)
            if before and (before[_NEXT] == LAST or before[_WORD] != head[_WORD]):
                yield _example(images, letters, numbers, before, file)
                images, letters, numbers = [], [], []
            images.append(pixels)
            letters.append(head[1])
            numbers.append(line.number)
            before = head
        if before:
            yield _example(images, letters, numbers, before, file)


def _example(
    images: list[NDArray[np.uint8]], letters: list[str], numbers: list[int], head: list[str], file: str
) -> Example:
    values = {"image": np.stack(images).reshape(-1, HEIGHT, WIDTH), "letter": letters}
    if not head[_FOLD].isdecimal():
        raise BadData("E0806", place=f"{file}:{numbers[-1]}", expected="the number of a fold", found=head[_FOLD])
    return Example(values, file, numbers[0], numbers, int(head[_FOLD]))


def _parsed(line: Line) -> tuple[list[str], NDArray[np.uint8]]:
    """The first columns and the pixels of a line."""
    text = line.text.rstrip()
    parts = text.split("\t", HEAD)
    rest = parts[HEAD].encode() if len(parts) > HEAD else b""
    if len(rest) == 2 * PIXELS - 1:  # one digit each: read as bytes, twenty times as fast as number by number
        codes = np.frombuffer(rest, np.uint8)
        pixels = codes[::2] - np.uint8(ord("0"))
        if pixels.max() <= 9 and (codes[1::2] == ord("\t")).all():
            return parts[:HEAD], pixels
    every = text.split()
    if len(every) != COLUMNS:
        raise BadData("E0805", place=line.place, expected=f"{COLUMNS} columns", found=str(len(every)))
    for one in every[HEAD:]:
        if not one.isdecimal() or int(one) > BRIGHTEST:
            expected = f"a pixel from 0 to {BRIGHTEST}"
            raise BadData("E0806", field="image", place=line.place, expected=expected, found=one)
    return every[:HEAD], np.array(every[HEAD:], dtype=np.uint8)

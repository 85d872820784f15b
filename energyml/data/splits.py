"""Dividing examples into training, validation and test: other files, a share, a number, or folds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from energyml.data.order import shuffled
from energyml.data.problems import BadData
from energyml.data.readers.reader import SPLITS, Division, Example, Reader, Split


def divide(reader: Reader, wanted: Collection[Split], fields: Collection[str]) -> Division:
    """The examples of the wanted splits by the options `validation`, `test`, `folds`, `fold` and `seed`.

    What is held out of the training file is drawn at random; the draw depends on `seed` and on the number of examples
    alone. Examples keep the order of their files.
    """
    own = {split: reader.files(split) for split in SPLITS}
    drawn = [split for split in SPLITS if own[split] is None and _held_out(reader, split)]
    parts: dict[Split, list[Example]] = {}
    notes: list[str] = []
    if "train" in wanted or any(split in wanted for split in drawn):
        parts, notes = _hold_out(reader, drawn, fields)
    for split in wanted:
        files = own[split]
        if split != "train" and files is not None:
            parts[split] = checked(reader.read(files, fields), reader, files)
    return Division({split: parts.get(split, []) for split in wanted}, notes)


def checked(examples: Iterable[Example], reader: Reader, files: Sequence[str]) -> list[Example]:
    """All examples of some files; none is an error."""
    found = list(examples)
    if not found:
        raise BadData("E0804", path=reader.root.shown(files[0]))
    return found


def _held_out(reader: Reader, split: Split) -> bool:
    if split == "test" and reader.options["folds"] is not None:
        if reader.options["test"] is not None:
            raise BadData("E0811", problem="`test` and `folds` both say which examples are for testing")
        return True
    return split != "train" and bool(reader.options[split])


def _hold_out(
    reader: Reader, drawn: Sequence[Split], fields: Collection[str]
) -> tuple[dict[Split, list[Example]], list[str]]:
    files = reader.files("train") or ()
    examples = checked(reader.read(files, fields), reader, files)
    seed = reader.options["seed"] or 0
    order = shuffled(len(examples), seed).tolist()
    parts: dict[Split, list[Example]] = {}
    notes: list[str] = []
    for split in drawn:
        if split == "test" and reader.options["folds"] is not None:
            taken, order = _fold(reader, order)
            how = f"fold {reader.options['fold']} of {reader.options['folds']}"
        else:
            asked = reader.options[split]
            taken, order = _some(split, asked, order, len(examples))
            how = f"{asked:g} of them" if isinstance(asked, float) else f"{asked}"
        parts[split] = [examples[row] for row in sorted(taken)]
        where = reader.root.shown(files[0])
        notes.append(
            f"{split}: {len(taken):,} of the {len(examples):,} examples of {where}, drawn with seed {seed} ({how})"
        )
    parts["train"] = [examples[row] for row in sorted(order)]
    return parts, notes


def _some(split: Split, asked: float, order: list[int], total: int) -> tuple[list[int], list[int]]:
    """A share of all examples or a number of them, and the others."""
    count = round(asked * total) if isinstance(asked, float) else asked
    if not 0 < count < len(order):
        problem = f"`{split}: {asked:g}` takes {count} of {len(order)} examples"
        raise BadData("E0811", problem=f"{problem}; at least one must be taken and one must be left")
    return order[:count], order[count:]


def _fold(reader: Reader, order: list[int]) -> tuple[list[int], list[int]]:
    folds, fold = reader.options["folds"], reader.options["fold"]
    if fold >= folds:
        raise BadData("E0811", problem=f"fold {fold} of {folds} does not exist: folds are counted from 0")
    if folds > len(order):
        raise BadData("E0811", problem=f"{len(order)} examples cannot be divided into {folds} folds")
    return order[fold::folds], [row for place, row in enumerate(order) if place % folds != fold]

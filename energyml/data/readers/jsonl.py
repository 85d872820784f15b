"""JSON lines: an object a line, whose keys are declared names."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from energyml.data.files import lines
from energyml.data.problems import BadData
from energyml.data.readers.reader import Example, Field, FileReader


class JsonLines(FileReader):
    """Whatever is declared, under its own name: lists of labels, numbers in nested lists, edges as `[from, to]`.

    `null` in place of an output's label means that it is not known. Keys that nothing declares are left alone.
    """

    @property
    def fields(self) -> tuple[Field, ...] | None:
        """Whatever is declared."""
        return None

    def read(self, files: Sequence[str], wanted: Collection[str] | None = None) -> Iterator[Example]:
        """An object at a time."""
        for line in lines(self.root, files[0]):
            if not line.text.strip():
                continue
            try:
                found = json.loads(line.text)
            except (ValueError, RecursionError) as problem:
                reason = str(problem) or "nested too deeply"
                raise BadData("E0812", place=line.place, problem=reason) from problem
            if not isinstance(found, dict):
                raise BadData("E0812", place=line.place, problem=f"an object is expected, found {_kind(found)}")
            truths = "true" in line.text or "false" in line.text  # beside numbers, NumPy would take them for 1 and 0
            for name in wanted or ():
                if name not in found:
                    raise BadData("E0814", place=line.place, name=name, field=name)
                if truths and _has_truth(found[name]):
                    facts = {"expected": "a number or a label", "found": "a truth value"}
                    raise BadData("E0806", place=line.place, field=name, **facts)
            yield Example(found, line.file, line.number)


def _has_truth(value: object) -> bool:
    """Whether there is a truth value anywhere in nested lists."""
    return any(map(_has_truth, value)) if isinstance(value, list) else isinstance(value, bool)


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")

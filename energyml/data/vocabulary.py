"""Vocabularies: label sets that come from the training data, frozen once they are made."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energyml.diagnostics import EnergyError

_KEYS = ("name", "labels", "unknown", "pad", "end")


@dataclass(frozen=True)
class Vocabulary:
    """A label set with its labels.

    Attributes:
        name: the label set's name in the spec.
        labels: all labels in order; a label's number is its place.
        unknown: the label that stands for everything else, if there is one.
        pad: an extra label.
        end: the label that ends a sequence.
    """

    name: str
    labels: tuple[str, ...]
    unknown: str | None = None
    pad: str | None = None
    end: str | None = None
    _numbers: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._numbers.update({label: number for number, label in enumerate(self.labels)})

    @staticmethod
    def from_counts(name: str, counts: Mapping[str, int], options: Mapping[str, Any]) -> Vocabulary:
        """The labels of `labels NAME from data(...)`: the most frequent first, equals by spelling, extras last.

        Args:
            name: the label set's name.
            counts: how often training has each label.
            options: `min`, `most`, `unknown`, `pad`, `end`, as in the spec.
        """
        least, most = options.get("min") or 1, options.get("most")
        ordered = sorted((label for label in counts if counts[label] >= least), key=lambda one: (-counts[one], one))
        extras = {key: options.get(key) for key in ("unknown", "pad", "end")}
        labels = dict.fromkeys(ordered[:most] if most is not None else ordered)
        labels.update(dict.fromkeys(label for label in extras.values() if label is not None))
        return Vocabulary(name, tuple(labels), **extras)

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: object) -> bool:
        return label in self._numbers

    @cached_property
    def unknown_number(self) -> int:
        """The number of the label that stands for everything else, -1 when there is none."""
        return -1 if self.unknown is None else self._numbers[self.unknown]

    def number(self, label: str) -> int:
        """The number of a label; -1 for one that the vocabulary lacks, whether or not it has an unknown label."""
        return self._numbers.get(label, -1)

    def numbers(self, labels: Iterable[str]) -> NDArray[np.int32]:
        """The numbers of many labels; -1 for those that the vocabulary lacks."""
        find = self._numbers.get
        return np.fromiter((find(label, -1) for label in labels), dtype=np.int32)

    def spell(self, numbers: Iterable[int]) -> list[str]:
        """The labels of numbers up to the end label; negative numbers (padding) are left out."""
        spelled: list[str] = []
        for number in numbers:
            if number < 0:
                continue
            label = self.labels[number]
            if label == self.end:
                break
            spelled.append(label)
        return spelled

    # --------------------------------------------------------------------------------------------------- saved and read

    def as_json(self) -> dict[str, Any]:
        """The vocabulary as plain data."""
        return {key: list(self.labels) if key == "labels" else getattr(self, key) for key in _KEYS}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Vocabulary:
        """The vocabulary from plain data, checked."""
        labels = found.get("labels")
        if not isinstance(found.get("name"), str) or not isinstance(labels, list) or not labels:
            raise EnergyError("not a saved vocabulary: it needs a `name` and a list of `labels`")
        extras = {key: found.get(key) for key in ("unknown", "pad", "end")}
        if any(not isinstance(label, str) for label in labels) or len(set(labels)) != len(labels):
            raise EnergyError(f"the saved vocabulary `{found['name']}` has a label twice, or one that is no text")
        for key, label in extras.items():
            if label is not None and label not in labels:
                raise EnergyError(f"the saved vocabulary `{found['name']}` lacks its `{key}` label `{label}`")
        return Vocabulary(found["name"], tuple(labels), **extras)


def save_vocabularies(path: str | os.PathLike[str], vocabularies: Mapping[str, Vocabulary]) -> None:
    """Write vocabularies to a JSON file."""
    everything = {name: one.as_json() for name, one in vocabularies.items()}
    Path(path).write_text(json.dumps(everything, ensure_ascii=False, indent=1), encoding="utf-8")


def load_vocabularies(path: str | os.PathLike[str]) -> dict[str, Vocabulary]:
    """Read vocabularies from a JSON file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise EnergyError(f"{path}: {(problem.strerror or str(problem)).lower()}") from problem
    except ValueError as problem:
        raise EnergyError(f"{path}: not a JSON file of vocabularies: {problem}") from problem
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise EnergyError(f"{path}: not a JSON file of vocabularies: an object of objects is expected")
    return {name: Vocabulary.from_json(one) for name, one in found.items()}


def count_labels(tokens: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each label occurs."""
    counts: Counter[str] = Counter()
    for one in tokens:
        counts.update(one)
    return counts

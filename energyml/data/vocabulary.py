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

from energyml.data.subwords import Divider, Merge, learned
from energyml.diagnostics import EnergyError
from energyml.metrics.words import joined

_KEYS = ("name", "labels", "unknown", "pad", "end", "merges")


@dataclass(frozen=True)
class Vocabulary:
    """A label set with its labels.

    Attributes:
        name: the label set's name in the spec.
        labels: all labels in order; a label's number is its place.
        unknown: the label that stands for everything else, if there is one.
        pad: an extra label.
        end: the label that ends a sequence.
        merges: how words are divided, where labels are pieces of words (`energyml.data.subwords`); else `None`.
    """

    name: str
    labels: tuple[str, ...]
    unknown: str | None = None
    pad: str | None = None
    end: str | None = None
    merges: tuple[Merge, ...] | None = None
    _numbers: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._numbers.update({label: number for number, label in enumerate(self.labels)})

    @staticmethod
    def from_counts(name: str, counts: Mapping[str, int], options: Mapping[str, Any]) -> Vocabulary:
        """The labels of `labels NAME from data(...)`: the most frequent first, equals by spelling, extras last.

        Args:
            name: the label set's name.
            counts: how often training has each label; each word, where labels are pieces of words.
            options: `min`, `most`, `subwords`, `unknown`, `pad`, `end`, as in the spec.
        """
        least, most = options.get("min") or 1, options.get("most")
        merges: tuple[Merge, ...] | None = None
        if (pieces := options.get("subwords")) is not None:
            counts, merges = learned(counts, pieces, least)
            least = 0
        ordered = sorted((label for label in counts if counts[label] >= least), key=lambda one: (-counts[one], one))
        extras = {key: options.get(key) for key in ("unknown", "pad", "end")}
        labels = dict.fromkeys(ordered[:most] if most is not None else ordered)
        labels.update(dict.fromkeys(label for label in extras.values() if label is not None))
        return Vocabulary(name, tuple(labels), **extras, merges=merges)

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

    # ----------------------------------------------------------------------------------------------------------- pieces

    @cached_property
    def _divider(self) -> Divider:
        return Divider(self.merges or ())

    def divided(self, words: Iterable[str | None]) -> list[str | None]:
        """Words as labels: their pieces, where labels are pieces of words; a word that is `None` stays so."""
        if self.merges is None:
            return list(words)
        found: list[str | None] = []
        for word in words:
            found += [None] if word is None else self._divider.pieces(word)
        return found

    def joined(self, labels: Iterable[str]) -> list[str]:
        """Labels as words: pieces that belong together are joined; end and padding stand for themselves."""
        return list(labels) if self.merges is None else joined(labels, (self.end, self.pad))

    # --------------------------------------------------------------------------------------------------- saved and read

    def as_json(self) -> dict[str, Any]:
        """The vocabulary as plain data."""
        found: dict[str, Any] = {key: getattr(self, key) for key in _KEYS}
        found["labels"] = list(self.labels)
        if self.merges is None:
            del found["merges"]
        else:
            found["merges"] = [list(pair) for pair in self.merges]
        return found

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
        return Vocabulary(found["name"], tuple(labels), **extras, merges=_read_merges(found))


def _read_merges(found: Mapping[str, Any]) -> tuple[Merge, ...] | None:
    merges = found.get("merges")
    if merges is None:
        return None
    pairs = isinstance(merges, list) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in merges
    )
    if not pairs:
        raise EnergyError(f"the saved vocabulary `{found['name']}` has `merges` that are no pairs of texts")
    return tuple((first, second) for first, second in merges)


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
    except (ValueError, RecursionError) as problem:
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

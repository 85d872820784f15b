"""A data set: the encoded examples of one split, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from energyml.data.columns import Array, NestedRagged, Numbers
from energyml.data.encode import Encoded
from energyml.data.order import shuffled
from energyml.data.readers.reader import Example
from energyml.data.vocabulary import Vocabulary
from energyml.diagnostics import EnergyError

if TYPE_CHECKING:
    from energyml.cards.card import Selection
    from energyml.ir.graph import Graph
    from energyml.metrics import Confusion, Metric


@dataclass
class Batch:
    """Some examples, padded, as a model takes them: `model.loss(**batch.tensors, lengths=batch.lengths)`.

    Attributes:
        tensors: by declared name, [B, *axes]: inputs and gold labels.
        lengths: by dim, [B] ([B, T] for a dim nested in T), where examples differ.
        gold: by output, [B, *dims]: what metrics compare with. -1 where there is no cell or no label; a label that the
            vocabulary lacks has a number beyond it, so that no prediction is right (`Dataset.spelling` spells it).
        rows: [B] the examples' places in the data set.
        total: how many examples the batch has over all processes; `len(batch)` of them are here.
    """

    tensors: dict[str, Tensor]
    lengths: dict[str, Tensor]
    gold: dict[str, Tensor]
    rows: Tensor
    total: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The tensors without the outputs: `model.infer(**batch.inputs, lengths=batch.lengths)`."""
        return {name: one for name, one in self.tensors.items() if name not in self.gold}

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The batch on another device; lengths too."""

        def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: one.to(device, non_blocking=non_blocking) for name, one in tensors.items()}

        return replace(self, tensors=moved(self.tensors), lengths=moved(self.lengths), gold=moved(self.gold))


class Dataset:
    """The examples of one split.

    Attributes:
        rows: [n] where the examples lie in the columns.
        missing: by output: labels that training never had, and how often; they count as wrong.
        examples: the examples as they were read, where they were kept.

    Args:
        name: the split.
        encoded: columns and sizes.
        vocabularies: by output: the labels that a model can give.
        examples: what was read, for places; with `keep` also for the original texts.
        bounds: by output whose length is part of the answer: what it is padded to.
        stated: dims that have to be passed as lengths even where all examples agree, since no input shows them.
        keep: whether the examples' values are kept.
        labels: by label set: all labels in the order of their numbers.
    """

    def __init__(
        self,
        name: str,
        encoded: Encoded,
        vocabularies: Mapping[str, Vocabulary],
        examples: Sequence[Example],
        *,
        bounds: Mapping[str, int] | None = None,
        stated: Iterable[str] = (),
        keep: bool = False,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name, self.columns, self.vocabularies = name, dict(encoded.columns), dict(vocabularies)
        self.unseen = {output: tuple(labels) for output, labels in encoded.unseen.items()}
        self.missing = {output: dict(counts) for output, counts in encoded.missing.items()}
        self.bounds = dict(bounds or {})
        self.labels = {name: tuple(one) for name, one in (labels or {}).items()}
        self.examples: tuple[Example, ...] | None = tuple(examples) if keep else None
        self._nested = dict(encoded.nested)
        self._sizes = dict(encoded.sizes)
        needed = set(stated)
        self._lengths = [dim for dim, one in self._sizes.items() if dim in needed or _differ(one)]
        self._files = tuple(dict.fromkeys(example.file for example in examples))
        numbers = {file: number for number, file in enumerate(self._files)}
        self._places = np.array([(numbers[one.file], one.line) for one in examples], np.int32).reshape(-1, 2)
        self.rows: Numbers = np.arange(len(examples))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        names = ", ".join(self.columns)
        return f"Dataset({self.name}: {len(self):,} examples of {names}; {self.nbytes / 2**20:.1f} MiB)"

    @property
    def nbytes(self) -> int:
        """How much memory the values take, those of examples outside a subset included."""
        return sum(column.nbytes for column in self.columns.values())

    def insist_on_labels(self, graph: Graph) -> None:
        """Refuse a model whose labels have other numbers than in these data: every answer would be misread."""
        for name, labels in self.labels.items():
            known = graph.label_sets[name].labels if name in graph.label_sets else None
            if known is not None and known != labels:
                pairs = zip_longest(labels, known)
                number, (here, there) = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
                raise EnergyError(
                    f"the data and the model have other labels of `{name}`, or another order: label {number} is "
                    f"`{here}` in the data and `{there}` in the model; load the data with the model's labels, as in "
                    f"`load_data(..., vocabularies={{'{name}': labels}})`, or bind the model with `labels=data.labels`"
                )

    def subset(self, rows: Sequence[int] | Numbers) -> Dataset:
        """Some of the examples, in the given order; the values are shared."""
        made = copy(self)
        made.rows = self.rows[np.asarray(rows, dtype=np.int64)]
        return made

    def sample(self, count: int, seed: int = 0) -> Dataset:
        """A fixed random subset of at most `count` examples, in the order of the data set."""
        return self.subset(np.sort(shuffled(len(self), seed)[:count]))

    def place(self, row: int) -> str:
        """`file:line` of an example."""
        file, line = self._places[int(self.rows[row])].tolist()
        return f"{self._files[file]}:{line}" if line else self._files[file]

    def sizes(self, dim: str) -> Numbers:
        """[n]: the size of each example along an observed dim."""
        return self._sizes[dim][self.rows]

    @property
    def dims(self) -> tuple[str, ...]:
        """The observed dims that examples have sizes along."""
        return tuple(self._sizes)

    def spelling(self, output: str) -> tuple[str, ...]:
        """All labels that gold numbers of an output stand for: the vocabulary, then what it lacks."""
        return (*self.vocabularies[output].labels, *self.unseen.get(output, ()))

    def metric(self, choice: str | Selection, output: str) -> Metric:
        """A metric for predictions of an output, in the spec's own words; it compares with `Batch.gold`."""
        from energyml.metrics import make_metric

        vocabulary = self.vocabularies[output]
        pieces = vocabulary.merges is not None
        return make_metric(choice, self.spelling(output), known=len(vocabulary), end=vocabulary.end, pieces=pieces)

    def confusion(self, output: str) -> Confusion:
        """A table of which label of an output is taken for which."""
        from energyml.metrics import Confusion, Judged

        vocabulary = self.vocabularies[output]
        return Confusion(Judged(self.spelling(output), len(vocabulary), vocabulary.end))

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """One example without padding: [*axes] by declared name."""
        return {name: tensor[0] for name, tensor in self.batch([row]).tensors.items()}

    def batch(self, rows: Sequence[int] | Numbers | None = None, total: int | None = None) -> Batch:
        """Some examples as a batch, all of them when `rows` is left out; no loop over examples or positions.

        Args:
            rows: places in this data set.
            total: how many examples the batch has over all processes.
        """
        # a copy: numpy calls a single number contiguous whatever its stride is, and torch refuses a negative one
        asked = np.arange(len(self)) if rows is None else np.array(rows, dtype=np.int64, order="C")
        stored = self.rows[asked]
        tensors: dict[str, Tensor] = {}
        gold: dict[str, Tensor] = {}
        lengths = {dim: torch.from_numpy(self._sizes[dim][stored]) for dim in self._lengths}
        for name, column in self.columns.items():
            values = column.gather(stored, self.bounds.get(name))
            if name in self.vocabularies:
                gold[name] = torch.from_numpy(values)
                values = self._learnable(name, values)
            tensors[name] = torch.from_numpy(values)
            if isinstance(column, NestedRagged):
                lengths[self._nested[name]] = torch.from_numpy(column.inner_counts(stored))
        return Batch(tensors, lengths, gold, torch.from_numpy(asked), len(asked) if total is None else total)

    def _learnable(self, output: str, gold: Array) -> Array:
        """Gold numbers as a model takes them: what the vocabulary lacks is its unknown label, else not labelled."""
        if not self.unseen.get(output):
            return gold
        vocabulary = self.vocabularies[output]
        return np.where(gold >= len(vocabulary), vocabulary.unknown_number, gold)


def _differ(sizes: Numbers) -> bool:
    return len(sizes) > 0 and int(sizes.min()) != int(sizes.max())

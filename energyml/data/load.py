"""From a spec's `data` line to data sets: read, divide, build vocabularies from training, encode."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from energyml import cards
from energyml.cards.card import Selection
from energyml.data.dataset import Dataset
from energyml.data.encode import Encoder
from energyml.data.files import Root, RootLike, WithStandardInput, as_root
from energyml.data.problems import BadData, DataError, data_error
from energyml.data.readers.reader import SPLITS, Example, FileReader, Reader, Split
from energyml.data.targets import Target, find_targets
from energyml.data.vocabulary import Vocabulary, count_labels
from energyml.diagnostics import Note, Source, Span
from energyml.driver import Compiled, compile_source, read_choice, read_source
from energyml.model.types import REAL, EdgeType

ROOT_VARIABLE = "ENERGYML_DATA"
MOST_NAMED = 5

SpecLike: TypeAlias = Compiled | Source | str | os.PathLike[str]
Vocabularies: TypeAlias = Mapping[str, Vocabulary | Sequence[str]]


@dataclass
class Data:
    """What a spec's `data` line gives.

    Attributes:
        train, validation, test: the splits; `None` for one that there is none of, or that was not asked for.
        vocabularies: by label set: all labels that declared inputs and outputs have.
        labels: the labels of each set that comes from data: `em.load(path, labels=data.labels)`.
        notes: what was decided on the way, for people.
    """

    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None
    vocabularies: dict[str, Vocabulary]
    labels: dict[str, tuple[str, ...]]
    notes: list[str] = field(default_factory=list)


def load_data(
    spec: SpecLike,
    *,
    root: RootLike | None = None,
    using: str | Selection | None = None,
    vocabularies: Vocabularies | None = None,
    splits: Collection[Split] = SPLITS,
    judged: bool = False,
    fixed: Collection[str] = (),
) -> Data:
    """Read the data of a spec.

    Args:
        spec: a compiled spec, its source, or the path of its file.
        root: where paths start: a folder, or a mapping from paths to contents. When left out, the folder that the
            environment variable ENERGYML_DATA names, else the folder of the spec.
        using: a reader in the spec's own words, in place of its `data` line.
        vocabularies: frozen ones (of a checkpoint, or of a network that brings its labels); what they lack is unknown.
            Sets that come from data and are not among them are built from the training split.
        splits: which splits are wanted; a file that none of them needs is not read.
        judged: whether a trained model is judged by these data: labels that it lacks may then occur in its training
            split as in any other.
        fixed: inputs that the data need not give, since they hold for every example.

    Raises `DataError`, which shows the declaration that the data breaks.
    """
    loading = _Loading(spec, root, using, fixed)
    with loading:
        return loading.load(vocabularies or {}, splits, judged)


def stream_data(
    spec: SpecLike,
    files: str | Sequence[str],
    vocabularies: Vocabularies,
    *,
    root: RootLike = ".",
    using: str | Selection | None = None,
    size: int = 32,
    gold: bool = False,
    fixed: Collection[str] = (),
) -> Iterator[Dataset]:
    """The examples of other files in the format of a spec's `data` line, some at a time, in their order.

    Args:
        spec: as in `load_data`.
        files: a file or several, one after the other; of readers with two sides (`pairs`, `images`) one of each, of
            which the first is enough without `gold`. A pipe will do, and `-` is standard input.
        vocabularies: of the trained model.
        root: where the paths of `files` start; the working directory when left out.
        using: as in `load_data`.
        size: examples at a time; memory does not grow with the file.
        gold: whether the files have outputs too.
        fixed: as in `load_data`.

    Each data set keeps its examples (`Dataset.examples`), so that the original texts can be shown.
    """
    loading = _Loading(spec, WithStandardInput(as_root(root)), using, fixed)
    with loading:
        yield from loading.stream([files] if isinstance(files, str) else files, vocabularies, size, gold)


class _Loading:
    """One reading of a spec's data; as a context, it shows declarations beside what is wrong with the data."""

    def __init__(
        self, spec: SpecLike, root: RootLike | None, using: str | Selection | None, fixed: Collection[str]
    ) -> None:
        self.compiled = _compiled(spec)
        self.graph = self.compiled.graph
        self.own_choice = using is None
        chosen = self.compiled.model.choices.data if using is None else using
        self.selection = read_choice("reader", chosen, self.compiled.model) if isinstance(chosen, str) else chosen
        self.root = root_of(self.compiled.source, root)
        self.fixed = fixed
        self.targets: list[Target] = []

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, BadData):
            raise self._error(problem) from problem

    def _error(self, problem: BadData) -> DataError:
        """The problem with the declaration that it breaks, else with the line that names the data."""
        line = self.compiled.model.choices.spans.get("data") if self.own_choice else None
        span = self._declared(problem.field)
        notes = [Note("the data is chosen here", line)] if span is not None and line is not None else []
        return data_error(self.compiled.source, problem, line if span is None else span, notes)

    def _declared(self, name: str) -> Span | None:
        """Where an input, an output or a label set is declared; fields go by the declaration that they fill."""
        by_field = {target.field: target.name for target in self.targets}
        name = name if name in self.graph.inputs or name in self.graph.variables else by_field.get(name, name)
        for declared in (self.graph.inputs, self.graph.variables, self.graph.label_sets):
            if name in declared:
                return declared[name].span
        return None

    def _reader(self) -> Reader:
        if self.selection is None:
            raise BadData("E0820")
        reader: Reader = cards.implementation(self.selection.card)(self.selection, self.root)
        self.targets = find_targets(self.compiled, reader, self.selection.name, self.fixed)
        return reader

    # --------------------------------------------------------------------------------------------------------- splits

    def load(self, given: Vocabularies, splits: Collection[Split], judged: bool) -> Data:
        reader = self._reader()
        self._check_subwords()
        learned = [name for name in self._sets() if self.graph.label_sets[name].source == "data" and name not in given]
        wanted = [split for split in SPLITS if split in splits or (split == "train" and learned)]
        division = reader.divide(wanted, {target.field for target in self.targets})
        counts = self._counts(learned, division.parts.get("train", []))
        vocabularies = self._vocabularies(given, counts)
        notes = list(division.notes)
        made: dict[Split, Dataset | None] = dict.fromkeys(SPLITS)
        for split in splits:
            examples = division.parts.get(split) or []
            if examples:
                learned_from = split == "train" and not judged
                made[split] = self._dataset(split, self.targets, examples, vocabularies, training=learned_from)
                notes += _unseen_notes(made[split])
        notes += self._once_notes(counts)
        labels = {
            name: vocabulary.labels
            for name, vocabulary in vocabularies.items()
            if self.graph.label_sets[name].labels is None
        }
        return Data(made["train"], made["validation"], made["test"], vocabularies, labels, notes)

    def stream(self, files: Sequence[str], given: Vocabularies, size: int, gold: bool) -> Iterator[Dataset]:
        reader = self._reader()
        targets = [target for target in self.targets if gold or not target.is_output]
        vocabularies = self._vocabularies(given, {})
        fields = {target.field for target in targets}
        if isinstance(reader, FileReader):  # one file is all that it needs: others are read after it
            examples: Iterator[Example] = chain.from_iterable(reader.read([one], fields) for one in files)
        else:
            examples = reader.read(files, fields)
        while some := list(islice(examples, size)):
            yield self._dataset("test", targets, some, vocabularies, training=False, keep=True)

    def _dataset(
        self,
        split: Split,
        targets: Sequence[Target],
        examples: Sequence[Example],
        vocabularies: Mapping[str, Vocabulary],
        *,
        training: bool,
        keep: bool = False,
    ) -> Dataset:
        assert self.selection is not None
        strict = self.selection["unknown"] == "error"
        encoded = Encoder(self.graph, vocabularies, strict=strict, training=training).encode(targets, examples)
        outputs = {one.name: vocabularies[_element(one)] for one in targets if one.is_output}
        shown = {dim for target in targets if not target.is_output for dim in _dims(target)}
        stated = [dim for dim in encoded.sizes if dim not in shown]
        labels = {name: one.labels for name, one in vocabularies.items()}
        return Dataset(
            split, encoded, outputs, examples, bounds=self._bounds(targets), stated=stated, keep=keep, labels=labels
        )

    def _bounds(self, targets: Iterable[Target]) -> dict[str, int]:
        """Outputs whose length is part of the answer are padded to its bound."""
        bounds = {}
        for target in targets:
            dims = [self.graph.dims[dim] for dim in _dims(target)]
            if target.is_output and dims and dims[0].kind == "free" and dims[0].size is not None:
                bounds[target.name] = dims[0].size
        return bounds

    # --------------------------------------------------------------------------------------------------- vocabularies

    def _sets(self) -> list[str]:
        """The label sets that targets are made of, or have an axis over."""
        names: list[str] = []
        for target in self.targets:
            if not isinstance(target.type, EdgeType):
                names += [axis.extent.name for axis in target.type.label_axes]
                names += [target.type.element] if target.type.element != REAL else []
        return list(dict.fromkeys(names))

    def _check_subwords(self) -> None:
        """Pieces change how long a sequence is: nothing else may run over its dim."""
        for target in self.targets:
            declared = self.graph.label_sets.get(_element(target))
            if declared is None or not declared.options.get("subwords") or isinstance(target.type, EdgeType):
                continue
            dims = _dims(target)
            beside = [one.name for one in self.targets if one is not target and set(dims) & set(_dims(one))]
            if len(dims) != 1 or len(target.type.axes) != 1 or self.graph.dims[dims[0]].kind == "fixed":
                problem = f"subwords divide a sequence of words, and `{target.name}` is {target.type}"
            elif beside:
                problem = f"subwords change how long `{dims[0]}` is, and `{beside[0]}` runs over it too"
            else:
                continue
            remedy = "leave `subwords` out, or give the words a dim of their own"
            raise BadData("E0819", field=target.name, help=remedy, name=declared.name, problem=problem)

    def _counts(self, learned: Sequence[str], examples: Sequence[Example]) -> dict[str, Counter[str]]:
        """How often training has each label, for each set that is learned."""
        counts: dict[str, Counter[str]] = {name: Counter() for name in learned}
        for target in self.targets:
            name = _element(target)
            if name in counts:
                depth = len(target.type.axes) if not isinstance(target.type, EdgeType) else 0
                values: Iterable[Any] = (example.values[target.field] for example in examples)
                values = values if depth else ([one] for one in values)
                for _ in range(depth - 1):
                    values = chain.from_iterable(values)
                counts[name] += count_labels(_texts(one) for one in values)
        return counts

    def _vocabularies(self, given: Vocabularies, counts: Mapping[str, Counter[str]]) -> dict[str, Vocabulary]:
        found: dict[str, Vocabulary] = {}
        for name in self._sets():
            declared = self.graph.label_sets[name]
            known = given.get(name)
            if isinstance(known, Vocabulary):
                found[name] = known
            elif known is not None and declared.options.get("subwords"):
                problem = "a list of pieces does not say how words are divided"
                remedy = "pass the saved `Vocabulary`, which has the merges"
                raise BadData("E0819", field=name, help=remedy, name=name, problem=problem)
            elif known is not None or declared.labels is not None:
                labels = tuple(known if known is not None else declared.labels or ())
                extras = {key: value for key in ("unknown", "pad", "end") if (value := declared.options.get(key))}
                found[name] = Vocabulary(name, labels, **extras)  # type: ignore[arg-type]
            elif name in counts:
                found[name] = Vocabulary.from_counts(name, counts[name], declared.options)
            if not found.get(name):
                raise BadData("E0819", field=name, name=name, problem=_why_empty(declared.source, counts.get(name)))
        return found

    def _once_notes(self, counts: Mapping[str, Counter[str]]) -> Iterator[str]:
        """Labels of outputs that training has once: each of them may be a misspelling of another."""
        tags = {_element(one) for one in self.targets if one.is_output and one.end is None}
        for name in sorted(tags & counts.keys()):
            once = sorted(label for label, count in counts[name].items() if count == 1)
            options = self.graph.label_sets[name].options
            if once and (options.get("min") or 1) == 1 and not options.get("subwords"):
                many = "1 label that occurs" if len(once) == 1 else f"{len(once):,} labels that occur"
                yield (
                    f"`{name}` has {many} once in training ({_named(once)}): a misspelt label becomes one of its own, "
                    f"unless the spec lists the labels, as in `labels {name} = {{...}}`"
                )


def _named(labels: Sequence[str]) -> str:
    """The first labels, and how many there are beside."""
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(f"`{label}`" for label in labels[:MOST_NAMED]) + more


def _why_empty(source: str, counts: Counter[str] | None) -> str:
    if source != "data":
        return f"they come from the network `{source}`"
    if not counts:
        return "no training example has one, and no vocabulary was given"
    label, count = counts.most_common(1)[0]
    return f"none occurs often enough: the most frequent, `{label}`, has {count}"


def _element(target: Target) -> str:
    return "" if isinstance(target.type, EdgeType) else target.type.element


def _dims(target: Target) -> list[str]:
    if isinstance(target.type, EdgeType):
        return [target.type.over]
    return [axis.extent.name for axis in target.type.index_axes]


def _texts(value: Any) -> Any:
    """The labels of a list (whole numbers as texts, without what is not labelled), or the characters of a word."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ()
    if all(type(one) is str for one in value):
        return value
    return [str(one) for one in value if isinstance(one, str | int)]


def _unseen_notes(dataset: Dataset | None) -> Iterator[str]:
    for output, counts in dataset.missing.items() if dataset is not None else ():
        assert dataset is not None
        total = sum(counts.values())
        cells = "1 cell has a label" if total == 1 else f"{total:,} cells have labels"
        unseen = f"{dataset.name}: {cells} of `{output}` that training never saw"
        yield f"{unseen} ({_named(list(counts))}): counted as wrong"


def _compiled(spec: SpecLike) -> Compiled:
    if isinstance(spec, Compiled):
        return spec
    return compile_source(spec if isinstance(spec, Source) else read_source(Path(spec)))


def data_root(source: Source, given: Path | None) -> str:
    """The folder where the paths of a spec's data start, as an absolute path."""
    return str((given or Path(os.environ.get(ROOT_VARIABLE) or Path(source.name).parent)).resolve())


def root_of(source: Source, given: RootLike | None) -> Root:
    """Where the paths of a spec's data start: what is given, else ENERGYML_DATA, else the folder of the spec."""
    if given is not None:
        return as_root(given)
    named = os.environ.get(ROOT_VARIABLE)
    return as_root(named if named else Path(source.name).parent)

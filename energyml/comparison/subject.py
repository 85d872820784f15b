"""What is compared: a model with its weights, and the examples that it is asked about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from energyml.data.dataset import Dataset
from energyml.data.load import ROOT_VARIABLE, Data, Vocabularies, load_data, stream_data
from energyml.data.vocabulary import Vocabulary
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, SpecFileError, compile_source, read_source
from energyml.loading import bind

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

SPLITS = ("train", "validation", "test")
# All examples of a file at once: they are compared as one data set.
WHOLE = 2**31


@dataclass
class Subject:
    """A model and its examples.

    Attributes:
        name: of the spec or the run.
        model: in evaluation mode.
        dataset: the examples.
        split: where they come from.
        train: the training split, where it was asked for.
        notes: what was decided on the way, for people.
    """

    name: str
    model: EnergyModel
    dataset: Dataset
    split: str
    train: Dataset | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """Which data is wanted.

    Attributes:
        data: a reader in the spec's words in place of its `data` line.
        root: where the paths of the data start.
        split: `train`, `validation` or `test`.
        inputs: files without gold labels, as `energyml predict` takes them, in place of a split.
        train: whether the training split is wanted too.
        allow: packages that a checkpoint may import.
        seed: of the weights of a spec.
    """

    data: str | None = None
    root: Path | None = None
    split: str = "test"
    inputs: Sequence[str] = ()
    train: bool = False
    allow: Sequence[str] = ()
    seed: int = 0

    @property
    def splits(self) -> list[str]:
        """The splits to read."""
        own = [] if self.inputs else [self.split]
        return [*dict.fromkeys([*own, *(["train"] if self.train else [])])]


def from_path(path: str | Path, wanted: Wanted) -> Subject:
    """The model of a run's folder, a checkpoint or a spec file, with its data."""
    place = Path(path)
    if wanted.split not in SPLITS:
        raise EnergyError(f"unknown split `{wanted.split}`; there are {', '.join(SPLITS)}")
    if not place.exists():
        raise SpecFileError(f"{place}: no such file or directory; give a spec, or the folder of a run")
    return _from_run(place, wanted) if place.is_dir() or place.suffix == ".safetensors" else _from_spec(place, wanted)


def _from_run(place: Path, wanted: Wanted) -> Subject:
    from energyml.train.folder import load_run

    model, checkpoint = load_run(place, allow_import=wanted.allow)
    request = checkpoint.state["request"]
    vocabularies = {name: Vocabulary.from_json(one) for name, one in request["vocabularies"].items()}
    chosen = request["choices"]["data"]
    reader = wanted.data or (None if chosen in (None, "None") else str(chosen))
    saved = request.get("root")
    root = wanted.root
    if root is None and saved is not None and not os.environ.get(ROOT_VARIABLE) and Path(saved).is_dir():
        root = Path(saved)  # where the data lay while training
    return _subject(str(place), model, vocabularies, reader, root, wanted)


def _from_spec(place: Path, wanted: Wanted) -> Subject:
    compiled = compile_source(read_source(place))
    data = _load(compiled, {}, wanted.data, wanted.root, wanted)
    model = bind(compiled, labels=data.labels, seed=wanted.seed)
    made = _chosen(str(place), model, data, data.vocabularies, wanted.data, wanted.root, wanted)
    made.notes.insert(0, f"the weights are random (seed {wanted.seed}): {place} is a spec, not the folder of a run")
    return made


def from_model(model: EnergyModel, data: Dataset | Data | str | None, wanted: Wanted) -> Subject:
    """A model as it is, with a data set, a split of loaded data, or what its spec's `data` line or a reader gives."""
    name = model.compiled.source.name
    if isinstance(data, Dataset):
        return Subject(name, model, _some(data, data.name), data.name)
    if isinstance(data, Data):
        return _chosen(name, model, data, data.vocabularies, None, wanted.root, wanted)
    if data is not None and not isinstance(data, str):
        raise EnergyError(
            f"`data` must be a data set, loaded data or a reader in the spec's words, found {type(data).__name__}; "
            "`em.data.load_data(model.compiled)` loads what the spec names, with a data set for each split"
        )
    labels = {key: one.labels for key, one in model.graph.label_sets.items() if one.labels is not None}
    return _subject(name, model, labels, data, wanted.root, wanted)


def _subject(
    name: str,
    model: EnergyModel,
    vocabularies: Vocabularies,
    reader: str | None,
    root: Path | None,
    wanted: Wanted,
) -> Subject:
    data = _load(model.compiled, vocabularies, reader, root, wanted)
    return _chosen(name, model, data, vocabularies, reader, root, wanted)


def _load(
    compiled: Compiled, vocabularies: Vocabularies, reader: str | None, root: Path | None, wanted: Wanted
) -> Data:
    if not wanted.splits and vocabularies:
        return Data(None, None, None, {}, {})
    return load_data(
        compiled, root=root, using=reader, vocabularies=vocabularies,
        splits=wanted.splits,  # type: ignore[arg-type]
    )  # fmt: skip


def _chosen(
    name: str,
    model: EnergyModel,
    data: Data,
    vocabularies: Vocabularies,
    reader: str | None,
    root: Path | None,
    wanted: Wanted,
) -> Subject:
    split = "inputs" if wanted.inputs else wanted.split
    if wanted.inputs:
        parts = list(stream_data(model.compiled, list(wanted.inputs), vocabularies, using=reader, size=WHOLE))
        dataset = parts[0] if parts else None
    else:
        dataset = getattr(data, wanted.split)
    return Subject(name, model, _some(dataset, split), split, data.train if wanted.train else None, list(data.notes))


def _some(dataset: Dataset | None, split: str) -> Dataset:
    if dataset is None or not len(dataset):
        if split == "inputs":
            raise EnergyError("the files of `--inputs` have no examples; are they the right ones?")
        raise EnergyError(f"the data has no {split} split; choose another `--split`, or pass `--data`")
    return dataset


def device_of(model: EnergyModel) -> torch.device:
    """Where a model's parameters are."""
    reference = next(model.parameters(), None)
    return reference.device if reference is not None else torch.device("cpu")


__all__ = ["SPLITS", "Subject", "Wanted", "device_of", "from_model", "from_path"]

"""Data: readers of files, vocabularies, data sets and batches.  Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Batch": "energyml.data.dataset",
    "Batches": "energyml.data.batches",
    "Data": "energyml.data.load",
    "DataError": "energyml.data.problems",
    "Dataset": "energyml.data.dataset",
    "Vocabulary": "energyml.data.vocabulary",
    "load_data": "energyml.data.load",
    "load_vocabularies": "energyml.data.vocabulary",
    "save_vocabularies": "energyml.data.vocabulary",
    "stream_data": "energyml.data.load",
}

__all__ = [*_PUBLIC]

if TYPE_CHECKING:
    from energyml.data.batches import Batches as Batches
    from energyml.data.dataset import Batch as Batch
    from energyml.data.dataset import Dataset as Dataset
    from energyml.data.load import Data as Data
    from energyml.data.load import load_data as load_data
    from energyml.data.load import stream_data as stream_data
    from energyml.data.problems import DataError as DataError
    from energyml.data.vocabulary import Vocabulary as Vocabulary
    from energyml.data.vocabulary import load_vocabularies as load_vocabularies
    from energyml.data.vocabulary import save_vocabularies as save_vocabularies


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the cards of readers never import torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'energyml.data' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

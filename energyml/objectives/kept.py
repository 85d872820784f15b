"""What objectives keep between batches: a frozen teacher, chains, counts of labels.

It belongs to a model and an objective with its options, lives as long as the model, and is not stored: a copy of a
model, or a run that goes on from a checkpoint, begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from energyml.cards.card import Selection

T = TypeVar("T")
_KEPT: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def kept(module: nn.Module, selection: Selection, make: Callable[[], T]) -> T:
    """What an objective keeps with a model, made when it is not there."""
    of_model = _KEPT.setdefault(module, {})
    key = str(selection)
    if key not in of_model:
        of_model[key] = make()
    found: T = of_model[key]
    return found


__all__ = ["kept"]

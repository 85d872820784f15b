"""What objectives keep between batches: a frozen teacher, chains, counts of labels.

It belongs to a model and an objective with its options, and lives as long as the model.  Checkpoints store it, so that
a run that goes on has the same teacher and the same chains; a copy of a model begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from energyml.cards.card import Selection


@dataclass(frozen=True)
class Stored:
    """What a kept thing needs to be made again.

    Attributes:
        tensors: by name.
        plain: what JSON holds.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    plain: Any = None


class Storable(Protocol):
    """What an objective keeps."""

    def stored(self) -> Stored:
        """All of it, for a checkpoint."""
        ...

    def restore(self, stored: Stored) -> None:
        """Become what was stored."""
        ...


T = TypeVar("T", bound=Storable)
_KEPT: WeakKeyDictionary[nn.Module, dict[str, Storable]] = WeakKeyDictionary()
# What a checkpoint had, until the objective asks for it.
_WAITING: WeakKeyDictionary[nn.Module, dict[str, Stored]] = WeakKeyDictionary()


def kept(module: nn.Module, selection: Selection, make: Callable[[], T]) -> T:
    """What an objective keeps with a model; made when it is not there, and then as a checkpoint had it."""
    of_model: dict[str, Any] = _KEPT.setdefault(module, {})
    key = str(selection)
    if key not in of_model:
        of_model[key] = make()
        waiting = _WAITING.get(module, {}).pop(key, None)
        if waiting is not None:
            of_model[key].restore(waiting)
    found: T = of_model[key]
    return found


def is_waiting(module: nn.Module, selection: Selection) -> bool:
    """Whether a checkpoint brought what an objective keeps, and it was not asked for yet."""
    return str(selection) in _WAITING.get(module, {})


def all_stored(module: nn.Module) -> dict[str, Stored]:
    """What all objectives keep with a model, by objective; what nobody asked for since a checkpoint stays as it was."""
    made = {key: one.stored() for key, one in _KEPT.get(module, {}).items()}
    return {**_WAITING.get(module, {}), **made}


def restore_all(module: nn.Module, stored: Mapping[str, Stored]) -> None:
    """Let objectives find what `all_stored` gave; what they kept before is forgotten."""
    _KEPT.pop(module, None)
    _WAITING[module] = dict(stored)


__all__ = ["Storable", "Stored", "all_stored", "is_waiting", "kept", "restore_all"]

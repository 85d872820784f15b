"""Values that are computed once, and know whether gradients flow through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import torch

V = TypeVar("V")


class Remembered:
    """Keeps values by name; one made without gradients serves only where none are wanted."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bool], Any] = {}

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The value of that name, computed when it is first asked for."""
        wanted = torch.is_grad_enabled()
        for known in (True,) if wanted else (True, False):
            if (name, known) in self._kept:
                return self._kept[name, known]
        value = self._kept[name, wanted] = compute()
        return value

    def all(self) -> dict[tuple[str, bool], Any]:
        """Every value, by its name and whether gradients were wanted."""
        return dict(self._kept)

    def take(self, values: Mapping[tuple[str, bool], Any]) -> None:
        """Keep values that were computed elsewhere."""
        self._kept.update(values)


class remembered(Generic[V]):
    """A property that is computed when it is first asked for.

    `functools.cached_property` does the same, and holds a lock before Python 3.12, which compiled code cannot.
    """

    def __init__(self, function: Callable[[Any], V]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> remembered[V]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> V: ...

    def __get__(self, instance: object | None, owner: type) -> remembered[V] | V:
        """The value; from then on it is an attribute of the object, and nobody comes here."""
        if instance is None:
            return self
        value = self.function(instance)
        object.__setattr__(instance, self.name, value)
        return value


def nothing_yet() -> Remembered:
    """Where nothing is known: compiled code calls functions, not classes, for what a class has by default."""
    return Remembered()


__all__ = ["Remembered", "nothing_yet", "remembered"]

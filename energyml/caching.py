"""Values that are computed once, and know whether gradients flow through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import torch

V = TypeVar("V")


class ValueCache:
    """Values by name; one made without gradients serves only where none are wanted."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, bool], Any] = {}

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """The value of that name, computed when it is first asked for."""
        wanted = torch.is_grad_enabled()
        for known in (True,) if wanted else (True, False):
            if (name, known) in self._values:
                return self._values[name, known]
        value = self._values[name, wanted] = compute()
        return value

    def all(self) -> dict[tuple[str, bool], Any]:
        """Every value, by its name and whether gradients were wanted."""
        return dict(self._values)

    def take(self, values: Mapping[tuple[str, bool], Any]) -> None:
        """Keep values that were computed elsewhere."""
        self._values.update(values)


class cached_property(Generic[V]):
    """A property that is computed when it is first asked for.

    `functools.cached_property` does the same, and holds a lock before Python 3.12, which compiled code cannot.
    """

    def __init__(self, function: Callable[[Any], V]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[V]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> V: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[V] | V:
        """The value; it becomes an attribute of the object, which hides the property."""
        if instance is None:
            return self
        value = self.function(instance)
        object.__setattr__(instance, self.name, value)
        return value


def empty_cache() -> ValueCache:
    """A cache without values: compiled code calls functions, not classes, for the defaults of a dataclass."""
    return ValueCache()


__all__ = ["ValueCache", "cached_property", "empty_cache"]

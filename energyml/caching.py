"""Values that are computed once, and know whether gradients flow through them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import torch

V = TypeVar("V")
K = TypeVar("K")


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


class BoundedCache(Generic[K, V]):
    """Values by key, of which only the latest are kept.

    Args:
        most: how many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def once(self, key: K, make: Callable[[], V]) -> V:
        """The value of that key, made when it is first asked for; the oldest one goes where there are too many."""
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = make()
            if len(self._values) > self.most:
                self._values.popitem(last=False)
        return found

    def values(self) -> list[V]:
        """Every value that is kept."""
        return list(self._values.values())

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()


def empty_cache() -> ValueCache:
    """A cache without values: compiled code calls functions, not classes, for the defaults of a dataclass."""
    return ValueCache()


__all__ = ["BoundedCache", "ValueCache", "cached_property", "empty_cache"]

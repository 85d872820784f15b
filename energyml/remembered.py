"""Values that are computed once, and know whether gradients flow through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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


__all__ = ["Remembered"]

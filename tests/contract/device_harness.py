"""A harness that holds code to accelerators without having one.

Inputs live on the `meta` device, where tensors have shapes but no values, and a dispatch mode watches every operation:
none may create a tensor elsewhere, copy one to the host, ask for a value, or write into an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST = torch.device("cpu")
ELSEWHERE = torch.device("meta")

# Numbers that are written beside tensors, as in `torch.where(mask, x, 0)`, become tensors without axes on the host.
_NUMBERS = {"aten::scalar_tensor", "aten::lift_fresh", "aten::detach", "aten::alias"}


class Violation(AssertionError):
    """An operation that would wait for a device, leave it, or change an input."""


class DeviceHarness(TorchDispatchMode):
    """Raises `Violation` at the operation that is at fault, so that the traceback shows who asked for it.

    Args:
        inputs: tensors that nobody may write into.
    """

    def __init__(self, inputs: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.protected = {one.untyped_storage()._cdata for one in inputs}
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        self.operations += 1
        if name == "aten::_local_scalar_dense":
            raise Violation(f"`{name}` asks the device for a value (`.item()`, `bool(tensor)`, `int(tensor)`)")
        self._check_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        self._check_places(name, list(_tensors((args, kwargs))), list(_tensors(result)))
        return result

    def _check_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = kwargs.get(argument.name, args[number] if number < len(args) else None)
            for tensor in _tensors(value):
                if tensor.untyped_storage()._cdata in self.protected:
                    raise Violation(f"`{func._schema.name}` writes into an input")

    def _check_places(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        on_host = [one for one in given if one.device == HOST]
        for tensor in made:
            if tensor.device != HOST or (name in _NUMBERS and tensor.dim() == 0):
                continue
            if any(one.device == ELSEWHERE for one in given):
                raise Violation(f"`{name}` copies a tensor to the host")
            if not on_host or name == "aten::lift_fresh":
                raise Violation(
                    f"`{name}` creates a tensor of shape {list(tensor.shape)} on the host, without a device"
                )


def _tensors(value: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf


def elsewhere(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors on the watched device, without values."""
    return {name: one.to(ELSEWHERE) for name, one in tensors.items()}

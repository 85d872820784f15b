"""A device that is not there, with numbers: what `device_harness` cannot follow, as it asks for some.

Tensors say that they are on the `meta` device and hold their numbers on the host, out of reach.  Every operation is
watched: none may mix tensors of the two places, and what waits for the device is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.contract.device_harness import ELSEWHERE, HOST, Violation

M = TypeVar("M", bound=nn.Module)

# Operations whose result, or its size, the host has to wait for.
WAITS = {
    "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2",
    "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
}  # fmt: skip
# Copies from one place to the other are what these are for.
COPIES = {"aten::_to_copy", "aten::copy_"}


class Held(Tensor):
    """A tensor elsewhere; its numbers are in `here`."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Held:
        """Wrap numbers of the host."""
        made: Held = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype,
            layout=here.layout, device=ELSEWHERE, requires_grad=False,
        )  # fmt: skip
        made.here = here
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """The numbers and where they pretend to be."""
        return f"Held({self.here!r})"

    def tolist(self) -> Any:
        """The numbers, which the host waits for."""
        WAITED["tolist"] += 1
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        kwargs = kwargs or {}
        name, given = func._schema.name, [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        held = any(isinstance(one, Held) for one in given)
        goal = kwargs.get("device")
        goal = None if goal is None else torch.device(goal)
        strange = [one for one in given if not isinstance(one, Held) and one.dim() > 0]
        if held and strange and name not in COPIES:
            raise Violation(f"`{name}` mixes tensors of the host, {list(strange[0].shape)}, with those of a device")
        if held and (name in WAITS or (name == "aten::_to_copy" and goal == HOST)):
            WAITED[name] += 1
        if goal == ELSEWHERE:
            kwargs = {**kwargs, "device": HOST}
        plain_args, plain_kwargs = tree_map_only(Held, lambda one: one.here, (args, kwargs))
        result = func(*plain_args, **plain_kwargs)
        if not (goal == ELSEWHERE or (held and goal is None)):
            return result
        result = tree_map_only(Tensor, Held, result)
        return return_and_correct_aliasing(func, args, kwargs, result) if held else result


# What waited for the device since `Elsewhere` was entered, by operation.
WAITED: Counter[str] = Counter()


class Elsewhere(TorchDispatchMode):
    """Tensors that are made on the `meta` device have numbers."""

    def __enter__(self) -> Elsewhere:
        """Count from here on."""
        WAITED.clear()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        return Held.__torch_dispatch__(func, types, args, kwargs)


class Generator(torch.Generator):
    """A generator of the host that says it is elsewhere, where it was asked for there."""

    def __new__(cls, device: Any = HOST) -> Generator:
        """One of the host."""
        made: Generator = super().__new__(cls, HOST)
        made.place = torch.device(device)
        return made

    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says that it is."""
        return self.place


def tensor(data: Any, *, device: Any = None, **more: Any) -> Tensor:
    """As `torch.tensor`, whose numbers go to a device without an operation."""
    made = _TENSOR(data, **more)
    return Held(made) if device is not None and torch.device(device) == ELSEWHERE else made


_TENSOR = torch.tensor


def moved(module: M) -> M:
    """A module whose parameters and buffers are elsewhere."""
    for one in module.modules():
        for name, weight in one._parameters.items():
            if weight is not None:
                one._parameters[name] = nn.Parameter(Held(weight.detach()), weight.requires_grad)
        for name, buffer in one._buffers.items():
            if buffer is not None:
                one._buffers[name] = Held(buffer)
    return module


def sent(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors elsewhere."""
    return {name: Held(one) for name, one in tensors.items()}


def here(values: Iterable[Tensor]) -> list[Tensor]:
    """The numbers of tensors, which must be elsewhere."""
    found = []
    for one in values:
        assert isinstance(one, Held), f"a tensor of shape {list(one.shape)} is on the host"
        found.append(one.here)
    return found

"""Who follows what is computed: autograd, a transform, the compiler, or nobody."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from energyml.transforms import compiling, eager, followed


def untaped() -> AbstractContextManager[Any]:
    """Nothing in here is recorded by autograd.

    Where nobody else records either this is inference mode, in which calling an operation takes a fifth less time.
    What leaves it has to be copied: autograd refuses tensors that were made in there.
    """
    return torch.inference_mode() if eager() else torch.no_grad()


def overwritable() -> bool:
    """Whether results may be written where others were: nothing maps or compiles what is computed."""
    return not (compiling() or torch._C._are_functorch_transforms_active())


def may_read_back(tensor: Tensor) -> bool:
    """Whether the course of things may depend on values: on the CPU, where nothing is recorded."""
    return tensor.device.type == "cpu" and overwritable()


def buffer(*shape: int, like: Tensor) -> Tensor | None:
    """A buffer that all steps use, where none is recorded."""
    return like.new_empty(shape) if overwritable() else None


def entered(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """What a function of the tape gives."""
    if compiling() or followed():
        return function.apply(*inputs)
    # What `apply` itself goes on with; before that it reads the signature of `forward`, which takes as long as a chain.
    return super(torch.autograd.Function, function).apply(*inputs)  # type: ignore[misc]

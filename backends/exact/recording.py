"""Who follows what is computed: autograd, a transform, the compiler, or nobody."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor


def followed() -> bool:
    """Whether a transform of `torch.func`, or forward differentiation, is under way; compiled code need not know."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def untaped() -> AbstractContextManager[Any]:
    """Nothing in here is recorded by autograd.

    Where nobody else records either this is inference mode, in which calling an operation takes a fifth less time.
    What leaves it has to be copied: autograd refuses tensors that were made in there.
    """
    return torch.no_grad() if torch.compiler.is_compiling() or followed() else torch.inference_mode()


def overwritable() -> bool:
    """Whether results may be written where others were: nothing maps or compiles what is computed."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def may_read_back(tensor: Tensor) -> bool:
    """Whether the course of things may depend on values: on the CPU, where nothing is recorded."""
    return tensor.device.type == "cpu" and overwritable()


def buffer(*shape: int, like: Tensor) -> Tensor | None:
    """A buffer that all steps use, where none is recorded."""
    return like.new_empty(shape) if overwritable() else None

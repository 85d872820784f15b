"""Transforms of `torch.func` and forward differentiation: whether they are at work, what can be read, gradients inside.

Under a transform tensors are wrapped: `requires_grad` does not tell who follows them, `torch.autograd.grad` does not
see what an outer transform wants, and a wrapped tensor cannot be handed to native code.  What is computed by torch
operations alone, with inner gradients taken by `gradients`, is followed by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

# By their names: short calls ask often.
_is_compiling, _transforms_active = torch.compiler.is_compiling, torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_forward = torch.autograd.forward_ad


def followed() -> bool:
    """Whether a transform of `torch.func`, or forward differentiation, is under way; compiled code need not know."""
    return not _is_compiling() and (_transforms_active() or _forward._current_level >= 0)


def recorded() -> bool:
    """Whether derivatives may be taken that `requires_grad` does not tell of: in transforms, and in compiled code."""
    return _is_compiling() or _transforms_active() or _forward._current_level >= 0


def readable(tensor: Tensor) -> Tensor | None:
    """A tensor without the wrappers of transforms, to look at what it holds; `None` where `vmap` maps over it."""
    while _is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return None
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def seen(tensor: Tensor) -> bool:
    """Whether what a tensor holds can be looked at without waiting: on the CPU, outside of compiled code and `vmap`."""
    return tensor.is_cpu and not _is_compiling() and readable(tensor) is not None


def numbers(tensor: Tensor) -> np.ndarray | None:
    """What a tensor on the CPU holds, whatever follows it; `None` where `vmap` maps over it."""
    plain = readable(tensor)
    if plain is None or not _transforms_active():
        return None if plain is None else plain.numpy()
    with torch._C._DisableFuncTorch():
        return plain.numpy()


def gradients(number: Callable[..., Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a number by what it is a function of, zero where it does not depend on it.

    Differentiable in every way, any number of times, under all transforms and in compiled code.  Cost: one evaluation
    and one backward pass.
    """
    if not leaves:
        return ()
    found: tuple[Tensor, ...] = torch.func.grad(number, argnums=tuple(range(len(leaves))))(*leaves)
    return found

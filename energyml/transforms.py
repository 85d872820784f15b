"""The execution mode of a call: eager, under a transform of `torch.func`, or recorded as a program.

Under a transform tensors are wrapped: `requires_grad` does not tell who follows them, `torch.autograd.grad` does not
see what an outer transform wants, and a wrapped tensor cannot be handed to native code.  What is computed by torch
operations alone, with inner gradients taken by `gradients`, is followed by all of them.

A program is recorded by `torch.compile`, `torch.export`, `torch.fx` and fake tensors: there are shapes and no numbers,
and no operation may depend on numbers.  Native code is no operation of torch, so it would not be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from energyml.diagnostics import EnergyError

R = TypeVar("R")

# By their names: short calls ask often.
_is_compiling, _is_dynamo = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_transforms_active = torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_forward = torch.autograd.forward_ad
_dispatch_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_dispatch_mode, _Mode = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
# The classes of tensors that are memory and nothing else: others may hold no numbers, or watch their operations.
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def eager() -> bool:
    """Whether operations run at once and unwatched: no compiler, trace, dispatch mode, transform or dual numbers.

    Native code may run only then: a recorder of operations sees memory that is never written to.
    """
    return not (
        _is_compiling() or _transforms_active() or _dispatch_modes() or _is_tracing() or _forward._current_level >= 0
    )


def addressable(*tensors: Tensor) -> bool:
    """Whether native code may read these tensors where they lie: eager, of torch's own classes, in the CPU's memory."""
    if not eager():  # before anything else: compiled code asks no further
        return False
    return all(type(one) in _PLAIN and one.is_cpu and not one.is_neg() for one in tensors)


def compiling() -> bool:
    """Whether a program is recorded that must hold for other numbers too: nothing may depend on them."""
    return _is_compiling() or (_dispatch_modes() > 0 and _has_program_mode())


def keepable() -> bool:
    """Whether what is made now may be kept for later calls: while a program is recorded, tensors hold no numbers.

    `torch.compile` runs what it keeps itself, with numbers.
    """
    return _is_dynamo() or not compiling()


def _has_program_mode() -> bool:
    return any(_dispatch_mode(one) is not None for one in (_Mode.FAKE, _Mode.PROXY, _Mode.FUNCTIONAL))


class NotRecorded(EnergyError):
    """A computation that cannot become a part of a recorded program, with the reason."""


def refuse_recorders_of_one_call() -> None:
    """Refuse recorders that have numbers at hand: what follows from those would be recorded as if it always held."""
    if eager():
        return
    if not _is_compiling() and _is_tracing():
        raise NotRecorded(
            "`torch.jit.trace` records the operations of one call, and which ones they are depends on the numbers and "
            "sizes of that call; use `torch.export.export` or `torch.compile`"
        )
    if _is_compiling() or not _dispatch_modes():
        return
    if _dispatch_mode(_Mode.PROXY) is not None and _dispatch_mode(_Mode.FAKE) is None:
        raise NotRecorded(
            "`make_fx` records the operations of one call, and which ones they are depends on the numbers of that "
            "call; use `make_fx(..., tracing_mode='fake')`, `torch.export.export` or `torch.compile`"
        )


def recordable(what: str, call: Callable[..., R], *args: Any) -> R:
    """The result of a call; where a program is recorded, an error about missing numbers names the computation.

    Args:
        what: names it, as in "`exact` answering `map`".
        call: the function; `torch.compile` looks into it and has words of its own.
        args: its arguments.
    """
    if _is_dynamo() or eager():
        return call(*args)
    try:
        return call(*args)
    except (RuntimeError, NotImplementedError) as problem:
        if not compiling():
            raise
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise NotRecorded(
            f"{what} cannot become a part of an exported program or of one with fake tensors: it depends on numbers, "
            "and there are only shapes while a program is recorded; call it eagerly, or under `torch.compile` without "
            f"`fullgraph=True`, which leaves such parts out of its graphs (torch says: {reason})"
        ) from problem


def followed() -> bool:
    """Whether a transform of `torch.func`, or forward differentiation, is under way; compiled code need not know."""
    return not _is_compiling() and (_transforms_active() or _forward._current_level >= 0)


def recorded() -> bool:
    """Whether derivatives may be taken that `requires_grad` does not tell of: in transforms, and in compiled code."""
    if _is_compiling() or _transforms_active() or _forward._current_level >= 0:
        return True
    return _dispatch_modes() > 0 and compiling()


def readable(tensor: Tensor) -> Tensor | None:
    """A tensor without the wrappers of transforms, to look at what it holds.

    `None` where it holds no numbers of its own: `vmap` maps over it, or it is a fake tensor or a like subclass.
    """
    while _is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return None
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if type(tensor) not in _PLAIN and type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    return tensor


def seen(tensor: Tensor) -> bool:
    """Whether what a tensor holds can be looked at without waiting: on the CPU, outside of compiled code and `vmap`."""
    if not tensor.is_cpu or _is_compiling() or (_dispatch_modes() and compiling()):
        return False
    return readable(tensor) is not None


def numbers(tensor: Tensor) -> np.ndarray | None:
    """The numbers of a tensor on the CPU; `None` where it holds no numbers of its own."""
    plain = readable(tensor)
    if plain is None:
        return None
    plain = plain.resolve_neg()
    if not _transforms_active():
        return plain.numpy()
    with torch._C._DisableFuncTorch():
        return plain.numpy()


def gradients(number: Callable[..., Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a number by what it is a function of, zero where it does not depend on it.

    Differentiable in every way, any number of times, under all transforms and in compiled code.  Cost: one evaluation
    and one backward pass.
    """
    if not leaves:
        return ()
    if _is_compiling() and not _is_dynamo():
        raise NotRecorded(
            "`torch.export.export(..., strict=False)` records no gradients, and this answer is one; export with "
            "`strict=True`"
        )
    found: tuple[Tensor, ...] = torch.func.grad(number, argnums=tuple(range(len(leaves))))(*leaves)
    return found

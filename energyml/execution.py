"""Execution mode: eager, autograd, functorch, compile.

Under a transform of `torch.func` tensors are wrapped: `requires_grad` does not tell who differentiates them,
`torch.autograd.grad` does not see what an outer transform wants, and a wrapped tensor cannot be handed to native code.
Transforms follow what is computed by torch operations alone, with inner gradients taken by `gradients`.

A program is recorded by `torch.compile`, `torch.export`, `torch.fx` and fake tensors: there are shapes and no numbers,
and no operation may depend on numbers.  Native code is no operation of torch, so it would not be recorded.

Torch has no public function that tells of active transforms, dual numbers, dispatch modes and wrapped tensors, or
whether one graph is demanded: the private ones are used here, and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from energyml.diagnostics import EnergyError

P = ParamSpec("P")
R = TypeVar("R")

# By their names: short calls ask often.
_is_compiling, _is_dynamo = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_is_jit_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_transforms_active = torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_forward = torch.autograd.forward_ad
_dispatch_modes, _dispatch_mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_Mode = torch._C._TorchDispatchModeKey
# The classes of tensors that are memory and nothing else: others may hold no numbers, or watch their operations.
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


class NotRecorded(EnergyError):
    """A computation that cannot become a part of a recorded program, with the reason."""


# ------------------------------------------------------------------------------------------------------------ the mode


def is_eager() -> bool:
    """Whether operations run at once and unwatched: no compiler, trace, dispatch mode, transform or dual numbers.

    Native code may run only then: a recorder of operations sees memory that is never written to.
    """
    return not (
        _is_compiling()
        or _transforms_active()
        or _dispatch_modes()
        or _is_jit_tracing()
        or _forward._current_level >= 0
    )


def is_recording() -> bool:
    """Whether a program is recorded that must hold for other numbers too: nothing may depend on them."""
    return _is_compiling() or (_dispatch_modes() > 0 and _has_program_mode())


def _has_program_mode() -> bool:
    return any(_dispatch_mode(one) is not None for one in (_Mode.FAKE, _Mode.PROXY, _Mode.FUNCTIONAL))


def under_transform() -> bool:
    """Whether a transform of `torch.func`, or forward differentiation, is under way; compiled code need not know."""
    return not _is_compiling() and (_transforms_active() or _forward._current_level >= 0)


def is_functional() -> bool:
    """Whether all has to be computed by functions without side effects: under transforms and while recording.

    Derivatives may be taken that `requires_grad` does not tell of, and results may not be written over others.
    """
    return is_recording() or under_transform()


def may_cache() -> bool:
    """Whether what is made now may serve later calls: while a program is recorded, tensors hold no numbers.

    `torch.compile` runs what it keeps itself, with numbers.
    """
    return _is_dynamo() or not is_recording()


def without_autograd() -> AbstractContextManager[Any]:
    """A context in which autograd records nothing: inference mode, whose operations take a fifth less time, if eager.

    What leaves it has to be copied: autograd refuses tensors that were made in inference mode.
    """
    return torch.inference_mode() if is_eager() else torch.no_grad()


# ---------------------------------------------------------------------------------------------------------- the tensors


def is_addressable(*tensors: Tensor) -> bool:
    """Whether native code may read these tensors where they lie: eager, of torch's own classes, in the CPU's memory."""
    if not is_eager():  # before anything else: compiled code asks no further
        return False
    return all(type(one) in _PLAIN and one.is_cpu and not one.is_neg() for one in tensors)


def is_host_readable(tensor: Tensor) -> bool:
    """Whether the host may read a tensor's numbers: on the CPU, outside of recorded programs and of `vmap`."""
    return tensor.is_cpu and not is_recording() and unwrapped(tensor) is not None


def unwrapped(tensor: Tensor) -> Tensor | None:
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


def as_numpy(tensor: Tensor) -> np.ndarray | None:
    """The numbers of a tensor on the CPU; `None` where it holds no numbers of its own."""
    plain = unwrapped(tensor)
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


# ------------------------------------------------------------------------------------------------------------ recorders


def refuse_single_call_tracers() -> None:
    """Refuse recorders that have numbers at hand: what follows from those would be recorded as if it always held."""
    if is_eager():
        return
    if not _is_compiling() and _is_jit_tracing():
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


def call_or_explain(what: str, call: Callable[..., R], *args: Any) -> R:
    """The result of a call; where a program is recorded, an error about missing numbers names the computation.

    Args:
        what: names it, as in "`exact` answering `map`".
        call: the function; `torch.compile` looks into it and has words of its own.
        args: its arguments.
    """
    if _is_dynamo() or is_eager():
        return call(*args)
    try:
        return call(*args)
    except (RuntimeError, NotImplementedError) as problem:
        if not is_recording():
            raise
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise NotRecorded(
            f"{what} cannot become a part of an exported program or of one with fake tensors: it depends on numbers, "
            "and there are only shapes while a program is recorded; call it eagerly, or under `torch.compile` without "
            f"`fullgraph=True`, which leaves such parts out of its graphs (torch says: {reason})"
        ) from problem


def graph_break(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that compiled code calls as it is; with `fullgraph=True` that is an error, which gives the reason.

    `torch.compiler.disable` does the same, and imports the compiler at once, which takes longer than all of energyml:
    here that happens when there is one at work.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break(msg=reason)
                disabled: Callable[P, R] = torch.compiler.disable(function)
                return disabled(*args, **kwargs)
            return function(*args, **kwargs)

        return call

    return marked


def cached(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of few arguments whose answers are cached; recorded programs compute them, and cache nothing.

    `functools.lru_cache` does the same, and the compiler warns wherever it passes one.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        known: Any = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() or not may_cache():
                return function(*args, **kwargs)
            found: R = known(*args, **kwargs)
            return found

        return call

    return marked


def compile_constant(function: Callable[P, R]) -> Callable[P, R]:
    """A function of plain values that is called once, when code is compiled; its answer is part of what is compiled.

    `torch.compiler.assume_constant_result` does the same, and imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class CompileConstants:
    """Objects that are made while code is compiled, one attribute each: code looks at those alone that it uses.

    A function marked by `compile_constant` gives the name of one, which is as constant as the code.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def keep(self, key: object, make: Callable[[], object]) -> str:
        """The name of the object that belongs to a key."""
        name = self._names.get(key)
        if name is None:
            value, name = make(), f"constant_{len(self._names)}"
            setattr(self, name, value)
            self._names[key] = name
        return name


@compile_constant
def is_fullgraph() -> bool:
    """Whether the code that is compiled right now must become one graph, as `fullgraph=True` asks."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    at_work = InstructionTranslator.current_tx()
    return bool(getattr(at_work, "one_graph", True) or getattr(at_work, "error_on_graph_break", False))

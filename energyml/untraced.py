"""Calls that `torch.compile` must not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from energyml.transforms import keepable

P = ParamSpec("P")
R = TypeVar("R")


def untraced(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that compiled code calls as it is; with `fullgraph=True` that is an error, which gives the reason.

    `torch.compiler.disable` does the same, and imports the compiler at once, which takes longer than all of energyml:
    here that happens when there is one at work.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break(msg=reason)
                unseen: Callable[P, R] = torch.compiler.disable(function)
                return unseen(*args, **kwargs)
            return function(*args, **kwargs)

        return call

    return marked


def cached(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of few arguments whose answers are kept; a recorded program has what it computes, and keeps nothing.

    `functools.lru_cache` does the same, and the compiler warns wherever it passes one.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        known: Any = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() or not keepable():
                return function(*args, **kwargs)
            found: R = known(*args, **kwargs)
            return found

        return call

    return marked


class Settled:
    """Objects that are made while code is compiled, one attribute each: code looks at those alone that it uses.

    A function marked by `settled` gives the name of one, which is as constant as the code.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def keep(self, key: object, make: Callable[[], object]) -> str:
        """The name of the object that belongs to a key."""
        name = self._names.get(key)
        if name is None:
            value, name = make(), f"settled_{len(self._names)}"
            setattr(self, name, value)
            self._names[key] = name
        return name


def settled(function: Callable[P, R]) -> Callable[P, R]:
    """A function of plain values that is called once, when code is compiled; its answer is part of what is compiled.

    `torch.compiler.assume_constant_result` does the same, and imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@settled
def one_graph() -> bool:
    """Whether the code that is compiled right now must become one graph, as `fullgraph=True` asks."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    at_work = InstructionTranslator.current_tx()
    return bool(getattr(at_work, "one_graph", True) or getattr(at_work, "error_on_graph_break", False))

"""Calls that `torch.compile` must not look into: they run as they are, and the graph goes on behind them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """A function that compiled code calls as it is.

    `torch.compiler.disable` does the same, and imports the compiler at once, which takes longer than all of energyml:
    here that happens when there is one at work.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            unseen: Callable[P, R] = torch.compiler.disable(function)
            return unseen(*args, **kwargs)
        return function(*args, **kwargs)

    return call

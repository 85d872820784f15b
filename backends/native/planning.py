"""Elimination orders and programs by native code: those that `energyml.plan` finds in Python, many times sooner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np

from energyml.backends.native import graphs as kernels
from energyml.plan.elimination import SEARCHES, Compiler, Costs, Program, Scope, Step, searched_by


class Scopes(Sequence[Scope]):
    """The cells of factors: arrays for native code, and tuples for who looks at them one by one.

    Args:
        members: int64: the cells of all factors, one after another.
        starts: [factors + 1] int64: where those of each factor begin.
    """

    def __init__(self, members: np.ndarray, starts: np.ndarray) -> None:
        self.members, self.starts = members, starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, number: int) -> Scope: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Scope]: ...
    def __getitem__(self, number: int | slice) -> Scope | Sequence[Scope]:
        return self._tuples[number]

    @cached_property
    def _tuples(self) -> tuple[Scope, ...]:
        cells, starts = self.members.tolist(), self.starts.tolist()
        return tuple(tuple(cells[start:end]) for start, end in pairwise(starts))


class Steps(Sequence[Step]):
    """The eliminations of a program that native code made, read when somebody looks at them.

    Args:
        code: the program's numbers, int64 (see programs.h).
    """

    def __init__(self, code: bytes) -> None:
        self.numbers = np.frombuffer(code, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.numbers[0])

    @overload
    def __getitem__(self, number: int) -> Step: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Step]: ...
    def __getitem__(self, number: int | slice) -> Step | Sequence[Step]:
        return self._steps[number]

    @property
    def loose(self) -> tuple[int, ...]:
        """The tables that no step adds up: the last numbers."""
        return tuple(self.numbers[len(self.numbers) - int(self.numbers[1]) :].tolist())

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        numbers = self.numbers.tolist()
        found = []
        at = 2
        for _ in range(numbers[0]):
            kept = at + 2 + numbers[at + 1]
            inputs = kept + 1 + numbers[kept]
            found.append(Step(numbers[at], tuple(numbers[at + 2 : kept]), tuple(numbers[kept + 1 : inputs])))
            at = inputs
        return tuple(found)


class NativeCompiler(Compiler):
    """Orders and programs by native code (orders.h, programs.h).

    Args:
        scopes: the cells of each factor.
        sizes: how many labels each cell has.
        known: cells that are not eliminated.
        first: cells that are eliminated before all others.
    """

    scopes: Scopes

    def __init__(self, scopes: Scopes, sizes: Sequence[int], known: frozenset[int], first: frozenset[int]) -> None:
        self.scopes, self.sizes, self.known, self.first = scopes, sizes, known, first
        self._counts = np.array(sizes, dtype=np.int64)
        self._marks = np.zeros(len(sizes), dtype=np.uint8)
        self._marks[list(known)] = 1
        self._marks[list(first)] |= 2

    def order(self, method: str, limit: float | None, ties: int = 0) -> Sequence[int] | None:
        """As `Compiler.order`."""
        assert kernels is not None
        order = np.empty(len(self.sizes) - len(self.known), dtype=np.int64)
        widest = math.inf if limit is None else limit
        width = kernels.search_order(*self._graph, _METHODS[method], widest, ties, order.ctypes.data)
        found: list[int] = order.tolist()
        return None if width < 0 else found

    def program(self, order: Sequence[int], known: frozenset[int], method: str, slices: Scope = ()) -> Program:
        """As `Compiler.program`."""
        assert kernels is not None
        given = np.array(order, dtype=np.int64)
        return self._made(kernels.compile_order(*self._graph, given.ctypes.data, len(given)), known, method, slices)

    def search(self, method: str, limit: float | None, ties: int = 0) -> Program | None:
        """As `Compiler.search`."""
        assert kernels is not None
        made = kernels.plan_order(*self._graph, _METHODS[method], math.inf if limit is None else limit, ties)
        return None if made is None else self._made(made, self.known, searched_by(method, ties))

    def _made(
        self, made: tuple[bytes, int, float, float], known: frozenset[int], method: str, slices: Scope = ()
    ) -> Program:
        steps = Steps(made[0])
        return Program(self.scopes, self.sizes, steps, steps.loose, known, slices, method, Costs(*made[1:]))

    @cached_property
    def _graph(self) -> tuple[int, ...]:
        return described(self.scopes, self._counts, self._marks)


_METHODS = {method: number for number, method in enumerate(SEARCHES)}


def described(scopes: Scopes, sizes: np.ndarray, marks: np.ndarray | None = None) -> tuple[int, ...]:
    """A graph as native code reads it; the arrays have to outlive the call.

    Args:
        scopes: the cells of each factor.
        sizes: [cells] int64: how many labels each cell has.
        marks: [cells] uint8: 1 for known cells, 2 for cells that are eliminated first; for searches.
    """
    return (
        len(sizes),
        len(scopes),
        scopes.members.ctypes.data,
        scopes.starts.ctypes.data,
        sizes.ctypes.data,
        0 if marks is None else marks.ctypes.data,
    )

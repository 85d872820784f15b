"""Elimination orders and programs by native code: those that `energyml.plan` finds in Python, many times sooner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, overload

import numpy as np

from energyml.native import elimination as kernels
from energyml.plan.elimination import SEARCHES, Compiler, Costs, Program, Scope, Step, searched_by

# A graph as native code reads it: how many cells and factors there are, the members and the starts of scopes, the sizes
# of cells (int64), and marks for searches (uint8): 1 for known cells, 2 for cells that are eliminated first.
Described: TypeAlias = tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


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
        graph: what they are about, as native code reads it.
    """

    def __init__(self, code: bytes, graph: Described) -> None:
        self.numbers, self.graph = np.frombuffer(code, dtype=np.int64), graph

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
        marks = np.zeros(len(sizes), dtype=np.uint8)
        for cells, mark in ((known, 1), (first, 2)):
            if cells:
                marks[list(cells)] |= mark
        counts = np.array(sizes, dtype=np.int64)
        self._described: Described = (len(sizes), len(scopes), scopes.members, scopes.starts, counts, marks)

    def order(self, method: str, limit: float | None, ties: int = 0) -> Sequence[int] | None:
        """As `Compiler.order`."""
        assert kernels is not None
        order = np.empty(len(self.sizes) - len(self.known), dtype=np.int64)
        widest = math.inf if limit is None else limit
        width = kernels.search_order(*self._described, METHODS[method], widest, ties, order)
        found: list[int] = order.tolist()
        return None if width < 0 else found

    def program(self, order: Sequence[int], known: frozenset[int], method: str, slices: Scope = ()) -> Program:
        """As `Compiler.program`."""
        assert kernels is not None
        given = np.array(order, dtype=np.int64)
        return self._made(kernels.compile_order(*self._described, given, len(given)), known, method, slices)

    def search(self, method: str, limit: float | None, ties: int = 0) -> Program | None:
        """As `Compiler.search`."""
        assert kernels is not None
        made = kernels.plan_order(*self._described, METHODS[method], math.inf if limit is None else limit, ties)
        return None if made is None else self._made(made, self.known, searched_by(method, ties))

    def _made(
        self, made: tuple[bytes, int, float, float], known: frozenset[int], method: str, slices: Scope = ()
    ) -> Program:
        steps = Steps(made[0], self._described)
        return Program(self.scopes, self.sizes, steps, steps.loose, known, slices, method, Costs(*made[1:]))


METHODS = {method: number for number, method in enumerate(SEARCHES)}


def gathered(places: Sequence[np.ndarray | tuple[int, int]], cells: int) -> tuple[np.ndarray, np.ndarray, Scopes]:
    """The factors of a graph: for each the table it comes from and which element of that it is, int64, and the scopes.

    Args:
        places: for each table the cells of its elements, int64 [elements, arity]; an element with a cell that is below
            0 or not below `cells` does not exist.  Two numbers stand for one cell each: the first, and behind the last.
        cells: how many cells there are.
    """
    if kernels is None:
        listed = [np.arange(*one).reshape(-1, 1) if isinstance(one, tuple) else one for one in places]
        kept = [np.flatnonzero(((one >= 0) & (one < cells)).all(1)) for one in listed]
        sources = np.repeat(np.arange(len(listed)), [len(one) for one in kept])
        arities = np.array([one.shape[1] for one in listed])[sources]
        starts = np.concatenate([[0], np.cumsum(arities)])
        members = np.concatenate([one[rows].reshape(-1) for one, rows in zip(listed, kept, strict=True)])
        return sources, np.concatenate(kept), Scopes(members, starts)
    whole = tuple([one if isinstance(one, tuple) else np.ascontiguousarray(one) for one in places])
    members, starts, sources, elements = [np.frombuffer(one, np.int64) for one in kernels.gather_factors(cells, whole)]
    return sources, elements, Scopes(members, starts)

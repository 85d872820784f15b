"""Elimination programs: which cell is summed out when, from which tables, and what that costs.

A program is plain data that knows scopes and sizes only.  The same program serves sums, maxima, draws and gradients;
the backend runs it on tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from energyml.plan.width import (
    LARGEST_FOR_FILL,
    SOON_BY_FILL,
    Elimination,
    Primal,
    least_width,
    min_fill,
    min_weight,
    natural,
)

Scope = tuple[int, ...]

BYTES = 8
# More slices than this mean hours, whatever the memory.
LARGEST_SLICES = 1 << 16
# Operations below which looking for a better order takes longer than many runs, and above which even opt_einsum's
# search, tens of milliseconds, is short.
CHEAP, WORTH_SEARCHING = 1 << 19, 1 << 30
# Min-fill is run again with other ways to break ties, so many at most; each of them for so many operations more.
OTHER_TIES, WORTH_OTHER_TIES = 4, 1 << 23


@dataclass(frozen=True)
class Step:
    """One elimination: the tables that mention a cell are added up and the cell is summed out.

    Attributes:
        cell: what is summed out.
        kept: the cells of the message that remains, those eliminated last at the end.
        inputs: tables by number: the factors, and behind them the messages of earlier steps in order.
    """

    cell: int
    kept: Scope
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Costs:
    """What one run of a program takes.

    Attributes:
        width: the largest number of cells that a message has.
        operations: multiplications and additions: the entries of each clique times its tables.
        entries: the entries of all messages.
    """

    width: int
    operations: float
    entries: float


@dataclass(frozen=True)
class Program:
    """All eliminations of one graph.

    Attributes:
        scopes: the cells of each factor; a cell may stand in a scope more than once.
        sizes: how many labels each cell has.
        steps: the eliminations in order; the message of step i is table `len(scopes) + i`.
        loose: factors whose cells are all known, and messages without cells: their sum is the answer.
        known: cells that are not summed out, because they are observed or because the program is sliced over them.
        slices: those of the known cells that the program is run for with each of their labels.
        method: how the order was found.
        costs: of one slice.
    """

    scopes: Sequence[Scope]
    sizes: Sequence[int]
    steps: Sequence[Step]
    loose: Sequence[int]
    known: frozenset[int]
    slices: Scope
    method: str
    costs: Costs

    @property
    def width(self) -> int:
        """The largest number of cells that a message has."""
        return self.costs.width

    @property
    def operations(self) -> float:
        """Multiplications and additions of one pass over all slices: the entries of each clique times its tables."""
        return self.costs.operations * self.rounds

    @property
    def message_entries(self) -> float:
        """The entries of all messages of one slice."""
        return self.costs.entries

    @property
    def memory(self) -> float:
        """Bytes of the messages and their gradients for one example."""
        return 2 * BYTES * self.message_entries

    @property
    def rounds(self) -> float:
        """How often the program is run."""
        return _entries(self.slices, self.sizes) if self.slices else 1.0

    @property
    def order(self) -> Scope:
        """The cells in the order of their elimination."""
        return tuple(step.cell for step in self.steps)


LARGEST_ADVISED = 2.0**36


class TooWide(Exception):
    """No order fits: what the best one would need.

    Attributes:
        width: the width of the order; a lower limit when the search gave up.
        memory: bytes for one example, without slices; a lower limit when the search gave up.
        budget: bytes that were allowed.
        searched: whether the search for an order was finished.
    """

    def __init__(self, width: int, memory: float, budget: float, searched: bool) -> None:
        super().__init__(width, memory, budget, searched)
        self.width, self.memory, self.budget, self.searched = width, memory, budget, searched

    @property
    def megabytes(self) -> int | None:
        """A budget with which the best order fits; `None` where none is known, or beyond most machines."""
        return math.ceil(self.memory / 2**20) if self.searched and self.memory <= LARGEST_ADVISED else None

    def __str__(self) -> str:
        found = f"the induced width is {self.width}" if self.searched else f"every order has a width above {self.width}"
        least = "" if self.searched else "more than "
        return (
            f"{found}: it needs {least}{human_bytes(self.memory)} for one example, "
            f"and the budget is {human_bytes(self.budget)}"
        )


def _entries(cells: Iterable[int], sizes: Sequence[int]) -> float:
    return math.prod(float(sizes[cell]) for cell in cells)


def human_bytes(count: float) -> str:
    """Bytes with three digits and a unit."""
    for limit, unit in ((1e18, None), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count:.3g} bytes" if unit is None else f"{count / limit:.3g} {unit}"
    return f"{count:.3g} bytes"


def primal(scopes: Iterable[Scope], cells: int) -> list[set[int]]:
    """For each cell the cells it shares a scope with."""
    adjacent: list[set[int]] = [set() for _ in range(cells)]
    for scope in scopes:
        if len(scope) > 1:
            for cell in scope:
                adjacent[cell].update(scope)
    for cell, around in enumerate(adjacent):
        around.discard(cell)
    return adjacent


class Compiler(ABC):
    """Finds orders for one graph and makes programs of them.

    Attributes:
        scopes: the cells of each factor.
        sizes: how many labels each cell has.
        known: cells that are not eliminated.
        first: cells that are eliminated before all others.
    """

    scopes: Sequence[Scope]
    sizes: Sequence[int]
    known: frozenset[int]
    first: frozenset[int]

    @cached_property
    def graph(self) -> Primal:
        """The graph of cells that share a factor."""
        return Primal(primal(self.scopes, len(self.sizes)), self.sizes, self.first, self.known)

    @abstractmethod
    def order(self, method: str, limit: float | None, ties: int = 0) -> Sequence[int] | None:
        """The order that a method of `SEARCHES` finds; `None` if it is wider than `limit`.

        Args:
            method: the method.
            limit: the largest width.
            ties: which way to break ties, for min-fill.
        """

    @abstractmethod
    def program(self, order: Sequence[int], known: frozenset[int], method: str, slices: Scope = ()) -> Program:
        """The program of an order of the cells that are not known."""

    def search(self, method: str, limit: float | None, ties: int = 0) -> Program | None:
        """The program of the order that a method finds; arguments as for `order`."""
        found = self.order(method, limit, ties)
        return None if found is None else self.program(found, self.known, searched_by(method, ties))


class PlainCompiler(Compiler):
    """In Python, from scopes as tuples; native code that does the same is compared with it."""

    def __init__(
        self, scopes: Sequence[Scope], sizes: Sequence[int], known: frozenset[int], first: frozenset[int]
    ) -> None:
        self.scopes, self.sizes, self.known, self.first = scopes, sizes, known, first

    def order(self, method: str, limit: float | None, ties: int = 0) -> Sequence[int] | None:
        """As `Compiler.order`."""
        found = min_fill(self.graph, limit, ties) if ties else SEARCHES[method](self.graph, limit)
        return None if found is None else found.order

    def program(self, order: Sequence[int], known: frozenset[int], method: str, slices: Scope = ()) -> Program:
        """As `Compiler.program`."""
        return compile_order(self.scopes, self.sizes, order, known, method, slices)


def make_program(
    scopes: Sequence[Scope],
    sizes: Sequence[int],
    *,
    absent: Iterable[int] = (),
    known: Iterable[int] = (),
    first: Iterable[int] = (),
    budget: float = math.inf,
) -> Program:
    """The cheapest program that was found within a budget of memory, as by `cheapest`.

    Args:
        scopes: the cells of each factor.
        sizes: how many labels each cell has.
        absent: cells that do not exist.
        known: cells whose label is known when the program runs.
        first: cells that are eliminated before all others.
        budget: bytes that one example may need.

    Raises:
        TooWide: when no order fits, sliced or not.
    """
    return cheapest(PlainCompiler(scopes, sizes, frozenset(known) | frozenset(absent), frozenset(first)), budget)


def cheapest(compiler: Compiler, budget: float = math.inf) -> Program:
    """The cheapest program that was found within a budget of memory.

    Orders are tried by min-fill (where the graph is not huge) or min-weight, whichever is sooner, and, until one is
    cheap, by the other, by the numbers of the cells, by min-fill with ties broken in other ways, and in the end by
    opt_einsum's greedy contraction paths.  If the messages of the cheapest order do not fit, the program is sliced: the
    cells that are in most of the large messages are tried label by label.  A graph that is far too wide is refused
    soon: where a lower bound on all widths proves it, no second search is made, and where slices cannot bring the
    order in, no better one is looked for.

    Args:
        compiler: for the graph.
        budget: bytes that one example may need.

    Raises:
        TooWide: when no order fits, sliced or not.
    """
    sizes = set(compiler.sizes)
    fewest = min((size for size in sizes if size > 1), default=2)
    # The width beyond which no order can fit, however it is sliced, if cells have the fewest labels of all.
    widest = math.log(max(2.0, budget / BYTES) * LARGEST_SLICES, fewest) if math.isfinite(budget) else None
    bounded = min(sizes, default=fewest) > 1
    limit = widest
    best: Program | None = None
    for number, (method, ties, worth) in enumerate(trials(len(compiler.sizes), len(sizes) == 1)):
        if best is not None:
            if best.operations < worth or (ties and not _may_fit(best, budget)):
                break  # it is good enough, or so far from it that others like it are no help
        elif ties:
            continue  # they will not make so wide a graph narrow
        elif number == 1 and widest is not None and least_width(compiler.graph, widest) > widest:
            break  # nothing will
        made = compiler.search(method, limit, ties)
        if made is not None:
            best = made if best is None or made.operations < best.operations else best
            if bounded:  # a wider order has a clique that alone takes more operations
                known = math.log(max(2.0, best.operations), fewest)
                limit = known if limit is None else min(limit, known)
    if best is None:
        width = int(widest or 0)
        raise TooWide(width, BYTES * float(fewest) ** width, budget, searched=False)
    if best.operations > WORTH_SEARCHING and _may_fit(best, budget) and not compiler.first:
        best = _searched(best, compiler)
    sliced = _sliced(best, compiler, budget)
    if sliced is None:
        raise TooWide(best.width, best.memory, budget, searched=True)
    return sliced


SEARCHES: Mapping[str, Callable[[Primal, float | None], Elimination | None]] = {
    "min-weight": min_weight,
    "min-fill": min_fill,
    "natural": natural,
}


def trials(cells: int, alike: bool) -> Iterator[tuple[str, int, float]]:
    """Searches, ways to break ties, and how many operations the best order so far must take for each to be worth it.

    Args:
        cells: how many there are.
        alike: whether all have as many labels.
    """
    yield "min-weight" if cells > SOON_BY_FILL else "min-fill", 0, 0
    if SOON_BY_FILL < cells <= LARGEST_FOR_FILL:
        yield "min-fill", 0, CHEAP
    if cells <= SOON_BY_FILL and not alike:  # fill-in does not tell large label sets from small ones
        yield "min-weight", 0, CHEAP
    yield "natural", 0, 4 * CHEAP
    for ties in range(1, OTHER_TIES + 1):
        if ties * cells <= LARGEST_FOR_FILL:
            yield "min-fill", ties, ties * WORTH_OTHER_TIES
    if cells <= SOON_BY_FILL and alike:
        yield "min-weight", 0, math.inf


def searched_by(method: str, ties: int) -> str:
    """A search in words."""
    return f"{method} (ties {ties})" if ties else method


def compile_order(
    scopes: Sequence[Scope],
    sizes: Sequence[int],
    order: Sequence[int],
    known: frozenset[int] = frozenset(),
    method: str = "given",
    slices: Scope = (),
) -> Program:
    """The program of an order (bucket elimination: Dechter 1999).  Cost: linear in the scopes of all messages."""
    place = {cell: number for number, cell in enumerate(order)}
    buckets: list[list[int]] = [[] for _ in order]
    tables = [tuple(dict.fromkeys(cell for cell in scope if cell not in known)) for scope in scopes]
    loose: list[int] = []
    for number, cells in enumerate(tables):
        (buckets[min(place[cell] for cell in cells)] if cells else loose).append(number)
    steps: list[Step] = []
    waiting: dict[Scope, int] = {}
    width, operations, total = 0, 0.0, 0.0
    for cell, bucket in zip(order, buckets, strict=True):
        kept: set[int] = set()
        for table in bucket:
            kept.update(tables[table])
        kept.discard(cell)
        scope = tuple(sorted(kept, key=place.__getitem__))
        onward = buckets[place[scope[0]]] if scope else loose
        before = waiting.get(scope) if scope else None
        if before is not None:  # one message in place of many over the same cells
            onward.remove(before)
            bucket.append(before)
        onward.append(len(tables))
        waiting[scope] = len(tables)
        tables.append(scope)
        steps.append(Step(cell, scope, tuple(bucket)))
        entries = _entries(scope, sizes)
        width = max(width, len(scope))
        operations += len(bucket) * sizes[cell] * entries
        total += entries
    costs = Costs(width, operations, total)
    return Program(tuple(scopes), tuple(sizes), tuple(steps), tuple(loose), known, slices, method, costs)


def _searched(best: Program, compiler: Compiler) -> Program:
    """A better order from opt_einsum's contraction paths, if one is found."""
    import opt_einsum

    sets = [frozenset(scope) - compiler.known for scope in compiler.scopes]
    tables = [cells for cells in sets if cells]
    dims = {cell: compiler.sizes[cell] for cells in tables for cell in cells}
    path = opt_einsum.paths.greedy([frozenset(cells) for cells in tables], frozenset(), dims)
    made = compiler.program(_order_of_path(tables, path), compiler.known, "opt_einsum greedy")
    return made if made.operations < best.operations else best


def _order_of_path(tables: Sequence[frozenset[int]], path: Sequence[Sequence[int]]) -> list[int]:
    """The cells in the order in which a contraction path sums them out."""
    uses: dict[int, int] = {}
    for cells in tables:
        for cell in cells:
            uses[cell] = uses.get(cell, 0) + 1
    remaining = list(tables)
    order: list[int] = []
    for numbers in path:
        parts = [remaining.pop(number) for number in sorted(numbers, reverse=True)]
        joined = frozenset().union(*parts)
        kept = set(joined)
        for cell in sorted(joined):
            uses[cell] -= sum(cell in part for part in parts) - 1
            if uses[cell] == 1:
                order.append(cell)
                kept.discard(cell)
        remaining.append(frozenset(kept))
    return order


def _may_fit(program: Program, budget: float) -> bool:
    """Whether slices could make a program fit: a cell that is taken out divides the memory by its labels at most."""
    return program.memory * program.rounds <= budget * LARGEST_SLICES


def _sliced(program: Program, compiler: Compiler, budget: float) -> Program | None:
    """The program with cells taken out of its messages, one by one, until it fits; `None` if it never does."""
    fixed = compiler.known
    while program.memory > budget:
        if not _may_fit(program, budget):
            return None
        shares: dict[int, float] = {}
        for step in program.steps:
            entries = _entries(step.kept, program.sizes)
            for cell in step.kept:
                shares[cell] = shares.get(cell, 0.0) + entries * (1 - 1 / program.sizes[cell])
        if not shares:
            return None
        worst = max(shares, key=lambda cell: (shares[cell], -cell))
        slices = (*program.slices, worst)
        if _entries(slices, program.sizes) > LARGEST_SLICES:
            return None
        fixed = fixed | {worst}
        order = tuple(cell for cell in program.order if cell != worst)
        program = compiler.program(order, fixed, program.method, slices)
    return program

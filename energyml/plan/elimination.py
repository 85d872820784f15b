"""Elimination programs: which cell is summed out when, from which tables, and what that costs.

A program is plain data that knows scopes and sizes only.  The same program serves sums, maxima, draws and gradients;
the backend runs it on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from energyml.plan.width import LARGEST_FOR_FILL, Elimination, Primal, min_fill, min_weight, natural

Scope = tuple[int, ...]

BYTES = 8
# More slices than this mean hours, whatever the memory.
LARGEST_SLICES = 1 << 16
# Operations below which looking for a better order takes longer than many runs, and above which every look pays.
CHEAP, WORTH_SEARCHING = 1 << 17, 1 << 22


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
    """

    scopes: tuple[Scope, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    loose: tuple[int, ...]
    known: frozenset[int]
    slices: Scope
    method: str

    @cached_property
    def width(self) -> int:
        """The largest number of cells that a message has."""
        return max((len(step.kept) for step in self.steps), default=0)

    @cached_property
    def operations(self) -> float:
        """Multiplications and additions of one pass over all slices: the entries of each clique times its tables."""
        each = sum(len(step.inputs) * self.sizes[step.cell] * _entries(step.kept, self.sizes) for step in self.steps)
        return each * self.rounds

    @cached_property
    def message_entries(self) -> float:
        """The entries of all messages of one slice."""
        return sum(_entries(step.kept, self.sizes) for step in self.steps)

    @cached_property
    def memory(self) -> float:
        """Bytes of the messages and their gradients for one example."""
        return 2 * BYTES * self.message_entries

    @property
    def rounds(self) -> float:
        """How often the program is run."""
        return _entries(self.slices, self.sizes)

    @property
    def order(self) -> Scope:
        """The cells in the order of their elimination."""
        return tuple(step.cell for step in self.steps)


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


def make_program(
    scopes: Sequence[Scope],
    sizes: Sequence[int],
    *,
    absent: Iterable[int] = (),
    known: Iterable[int] = (),
    first: Iterable[int] = (),
    budget: float = math.inf,
) -> Program:
    """The cheapest program that was found within a budget of memory.

    Orders are tried by min-weight and, unless that is cheap, by the numbers of the cells, by min-fill where the graph
    is not huge, and by opt_einsum's greedy contraction paths where the best of them is still expensive.  If the
    messages of the cheapest order do not fit, the program is sliced: the cells that are in most of the large messages
    are tried label by label.

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
    fixed = frozenset(known) | frozenset(absent)
    graph = Primal(primal(scopes, len(sizes)), sizes, frozenset(first), fixed)
    limit = _widest(sizes, budget)
    best: Program | None = None
    for method, search in _searches(graph):
        if best is not None and best.operations < CHEAP:
            break
        found = search(graph, limit)
        if found is not None:
            made = compile_order(scopes, sizes, found.order, fixed, method)
            best = made if best is None or made.operations < best.operations else best
    if best is not None and best.operations > WORTH_SEARCHING and not graph.first:
        best = _searched(best, scopes, sizes, fixed)
    if best is None:
        width = int(limit or 0)
        raise TooWide(width, BYTES * float(_fewest(sizes)) ** width, budget, searched=False)
    sliced = _sliced(best, fixed, budget)
    if sliced is None:
        raise TooWide(best.width, best.memory, budget, searched=True)
    return sliced


def _widest(sizes: Sequence[int], budget: float) -> float | None:
    """The width beyond which no order can fit, however it is sliced, if cells have the fewest labels of all."""
    if not math.isfinite(budget):
        return None
    return math.log(max(2.0, budget / BYTES) * LARGEST_SLICES, _fewest(sizes))


def _fewest(sizes: Sequence[int]) -> int:
    return min((size for size in sizes if size > 1), default=2)


Search = Callable[[Primal, "float | None"], "Elimination | None"]


def _searches(graph: Primal) -> list[tuple[str, Search]]:
    searches: list[tuple[str, Search]] = [("min-weight", min_weight), ("natural", natural)]
    if len(graph.neighbours) <= LARGEST_FOR_FILL:
        searches.append(("min-fill", min_fill))
    return searches


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
    waiting: dict[Scope, list[int]] = {}
    for cell, bucket in zip(order, buckets, strict=True):
        kept: set[int] = set()
        for table in bucket:
            kept.update(tables[table])
        kept.discard(cell)
        scope = tuple(sorted(kept, key=place.__getitem__))
        onward = buckets[place[scope[0]]] if scope else loose
        for message in waiting.pop(scope, ()) if scope else ():  # one message in place of many over the same cells
            onward.remove(message)
            bucket.append(message)
        onward.append(len(tables))
        waiting[scope] = [len(tables)]
        tables.append(scope)
        steps.append(Step(cell, scope, tuple(bucket)))
    return Program(tuple(scopes), tuple(sizes), tuple(steps), tuple(loose), known, slices, method)


def _searched(best: Program, scopes: Sequence[Scope], sizes: Sequence[int], known: frozenset[int]) -> Program:
    """A better order from opt_einsum's contraction paths, if one is found."""
    import opt_einsum

    sets = [frozenset(scope) - known for scope in scopes]
    tables = [cells for cells in sets if cells]
    dims = {cell: sizes[cell] for cells in tables for cell in cells}
    path = opt_einsum.paths.greedy([frozenset(cells) for cells in tables], frozenset(), dims)
    made = compile_order(scopes, sizes, _order_of_path(tables, path), known, "opt_einsum greedy")
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


def _sliced(program: Program, known: frozenset[int], budget: float) -> Program | None:
    """The program with cells taken out of its messages, one by one, until it fits; `None` if it never does."""
    fixed = known
    while program.memory > budget:
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
        program = compile_order(program.scopes, program.sizes, order, fixed, program.method, slices)
    return program

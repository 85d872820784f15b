"""Plans: programs for the structures of a batch, made when they are first met and kept."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from operator import mul
from typing import TypeVar

import numpy as np
from torch import Tensor

from energyml.backend import QueryRefused
from energyml.backends.exact.grounding import Group, Sources, Structure
from energyml.backends.native import graph as native
from energyml.backends.native import graphs
from energyml.backends.native.planning import NativeCompiler
from energyml.plan.elimination import PlainCompiler, Program, TooWide, cheapest
from energyml.untraced import Settled

Tables = Sequence["Tensor | None"]


@dataclass(eq=False)
class Plan:
    """A structure with the program that was made for it, and the programs' encodings for tables of given shapes."""

    structure: Structure
    program: Program
    domains: Sequence[tuple[int, ...]]
    first: int = 0
    _codes: dict[tuple[object, ...], native.Encoded] = field(default_factory=dict)

    def code(self, tables: Tables) -> native.Encoded:
        """The program for the native kernel."""
        return self.code_of(tuple(None if table is None else tuple(table.shape[1:]) for table in tables))

    def code_of(self, shapes: tuple[tuple[int, ...] | None, ...]) -> native.Encoded:
        """The same for tables of given shapes, without their batch axis."""
        found = self._codes.get(shapes)
        if found is None:
            found = self._codes[shapes] = native.encoded(self.program, self._layout(shapes))
        return found

    def _layout(self, shapes: Sequence[tuple[int, ...] | None]) -> native.Layout:
        """Where the factors stand in tables of these shapes (without their batch axis)."""
        tables = array("q")
        for shape, domain, arity in zip(shapes, self.domains, self.structure.arities, strict=True):
            rank = len(domain)
            sizes = (1,) * (rank + arity) if shape is None else shape
            steps = (0,) * (rank + arity) if shape is None else _strides(shape)
            tables.extend((0 if shape is None else prod(shape), arity, *steps[rank:], rank))
            for axis, size in enumerate(domain):
                tables.extend((size, 0 if sizes[axis] == 1 else steps[axis]))
        return native.Layout(self.structure.sources, self.structure.elements, tables, len(shapes))

    def element(self, source: int, element: int, shape: Sequence[int]) -> tuple[int, ...]:
        """The place of an element in the leading axes of a table of that shape (without its batch axis)."""
        places = np.unravel_index(element, self.domains[source]) if self.domains[source] else ()
        return tuple(int(place) if shape[axis] > 1 else 0 for axis, place in enumerate(places))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]


MEGABYTE = 1 << 20
# Programs that are kept: structures come back, in fixed graphs always, in run-time graphs often.
REMEMBERED = 512


class Plans:
    """Programs by structure, made when first met.

    Args:
        budget: megabytes that the messages of one example may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget * MEGABYTE
        self._known: OrderedDict[tuple[object, ...], Plan] = OrderedDict()
        self._constant: OrderedDict[tuple[object, ...], tuple[tuple[Tensor, ...], list[Group]]] = OrderedDict()
        self._structures: OrderedDict[tuple[object, ...], Structure] = OrderedDict()
        self.settled = Settled()  # what compiled code holds

    def groups(self, sources: Sources) -> list[Group]:
        """The examples of a batch by structure; constant edges are looked at once."""
        edges = sources.unchanged()
        if edges is None:
            return self._found(sources)
        key = (sources.key, sources.batch.size, *((id(one), one._version) for one in edges))
        # The tensors are kept with what was found, so that their identities stay theirs.
        return _kept(self._constant, key, lambda: (edges, self._found(sources)))[1]

    def _found(self, sources: Sources) -> list[Group]:
        return sources.groups(lambda key, make: _kept(self._structures, (sources.key, key), make))

    def plan(self, sources: Sources, group: Group, known: np.ndarray | None, first: frozenset[int]) -> Plan:
        """The plan of a structure with some cells observed and some eliminated first.

        Args:
            sources: the tables of the batch.
            group: examples of one structure.
            known: [cells] bool: which cells are observed; `None` for none.
            first: the cells that are eliminated first.
        """
        return _kept(
            self._known,
            (sources.key, group.key, b"" if known is None else known.tobytes(), first),
            lambda: self._make(sources, group, known, first),
        )

    def _make(self, sources: Sources, group: Group, observed: np.ndarray | None, first: frozenset[int]) -> Plan:
        structure = group.structure
        cells = frozenset(() if observed is None else np.flatnonzero(observed).tolist())
        known = cells - structure.absent
        early = first - structure.absent - known
        try:
            compiler: type[NativeCompiler | PlainCompiler] = PlainCompiler if graphs is None else NativeCompiler
            program = cheapest(
                compiler(structure.scopes, structure.sizes, known | structure.absent, early), self.budget
            )
        except TooWide as wide:
            raise QueryRefused(
                f"`exact` cannot eliminate this graph: {wide}; raise it with `exact(memory: ...)` in MB, "
                "observe more cells, or choose an approximate backend (`energyml explain` lists them)"
            ) from None
        domains = [term.domain_sizes(batch) for term, batch in sources.terms]
        domains += [sources.cells.shapes[name] for name in sources.variables]
        return Plan(structure, program, domains, len(early))


Made = TypeVar("Made")


def _kept(known: OrderedDict[tuple[object, ...], Made], key: tuple[object, ...], make: Callable[[], Made]) -> Made:
    found = known.get(key)
    if found is None:
        found = known[key] = make()
        if len(known) > REMEMBERED:
            known.popitem(last=False)
    return found

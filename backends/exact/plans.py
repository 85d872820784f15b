"""Plans: programs for the structures of a batch, made when they are first met and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from energyml.caching import BoundedCache
from energyml.diagnostics import QueryRefused
from energyml.execution import CompileConstants
from energyml.grounded.grounding import LARGEST_CACHE, Group, Sources, Structure, StructureCache
from energyml.native import elimination as graphs
from energyml.native import graph as native
from energyml.native.planning import NativeCompiler
from energyml.plan.elimination import PlainCompiler, Program, TooWide, cheapest

Tables = Sequence["Tensor | None"]


@dataclass(eq=False)
class Plan:
    """A structure with the program that was made for it, and the programs' encodings for tables of given shapes."""

    structure: Structure
    program: Program
    domains: tuple[tuple[int, ...], ...]
    first: int = 0
    _codes: dict[tuple[object, ...], native.Encoded] = field(default_factory=dict)

    def code(self, tables: Tables) -> native.Encoded:
        """The program for the native kernel."""
        shapes = tuple([None if table is None else tuple(table.shape[1:]) for table in tables])
        found = self._codes.get(shapes)
        if found is None:
            own = self.structure
            layout = native.Layout(own.sources, own.elements, shapes, self.domains, own.arities)
            found = self._codes[shapes] = native.encoded(self.program, layout)
        return found

    def element(self, source: int, element: int, shape: Sequence[int]) -> tuple[int, ...]:
        """The place of an element in the leading axes of a table of that shape (without its batch axis)."""
        places = np.unravel_index(element, self.domains[source]) if self.domains[source] else ()
        return tuple(int(place) if shape[axis] > 1 else 0 for axis, place in enumerate(places))


MEGABYTE = 1 << 20


class Plans:
    """Programs by structure, made when first met.

    Args:
        budget: megabytes that the messages of one example may take.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget * MEGABYTE
        self._known: BoundedCache[tuple[object, ...], Plan] = BoundedCache(LARGEST_CACHE)
        self._structures = StructureCache()
        self.compiled = CompileConstants()  # plans of compiled code

    def groups(self, sources: Sources) -> list[Group]:
        """The examples of a batch by structure."""
        return self._structures.groups(sources)

    def plan(self, sources: Sources, group: Group, known: np.ndarray | None, first: frozenset[int]) -> Plan:
        """The plan of a structure with some cells observed and some eliminated first.

        Args:
            sources: the tables of the batch.
            group: examples of one structure.
            known: [cells] bool: which cells are observed; `None` for none.
            first: the cells that are eliminated first.
        """
        return self._known.once(
            (sources.key, group.key, b"" if known is None else known.tobytes(), first),
            lambda: self._make(sources, group, known, first),
        )

    def _make(self, sources: Sources, group: Group, observed: np.ndarray | None, first: frozenset[int]) -> Plan:
        structure = group.structure
        known = structure.absent
        if observed is not None:
            known = known.union(observed.nonzero()[0].tolist())
        early = first - known
        try:
            compiler: type[NativeCompiler | PlainCompiler] = PlainCompiler if graphs is None else NativeCompiler
            program = cheapest(compiler(structure.scopes, structure.sizes, known, early), self.budget)
        except TooWide as wide:
            raised = f"raise it with `exact(memory: {wide.megabytes})`, " if wide.megabytes is not None else ""
            raise QueryRefused(
                f"`exact` cannot eliminate this graph: {wide}; {raised}"
                "observe more cells, or choose an approximate backend (`energyml explain` lists them)"
            ) from None
        return Plan(structure, program, sources.domains, len(early))

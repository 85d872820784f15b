"""Eliminations in compiled code: the plan is a constant of the code, and each answer is one operation to the compiler.

A structure that follows from sizes and from fixed edges is planned while code is compiled, from plain values.  The
compiler is not shown how a program is read, only the operations on tensors that this comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from energyml.backends.exact.elimination import BatchElimination, Part
from energyml.backends.exact.plans import Plan, Plans, Tables
from energyml.bind.batch import Along, Batch, Nested
from energyml.bind.views import TableView
from energyml.execution import compile_constant
from energyml.grounded.grounding import Group, Sources
from energyml.ir.graph import Edges, Graph

# Of a batch: the sizes of its dims, and those of its nested dims with what they are nested in.
Sizes: TypeAlias = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str, int], ...]]

CHANGED = (
    "the edges are not those that this code was compiled for: fixed edges are a constant of compiled code; after "
    "`model.fix(...)` call `torch.compiler.reset()`"
)


class TracedElimination:
    """What elimination answers about one batch, in compiled code; the methods are those of `BatchElimination`.

    Native kernels are no part of it, and evidence is not looked at: what that rules out has the score -inf.

    Args:
        planned: the elimination of any batch of these sizes.
        size: how many examples there are.
    """

    def __init__(self, planned: Planned, size: int) -> None:
        self._planned, self._size = planned, size
        self.parts: Sequence[Plan] = (planned.plan,) if size else ()

    def log_partition(self, tables: Tables) -> Tensor:
        """As `BatchElimination.log_partition`."""
        found: Tensor = self._planned.log_partition(self._size, *tables)
        return found

    def entropy_twin(self, tables: Tables) -> Tensor:
        """As `BatchElimination.entropy_twin`."""
        found: Tensor = self._planned.entropy(self._size, *tables)
        return found

    def best(self, tables: Tables) -> tuple[Tensor, Tensor]:
        """As `BatchElimination.best`."""
        labels, scores = self.n_best(tables, 1)
        return labels[:, 0], scores[:, 0]

    def n_best(self, tables: Tables, count: int) -> tuple[Tensor, Tensor]:
        """As `BatchElimination.n_best`."""
        found: tuple[Tensor, Tensor] = self._planned.n_best(self._size, count, *tables)
        return found

    def max_shares_twin(self, tables: Tables, sources: Sequence[int]) -> list[Tensor]:
        """As `BatchElimination.max_shares_twin`."""
        return list(self._planned.max_shares(self._size, tuple(sources), *tables))

    def draws(self, tables: Tables, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """As `BatchElimination.draws`."""
        found: tuple[Tensor, Tensor] = self._planned.draws(self._size, count, generator, *tables)
        return found


class Planned:
    """A plan, and functions of how many examples there are and their tables, which the compiler calls as they are.

    Args:
        plan: of the structure that all examples have.
        cells: how many cells are numbered.
        edges: the fixed edges that the structure depends on.
        terms: whose tables these are.
    """

    def __init__(self, plan: Plan, cells: int, edges: tuple[Tensor, ...], terms: Sequence[TableView]) -> None:
        self.plan, self.edges, self.terms = plan, edges, terms
        group = Group(np.arange(1), plan.structure, b"")  # where there is one group, nobody asks for its rows

        def run(size: int, tables: Tables) -> BatchElimination:
            device = next(table.device for table in tables if table is not None)
            labels = torch.zeros(size, cells, dtype=torch.long, device=device)
            return BatchElimination([Part(group, plan)], size, cells, labels, device, kernels=False)

        def log_partition(size: int, *tables: Tensor | None) -> Tensor:
            return run(size, tables).log_partition(tables)

        def entropy(size: int, *tables: Tensor | None) -> Tensor:
            return run(size, tables).entropy_twin(tables)

        def n_best(size: int, count: int, *tables: Tensor | None) -> tuple[Tensor, Tensor]:
            return run(size, tables).n_best(tables, count)

        def max_shares(size: int, sources: tuple[int, ...], *tables: Tensor | None) -> tuple[Tensor, ...]:
            return tuple(run(size, tables).max_shares_twin(tables, sources))

        def draws(
            size: int, count: int, generator: torch.Generator | None, *tables: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            return run(size, tables).draws(tables, count, generator)

        self.log_partition, self.entropy, self.n_best = _shown(log_partition), _shown(entropy), _shown(n_best)
        self.max_shares, self.draws = _shown(max_shares), _shown(draws)


def _shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the compiler puts into its graph unread, and whose operations it then records."""
    marked: Callable[..., Any] = torch.compiler.allow_in_graph(function)
    return marked


def traced(plans: Plans, sources: Sources, latents_first: bool) -> TracedElimination:
    """The elimination of a batch whose structure follows from sizes and fixed edges, planned while code is compiled.

    Compiled code fails where its fixed edges have become others.
    """
    terms = [term for term, _ in sources.terms]
    sizes = tuple(sizes_of(batch) for _, batch in (*sources.terms, (None, sources.batch)))
    edges = fixed_edges(sources)
    name = _planned(plans, sources.graph, latents_first, sizes, len(terms), *terms, *edges)
    planned: Planned = getattr(plans.compiled, name)
    for given, known in zip(edges, planned.edges, strict=True):
        torch._assert_async((given == known).all(), CHANGED)
    return TracedElimination(planned, sources.batch.size)


def fixed_edges(sources: Sources) -> list[Tensor]:
    """The fixed edges [1, E, ends] of each binding of each term, in order."""
    return [
        batch.fixed[binding.source]
        for term, batch in sources.terms
        for binding in term.term.domain
        if isinstance(binding, Edges)
    ]


def sizes_of(batch: Batch) -> Sizes:
    """The sizes of a batch as plain values: compiled code that had symbols for them has numbers from here on."""
    along = tuple((dim, index(one.size)) for dim, one in batch.along.items())
    return along, tuple((dim, one.within, index(one.size)) for dim, one in batch.nested.items())


@compile_constant
def _planned(
    plans: Plans, graph: Graph, latents_first: bool, sizes: tuple[Sizes, ...], count: int, *given: TableView | Tensor
) -> str:
    """The name of what is planned; called once, when code is compiled, with what tensors hold at that time."""
    terms = list(cast("tuple[TableView, ...]", given[:count]))
    edges = tuple(one.detach().clone() for one in given[count:] if isinstance(one, Tensor))
    # The terms are kept with what was planned, so that their identities stay theirs.
    key = (latents_first, sizes, tuple(map(id, terms)), tuple(one.cpu().numpy().tobytes() for one in edges))

    def make() -> Planned:
        rest = iter(edges)
        own = [(term, _stand_in(term, one, rest)) for term, one in zip(terms, sizes[:-1], strict=True)]
        sources = Sources(graph, own, _stand_in(None, sizes[-1], rest))
        (group,) = plans.groups(sources)
        first = frozenset[int]()
        if latents_first:
            spans = [sources.cells.span(v.name) for v in graph.discrete if v.kind == "latent"]
            first = frozenset(cell for span in spans for cell in range(span.start, span.stop))
        return Planned(plans.plan(sources, group, None, first), sources.cells.count, edges, terms)

    return plans.compiled.keep(key, make)


def _stand_in(term: TableView | None, sizes: Sizes, edges: Iterator[Tensor]) -> Batch:
    """A batch of one example that has these sizes and edges, and every cell."""
    along, nested = sizes
    bindings = () if term is None else tuple(one for one in term.term.domain if isinstance(one, Edges))
    fixed = {binding.source: next(edges) for binding in bindings}
    return Batch(
        1,
        dict(fixed),
        {dim: Along(size) for dim, size in along},
        {dim: Nested(within, size) for dim, within, size in nested},
        fixed=fixed,
    )

"""The backend `exact`: one promise, and the method that the structure asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from energyml.backend import Backend, Session
from energyml.backends.exact.chain import ChainSession
from energyml.backends.exact.engines import ENGINES
from energyml.backends.exact.graph import OUTSIDE, GraphSession
from energyml.backends.exact.ground import Ground
from energyml.backends.exact.plans import Plans
from energyml.backends.exact.potentials import Layout
from energyml.backends.exact.trees import TreeSession
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.diagnostics import EnergyError
from energyml.execution import graph_break, is_fullgraph
from energyml.ir.graph import Graph
from energyml.native import elimination as graphs
from energyml.plan.structure import Structure

# Graphs of more cells are left out of compiled code, unless all of it must be one graph: compiling takes about as long
# for every cell, and what comes of it is slower than the kernels from some 20 cells on.
COMPILED_CELLS = 16


class Exact(Backend):
    """Exact answers: first-order chains by their own kernels, other graphs by elimination.

    Models of fields are served by the implementation that the card names for them.
    """

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the tables of a chain into unaries and pairs; other graphs are planned when they are met."""
        engine = str(self.selection["engine"])
        self.engine, self.kernels = ENGINES[engine], engine != "torch"
        if engine == "native" and graphs is None and not structure.is_sequence:
            raise EnergyError("the native kernels are not built; `exact(engine: torch)` gives the same answers")
        self.layout = Layout(graph, terms) if structure.is_sequence else None
        self.plans = Plans(int(self.selection["memory"]))

    def open(self, problem: Problem) -> Session:
        """Sessions compute when a query asks; only run-time trees are rooted here."""
        if self.layout is not None:
            return ChainSession(problem, self.layout, self.engine)
        return self._open_graph(problem)

    def _open_graph(self, problem: Problem) -> Session:
        if torch.compiler.is_compiling() and (_cells(problem) <= COMPILED_CELLS or is_fullgraph()):
            ground = Ground.of(problem, self.plans, self.kernels)
            if ground.sources.fixed:
                return GraphSession(problem, ground)
        return self._look_and_open(problem)

    def reopen(self, problem: Problem, ground: object) -> Session:
        """Graphs are not grounded and planned again, unless what is known is part of compiled code."""
        if isinstance(ground, Ground) and not ground.sources.traced:
            return self._look_and_open(problem, ground)
        return self.open(problem)

    @graph_break(OUTSIDE)
    def _look_and_open(self, problem: Problem, known: Ground | None = None) -> Session:
        ground = known or Ground.of(problem, self.plans, self.kernels)
        return GraphSession(problem, ground) if ground.forest is None else TreeSession(problem, ground, ground.forest)


def _cells(problem: Problem) -> int:
    """How many cells with labels an example has at most."""
    batch, total = problem.env.batch, 0
    for variable in problem.graph.discrete:  # in words that compiled code knows
        cells = 1
        for dim in variable.dims:
            cells *= batch.size_of(dim)
        total += cells
    return total

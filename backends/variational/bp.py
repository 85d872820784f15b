"""The backend `bp`: loopy belief propagation, exact on trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.variational.implicit import at_fixed_point
from energyml.backends.variational.session import VariationalSession
from energyml.bind.problem import Evidence, Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.cards.card import Selection
from energyml.grounded.ascent import Product
from energyml.grounded.factors import Grounder, Potentials, detached
from energyml.grounded.logspace import entropy_terms
from energyml.grounded.propagation import Propagation, State, probabilities
from energyml.grounded.schedule import Step, take
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import Assignment, Measured, Status


class BeliefPropagation(Backend):
    """Belief propagation.  Cost of a sweep: every table once for each of its cells."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        self.grounder = Grounder(graph, tables(terms))

    def open(self, problem: Problem) -> Session:
        """No message is passed before a query asks."""
        return PropagationSession(problem, self.grounder, self.selection)


@dataclass(eq=False)
class Passed:
    """Messages after the last sweep.

    Attributes:
        propagation: what made them.
        state: the messages.
        sweeps: how many sweeps were made.
        change: the largest change of a probability in the last one.
        bound: [B] the least upper bound of log Z that the messages of any sweep give; `None` where they give none.
    """

    propagation: Propagation
    state: State
    sweeps: int
    change: Tensor
    bound: Tensor | None = None


class PropagationSession(VariationalSession):
    """One batch; sum-product and max-product messages are passed once each.

    Attributes:
        bounds: queries whose answers keep their promise whether or not the messages converge.
    """

    bounds: tuple[str, ...] = ()

    def __init__(self, problem: Problem, grounder: Grounder, selection: Selection) -> None:
        super().__init__(problem, grounder, selection.name)
        self.steps, self.tol = int(selection["steps"]), float(selection["tol"])
        self.order, self.damping = str(selection["schedule"]), float(selection["damping"])
        self.implicit = selection["gradients"] == "implicit"

    def status(self, query: Query, value: Any) -> Status:
        """Whether the messages converged, where there is a tolerance; those of `map` need not.

        A bound holds without that, so that only who reads its status is told.
        """
        if query.kind == "map":
            return Status()
        if query.kind == "log_prob":
            return Status(lambda: self._unsettled(query) or self.improbable(value))
        if query.kind in self.bounds:
            return Status().also(lambda: self._unsettled(query))
        return Status(lambda: self._unsettled(query)) if self.tol > 0 else Status()

    def _unsettled(self, query: Query) -> tuple[bool, str] | None:
        """A status where messages still change."""
        passed = self.passed(query.kind == "max_marginals")
        if self.tol == 0 or float(passed.change) <= self.tol:
            return None
        # Without numbers that differ from call to call, so that it warns once.
        return False, (
            f"`{self.name}` still changes by more than `tol: {self.tol:g}` after {passed.sweeps} sweeps; raise `steps` "
            "or `damping`"
        )

    def statistics(self, query: Query) -> Mapping[str, float]:
        """The sweeps that were made, and the largest change of a probability in the last one."""
        passed = self.passed(query.kind in ("map", "max_marginals"))
        return Measured({"sweeps": lambda: float(passed.sweeps), "change": lambda: float(passed.change)})

    # -------------------------------------------------------------------------------------------------------- messages

    def passed(self, largest: bool = False) -> Passed:
        """The messages under the batch's own evidence."""
        name = "largest" if largest else "sums"
        found: Passed = self.once(name, lambda: self.solved(self.potentials, largest))
        return found

    def propagation(self, potentials: Potentials, largest: bool) -> Propagation:
        """Message passing for some scores."""
        return Propagation(self.graph, potentials, self.schedule(self.order), self.damping, largest)

    def sweep(self) -> list[Step]:
        """The steps of one sweep: there and back along the levels, or all cells at once."""
        return self.schedule(self.order).there_and_back()

    def solved(self, potentials: Potentials, largest: bool) -> Passed:
        """Messages for some scores."""
        propagation = self.propagation(potentials, largest)
        if not (self.implicit and propagation.tracked):
            return self._swept(propagation)
        with torch.no_grad():
            passed = self._swept(self.propagation(detached(potentials), largest))
        sweep = self.sweep()
        messages = at_fixed_point(
            lambda state: propagation.run(propagation.state(state), sweep).messages, passed.state.messages
        )
        state = propagation.state(messages)
        bound = self.bound(propagation, state)
        if bound is not None and passed.bound is not None:
            bound = bound + (passed.bound - bound.detach()).clamp(max=0)
        return Passed(propagation, state, passed.sweeps, passed.change, bound)

    def bound(self, propagation: Propagation, state: State) -> Tensor | None:
        """[B]: the upper bound of log Z that messages give; `None` where they give none."""
        return None

    def _swept(self, propagation: Propagation) -> Passed:
        state, sweep = propagation.state(propagation.start()), self.sweep()
        change = torch.zeros((), device=self.graph.device)
        looks = self.tol > 0 and self.graph.device.type == "cpu"
        # As long as every sweep changes less than the one before, messages converge, and the last bound is the least.
        converges, before = looks, math.inf
        bound = self.bound(propagation, state)
        for number in range(1, self.steps + 1):
            new = propagation.run(state, sweep)
            if looks or number == self.steps:
                change = propagation.change(state, new)
            if converges and float(change) > before:
                converges, bound = False, _least(bound, self.bound(propagation, state))
            before = float(change) if looks else math.inf
            state = new
            if not converges or before <= self.tol or number == self.steps:
                bound = _least(bound, self.bound(propagation, state))
            if looks and before <= self.tol:
                return Passed(propagation, state, number, change, bound)
        return Passed(propagation, state, self.steps, change, bound)

    # --------------------------------------------------------------------------------------------------------- answers

    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: the Bethe approximation."""
        if evidence is self.problem.evidence:
            passed = self.passed()
        else:
            passed = self.solved(self.graph.potentials(evidence), False)
        return passed.propagation.bethe(passed.state)

    def cell_probabilities(self) -> Product:
        """The beliefs; zero where no label is left."""
        beliefs = self.passed().state.beliefs
        made: Product = self.once("cells", lambda: {name: probabilities(one) for name, one in beliefs.items()})
        return made

    def factor_probabilities(self, number: int) -> Tensor:
        """[R, E, *labels]: the beliefs of factors; zero where no combination is left."""
        passed = self.passed()
        joint = passed.propagation.joints(passed.state, number)
        joint = joint.expand(self.graph.rows, *joint.shape[1:])
        return probabilities(joint.flatten(2)).reshape(joint.shape)

    def _entropy(self, query: Query) -> Tensor:
        """[B]: the Bethe entropy of the outputs, at least 0.

        Factors add the entropy of their beliefs over outputs, less those of the cells; latents are summed out of them.
        """
        graph = self.graph
        cells = {name: entropy_terms(p).sum(-1) for name, p in self.cell_probabilities().items()}
        total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        for name, one in cells.items():
            if name not in self.latent:
                total = total + graph.by_example(name, one)
        for number, factors in enumerate(self.potentials.factors):
            names = factors.block.variables
            joint = self.factor_probabilities(number)
            hidden = [2 + slot for slot, name in enumerate(names) if name in self.latent]
            if len(hidden) >= len(names) - 1:
                continue
            joint = joint.sum(hidden) if hidden else joint
            value = entropy_terms(joint.flatten(2)).sum(-1)
            for name, pick in zip(names, self.schedule(self.order).scope(number), strict=True):
                if name not in self.latent:
                    value = value - take(cells[name], pick)
            total = total + graph.factor_sums(factors, value)
        return self._possible(total.clamp(min=0))

    # ---------------------------------------------------------------------------------------------------- best answers

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels] for outputs: max-product beliefs, shifted so that the largest is the estimated best score.

        Latents are maximised like outputs.
        """
        passed = self.passed(largest=True)
        best = passed.propagation.bethe(passed.state)
        found = {}
        for name, belief in passed.state.beliefs.items():
            if name in self.latent:
                continue
            peak = belief.amax(-1, keepdim=True)
            placed = self.graph.outward(name, belief - peak.masked_fill(peak.isneginf(), 0), float("-inf"))
            gone = best.isneginf().reshape(-1, *([1] * (placed.dim() - 1)))
            shift = best.masked_fill(best.isneginf(), 0).reshape(gone.shape)
            found[name] = (placed + shift).masked_fill(gone, float("-inf"))
        return found

    def _map(self, query: Query) -> Assignment:
        beliefs = self.passed(largest=True).state.beliefs
        return self.answer(self.found({name: belief.argmax(-1) for name, belief in beliefs.items()}))


def _least(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else torch.where(other < one, other, one)

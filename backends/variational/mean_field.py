"""The backend `mean_field`: a product of independent cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.variational.implicit import at_fixed_point
from energyml.backends.variational.session import VISIBLE, VariationalSession
from energyml.bind.problem import Evidence, Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.cards.card import Selection
from energyml.grounded.ascent import Ascent, Product
from energyml.grounded.decoding import feasible
from energyml.grounded.factors import Grounder, Potentials, detached
from energyml.grounded.logspace import entropy_terms
from energyml.grounded.schedule import take
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Measured, Status

# Sweeps between two looks at the change, where a tolerance is given.
BETWEEN = 10


class MeanField(Backend):
    """Mean field by coordinate ascent.  Cost of a sweep: every table once for each of its cells."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        self.grounder = Grounder(graph, tables(terms))

    def open(self, problem: Problem) -> Session:
        """Nothing is updated before a query asks."""
        return MeanFieldSession(problem, self.grounder, self.selection)


@dataclass(eq=False)
class Found:
    """A product with what is known about it."""

    ascent: Ascent
    q: Product
    sweeps: int


class MeanFieldSession(VariationalSession):
    """One batch; the product is found once."""

    def __init__(self, problem: Problem, grounder: Grounder, selection: Selection) -> None:
        super().__init__(problem, grounder, "mean_field")
        self.steps, self.tol = int(selection["steps"]), float(selection["tol"])
        self.order, self.damping = str(selection["schedule"]), float(selection["damping"])
        self.uniform = selection["start"] == "uniform"
        self.implicit = selection["gradients"] == "implicit"

    def status(self, query: Query, value: Any) -> Status:
        """Whether the updates converged, where there is a tolerance and the answer needs it; and the bound's height.

        The bound holds in any case, so that only who reads a status is told how low it is.
        """
        if query.kind == "map":
            return Status()
        if query.kind == "log_prob":
            return Status(lambda: self._unsettled() or self.improbable(value))
        if self.tol == 0 or query.kind == "log_partition":
            return Status().also(self._low)
        return Status(self._unsettled).also(self._low)

    def _unsettled(self) -> tuple[bool, str] | None:
        """A status where updates still change the product."""
        found = self._product()
        if self.tol == 0 or float(found.ascent.residual(found.q)) <= self.tol:
            return None
        # Without numbers that differ from call to call, so that it warns once.
        return False, (
            f"`mean_field` still changes by more than `tol: {self.tol:g}` after {found.sweeps} sweeps; raise `steps`, "
            "or `damping` if the schedule is parallel"
        )

    def _low(self) -> tuple[bool, str] | None:
        """A status where the bound of log Z is below the score of an answer that is found cell by cell."""
        with torch.no_grad():
            bound, best = self._log_partition(Query("log_partition")), self._map(Query("map")).score
            low = best - bound > VISIBLE * (1 + best.abs())
        if not bool((low & ~best.isneginf()).any()):
            return None
        return False, (
            f"`mean_field` ended far from the optimum for {int(low.sum())} of {len(low)} examples: its bound of log Z "
            "is below the score of an answer; likely (a) cells that depend strongly on each other: raise `steps`, or "
            "try `start: uniform` or another `schedule`, (b) large negative scores for what is forbidden: write -inf"
        )

    def statistics(self, query: Query) -> Mapping[str, float]:
        """The sweeps that were made, and the largest change that one more would make."""
        found = self._product()
        return Measured(
            {"sweeps": lambda: float(found.sweeps), "change": lambda: float(found.ascent.residual(found.q))}
        )

    # --------------------------------------------------------------------------------------------------------- product

    def _product(self) -> Found:
        found: Found = self.once("product", lambda: self._solved(self.potentials))
        return found

    def _solved(self, potentials: Potentials) -> Found:
        ascent = Ascent(self.graph, potentials, self.schedule(self.order), self.damping)
        q, sweeps = ascent.start(self.uniform), 0
        if self.implicit and ascent.tracked:
            with torch.no_grad():
                quiet = Ascent(self.graph, detached(potentials), ascent.schedule, self.damping)
                q, sweeps = self._ascended(quiet, {name: one.detach() for name, one in q.items()})
            once = ascent.schedule.sweeps(1)
            q = at_fixed_point(lambda state: ascent.run(state, once), q)
        else:
            q, sweeps = self._ascended(ascent, q)
        if ascent.hard:
            q = feasible(Ascent(self.graph, potentials, self.schedule("sequential")), q, self.steps)
        return Found(ascent, q, sweeps)

    def _ascended(self, ascent: Ascent, q: Product) -> tuple[Product, int]:
        """Sweeps up to the limit, or until an update changes no more than the tolerance."""
        looks = self.tol > 0 and self.graph.device.type == "cpu"
        sweeps = 0
        while sweeps < self.steps:
            count = min(BETWEEN, self.steps - sweeps) if looks else self.steps
            q = ascent.run(q, ascent.schedule.sweeps(count))
            sweeps += count
            if looks and sweeps < self.steps and float(ascent.residual(q)) <= self.tol:
                break
        return q, sweeps

    # --------------------------------------------------------------------------------------------------------- answers

    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: the evidence lower bound."""
        own = evidence is self.problem.evidence
        found = self._product() if own else self._solved(self.graph.potentials(evidence))
        return found.ascent.bound(found.q)

    def cell_probabilities(self) -> Product:
        """The product."""
        return self._product().q

    def factor_probabilities(self, number: int) -> Tensor:
        """[R, E, *labels]: products of the cells' probabilities."""
        block = self.graph.skeleton.blocks[number]
        q, picks = self._product().q, self.schedule(self.order).scope(number)
        joint: Tensor | None = None
        for name, pick in zip(block.variables, picks, strict=True):
            p = take(q[name], pick)
            if joint is not None:
                p = joint.unsqueeze(-1) * p.reshape(*p.shape[:2], *([1] * (joint.dim() - 2)), p.shape[2])
            joint = p
        assert joint is not None
        return joint

    def _entropy(self, query: Query) -> Tensor:
        """[B]: the entropy of the product's outputs."""
        total = torch.zeros(self.graph.batch.size, device=self.graph.device, dtype=self.graph.dtype)
        for name, p in self._product().q.items():
            if name not in self.latent:
                total = total + self.graph.by_example(name, entropy_terms(p).sum(-1))
        return self._possible(total)

    def _map(self, query: Query) -> Assignment:
        return self.answer(self.found({name: p.argmax(-1) for name, p in self._product().q.items()}))

    def _sample(self, query: Query) -> Assignment:
        """Draws from the product, with their true scores; -1 and -inf for what is no answer.

        Where scores left their type, so that the product is no number, the scores of the draws are none either.
        """
        placed: dict[str, Tensor] = {}
        lost = torch.zeros_like(self.potentials.impossible)
        for name, p in self._product().q.items():
            lost = lost | (self.graph.by_example(name, p.isnan().any(-1).to(p.dtype)) > 0)
            total = p.detach().double().cumsum(-1).unsqueeze(2)
            u = torch.rand(
                (*p.shape[:2], query.count, 1), generator=query.generator, device=p.device, dtype=total.dtype
            )
            labels = (total <= u * total[..., -1:]).sum(-1).clamp(max=p.shape[-1] - 1)
            placed[name] = self.graph.outward(name, labels, ABSENT).movedim(-1, 1)
        outputs = {name: one for name, one in placed.items() if name not in self.latent}
        if self.latent:
            each = [{name: one[:, number] for name, one in outputs.items()} for number in range(query.count)]
            score = torch.stack([self.summed_score(one) for one in each], 1)
        else:
            flat = {name: one.flatten(0, 1) for name, one in placed.items()}
            score = self.problem.score(flat, query.count).reshape(self.graph.batch.size, query.count)
        score = score.masked_fill(lost.unsqueeze(1), float("nan"))
        score = score.masked_fill(self.potentials.impossible.unsqueeze(1), float("-inf"))
        gone = score.isneginf()
        found = {
            name: one.masked_fill(gone.reshape(*gone.shape, *([1] * (one.dim() - 2))), ABSENT).movedim(1, 0)
            for name, one in outputs.items()
        }
        return Assignment(found, score.movedim(1, 0), self.problem.label_names())

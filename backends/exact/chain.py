"""First-order chains, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from energyml.backend import Session
from energyml.backends.exact.card import MEGABYTES
from energyml.backends.exact.elimination import leaf
from energyml.backends.exact.engines import Engine
from energyml.backends.exact.graph import GraphSession
from energyml.backends.exact.ground import Ground
from energyml.backends.exact.plans import Plans
from energyml.backends.exact.potentials import Layout, Placed, Potentials, assemble, is_first_order
from energyml.backends.exact.recursion import (
    chain_best,
    chain_draws,
    chain_entropy,
    chain_max_marginals,
    chain_score,
)
from energyml.bind.batch import Along, wide
from energyml.bind.problem import Evidence, Problem
from energyml.diagnostics import QueryRefused
from energyml.execution import gradients, is_functional
from energyml.grounded.logspace import difference
from energyml.inference.expectations import (
    comparable,
    cross_entropy,
    divergence,
    expected,
    factored_expectation,
    log_z_of,
    normalised,
    tables_of,
)
from energyml.inference.precision import accumulated, cancels, large, rounded
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result


class ChainSession(Session):
    """One batch of chains.

    Args:
        problem: the batch.
        layout: its tables.
        engine: what computes.
        doubled: whether scores are read in double precision, whatever they are; answers of `ask` have their type.
    """

    def __init__(self, problem: Problem, layout: Layout, engine: Engine, doubled: bool = False) -> None:
        self.problem, self.layout, self.engine = problem, layout, engine
        self.doubled = doubled or engine.doubled
        self.variable = layout.variable
        self._known: dict[tuple[str, bool], Tensor | Potentials | ChainSession] = {}

    def ask(self, query: Query) -> Result:
        """Answer any query of the card."""
        if not hasattr(self, f"_{query.kind}"):
            raise QueryRefused(f"`exact` does not answer `{query.kind}`")
        session = self._in_double() if cancels(query) or self._rounds(query) else self
        value, dtype = getattr(session, f"_{query.kind}")(query), self.problem.env.batch.dtype
        widened = session.doubled or accumulated(dtype) is not dtype
        return Result(rounded(value, dtype) if widened and not query.wide else value)

    def _rounds(self, query: Query) -> bool:
        """Whether sums of large scores would lose digits: of tables on the same cells, with costs, of whole answers."""
        potentials, costs = self.potentials, query.cost or {}
        if potentials.coarse or not (costs or query.wide):
            return potentials.coarse
        return large(potentials.scores, potentials.steps, *costs.values())

    def _in_double(self) -> ChainSession:
        """The session of the same batch in double precision; itself where it computes in that."""
        if self.doubled or self.problem.env.batch.dtype is torch.float64:
            return self
        found = self._known.get(("in double", True))
        if found is None:
            found = self._known["in double", True] = ChainSession(self.problem, self.layout, self.engine, doubled=True)
        assert isinstance(found, ChainSession)
        return found

    @property
    def potentials(self) -> Potentials:
        """Unaries and pairs of the batch; those computed without gradients serve only where none are wanted."""
        found = self._once("potentials", self._assemble)
        assert isinstance(found, Potentials)
        return found

    @property
    def log_z(self) -> Tensor:
        """[B]: the log-partition of each chain."""
        found = self._once("log_z", lambda: self.engine.log_partition(self.potentials))
        assert isinstance(found, Tensor)
        return found

    def _assemble(self) -> Potentials:
        return self._assembled(self.problem.evidence)

    def _assembled(self, evidence: Evidence) -> Potentials:
        """The scores given evidence, in the type that they are read in."""
        return assemble(self.problem, self.layout, evidence, self._dtype)

    @property
    def _dtype(self) -> torch.dtype | None:
        """The type that scores are read in; `None` for that of their tables."""
        return wide(self.problem.env.batch.device) if self.doubled else None

    def _once(self, name: str, compute: Callable[[], Tensor | Potentials]) -> Tensor | Potentials | ChainSession:
        tracked = torch.is_grad_enabled()
        found = self._known.get((name, True))
        if found is None and not tracked:
            found = self._known.get((name, False))
        if found is None:
            found = self._known[name, tracked] = compute()
        return found

    # ------------------------------------------------------------------------------------------------ probabilities

    def _log_partition(self, query: Query) -> Tensor:
        return self.log_z

    def _log_prob(self, query: Query) -> Tensor:
        """Whole answers have theirs from the engine, which takes the difference of large sums in double precision."""
        labels = query.answer.get(self.variable)
        potentials = self._costed(self.potentials, query.cost or {})
        if labels is not None:
            whole = self.engine.likelihood(potentials, self._along().compact(labels, 1))
            if whole is not None:
                return whole
        return self._in_double()._share(query).to(potentials.dtype)

    _log_prob_with_cost = _log_prob

    def _share(self, query: Query) -> Tensor:
        """The log-partition of the answers that agree with a full or partial one, less that of all."""
        cost = query.cost or {}
        clamped = self._costed(self._assembled(self.problem.known(query.answer)), cost)
        total = self.engine.log_partition(self._costed(self.potentials, cost)) if cost else self.log_z
        return difference(self.engine.log_partition(clamped), total)

    def _costed(self, potentials: Potentials, costs: Mapping[str, Tensor]) -> Potentials:
        """The scores with costs added to those of cells."""
        if not costs:
            return potentials
        unary = potentials.unary
        for name, cost in costs.items():
            if name != self.variable:
                raise QueryRefused(f"`{name}` has no labels that a cost could be about")
            here, exists = self._along().compact(cost, 1), potentials.exists
            unary = unary + (here if exists is None else torch.where(exists.unsqueeze(-1), here, 0))
        return Potentials(unary, potentials.steps, potentials.count)

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        unary, _ = self._moments(pairs=False)
        along = self._along()
        return {self.variable: unary if along.rank is None else along.spread(unary, 0.0)}  # 0 beyond each chain already

    def _moments(self, pairs: bool) -> tuple[Tensor, Tensor]:
        """Marginals of cells and pairs, by the engine or as gradients of the log-partition; differentiable."""
        potentials = self.potentials
        if potentials.unary.shape[1] == 0:
            return potentials.unary, potentials.pair  # no cells: nothing to differentiate, and nothing in the answer
        if is_functional():
            return self._followed_moments(potentials, pairs)
        direct = self.engine.marginals(potentials, pairs)
        if direct is not None:
            return direct[0], potentials.pair if direct[1] is None else direct[1]
        tracked = potentials.tracked
        with torch.inference_mode(False), torch.enable_grad():
            unary = leaf(potentials.unary, tracked)
            steps = potentials.pair if pairs else potentials.steps
            if pairs:
                steps = leaf(steps, tracked)
            elif not tracked:
                steps = steps.clone() if steps.is_inference() else steps.detach()
            count = potentials.count
            if count is not None and count.is_inference():
                count = count.clone()
            log_z = self.engine.log_partition(Potentials(unary, steps, count))
            total = log_z.masked_fill(log_z.isneginf(), 0).sum()
            wanted = (unary, steps) if pairs else (unary,)
            found = torch.autograd.grad(total, wanted, create_graph=tracked, materialize_grads=True)
        return found[0], found[-1]

    def _followed_moments(self, potentials: Potentials, pairs: bool) -> tuple[Tensor, Tensor]:
        """The same as functions that transforms and the compiler see through."""

        def total(unary: Tensor, steps: Tensor = potentials.steps) -> Tensor:
            log_z = self.engine.log_partition(Potentials(unary, steps, potentials.count))
            return log_z.masked_fill(log_z.isneginf(), 0).sum()

        found = gradients(total, (potentials.unary, potentials.pair) if pairs else (potentials.unary,))
        return found[0], found[-1]

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each table; zero where an element of its index set does not exist."""
        unary, pair = self._moments(pairs=True)
        return {
            one.term.term.name: self._one_factor(one, unary, pair)
            for one in self.layout.placed
            if query.target in (None, one.term.term.name)
        }

    def _one_factor(self, one: Placed, unary: Tensor, pair: Tensor) -> Tensor:
        batch = self.problem.env.batch
        if one.scattered or one.constant is not None:
            value = one.term.at_cells(batch, 0, self._along().spread(unary, 0.0))
        else:
            source = unary if one.arity == 1 else (pair.transpose(-1, -2) if one.swapped else pair)
            length = max(0, unary.shape[1] - one.shrink)
            value = source.narrow(1, one.offset if length else 0, length)
        valid = one.term.valid(batch)
        if valid is not None:
            value = torch.where(valid.reshape(*valid.shape, *([1] * one.arity)), value, 0)
        return value

    def _entropy(self, query: Query) -> Tensor:
        return chain_entropy(*self._moments(pairs=True))

    def _expectation(self, query: Query) -> Tensor:
        factors = self._factor_marginals(Query("factor_marginals"))
        return factored_expectation(query.values, self._marginals(Query("marginals")), factors)

    def _cross_entropy(self, query: Query) -> Tensor:
        """The other model's log Z less its expected score."""
        other = comparable(self.problem, query.other)
        if is_first_order(tables_of(other)):
            unary, pair = self._moments(pairs=True)
            theirs = assemble(other, Layout(other.graph, other.terms), other.evidence, self._dtype)
            joint, shared = normalised(pair, 2), theirs.steps.shape[1] == 1
            joint = joint.sum(1, keepdim=True) if shared else joint  # one table serves all steps
            score = expected(normalised(unary, 1), theirs.unary) + expected(joint, theirs.steps)
        else:  # its tables join cells that are no neighbours here
            ground = Ground.of(self.problem, Plans(MEGABYTES), True)
            score = GraphSession(self.problem, ground, self._dtype).expected_score(other)
        return cross_entropy(log_z_of(query.other), score, ~self.log_z.isneginf())

    def _kl(self, query: Query) -> Tensor:
        return divergence(self._cross_entropy(query), self._entropy(query))

    # ------------------------------------------------------------------------------------------------- best answers

    def _map(self, query: Query) -> Assignment:
        labels, score = self.engine.best(self.potentials)
        if self._along().rank is None:  # cells are positions, and -1 stands beyond each chain already
            return Assignment({self.variable: labels[:, 0]}, score[:, 0], self.problem.label_names())
        return self._first(self._answers(labels, score))

    def _n_best(self, query: Query) -> Assignment:
        return self._answers(*chain_best(self.potentials, query.count))

    def _max_with_cost(self, query: Query) -> Assignment:
        """The best of score plus cost; the score includes the cost."""
        return self._first(self._answers(*self.engine.best(self._costed(self.potentials, query.cost))))

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        return {self.variable: self._along().spread(chain_max_marginals(self.potentials), float("-inf"))}

    def _sample(self, query: Query) -> Assignment:
        """Exact draws; -1 and -inf where no answer has positive probability."""
        potentials = self.potentials
        labels, possible = chain_draws(potentials, query.count, query.generator)
        score = chain_score(potentials, labels).masked_fill(~possible.unsqueeze(1), float("-inf"))
        labels = labels.masked_fill(~possible.reshape(-1, 1, 1), ABSENT)
        drawn = self._answers(labels, score)
        names = {name: one.movedim(0, 1) for name, one in drawn.labels.items()}
        return Assignment(names, drawn.score.movedim(0, 1), drawn.names)

    def _answers(self, labels: Tensor, score: Tensor) -> Assignment:
        """Answers [B, k, T] of cells at the caller's positions, -1 where there is no cell."""
        spread = self._along().spread(labels.transpose(1, 2), ABSENT).transpose(1, 2)
        return Assignment({self.variable: spread}, score, self.problem.label_names())

    def _first(self, best: Assignment) -> Assignment:
        return Assignment({name: one[:, 0] for name, one in best.labels.items()}, best.score[:, 0], best.names)

    def _along(self) -> Along:
        return self.layout.along(self.problem.env.batch)

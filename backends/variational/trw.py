"""The backend `trw`: tree-reweighted belief propagation, an upper bound of log Z.

The messages of any sweep, converged or not, rewrite the score as

    score(y) = sum of b(i) + sum over factors of w (table / w - sum over the factor's cells of m(f -> i)),

and for each forest of factors that holds f with probability w, the same sum over its factors without the weights is the
score of a forest; their average over forests is the model's score.  As log Z is convex, it is at most the average of
the forests' log Z.  A tree is eliminated from its leaves to its root, and each sum over the children of a factor is at
most its largest value over the labels of its parent p:

    log Z <= sum over roots of P(i is root) logsumexp b(i)
           + sum over factors and their cells of P(f has the parent p) max over y_p of
             (logsumexp over the other cells of (table / w + sum of (b(i) - m(f -> i))) - m(f -> p)).

At a fixed point the last logsumexp does not depend on y_p, and for pairs this is the bound of Wainwright et al. 2005;
for larger factors it is the same bound over hyperforests instead of trees.  Before, it is looser, but every iterate is
a bound (the argument of Globerson & Jaakkola 2007 about oriented trees), and the least of all sweeps is kept.  Without
any message it is at most the sum of the cells' own logsumexp and of the factors' largest entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.backends.variational.bp import PropagationSession
from energyml.backends.variational.spanning import forest_parents
from energyml.bind.problem import Evidence, Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.grounded.factors import FactorGraph, Grounder, Potentials
from energyml.grounded.logspace import logsumexp
from energyml.grounded.propagation import Propagation, State, key, probabilities
from energyml.grounded.schedule import take
from energyml.grounded.skeleton import on_device
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure

# A factor that no forest can do without has the probability 1; none has 0, but a rounded inverse may say so.
LEAST = 1e-9
# Units in the last place that sums of a factor's messages lose.
ROUNDING = 4


class TreeReweighted(Backend):
    """Tree-reweighted belief propagation.  Cost: as `bp`, and once for each structure the forests."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        self.grounder = Grounder(graph, tables(terms))

    def open(self, problem: Problem) -> Session:
        """No message is passed before a query asks."""
        return ReweightedSession(problem, self.grounder, self.selection)


@dataclass(frozen=True, eq=False)
class Forests:
    """Probabilities of factors and roots.

    Attributes:
        weights: by block: [E] that a factor is in the forest.
        parents: by block: [E, slots] that it is, and the cell at a slot is its parent.
        roots: by variable: [N] that a cell is a root.
    """

    weights: list[Tensor]
    parents: list[Tensor]
    roots: dict[str, Tensor]


def forests_of(graph: FactorGraph) -> Forests:
    """The probabilities of a structure; kept with it."""
    kept, known = graph.skeleton.kept, ("forests", graph.device, graph.dtype)
    if known not in kept:
        kept[known] = _forests(graph)
    made: Forests = kept[known]
    return made


def _forests(graph: FactorGraph) -> Forests:
    skeleton = graph.skeleton
    scopes = [skeleton.numbered(block) for block in skeleton.blocks]
    count = sum(skeleton.counts.values())
    parents = forest_parents(scopes, count)
    roots = np.ones(count)
    for scope, one in zip(scopes, parents, strict=True):
        np.subtract.at(roots, scope, one.sum(1, keepdims=True) - one)

    def placed(values: np.ndarray) -> Tensor:
        return on_device(values, graph.device, graph.dtype)

    return Forests(
        [placed(np.clip(one.sum(1), LEAST, 1)) for one in parents],
        [placed(one) for one in parents],
        {
            name: placed(np.clip(roots[start : start + skeleton.counts[name]], 0, 1))
            for name, start in skeleton.starts.items()
        },
    )


class ReweightedSession(PropagationSession):
    """One batch."""

    bounds = ("log_partition",)

    def propagation(self, potentials: Potentials, largest: bool) -> Propagation:
        """Message passing with the probabilities of factors in forests as weights."""
        weights = forests_of(self.graph).weights
        return Propagation(self.graph, potentials, self.schedule(self.order), self.damping, largest, weights)

    def bound(self, propagation: Propagation, state: State) -> Tensor | None:
        """[B]: the upper bound of log Z that messages give; sums only."""
        return None if propagation.largest else bound(propagation, state, forests_of(self.graph))

    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: an upper bound, the least of the sweeps, rounded upwards."""
        own = evidence is self.problem.evidence
        passed = self.passed() if own else self.solved(self.graph.potentials(evidence), False)
        assert passed.bound is not None
        found = passed.bound + _rounding(passed.propagation, passed.state, forests_of(self.graph))
        return torch.minimum(found, ceiling(passed.propagation))


def bound(propagation: Propagation, state: State, forests: Forests) -> Tensor:
    """[B]: the upper bound of log Z that the messages of any sweep give; -inf where they find no answer possible."""
    graph, potentials = propagation.graph, propagation.potentials
    total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
    gone = potentials.impossible
    for name, belief in state.beliefs.items():
        value = logsumexp(belief, 2)
        gone = gone | (graph.by_example(name, value.isneginf().to(graph.dtype)) > 0)
        total = total + graph.by_example(name, forests.roots[name] * _finite(value))
    for number, factors in enumerate(potentials.factors):
        for slot, value in enumerate(_summed(propagation, state, number)):
            gone = gone | (_sums(graph, factors, value.isneginf().to(graph.dtype)) > 0)
            total = total + _sums(graph, factors, forests.parents[number][:, slot] * _finite(value))
    return total.masked_fill(gone, float("-inf"))


def ceiling(propagation: Propagation) -> Tensor:
    """[B]: an upper bound of log Z from scores alone: the largest of each cell and factor, and the log of the answers.

    Where messages about scores of very different magnitudes lose their digits, this is the better bound.
    """
    graph, potentials = propagation.graph, propagation.potentials
    total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
    size = torch.zeros_like(total)
    for name, scores in potentials.unary.items():
        best = scores.amax(-1)
        answers = (~scores.isneginf()).sum(-1).clamp(min=1).to(graph.dtype).log()
        total = total + graph.by_example(name, _finite(best) + answers)
        size = size + graph.by_example(name, _finite(best).abs() + answers)
    for factors in potentials.factors:
        best = _finite(factors.table.flatten(2).amax(-1))
        total, size = total + graph.factor_sums(factors, best), size + graph.factor_sums(factors, best.abs())
    return total + ROUNDING * torch.finfo(graph.dtype).eps * size


def _summed(propagation: Propagation, state: State, number: int) -> list[Tensor]:
    """For every slot [R, E]: what summing out the other cells of a block's factors adds at most."""
    names, picks = propagation.potentials.factors[number].block.variables, propagation.schedule.scope(number)
    cavities = propagation.cavities(state, number, picks, None)
    found = []
    for slot, (name, pick) in enumerate(zip(names, picks, strict=True)):
        value = propagation.summed(number, cavities, slot) - state.messages[key(number, slot)]
        found.append(value.masked_fill(take(state.beliefs[name], pick).isneginf(), float("-inf")).amax(-1))
    return found


def _rounding(propagation: Propagation, state: State, forests: Forests) -> Tensor:
    """[B]: what rounding may take from a bound: beliefs and messages of likely labels may be large, and cancel."""
    graph, potentials = propagation.graph, propagation.potentials
    size = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
    with torch.no_grad():
        likely = {name: probabilities(belief) for name, belief in state.beliefs.items()}
        for name, p in likely.items():
            size = size + graph.by_example(name, (p * _finite(state.beliefs[name]).abs()).sum(-1))
        for number, factors in enumerate(potentials.factors):
            names, picks = factors.block.variables, propagation.schedule.scope(number)
            for slot, (name, pick) in enumerate(zip(names, picks, strict=True)):
                own = (take(likely[name], pick) * state.messages[key(number, slot)].abs()).sum(-1)
                size = size + _sums(graph, factors, forests.weights[number] * own)
    return ROUNDING * torch.finfo(graph.dtype).eps * size


def _sums(graph: FactorGraph, factors: Any, values: Tensor) -> Tensor:
    """[B]: sums over all factors of a block; in a padded batch also those that do not exist, whose tables are zero."""
    return graph.factor_sums(type(factors)(factors.block, factors.table, None, factors.hard), values)


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values.isneginf(), 0)

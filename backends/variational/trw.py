"""The backend `trw`: tree-reweighted belief propagation, an upper bound of log Z.

The messages of any sweep, converged or not, rewrite the score as

    score(y) = sum of b(i) + sum over pairs of w (table / w - m(f -> i) - m(f -> j)),

and for each spanning tree that holds a pair with probability w, the same sum over its pairs without the weights is the
score of a tree; their average over trees is the model's score.  As log Z is convex, it is at most the average of the
trees' log Z.  A tree is eliminated from its leaves to its root, and each sum over a child is at most its largest value
over the parent's labels:

    log Z <= sum over roots of P(i is root) logsumexp b(i)
           + sum over arcs of P(i -> j) max over y_j of logsumexp over y_i of
             (b(i) + table / w - m(f -> i) - m(f -> j)).

At a fixed point the last logsumexp does not depend on y_j, and this is the bound of Wainwright et al. 2005.  Before, it
is looser, but every iterate is a bound (the argument of Globerson & Jaakkola 2007 about oriented trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.backend import Backend, Evidence, Problem, Session
from energyml.backends.logspace import logsumexp
from energyml.backends.variational.bp import PropagationSession
from energyml.backends.variational.factors import FactorGraph, Grounder, Potentials
from energyml.backends.variational.propagation import Propagation, State, key, probabilities
from energyml.backends.variational.schedule import take
from energyml.backends.variational.skeleton import on_device
from energyml.backends.variational.spanning import uniform_arcs
from energyml.bind.terms import BoundTerm, TableTerm
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure

# A pair that no tree can do without has the probability 1; none has 0, but a rounded inverse may say so.
LEAST = 1e-9


class TreeReweighted(Backend):
    """Tree-reweighted belief propagation.  Cost: as `bp`, and once for each structure the edges' probabilities."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms; structures are grounded when they are met, and kept."""
        self.grounder = Grounder(graph, [term for term in terms if isinstance(term, TableTerm)])

    def open(self, problem: Problem) -> Session:
        """No message is passed before a query asks."""
        return ReweightedSession(problem, self.grounder, self.selection)


@dataclass(frozen=True, eq=False)
class Trees:
    """Probabilities of arcs and roots.

    Attributes:
        weights: by block: [E, slots] the weight of each message.
        up: by block: [E, slots] that the cell at a slot is eliminated before its factor's other cell, or its factor.
        down: by block: [E, slots] that a factor of more than two cells is eliminated before its cell.
        roots: by variable: [N] that a cell is a root.
        factor_roots: by block: [E] that a factor of more than two cells is a root.
    """

    weights: list[Tensor]
    up: list[Tensor]
    down: list[Tensor]
    roots: dict[str, Tensor]
    factor_roots: list[Tensor]


def trees_of(graph: FactorGraph) -> Trees:
    """The probabilities of a structure; kept with it."""
    kept, known = graph.skeleton.kept, ("trees", graph.device, graph.dtype)
    if known not in kept:
        kept[known] = _trees(graph)
    made: Trees = kept[known]
    return made


def _trees(graph: FactorGraph) -> Trees:
    skeleton = graph.skeleton
    count = sum(skeleton.counts.values())
    edges: list[np.ndarray] = []
    nodes: list[np.ndarray] = []
    for block in skeleton.blocks:
        cells = skeleton.numbered(block)
        if cells.shape[1] == 2:
            edges.append(cells)
            nodes.append(np.zeros(0, dtype=np.int64))
            continue
        own = count + np.arange(len(cells))
        count += len(cells)
        nodes.append(own)
        edges.append(np.stack([cells, np.broadcast_to(own[:, None], cells.shape)], -1).reshape(-1, 2))
    arcs = uniform_arcs(np.concatenate(edges) if edges else np.zeros((0, 2), dtype=np.int64), count)

    def placed(values: np.ndarray) -> Tensor:
        return on_device(values, graph.device, graph.dtype)

    made = Trees([], [], [], {}, [])
    at = 0
    for block, ends, own in zip(skeleton.blocks, edges, nodes, strict=True):
        forward, backward = arcs.forward[at : at + len(ends)], arcs.backward[at : at + len(ends)]
        at += len(ends)
        both = np.clip(forward + backward, LEAST, 1)
        if len(block.variables) == 2:
            made.weights.append(placed(np.stack([both, both], 1)))
            made.up.append(placed(np.stack([forward, backward], 1)))
            made.down.append(placed(np.zeros((0, 2))))
        else:
            shape = block.scope.shape
            made.weights.append(placed(both.reshape(shape)))
            made.up.append(placed(forward.reshape(shape)))
            made.down.append(placed(backward.reshape(shape)))
        made.factor_roots.append(placed(arcs.roots[own]))
    for name, start in skeleton.starts.items():
        made.roots[name] = placed(arcs.roots[start : start + skeleton.counts[name]])
    return made


class ReweightedSession(PropagationSession):
    """One batch."""

    bounds = ("map", "log_partition")

    def propagation(self, potentials: Potentials, largest: bool) -> Propagation:
        """Message passing with the weights of uniform spanning trees."""
        weights = trees_of(self.graph).weights
        return Propagation(self.graph, potentials, self.schedule(self.order), self.damping, largest, weights)

    def log_z(self, evidence: Evidence) -> Tensor:
        """[B]: an upper bound."""
        if evidence is self.problem.evidence:
            passed = self.passed()
        else:
            passed = self.solved(self.graph.potentials(evidence), False)
        return bound(passed.propagation, passed.state, trees_of(self.graph))

    def factor_probabilities(self, number: int) -> Tensor:
        """[R, E, *labels]: the beliefs of factors; zero where no combination is left."""
        passed = self.passed()
        joint = _joint(passed.propagation, passed.state, number)
        joint = joint.expand(self.graph.rows, *joint.shape[1:])
        return probabilities(joint.flatten(2)).reshape(joint.shape)


def bound(propagation: Propagation, state: State, trees: Trees) -> Tensor:
    """[B]: the upper bound of log Z that the messages of any sweep give; -inf where they find no answer possible."""
    graph, potentials = propagation.graph, propagation.potentials
    total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
    gone = potentials.impossible
    for name, belief in state.beliefs.items():
        value = logsumexp(belief, 2)
        gone = gone | (graph.by_example(name, value.isneginf().to(graph.dtype)) > 0)
        total = total + graph.by_example(name, trees.roots[name] * _finite(value))
    for number, factors in enumerate(potentials.factors):
        for part in _arcs(propagation, state, trees, number):
            gone = gone | (_sums(graph, factors, part.isneginf().to(graph.dtype)) > 0)
            total = total + _sums(graph, factors, _finite(part))
    return total.masked_fill(gone, float("-inf"))


def _arcs(propagation: Propagation, state: State, trees: Trees, number: int) -> list[Tensor]:
    """[R, E] each: what the arcs and roots of a block's factors add."""
    names, picks = propagation.potentials.factors[number].block.variables, propagation.schedule.scope(number)
    cavities = propagation.cavities(state, number, picks, None)
    messages = [state.messages[key(number, slot)] for slot in range(len(names))]
    beliefs = [take(state.beliefs[name], pick) for name, pick in zip(names, picks, strict=True)]
    table = propagation.tables[number]
    if len(names) == 2:
        found = []
        for slot in (0, 1):
            # The cell at `slot` is summed out, and the largest value over the other one's labels is taken.
            value = propagation.collected(number, table, cavities, 1 - slot, None) - messages[1 - slot]
            value = value.masked_fill(beliefs[1 - slot].isneginf(), float("-inf")).amax(-1)
            found.append(trees.up[number][:, slot] * _finite(value) + _lost(value))
        return found
    joint = _joint(propagation, state, number)
    total = logsumexp(joint.flatten(2), 2)
    found = [trees.factor_roots[number] * _finite(total) + _lost(total)]
    for slot in range(len(names)):
        summed = logsumexp(joint.movedim(2 + slot, 2).flatten(3), 3)
        likely = cavities[slot].masked_fill(cavities[slot].isneginf(), 0) + messages[slot]
        value = (summed - likely).masked_fill(beliefs[slot].isneginf(), float("-inf")).amax(-1)
        # A cell whose parent is its factor adds nothing: its message to the factor is its cavity.
        found.append(trees.down[number][:, slot] * _finite(value) + _lost(value))
    return found


def _joint(propagation: Propagation, state: State, number: int) -> Tensor:
    """[R, E, *labels]: the beliefs of factors, up to a constant."""
    assert propagation.weights is not None
    cavities = propagation.cavities(state, number, propagation.schedule.scope(number), None)
    joint, slots = propagation.tables[number], len(cavities)
    for slot, cavity in enumerate(cavities):
        if slots > 2:
            cavity = propagation.weights[number][:, slot].reshape(1, -1, 1) * cavity
        joint = joint + cavity.reshape(*cavity.shape[:2], *([1] * slot), -1, *([1] * (slots - slot - 1)))
    return joint


def _sums(graph: FactorGraph, factors: Any, values: Tensor) -> Tensor:
    """[B]: sums over all factors of a block; in a padded batch also those that do not exist, whose tables are zero."""
    return graph.factor_sums(type(factors)(factors.block, factors.table, None, factors.hard), values)


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values.isneginf(), 0)


def _lost(values: Tensor) -> Tensor:
    """-inf where a value is, else 0: what a weight of 0 would hide."""
    return torch.zeros_like(values).masked_fill(values.isneginf(), float("-inf"))

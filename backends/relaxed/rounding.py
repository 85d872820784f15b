"""From relaxed labels to labels.

The multilinear score is linear in the vector of one cell, so the best label of a cell given the vectors of the others
is never worse than its vector.  Rounding cell after cell in this way never lowers the score of a factor graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.backends.relaxed.space import Space
from energyml.bind.problem import Problem
from energyml.grounded.ascent import Ascent
from energyml.grounded.decoding import certain, likeliest, searched
from energyml.grounded.factors import Grounder
from energyml.grounded.schedule import Schedule, put, take
from energyml.result import ABSENT

# A constraint that is broken with this probability is likely to be broken.
LIKELY = 0.5
# More broken constraints than a cell has; in place of the infinite mass of labels that are out.
MANY = 1e6


def likeliest_labels(p: Mapping[str, Tensor], space: Space) -> dict[str, Tensor]:
    """Labels [R, *dims] with the largest probabilities; -1 where there is no cell."""
    found = {}
    for name, one in p.items():
        labels, cells = one.argmax(-1), space.cells[name]
        found[name] = labels if cells is None else labels.masked_fill(~cells.squeeze(-1), ABSENT)
    return found


class Rounding:
    """The tables of one batch, for rounding and repair.

    Args:
        problem: the batch.
        grounder: finds the factor graph of its tables.
    """

    def __init__(self, problem: Problem, grounder: Grounder) -> None:
        self.graph = grounder.ground(problem)
        self.potentials = self.graph.potentials(problem.evidence)
        self.impossible = self.potentials.impossible
        self.orders: dict[str, Ascent] = {}

    def _ascent(self, order: str) -> Ascent:
        if order not in self.orders:
            kept, key = self.graph.skeleton.kept, ("schedule", order, self.graph.device)
            if key not in kept:
                kept[key] = Schedule(self.graph.skeleton, order, self.graph.device)
            self.orders[order] = Ascent(self.graph, self.potentials, kept[key])
        return self.orders[order]

    def coordinate(self, p: Mapping[str, Tensor], penalty: float) -> dict[str, Tensor]:
        """Labels [B, *dims] of vectors [B, *dims, labels]: cell after cell the best label, given what the others are.

        Cells that share no factor are rounded together.  Labels that are likely to break a constraint more than others
        are out; up to that, the probability of what is forbidden costs the penalty, as it does in the relaxed score.
        Cost: one look at every table for each of its cells.
        """
        ascent = self._ascent("coloured")
        q = {name: self.graph.inward(name, one).clone() for name, one in p.items()}
        labels = {name: one.argmax(-1) for name, one in q.items()}
        for step in ascent.schedule.sweeps(1):
            for name, pick in step.cells.items():
                mass, scores = ascent.weighed(q, name, step)
                least = mass.amin(-1, keepdim=True)
                scores = torch.where(mass > least + LIKELY, float("-inf"), scores - penalty * mass.clamp(max=MANY))
                # Of labels that are equally good, the likeliest: where nothing matters, rounding keeps what was found.
                best = scores >= scores.amax(-1, keepdim=True)
                new = take(q[name], pick).masked_fill(~best, -1).argmax(-1)
                labels[name] = put(labels[name], pick, new, True)
                q[name] = put(q[name], pick, certain(new, ascent, name), True)
        return {name: self.graph.outward(name, one, ABSENT) for name, one in labels.items()}

    def repaired(self, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Labels [B, *dims] that the tables do not forbid, near others that they do, where a search finds them."""
        ascent = self._ascent("sequential")
        start = {name: self.graph.inward(name, one).clamp(min=0) for name, one in labels.items()}
        found = searched(ascent, [lambda: start, lambda: likeliest(ascent)])
        return {name: self.graph.outward(name, one, ABSENT) for name, one in found.items()}


__all__ = ["Rounding", "likeliest_labels"]

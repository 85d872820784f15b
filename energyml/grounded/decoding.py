"""From probabilities to answers: labels that no change of a single cell improves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.grounded.ascent import Ascent, Product
from energyml.grounded.propagation import Propagation
from energyml.grounded.schedule import put, take

# Sweeps over all cells; on the host they end when nothing changes, elsewhere nobody looks.
SWEEPS = 20
ON_DEVICES = 4
# Sweeps of max-product, where single cells do not find an answer.
PASSES = 3


def improved(ascent: Ascent, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Labels [R, N] by variable, changed cell by cell as long as that helps (iterated conditional modes, Besag 1986).

    What is forbidden counts before all scores: a cell takes the label that breaks the fewest constraints, and of these
    the one with the best score.  A label is only given up for a better one, so that the sweeps end.
    """
    graph = ascent.graph
    current = {name: one.clone() for name, one in labels.items()}
    counts = {name: scores.shape[-1] for name, scores in ascent.potentials.unary.items()}
    q = {name: _certain(one, counts[name], graph.dtype) for name, one in current.items()}
    for _ in range(SWEEPS if graph.device.type == "cpu" else ON_DEVICES):
        before = {name: one.clone() for name, one in current.items()}
        for step in ascent.schedule.sweeps(1):
            for name, pick in step.cells.items():
                mass, scores = ascent.weighed(q, name, step)
                # Sums of exact zeros and ones, in which half a constraint more or less is none.
                least = mass.amin(-1, keepdim=True)
                scores = scores.masked_fill(mass > least + 0.5, float("-inf"))
                old = take(current[name], pick).unsqueeze(-1)
                best = scores.argmax(-1, keepdim=True)
                new = torch.where(scores.gather(-1, best) > scores.gather(-1, old), best, old).squeeze(-1)
                current[name] = put(current[name], pick, new, True)
                q[name] = put(q[name], pick, _certain(new, counts[name], graph.dtype), True)
        if graph.device.type == "cpu" and all(torch.equal(one, before[name]) for name, one in current.items()):
            break
    return current


def searched(ascent: Ascent, starts: Sequence[Callable[[], Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Labels [R, N] by variable: the best that are found from several starts, each improved cell by cell.

    On the host a further start is only made where all before it end in labels that are forbidden.
    """
    graph = ascent.graph
    found: dict[str, Tensor] = {}
    best: Tensor | None = None
    for start in starts:
        labels = improved(ascent, start())
        value = ascent.bound({name: certain(one, ascent, name) for name, one in labels.items()})
        if best is None:
            found, best = labels, value
        else:
            better = value > best
            found = {name: torch.where(graph.rowwise(name, better), labels[name], one) for name, one in found.items()}
            best = torch.maximum(value, best)
        if graph.device.type == "cpu" and not bool((best.isneginf() & ~ascent.potentials.impossible).any()):
            break
    return found


def feasible(ascent: Ascent, q: Product, sweeps: int) -> Product:
    """A product without forbidden mass: for each example the one with the better bound of two.

    One is near q, with the forbidden mass taken away.  The other starts from an answer that is allowed, with certainty,
    so that its bound is at least the score of that answer.  Where no such answer is found, neither bound is finite.
    Examples without constraints keep q as it is.

    Args:
        ascent: the batch, with sequential updates.
        q: where the first starts.
        sweeps: of the second.
    """
    near = ascent.repaired(q)
    with torch.no_grad():
        labels = searched(ascent, [lambda: likeliest(ascent), lambda: {name: p.argmax(-1) for name, p in near.items()}])
    start = {name: certain(one, ascent, name) for name, one in labels.items()}
    other = ascent.within(start, ascent.schedule.sweeps(sweeps))
    with torch.no_grad():
        nearer, constrained = ascent.bound(near) > ascent.bound(other), ascent.constrained()

    def rows(name: str, condition: Tensor) -> Tensor:
        return ascent.graph.rowwise(name, condition).unsqueeze(-1)

    return {
        name: torch.where(rows(name, constrained), torch.where(rows(name, nearer), near[name], other[name]), one)
        for name, one in q.items()
    }


def certain(labels: Tensor, ascent: Ascent, name: str) -> Tensor:
    """[R, N, labels]: a variable's labels [R, N] with probability 1."""
    return _certain(labels, ascent.potentials.unary[name].shape[-1], ascent.graph.dtype)


def likeliest(ascent: Ascent) -> dict[str, Tensor]:
    """Labels [R, N] by variable: of the largest beliefs after a few sweeps of max-product, which follow constraints."""
    propagation = Propagation(ascent.graph, ascent.potentials, ascent.schedule, largest=True)
    state = propagation.state(propagation.start())
    for _ in range(PASSES):
        state = propagation.run(state, ascent.schedule.there_and_back())
    return {name: belief.argmax(-1) for name, belief in state.beliefs.items()}


def _certain(labels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return F.one_hot(labels, count).to(dtype)

"""The best answer of one example as an integer linear program over indicators of labels and of joint labels.

    maximise    sum of unary(i, a) m(i, a) + sum of table(f, a) m(f, a)
    such that   sum over a of m(i, a) = 1                                         for every cell i,
                sum over the joint labels of f with a at i of m(f, .) = m(i, a)   for every factor f, cell i, label a,
                m(i, a) in {0, 1},  m(f, a) >= 0.

Without the whole numbers this is the local polytope (Wainwright & Jordan 2008, section 8); with them, each m(f, .) is
the indicator of its cells' labels.  What is forbidden has no indicator at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import fsum
from typing import Any

import numpy as np

from energyml.diagnostics import EnergyError

# The solver calls a gap of 1e-6 closed, whatever the scale of the scores: they are brought to this one.
SCALE, GAP = 1e3, 1e-6
# Where this gap is larger than RESOLVED nats, answers within AHEAD gaps of the best are compared, NEAR of them at most.
RESOLVED, AHEAD, NEAR = 1e-5, 10, 32
OPTIMAL, INFEASIBLE = 0, 2
# Of tables that are sums in single precision, relative to the sum of the magnitudes of all scores.
ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Example:
    """One example.

    Attributes:
        unary: by variable: [N, labels], finite or -inf.
        factors: for each block: the variables of its slots, its scope [E, slots], and its tables [E, *labels].
    """

    unary: Mapping[str, np.ndarray]
    factors: Sequence[tuple[tuple[str, ...], np.ndarray, np.ndarray]]

    @property
    def tables(self) -> list[np.ndarray]:
        """The scores of each variable's cells and of each block's factors."""
        return [*self.unary.values(), *(table for _, _, table in self.factors)]

    @property
    def indicators(self) -> int:
        """How many indicators it has, forbidden ones included."""
        return sum(one.size for one in self.tables)


@dataclass(frozen=True, eq=False)
class Solution:
    """What the solver found.

    Attributes:
        labels: [N] by variable; `None` when it found no answer.
        bound: an upper bound of the best score; -inf where there is provably no answer.
        proven: whether the labels are provably best, or there is provably no answer.
        nodes: how many nodes of the search tree it looked at.
    """

    labels: dict[str, np.ndarray] | None
    bound: float
    proven: bool
    nodes: int


def solver() -> tuple[Any, Any]:
    """`scipy.optimize` and `scipy.sparse`; a remedy where they are missing."""
    try:
        return import_module("scipy.optimize"), import_module("scipy.sparse")
    except ImportError as problem:
        raise EnergyError(
            "`ilp` needs scipy, whose HiGHS solves integer programs, and it is not installed: `pip install scipy`"
        ) from problem


def without_hopeless(example: Example, known: float) -> Example:
    """The example without labels and joint labels that no answer as good as a known score can have.

    An answer loses at least what one of its scores is below the largest of the same cell or factor.  So large negative
    scores that stand for masks go, and leave the solver its digits.  Cost: two passes over the tables.
    """
    tables, peaks = example.tables, _peaks(example)
    size = sum(float(np.abs(one).sum()) for one in peaks) + abs(known)
    slack = sum(float(one.sum()) for one in peaks) - known + ROUNDING * size
    if not np.isfinite(slack):
        return example
    losses = [peak.reshape(-1, *([1] * (one.ndim - 1))) - one for peak, one in zip(peaks, tables, strict=True)]
    left = [np.where(loss > slack, -np.inf, one) for loss, one in zip(losses, tables, strict=True)]
    unary = dict(zip(example.unary, left, strict=False))
    rest = left[len(unary) :]
    factors = [(names, scope, table) for (names, scope, _), table in zip(example.factors, rest, strict=True)]
    return Example(unary, factors)


def _peaks(example: Example) -> list[np.ndarray]:
    """For each table the largest score of each of its cells or factors; 0 where none is possible."""
    found = []
    for table in example.tables:
        peak = table.max(tuple(range(1, table.ndim)), initial=-np.inf, where=np.isfinite(table))
        found.append(np.where(np.isfinite(peak), peak, 0))
    return found


def solve(example: Example, seconds: float) -> Solution:
    """Solve one example.  Cost: exponential in the worst case; one linear program where the relaxation is tight."""
    optimize, sparse = solver()
    cells = {name: _numbered(scores) for name, scores in example.unary.items()}
    start, columns = 0, {}
    for name, (alive, _) in cells.items():
        columns[name] = np.where(alive, start + np.cumsum(alive.ravel()).reshape(alive.shape) - 1, -1)
        start += int(alive.sum())
    whole = start
    costs = [example.unary[name][alive] for name, (alive, _) in cells.items()]
    rows, places, values, count = _one_label_each(cells, columns)
    right = [np.ones(count)]
    for names, scope, table in example.factors:
        alive = np.isfinite(table)
        for slot, name in enumerate(names):
            shape = [len(scope), *([1] * len(names))]
            shape[1 + slot] = table.shape[1 + slot]
            alive &= (columns[name][scope[:, slot]] >= 0).reshape(shape)
        costs.append(table[alive])
        joint = np.nonzero(alive)
        own = start + np.arange(len(joint[0]))
        start += len(own)
        for slot, name in enumerate(names):
            of = columns[name][scope[:, slot]]
            labels = of.shape[1]
            # One equation for each label that the cell may have, forbidden joint labels or not.
            equations = count + np.arange(of.size).reshape(of.shape)
            rows += [equations[joint[0], joint[1 + slot]], equations[of >= 0]]
            places += [own, of[of >= 0]]
            values += [np.ones(len(own)), -np.ones(int((of >= 0).sum()))]
            count += len(scope) * labels
            right.append(np.zeros(len(scope) * labels))
    score = np.concatenate(costs) if costs else np.zeros(0)
    if not len(score):
        return Solution({name: np.zeros(len(one), np.int64) for name, one in example.unary.items()}, 0.0, True, 0)
    largest = float(np.abs(score).max())
    scale = SCALE / largest if largest > np.finfo(np.float32).tiny else 1.0
    matrix = sparse.csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(places))), shape=(count, start)
    )
    equal = np.concatenate(right)

    def solved(*constraints: Any) -> Any:
        return optimize.milp(
            -score * scale,
            integrality=(np.arange(start) < whole).astype(np.uint8),
            bounds=optimize.Bounds(0, 1),
            constraints=[optimize.LinearConstraint(matrix, equal, equal), *constraints],
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    def cut(answer: Any) -> Any:
        """Every answer but this one."""
        chosen = np.append(answer.x[:whole] > 0.5, np.zeros(start - whole))
        return optimize.LinearConstraint(chosen, -np.inf, chosen.sum() - 1)

    found = solved()
    if found.status != OPTIMAL or GAP / scale <= RESOLVED:
        return _read(found, columns, scale)
    # The solver has few digits left: the answers that it cannot tell from the best one are compared without rounding.
    near = [found]
    while len(near) <= NEAR:
        other = solved(*map(cut, near))
        far = other.mip_dual_bound is not None and other.mip_dual_bound > found.fun + AHEAD * GAP
        if other.status == INFEASIBLE or far:
            break
        if other.x is None:
            near += [found] * NEAR
            break
        near.append(other)
    read = [_read(one, columns, scale) for one in near]
    best = max(read, key=lambda one: _score(example, one.labels))
    if len(near) <= NEAR:
        return replace(best, bound=_score(example, best.labels))
    return replace(best, bound=sum(float(one.sum()) for one in _peaks(example)), proven=False)


def _score(example: Example, labels: Mapping[str, np.ndarray] | None) -> float:
    """The score of an answer, rounded once."""
    assert labels is not None
    parts = [table[np.arange(len(table)), labels[name]] for name, table in example.unary.items()]
    for names, scope, table in example.factors:
        joint = [labels[name][scope[:, slot]] for slot, name in enumerate(names)]
        parts.append(table[(np.arange(len(table)), *joint)])
    return fsum(np.concatenate(parts).tolist()) if parts else 0.0


def _numbered(scores: np.ndarray) -> tuple[np.ndarray, int]:
    """Which labels of each cell are possible, and how many cells there are."""
    return np.isfinite(scores), len(scores)


def _one_label_each(
    cells: Mapping[str, tuple[np.ndarray, int]], columns: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], int]:
    """The equations that give every cell one label: rows, columns, values, and how many there are."""
    rows: list[np.ndarray] = []
    places: list[np.ndarray] = []
    count = 0
    for name, (alive, number) in cells.items():
        rows.append(count + np.nonzero(alive)[0])
        places.append(columns[name][alive])
        count += number
    return rows, places, [np.ones(len(one)) for one in rows], count


def _read(found: Any, columns: Mapping[str, np.ndarray], scale: float) -> Solution:
    nodes = int(found.mip_node_count or 0)
    if found.status == INFEASIBLE:
        return Solution(None, float("-inf"), True, nodes)
    bound = float("inf") if found.mip_dual_bound is None else -float(found.mip_dual_bound) / scale
    if found.x is None:
        return Solution(None, bound, False, nodes)
    labels = {}
    for name, of in columns.items():
        weight = np.where(of >= 0, found.x[np.maximum(of, 0)], -1.0)
        labels[name] = weight.argmax(1)
    return Solution(labels, bound, found.status == OPTIMAL, nodes)

"""Notices scores that are too large: for their floating-point type, or for double precision to tell answers apart.

Probabilities depend on the differences between the scores of answers.  Where terms of 1e30 take part in the likely
answers, a sum in double precision keeps nothing of their other terms.  Large negative scores of unlikely answers do no
harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import fsum, inf, log, prod
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Session
from energyml.bind.problem import Problem
from energyml.queries import Query
from energyml.result import Assignment

# The queries whose answers follow from differences of scores.
RESOLVED = frozenset({
    "marginals", "factor_marginals", "entropy", "log_prob", "log_prob_with_cost", "cross_entropy", "kl", "expectation",
    "sample",
})  # fmt: skip
# The queries whose answers are scores.
SCORED = frozenset({
    "log_partition", "log_prob", "log_prob_with_cost", "max_marginals", "map", "n_best", "max_with_cost", "map_bound",
    "sample", "conditionals",
})  # fmt: skip
# The largest error of a difference, in nats, that no probability shows; and the distance at which one answer is all.
UNSEEN, CERTAIN = 1e-5, 40.0
# How many of the best answers are added up without rounding.
FEW = 256
_ROUNDING = 4 * torch.finfo(torch.float64).eps


def unresolved(problem: Problem, session: Session, kind: str, value: Any, tracked: bool) -> tuple[bool, str] | None:
    """A failing status where rounding can change probabilities, else `None`.

    Args:
        problem: the batch.
        session: answers exactly, but for rounding.
        kind: the query, one of `RESOLVED`.
        value: its answer.
        tracked: whether gradients were recorded for it, as other operations may answer then.

    Cost: a pass over the tables; where these hold -inf or large scores some more, and `log_partition`, and where that
    is large too the `FEW` best answers, whose scores are added up without rounding.  The host reads numbers.
    """
    with torch.no_grad():
        if _sum_of_extremes(problem) * _ROUNDING <= UNSEEN:
            return None
        finite, counts = _finite(problem)
        largest = _sum_of_largest(finite, counts)
        if largest * _ROUNDING <= UNSEEN:
            return None
        if len(finite) == len(problem.terms) and largest <= 2.0**52 * min(map(_unit, finite.values())):
            return None
        # The magnitudes of an answer's scores add up to twice the positive ones less their total.
        positive = sum(counts[name] * float(one.amax().clamp(min=0)) for name, one in finite.items())
        totals = session.ask(Query("log_partition", wide=True)).value.double()
        possible = ~totals.isneginf()
        loose = possible & ((2 * positive - totals.masked_fill(~possible, 0)) * _ROUNDING > UNSEEN)
        few = Few(problem, session, positive, tracked)
        for example in loose.nonzero().flatten().tolist():
            loose[example] = not few.confirm(example, kind, value)
        if not bool(loose.any()):
            return None
    return False, (
        "scores are too large for double precision: rounding can change which answers are likely; probable causes: "
        "(a) every answer meets a large negative score that stands for a mask: write -inf, and mask cells that do not "
        "exist, (b) scores of very different magnitudes cancel: look at the terms with the largest scores"
    )


def outside(problem: Problem, session: Session, query: Query, value: Any, exact: bool) -> tuple[bool, str] | None:
    """A failing status where a finite score became infinite because its type does not hold it, else `None`.

    Args:
        problem: the batch.
        session: answers the query.
        query: one of `SCORED`.
        value: its answer.
        exact: whether the answer is exact, so that the same query in double precision tells which -inf are true.

    Cost: a look at the answer; where it holds infinities and the tables hold such scores, and it is exact, the same
    query in double precision.  The host reads numbers.
    """
    rounded = _scores(value)
    if not any(bool(one.isinf().any()) for one in rounded):
        return None
    dtype = problem.env.batch.dtype
    if not any(bool(one.isposinf().any()) for one in rounded):
        with torch.no_grad():
            if not leave_type(problem):
                return None
            if exact and dtype is not torch.float64:
                # Draws are not drawn again: each is possible if any answer is.
                again = Query("log_partition", wide=True) if query.kind == "sample" else replace(query, wide=True)
                pairs = zip(_scores(session.ask(again).value), rounded, strict=True)
                if not any(bool((one.isfinite() & other.isinf()).any()) for one, other in pairs):
                    return None
    return too_large(problem)


def leave_type(problem: Problem) -> bool:
    """Whether sums of the finite scores may be larger than their type holds.  Cost: a pass over the tables."""
    with torch.no_grad():
        return _sum_of_largest(*_finite(problem)) > torch.finfo(problem.env.batch.dtype).max / 2


def too_large(problem: Problem) -> tuple[bool, str]:
    """The failing status of answers that may miss scores which became infinite."""
    name = str(problem.env.batch.dtype).removeprefix("torch.")
    return False, (
        f"a score is larger than {name} holds and reads inf or -inf: use smaller scores or `model.double()`; where "
        "a large negative score stands for a mask, write -inf"
    )


def _scores(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Assignment):
        return [value.score]
    return [one for one in value.values() if isinstance(one, Tensor)]  # fields have means and variances


def _finite(problem: Problem) -> tuple[dict[str, Tensor], dict[str, int]]:
    """By term: its table in double precision with 0 for -inf, and for how many factors it stands."""
    terms = [term for term in problem.tables() if term.table(problem.env).numel()]
    tables = {term.term.name: term.table(problem.env).double() for term in terms}
    counts = {term.term.name: prod(term.domain_sizes(problem.env.batch)) for term in terms}
    return {name: torch.where(one.isfinite(), one, 0) for name, one in tables.items()}, counts


def _sum_of_extremes(problem: Problem) -> float:
    """A bound on the magnitudes of an answer's scores, added up, that is infinite where a score is -inf."""
    total = 0.0
    for term in problem.tables():
        table = term.table(problem.env)
        if table.numel():
            low, high = (float(one) for one in torch.aminmax(table))
            total += prod(term.domain_sizes(problem.env.batch)) * max(-low, high)
    return total


def _sum_of_largest(finite: dict[str, Tensor], counts: dict[str, int]) -> float:
    """A bound on the magnitudes of an answer's scores, added up."""
    return sum(counts[name] * float(one.abs().amax()) for name, one in finite.items())


def _unit(table: Tensor) -> float:
    """The value of the lowest bit of all numbers: up to 2^53 of it, sums of them are not rounded at all."""
    digits, exponents = torch.frexp(table)
    whole = (digits * 2.0**53).to(torch.int64)
    units = torch.ldexp((whole & -whole).double(), exponents - 53)
    return float(torch.where(table == 0, float("inf"), units).amin())


class Few:
    """The likely answers of a batch where these are few, with scores that are added up without rounding.

    Args:
        problem: the batch.
        session: answers exactly, but for rounding.
        positive: a bound on the sum of an answer's positive scores.
        tracked: whether gradients are recorded while the session answers.
    """

    def __init__(self, problem: Problem, session: Session, positive: float, tracked: bool) -> None:
        self.problem, self.session, self.positive, self.tracked = problem, session, positive, tracked
        latent = any(v.kind == "latent" for v in problem.graph.discrete)
        self.serves = not latent and not problem.ends()

    def confirm(self, example: int, kind: str, value: Any) -> bool:
        """Whether probabilities are those of the likely answers, and these are known to be all.

        The answer to a query itself is compared where it is marginals or the entropy, else the session's marginals.
        """
        levels = self._levels(example) if self.serves else None
        if levels is None:
            return False
        p = levels.softmax(0)
        if kind == "entropy":
            return abs(float(value[example]) - float(torch.special.entr(p).sum())) <= UNSEEN
        cells = self._same_cells(example, p, value if kind == "marginals" else self._marginals)
        if kind == "marginals" or not cells:
            return cells
        return self._same_factors(example, p, self._factor_marginals if kind != "factor_marginals" else value)

    @cached_property
    def _marginals(self) -> Mapping[str, Tensor]:
        return self._asked("marginals")

    @cached_property
    def _factor_marginals(self) -> Mapping[str, Tensor]:
        return self._asked("factor_marginals")

    def _asked(self, kind: str) -> Mapping[str, Tensor]:
        with torch.set_grad_enabled(self.tracked):
            found: Mapping[str, Tensor] = self.session.ask(Query(kind)).value
        return found

    @cached_property
    def _best(self) -> Assignment:
        found: Assignment = self.session.ask(Query("n_best", count=FEW, wide=True)).value
        return found

    @cached_property
    def _answer(self) -> dict[str, Tensor]:
        return {name: one.flatten(0, 1) for name, one in self._best.labels.items()}

    @cached_property
    def _parts(self) -> Tensor:
        """[B, parts, FEW]: what the scores of the best answers are sums of."""
        return self.problem.parts_of_score(self._answer, FEW)

    def _levels(self, example: int) -> Tensor | None:
        """[FEW]: the scores of the best answers less that of the first; `None` where others may be as likely."""
        rows = self._parts[example].T.tolist()
        found = self._best.score[example].isfinite().tolist()  # where there are fewer answers, the rest is -inf
        rows = [row if here else [-inf] for row, here in zip(rows, found, strict=True)]
        possible = [row for row in rows if -inf not in row]
        if not possible:
            return None
        try:
            scores = [fsum(row) for row in possible]
            first = possible[max(range(len(scores)), key=scores.__getitem__)]
            levels = [-inf if -inf in row else fsum((*row, *(-one for one in first))) for row in rows]
        except OverflowError:
            return None
        last = float(self._best.score[example, -1])
        batch = self.problem.env.batch
        cells = sum(
            float(batch.cells_exist(v.dims, v.name)[example].sum()) * log(max(1, self.problem.label_count(v.name)))
            for v in self.problem.graph.discrete
        )
        # A likely answer's negative scores add up to no more than its positive ones less its total.
        lowest = max(scores) - CERTAIN - cells
        error = (2 * self.positive - lowest) * _ROUNDING * max(1, len(rows[0]))
        if last > lowest - error:
            return None
        return torch.tensor(levels, dtype=torch.float64)

    def _same_cells(self, example: int, p: Tensor, marginals: Mapping[str, Tensor]) -> bool:
        for name, labels in self._best.labels.items():
            found = marginals[name][example].double().cpu()
            here = labels[example].cpu().movedim(0, -1)
            shares = torch.zeros_like(found).scatter_add(-1, here.clamp(min=0), p.expand(here.shape) * (here >= 0))
            if not bool(((found - shares).abs() <= UNSEEN).all()):
                return False
        return True

    def _same_factors(self, example: int, p: Tensor, marginals: Mapping[str, Tensor]) -> bool:
        for term in self.problem.tables():
            if term.term.name not in marginals:  # a query may ask for one term
                continue
            found = _of(example, marginals[term.term.name]).double().cpu().flatten(term.rank)
            joint = _of(example, term.joint(self.problem.env.batch, self._answer, FEW)).cpu()
            valid = term.valid(self.problem.env.batch)
            weights = p.expand(joint.shape)
            if valid is not None:
                weights = weights * _of(example, valid).cpu().unsqueeze(-1)
            shares = torch.zeros_like(found).scatter_add(-1, joint, weights.expand(joint.shape))
            if not bool(((found - shares).abs() <= UNSEEN).all()):
                return False
        return True


def _of(example: int, tensor: Tensor) -> Tensor:
    """One example of a tensor [B or 1, ...]."""
    return tensor[example if tensor.shape[0] > 1 else 0]

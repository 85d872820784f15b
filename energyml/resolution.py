"""Notices scores that are too large: for their floating-point type, or for double precision to tell answers apart.

Probabilities depend on the differences between the scores of answers.  Where terms of 1e30 take part in the likely
answers, a sum in double precision keeps nothing of their other terms.  Large negative scores of unlikely answers do no
harm.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Problem, QueryRefused, Session
from energyml.queries import Query
from energyml.result import Assignment

# The queries whose answers follow from differences of scores.
RESOLVED = frozenset({
    "marginals", "factor_marginals", "entropy", "log_prob", "log_prob_with_cost", "cross_entropy", "kl", "expectation",
    "sample", "conditionals",
})  # fmt: skip
# The queries whose answers are scores.
SCORED = frozenset({
    "log_partition", "log_prob", "log_prob_with_cost", "max_marginals", "map", "n_best", "max_with_cost", "map_bound",
    "sample", "conditionals",
})  # fmt: skip
# The largest error of a difference, in nats, that no probability shows; and the distance at which one answer is all.
UNSEEN, CERTAIN = 1e-5, 40.0
_ROUNDING = 4 * torch.finfo(torch.float64).eps


def unresolved(problem: Problem, session: Session) -> tuple[bool, str] | None:
    """A failing status where rounding can change probabilities, else `None`.

    Args:
        problem: the batch, whose terms have tables.
        session: answers exactly.

    Cost: a pass over the tables; where these hold -inf or large scores some more, and `log_partition`, and where that
    is large too `factor_marginals` and the two best answers.  The host reads numbers.
    """
    with torch.no_grad():
        if _sum_of_extremes(problem) * _ROUNDING <= UNSEEN:
            return None
        finite, counts = _finite(problem)
        largest = _sum_of_largest(finite, counts)
        if largest * _ROUNDING <= UNSEEN or largest <= 2.0**52 * min(map(_unit, finite.values())):
            return None
        # The magnitudes of an answer's scores add up to twice the positive ones less their total.
        positive = sum(counts[name] * float(one.amax().clamp(min=0)) for name, one in finite.items())
        totals = session.ask(Query("log_partition")).value.double()
        loose = (2 * positive - totals.masked_fill(totals.isinf(), 0)) * _ROUNDING > UNSEEN
        try:
            if bool(loose.any()):
                size = _likely(problem, session, finite)
                loose = loose & (size * _ROUNDING > UNSEEN) & ~_decided(session, size)
        except QueryRefused:  # such as the two best answers of a model with latents
            pass
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
            if _sum_of_largest(*_finite(problem)) <= torch.finfo(dtype).max / 2:
                return None
            if exact and dtype is not torch.float64:
                # Draws are not drawn again: each is possible if any answer is.
                again = Query("log_partition", wide=True) if query.kind == "sample" else replace(query, wide=True)
                pairs = zip(_scores(session.ask(again).value), rounded, strict=True)
                if not any(bool((one.isfinite() & other.isinf()).any()) for one, other in pairs):
                    return None
    name = str(dtype).removeprefix("torch.")
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


def _likely(problem: Problem, session: Session, finite: dict[str, Tensor]) -> Tensor:
    """[B]: the expected magnitudes of the scores of an answer, added up."""
    marginals = session.ask(Query("factor_marginals")).value
    total = torch.zeros(problem.env.batch.size, dtype=torch.float64, device=problem.env.batch.device)
    for name, table in finite.items():
        total = total + (marginals[name].double() * table.abs()).flatten(1).sum(1)
    return total


def _decided(session: Session, size: Tensor) -> Tensor:
    """[B]: whether the best answer is ahead of the second by more than rounding and chance."""
    scores = session.ask(Query("n_best", count=2, wide=True)).value.score
    gap = scores[:, 0].double() - scores[:, 1].double()
    single = torch.finfo(scores.dtype).eps * scores[:, 0].double().abs()
    decided: Tensor = (gap > CERTAIN + size * _ROUNDING + 2 * single) | scores[:, 1].isneginf()
    return decided

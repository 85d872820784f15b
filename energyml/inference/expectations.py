"""Expectations of factored functions under marginals: what cross-entropies, divergences and moments are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.problem import Problem
from energyml.bind.views import TableView
from energyml.diagnostics import QueryRefused, ShapeError
from energyml.execution import is_host_readable


class SecondModel(Protocol):
    """The posterior of a second model."""

    @property
    def problem(self) -> Problem:
        """Its batch."""
        ...

    def unrounded(self, kind: str) -> Any:
        """An answer in the type that it was computed in."""
        ...


def expected(p: Tensor, values: Tensor) -> Tensor:
    """[B]: the sum of p * values over all axes but the first; what has no probability does not count, even at -inf.

    Infinite, with zero gradients, where what has some is.
    """
    counted = values.expand_as(p).masked_fill(p == 0, 0)
    endless = counted.isinf()
    total = (p * counted.masked_fill(endless, 0)).flatten(1).sum(1)
    limit = counted.detach().masked_fill(~endless, 0).flatten(1).sum(1)
    return torch.where(limit == 0, total, limit)


def normalised(p: Tensor, arity: int) -> Tensor:
    """Marginals over the last axes that add up to 1 or 0 to the last digit: a missing share counts by the scores."""
    total = p.sum(tuple(range(-arity, 0)), keepdim=True)
    return p / torch.where(total > 0, total, 1)


def factored_expectation(
    values: Mapping[str, Tensor], marginals: Mapping[str, Tensor], factor_marginals: Mapping[str, Tensor]
) -> Tensor:
    """[B]: the expectation of a sum of functions, each of one cell of a variable or of the cells of a term.

    Args:
        values: by variable [B or 1, *dims, labels], by term [B or 1, *domain, *labels]; axes of size 1 are shared.
        marginals: by variable.
        factor_marginals: by term.
    """
    known = {**factor_marginals, **marginals}
    total: Tensor | None = None
    for name, one in values.items():
        p = known[name]
        if one.dim() != p.dim() or any(size not in (1, full) for size, full in zip(one.shape, p.shape, strict=True)):
            raise ShapeError(f"the values of `{name}` have the shape {list(one.shape)}; expected {list(p.shape)}")
        part = expected(p, one.to(device=p.device, dtype=p.dtype))
        total = part if total is None else total + part
    if total is None:
        raise QueryRefused("`expectation` needs values: tensors by variable or term")
    return total


def log_z_of(other: SecondModel) -> Tensor:
    """[B]: log Z of a second model; not rounded where it came in a wider type, as it is about to be subtracted from."""
    value: Tensor = other.unrounded("log_partition")
    return value


def cross_entropy(log_z: Tensor, expected_score: Tensor, possible: Tensor) -> Tensor:
    """[B]: log Z of the other model less its expected score; inf where it rules answers out, 0 where there are none."""
    gone = expected_score.isneginf() | log_z.isneginf()
    found = (log_z.masked_fill(gone, 0) - expected_score.masked_fill(gone, 0)).masked_fill(gone, float("inf"))
    return torch.where(possible, found, 0)


def divergence(cross: Tensor, entropy: Tensor) -> Tensor:
    """[B]: cross-entropy less entropy; inf, with zero gradients, where the former is."""
    return torch.where(cross.isposinf(), cross, cross - entropy)


def comparable(problem: Problem, other: SecondModel) -> Problem:
    """The problem of a second posterior, checked to be about the same cells."""
    second = other.problem
    for one in (problem, second):
        latent = next((v.name for v in one.graph.discrete if v.kind == "latent"), None)
        if latent is not None:
            raise QueryRefused(f"two models with latents cannot be compared term by term; `{latent}` is summed out")
    kinds = [{v.name: (v.dims, one.answers.counts[v.name]) for v in one.graph.discrete} for one in (problem, second)]
    if kinds[0] != kinds[1]:
        raise QueryRefused(
            "the two models have different variables, dims or label sets, so that they cannot be compared"
        )
    names, others = problem.label_names(), second.label_names()
    unlike = next((name for name in names if names[name] != others[name]), None)
    if unlike is not None:
        raise QueryRefused(
            f"`{unlike}` has other labels in the two models, or the same in another order, so that they cannot be "
            "compared; bind both with the same `labels`"
        )
    batches = (problem.env.batch, second.env.batch)
    shapes = [{v.name: _cells_shape(batch, v.dims) for v in problem.graph.discrete} for batch in batches]
    if batches[0].size != batches[1].size or shapes[0] != shapes[1]:
        raise QueryRefused(
            f"the two posteriors are about batches of different sizes: {batches[0].size} examples with cells "
            f"{shapes[0]}, and {batches[1].size} with {shapes[1]}"
        )
    if any(not _same_cells(*batches, v.name, v.dims) for v in problem.graph.discrete):
        raise QueryRefused("the two posteriors have different lengths or masks, so that they cannot be compared")
    return second


def tables_of(problem: Problem) -> list[TableView]:
    """The terms of a second model, all of which must be tables: expectations of others do not follow from marginals."""
    found = problem.tables()
    if len(found) < len(problem.terms):
        names = [term.term.name for term in found]
        other = next(term.term.name for term in problem.terms if term.term.name not in names)
        raise QueryRefused(
            f"`{other}` of the second model has no table, so that its expectation is out of reach; "
            "`enumerate` compares any two models of few answers"
        )
    return found


def _same_cells(one: Batch, other: Batch, name: str, dims: tuple[str, ...]) -> bool:
    """Whether two batches have the same cells; where that cannot be looked at, they are taken to have them."""
    cells = one.cells(name, dims), other.cells(name, dims)
    if cells == (None, None) or any(given is not None and not is_host_readable(given) for given in cells):
        return True
    return torch.equal(one.cells_exist(dims, name), other.cells_exist(dims, name))


def _cells_shape(batch: Batch, dims: tuple[str, ...]) -> list[int]:
    return [batch.size_of(dim) for dim in dims]

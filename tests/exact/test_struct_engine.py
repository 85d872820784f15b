"""`exact(engine: torch_struct)` in float32 beside enumeration in float64: no digits are lost where scores are large."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.posterior import Posterior

TEXT = """
labels L = {a, b, c}
dim T
input u : real[T, L]
input W : real[from: L, to: L]
output y : L[T]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
"""
QUERIES: dict[str, Callable[[Posterior, Posterior, Tensor], Tensor]] = {
    "log_partition": lambda one, other, best: one.log_partition,
    "marginals": lambda one, other, best: one.marginals["y"],
    "factor_marginals": lambda one, other, best: one.factor_marginals["two"],
    "entropy": lambda one, other, best: one.entropy,
    "log_prob": lambda one, other, best: one.log_prob(y=best),
    "log_prob of some cells": lambda one, other, best: one.log_prob(y=best.index_fill(1, torch.tensor([1, 3]), -1)),
    "cross_entropy": lambda one, other, best: one.cross_entropy(other),
    "kl": lambda one, other, best: one.kl(other),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("seed", range(3))
def test_large_scores_keep_their_digits(seed: int, scale: float, query: str) -> None:
    model, wide = em.compile(TEXT), em.compile(TEXT).double()
    generator = torch.Generator().manual_seed(seed)
    u, more = scale * torch.randn(2, 7, 3, generator=generator), torch.randn(2, 7, 3, generator=generator)
    pair, lengths, near = scale * torch.randn(2, 3, 3, generator=generator), torch.tensor([7, 5]), u + more
    best = wide.infer(u=u.double(), W=pair.double(), lengths=lengths, using="enumerate").map()["y"]
    exact = u.double().requires_grad_()
    u.requires_grad_()

    def asked(m: em.EnergyModel, given: Tensor, using: str) -> Tensor:
        first, second = (
            m.infer(u=one, W=pair.to(one.dtype), lengths=lengths, using=using) for one in (given, near.to(given.dtype))
        )
        return QUERIES[query](first, second, best)

    found, wanted = asked(model, u, "exact(engine: torch_struct)"), asked(wide, exact, "enumerate")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    slopes = [torch.autograd.grad(one.square().sum(), x)[0].double() for one, x in ((found, u), (wanted, exact))]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-5 * max(1.0, float(wanted.detach().abs().max())))

"""Bounds of best scores and of log Z hold on hundreds of random models; ENERGYML_FUZZ makes them thousands."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from energyml.queries import Quality
from tests.variational.graphs import CHAIN, GRAPH, GRID, TRIPLES, chain, compiled, grid, random_graph, triples

torch.set_num_threads(1)

ROUNDS = max(1, int(os.environ.get("ENERGYML_FUZZ") or 300) // 300)
FAMILIES: dict[str, tuple[str, Callable[..., dict[str, Tensor]]]] = {
    "chain": (CHAIN, chain),
    "grid": (GRID, grid),
    "graph": (GRAPH, random_graph),
    "triples": (TRIPLES, triples),
}
SLACK = 1e-9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_dual_bounds_hold(family: str, scale: float) -> None:
    text, make = FAMILIES[family]
    model = compiled(text)
    with torch.no_grad():
        for seed in range(ROUNDS):
            given = make(100 * seed, batch=60, scale=scale)
            best = model.infer(using="exact", **given).map().score
            for using in ("dual(steps: 1)", "dual(steps: 20, schedule: coloured)", "dual"):
                posterior = model.infer(using=using, **given)
                found, bound = posterior.ask("map"), posterior.ask("map_bound")
                assert (found.quality, bound.quality) == (Quality.LOWER, Quality.UPPER)
                assert (bound.value >= best - SLACK).all()
                assert (found.value.score <= best + SLACK).all()
                assert torch.equal(found.statistics["bound"], bound.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_certificates_hold(family: str) -> None:
    """Whoever found the answer, and whoever gives the bound."""
    text, make = FAMILIES[family]
    model = compiled(text)
    with torch.no_grad():
        for seed in range(ROUNDS):
            given = make(50 + 100 * seed, batch=40, scale=2.0)
            exact = model.infer(using="exact", **given)
            best, log_z = exact.map().score, exact.log_partition
            for finder, prover in (("mean_field", "dual"), ("bp", None), ("trw", "trw"), ("dual", None)):
                posterior = model.infer(using=finder, **given)
                made = posterior.certificate(using=prover)
                assert torch.equal(made.score, posterior.map().score)
                assert (made.bound >= best - SLACK).all() and (made.score <= best + SLACK).all()
                assert (made.gap >= 0).all() and (best - made.score <= made.gap + SLACK).all()
                lower, upper = made.log_partition
                assert lower is not None and upper is not None
                assert (lower <= log_z + SLACK).all() and (upper >= log_z - SLACK).all()


def test_no_sweep_raises_the_bound() -> None:
    model = compiled(GRID)
    given = grid(7, batch=20, sizes=(4, 4), scale=2.0)
    with torch.no_grad():
        bounds = [model.infer(using=f"dual(steps: {n}, tol: 0)", **given).ask("map_bound").value for n in (1, 2, 4, 8)]
    for before, after in pairwise(bounds):
        assert (after <= before + SLACK).all()
    assert (bounds[-1] < bounds[0] - 1e-6).any()


def test_chains_are_solved_by_one_sweep() -> None:
    model = compiled(CHAIN)
    given = chain(3, batch=30, size=9, scale=2.0)
    with torch.no_grad():
        found = model.infer(using="dual(steps: 1)", **given).ask("map")
        best = model.infer(using="exact", **given).map()
    torch.testing.assert_close(found.value.score, best.score)
    torch.testing.assert_close(found.statistics["bound"], best.score)


def test_the_dual_reaches_the_linear_program() -> None:
    """An odd cycle that wants to differ everywhere: the relaxation's optimum lies above the best answer."""
    model = compiled(GRAPH)
    link = torch.tensor([[[0, 1], [1, 2], [2, 0]]])
    differ = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).expand(1, 3, 2, 2)
    given = {"u": torch.zeros(1, 3, 2, dtype=torch.float64), "link": link, "v": differ}
    with torch.no_grad():
        made = model.infer(using="dual", **given).certificate(log_partition=False)
        proof = model.infer(using="ilp", **given).certificate(log_partition=False)
    assert float(made.score) == 2.0 and float(made.bound) == pytest.approx(3.0)
    assert "at most 1 from the best possible" in repr(made)
    assert float(proof.bound) == pytest.approx(2.0) and bool(proof.proven) and "the best possible" in repr(proof)


def test_the_gradient_of_a_tight_bound_is_that_of_the_best_score() -> None:
    model = compiled(GRID)
    given = grid(5, batch=6, scale=2.0)
    found = []
    for using, kind in (("dual", "map_bound"), ("exact", "map")):
        leaves = {name: one.clone().requires_grad_() for name, one in given.items()}
        value = model.infer(using=using, **leaves).ask(kind).value
        value = value if isinstance(value, Tensor) else value.score
        found.append((value.detach(), torch.autograd.grad(value.sum(), [*leaves.values()])))
    torch.testing.assert_close(found[0], found[1])

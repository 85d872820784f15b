"""Belief propagation: exact on trees, an estimate elsewhere; and what libDAI says about the same model."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import energyml as em
from tests.variational.graphs import (
    CHAIN,
    GRAPH,
    GRID,
    TRIPLES,
    chain,
    compiled,
    grid,
    random_graph,
    random_tree,
    real,
    triples,
)

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(os.environ.get("ENERGYML_THIRDPARTY", ROOT.parent / "shared" / "thirdparty"))
TESTFAST = FILES / "libdai" / "testfast.fg"


# --------------------------------------------------------------------------------------------------------------- trees

CONSTRAINED = CHAIN + "forbid [t in T-1] y[t] = A and y[t+1] = B\nforbid y[0] = C\n"


@pytest.mark.parametrize("schedule", ["sequential", "coloured", "parallel"])
@pytest.mark.parametrize("name", ["chain", "constrained", "trees"])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_trees_are_exact(name: str, schedule: str, scale: float) -> None:
    model = compiled({"chain": CHAIN, "constrained": CONSTRAINED, "trees": GRAPH}[name])
    inputs = random_tree(0, 5, 7, scale) if name == "trees" else chain(scale=scale)
    more = {} if name == "trees" else {"lengths": torch.tensor([6, 4, 1, 2])}
    found = model.infer(using=f"bp(schedule: {schedule})", **inputs, **more)
    exact = model.infer(using="exact", **inputs, **more)
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.marginals["y"], exact.marginals["y"])
    torch.testing.assert_close(found.factor_marginals, exact.factor_marginals)
    torch.testing.assert_close(found.max_marginals["y"], exact.max_marginals["y"])
    torch.testing.assert_close(found.entropy, exact.entropy, atol=1e-8 * scale, rtol=1e-6)
    assert torch.equal(found.map()["y"], exact.map()["y"])
    labels = torch.zeros(exact.marginals["y"].shape[:2], dtype=torch.long)
    partial = labels.masked_fill(torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) < 0.5, -1)
    for answer in (labels, partial):
        torch.testing.assert_close(found.log_prob(y=answer), exact.log_prob(y=answer))


def test_a_chain_takes_one_sweep_and_one_to_see_it() -> None:
    result = compiled(CHAIN).infer(using="bp", **chain(size=40)).ask("marginals")
    assert result.statistics["sweeps"] == 2
    assert result.status.ok


@pytest.mark.parametrize("scale", [0.1, 0.5])
@pytest.mark.parametrize("name", ["grid", "graph", "triples"])
def test_weak_loops_are_close_in_every_order(name: str, scale: float) -> None:
    text, make = {"grid": (GRID, grid), "graph": (GRAPH, random_graph), "triples": (TRIPLES, triples)}[name]
    model, inputs = compiled(text), make(0, scale=scale)
    exact = model.infer(using="exact", **inputs)
    found = [
        model.infer(using=f"bp(steps: 500, tol: 1e-11, damping: 0.2, schedule: {schedule})", **inputs)
        for schedule in ("sequential", "coloured", "parallel")
    ]
    for one in found:
        torch.testing.assert_close(one.marginals["y"], exact.marginals["y"], atol=0.1, rtol=0)
        torch.testing.assert_close(one.log_partition, exact.log_partition, atol=0.2 * scale, rtol=0)
        torch.testing.assert_close(one.marginals["y"], found[0].marginals["y"], atol=1e-8, rtol=0)
        torch.testing.assert_close(one.log_partition, found[0].log_partition, atol=1e-8, rtol=0)


def test_a_label_without_support_is_impossible() -> None:
    text = "labels Tag = {A, B, C}\ndim T = 3\ninput u : real[T, Tag]\noutput y : Tag[T]\n"
    rules = "factor f [t in T] (y[t]) = u[t]\nforbid [t in T-1] y[t] != A and y[t+1] != A\nforbid y[0] = A\n"
    model, u = compiled(text + rules), real(0, 4, 3, 3)
    found, exact = model.infer(u=u, using="bp"), model.infer(u=u, using="exact")
    torch.testing.assert_close(found.marginals["y"], exact.marginals["y"])
    assert (found.marginals["y"][:, 1] == torch.tensor([1.0, 0.0, 0.0])).all()
    gone = compiled(text + rules + "forbid y[1] = A\n").infer(u=u, using="bp")
    assert gone.log_partition.isneginf().all() and gone.map().score.isneginf().all()
    assert not gone.marginals["y"].any()


def test_messages_that_do_not_settle_are_said() -> None:
    posterior = compiled(GRID).infer(using="bp(steps: 2)", **grid(scale=4.0))
    status = posterior.ask("marginals").status
    assert not status.ok and "`bp` still changes" in status.message and "damping" in status.message
    with pytest.warns(UserWarning, match="raise `steps` or `damping`"):
        _ = posterior.marginals
    assert posterior.ask("map").status.ok, "the score of an answer is its own"


# ----------------------------------------------------------------------------------------------------------- gradients

SMALL = {
    "chain": (CONSTRAINED, lambda: chain(batch=1, size=3)),
    "grid": (GRID, lambda: grid(batch=1, sizes=(2, 2), scale=0.3)),
    "graph": (GRAPH, lambda: random_graph(2, batch=2, nodes=3, edges=4, scale=0.3)),
    "triples": (TRIPLES, lambda: triples(batch=1, size=4, scale=0.3)),
}


@pytest.mark.parametrize("kind", ["marginals", "log_partition", "entropy"])
@pytest.mark.parametrize("gradients", ["unrolled", "implicit"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("backend", ["bp", "trw"])
def test_gradients(backend: str, name: str, gradients: str, kind: str) -> None:
    text, make = SMALL[name]
    model, inputs = compiled(text), make()
    if kind not in model.plan(backend).verdict.answers:
        return
    sweeps = "steps: 3, tol: 0" if gradients == "unrolled" else "steps: 300, tol: 1e-15, gradients: implicit"
    names = [key for key, one in inputs.items() if one.is_floating_point()]

    def function(*tensors: Tensor) -> Tensor:
        given = {**inputs, **dict(zip(names, tensors, strict=True))}
        value = model.infer(using=f"{backend}({sweeps})", **given).ask(kind).value
        return value["y"] if isinstance(value, dict) else value

    assert torch.autograd.gradcheck(function, tuple(inputs[key].clone().requires_grad_() for key in names), atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- libDAI


def rows(name: str) -> tuple[dict[int, tuple[str, ...]], str]:
    """The marginals of each variable that libDAI prints for a method, and the error of its log-partition."""
    parts = re.split(r"\n(?=[A-Z])", TESTFAST.with_suffix(".out").read_text(encoding="utf-8"))
    part = next(one for one in parts if one.split()[0] == name)
    found = {int(v): (a, b) for v, a, b in re.findall(r"\(\{x(\d+)\}, \((.+?), (.+?)\)\)", part)}
    return found, part.splitlines()[0].split()[5]


@pytest.mark.skipif(not TESTFAST.exists(), reason=f"no {TESTFAST}; ENERGYML_THIRDPARTY says where")
@pytest.mark.parametrize(
    ("method", "using"),
    [
        # libDAI's SEQFIX goes through the messages in the order of the file, ours through the cells and back; fixed
        # points do not depend on the order.
        ("BP", "bp(steps: 1000, tol: 1e-12)"),
        ("BP_SEQFIX_LOG", "bp(steps: 1000, tol: 1e-12, schedule: coloured)"),
        ("BP_PARALL", "bp(steps: 1000, tol: 1e-12, schedule: parallel)"),
        # libDAI draws the cells of a sweep at random; the fixed point is the same.
        ("MF", "mean_field(steps: 10000, tol: 1e-12, start: uniform)"),
        ("MF_NAIVE_RND", "mean_field(steps: 10000, tol: 1e-12, schedule: coloured)"),
    ],
)
def test_libdai(method: str, using: str) -> None:
    model = em.interop.read_fg(TESTFAST)
    printed, error = rows(method)
    with torch.no_grad():
        posterior = model.infer(using=using)
        found = model.probabilities(posterior.marginals)
        exact = model.infer(using="exact").log_partition
    assert len(printed) == 16
    for variable, values in printed.items():
        assert tuple(f"{one:.3e}" for one in found[variable][0].tolist()) == values
    assert f"{(posterior.log_partition - exact).item():+.3e}" == error


@pytest.mark.skipif(not TESTFAST.exists(), reason=f"no {TESTFAST}; ENERGYML_THIRDPARTY says where")
@pytest.mark.parametrize("schedule", ["sequential", "parallel"])
def test_libdai_max_product(schedule: str) -> None:
    model = em.interop.read_fg(TESTFAST)
    printed, _ = rows("MP_SEQFIX")
    with torch.no_grad():
        beliefs = model.infer(using=f"bp(steps: 1000, tol: 1e-12, schedule: {schedule})").max_marginals
    found = model.probabilities({name: one.softmax(-1) for name, one in beliefs.items()})
    for variable, values in printed.items():
        assert tuple(f"{one:.3e}" for one in found[variable][0].tolist()) == values

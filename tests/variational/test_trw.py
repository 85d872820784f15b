"""Tree-reweighted belief propagation: an upper bound after every sweep, and how probable edges are in trees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from energyml.backends.variational.spanning import forest_parents, uniform_arcs
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


def spanning_trees(edges: list[tuple[int, int]], count: int) -> list[dict[int, tuple[int, int]]]:
    """All spanning trees of a connected graph: for each node but 0 its parent and the edge that leads there."""
    found = []
    for chosen in itertools.combinations(range(len(edges)), count - 1):
        parents: dict[int, tuple[int, int]] = {}
        front = [0]
        while front:
            node = front.pop()
            for number in chosen:
                if node in edges[number]:
                    other = edges[number][0] if edges[number][1] == node else edges[number][1]
                    if other != 0 and other not in parents and parents.get(node, (0, -1))[1] != number:
                        parents[other] = (node, number)
                        front.append(other)
        if len(parents) == count - 1:
            found.append(parents)
    return found


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ([(0, 1), (1, 2), (0, 2)], 3),
        ([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 4),
        ([(1, 0), (0, 1), (1, 2)], 3),
        ([(i, j) for i in range(4) for j in range(i + 1, 4)], 4),
        ([(2, 1), (1, 0), (2, 3)], 4),
    ],
)
def test_probabilities_of_arcs(edges: list[tuple[int, int]], count: int) -> None:
    trees = spanning_trees(edges, count)
    forward, backward = np.zeros(len(edges)), np.zeros(len(edges))
    for parents in trees:
        for child, (_, number) in parents.items():
            (forward if edges[number][0] == child else backward)[number] += 1 / len(trees)
    found = uniform_arcs(np.array(edges), count + 1)
    np.testing.assert_allclose(found.forward, forward, atol=1e-12)
    np.testing.assert_allclose(found.backward, backward, atol=1e-12)
    np.testing.assert_allclose(found.roots, [1, *[0] * (count - 1), 1], atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 20])
@pytest.mark.parametrize("name", ["grid", "graph", "triples", "forbidden"])
def test_every_sweep_gives_an_upper_bound(name: str, steps: int) -> None:
    """Thousands of models, from almost independent cells to almost deterministic ones."""
    forbidden = GRID + "forbid [i in H-1, j in W] y[i, j] = a and y[i+1, j] = a\nforbid [j in W] y[0, j] = b\n"
    text, make = {
        "grid": (GRID, lambda seed, scale: grid(seed, 150, (2, 3), scale)),
        "graph": (GRAPH, lambda seed, scale: random_graph(seed, 150, 5, 8, scale)),
        "triples": (TRIPLES, lambda seed, scale: triples(seed, 150, 6, scale)),
        "forbidden": (forbidden, lambda seed, scale: grid(seed, 150, (3, 2), scale)),
    }[name]
    model = compiled(text)
    for seed, scale in enumerate((0.1, 0.5, 1.0, 3.0, 10.0, 1000.0)):
        inputs = make(seed, scale)
        exact = model.infer(using="exact", **inputs).log_partition
        for damping in (0, 0.5):
            bound = model.infer(using=f"trw({steps}, damping: {damping}, tol: 0)", **inputs).log_partition
            assert (bound >= exact - 1e-9 * (1 + exact.abs())).all()


ALL_TRIPLES = """\
labels Tag = {A, B}
dim N = 6, E = 20
input u : real[N, Tag]
input link : edge(N, N, N)[E]
input v : real[E, a: Tag, b: Tag, c: Tag]
output y : Tag[N]
factor node [n in N] (y[n]) = u[n]
factor arc [e = (i, j, k) in link] (a: y[i], b: y[j], c: y[k]) = v[e]
"""


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0])
def test_factors_of_three_cells_that_overlap_have_a_bound_that_no_sweep_loosens(scale: float) -> None:
    model = compiled(ALL_TRIPLES)
    link = torch.tensor([list(itertools.combinations(range(6), 3))]).expand(4, 20, 3)
    inputs = {"u": real(0, 4, 6, 2, scale=scale), "link": link, "v": real(1, 4, 20, 2, 2, 2, scale=scale)}
    exact = model.infer(using="exact", **inputs).log_partition
    ceiling = inputs["u"].logsumexp(-1).sum(-1) + inputs["v"].flatten(2).amax(-1).sum(-1)
    before = ceiling
    for steps in (1, 2, 3, 10, 50, 200):
        bound = model.infer(using=f"trw({steps}, tol: 0)", **inputs).log_partition
        assert (bound >= exact - 1e-9).all()
        assert (bound <= before + 1e-9).all()
        before = bound


@pytest.mark.parametrize(("text", "make"), [(GRID, grid), (GRAPH, random_graph), (TRIPLES, triples)])
def test_messages_that_swing_keep_the_least_bound(text: str, make: Any) -> None:
    model, inputs = compiled(text), make(1, scale=100.0)
    before = torch.full((4,), torch.inf, dtype=torch.float64)
    for steps in (1, 2, 3, 4, 6, 8, 16):
        bound = model.infer(using=f"trw({steps}, tol: 0, schedule: parallel)", **inputs).log_partition
        assert (bound <= before + 1e-9).all()
        before = bound


def test_a_bound_whose_messages_did_not_converge_says_so_where_its_status_is_read() -> None:
    posterior = compiled(GRID).infer(using="trw(2)", **grid(scale=4.0))
    status = posterior.ask("log_partition").status
    assert not status.ok and "raise `steps` or `damping`" in status.message
    _ = posterior.log_partition  # it holds, so that nothing warns


def test_forests_of_factors() -> None:
    """Every factor in some forest; in each forest fewer children than cells, and one parent for each child."""
    triples_, pairs = np.array(list(itertools.combinations(range(5), 3))), np.array([[0, 1], [3, 4], [5, 6]])
    parents = forest_parents([triples_, pairs], 7)
    roots = np.ones(7)
    for scope, one in zip((triples_, pairs), parents, strict=True):
        assert (one.sum(1) > 0).all() and (one.sum(1) <= 1 + 1e-12).all()
        np.subtract.at(roots, scope, one.sum(1, keepdims=True) - one)
    assert (roots >= -1e-12).all() and roots[5:].sum() == pytest.approx(1)
    np.testing.assert_allclose(parents[1][2], [1, 0], atol=1e-12)
    hypertree = [np.array([[0, 1, 2], [2, 3, 4]]), np.array([[4, 5]])]
    for one in forest_parents(hypertree, 6):
        np.testing.assert_array_equal(one.sum(1), 1)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_forests_of_factors_of_three_cells_are_exact(scale: float) -> None:
    text = ALL_TRIPLES.replace("dim N = 6, E = 20", "dim N, E")
    model, link = (
        compiled(text),
        torch.tensor([[[0, 2, 1], [4, 3, 2], [6, 5, 0]], [[0, 1, 2], [2, 3, 4], [-1, -1, -1]]]),
    )
    inputs = {"u": real(0, 2, 7, 2, scale=scale), "link": link, "v": real(1, 2, 3, 2, 2, 2, scale=scale)}
    found, exact = model.infer(using="trw", **inputs), model.infer(using="exact", **inputs)
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.marginals["y"], exact.marginals["y"])
    torch.testing.assert_close(found.factor_marginals["arc"], exact.factor_marginals["arc"])


@pytest.mark.parametrize("name", ["chain", "trees"])
def test_trees_are_exact(name: str) -> None:
    model = compiled(CHAIN if name == "chain" else GRAPH)
    inputs = chain() if name == "chain" else random_tree(0, 5, 7)
    found, exact = model.infer(using="trw", **inputs), model.infer(using="exact", **inputs)
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.marginals["y"], exact.marginals["y"])
    torch.testing.assert_close(found.factor_marginals, exact.factor_marginals)


def test_the_bound_tightens_and_lies_opposite_to_mean_field() -> None:
    model, inputs = compiled(GRID), grid(batch=20)
    bounds = [model.infer(using=f"trw({steps}, tol: 0)", **inputs).log_partition for steps in (1, 5, 50)]
    assert bounds[0].mean() > bounds[1].mean() >= bounds[2].mean() - 1e-9
    below = model.infer(using="mean_field", **inputs).log_partition
    exact = model.infer(using="exact", **inputs).log_partition
    assert (below <= exact + 1e-9).all() and (exact <= bounds[2] + 1e-9).all()


def test_the_score_less_the_bound_is_a_lower_bound_of_the_log_probability() -> None:
    model, inputs = compiled(GRID), grid(batch=20)
    labels = torch.randint(0, 3, (20, 3, 3), generator=torch.Generator().manual_seed(0))
    found, exact = (model.infer(using=using, **inputs).log_prob(y=labels) for using in ("trw", "exact"))
    assert (found <= exact + 1e-9).all()

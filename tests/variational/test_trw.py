"""Tree-reweighted belief propagation: an upper bound after every sweep, and how probable edges are in trees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from energyml.backends.variational.spanning import uniform_arcs
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

"""Trees of any shape with scores of any finite magnitude, against sums without rounding; and trees without anything."""

import math
import os

import numpy as np
import pytest
import torch

from energyml.native import forest
from tests.native.enumeration import enumerated
from tests.native.test_masks import DENSE, MASKS, draw

pytestmark = pytest.mark.skipif(forest.kernels is None, reason="the native extension was not built")

TIMES = max(1, int(os.environ.get("ENERGYML_FUZZ") or 300) // 300)
# Rooted at one end or in the middle, edges pointing both ways: each is a chain, whose cells enumeration knows.
EDGES = np.array([[[0, 1], [2, 1], [2, 3]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [*MASKS, *DENSE])
def test_every_answer_is_that_of_enumeration(scale, dtype):
    trees = forest.order_trees(EDGES, np.ones((1, 4), dtype=bool))
    eps = torch.finfo(dtype).eps
    for seed in range(6 * TIMES):
        generator = torch.Generator().manual_seed(seed)
        labels = 2 + seed % 3
        unary = draw((1, 4, labels), scale, dtype, generator, [0.1, 0.4, 1.0][seed % 3], seed % 5 == 0)
        pair = draw((1, 3, labels, labels), scale, dtype, generator, [0.1, 0.4, 1.0][seed % 3], seed % 5 == 0)
        known = enumerated(unary[0], torch.stack([pair[0, 0], pair[0, 1].T, pair[0, 2]]))
        found = forest.sweep(trees, unary, pair, weights=torch.ones(1, dtype=torch.float64), pairs=True)
        best = forest.sweep(trees, unary, pair, maximise=True)
        if known is None:
            assert found.total == best.total == -math.inf
            assert not found.unary.any()
            continue
        torch.testing.assert_close(found.unary[0].sum(-1).float(), torch.ones(4))
        close = (8 if dtype == torch.float32 else 64) * eps * (known.size + 5)
        assert abs(float(found.total) - known.log_z) <= close
        assert abs(float(best.total) - float(known.best)) <= close
        assert (
            float(known.best - known.score[tuple(best.labels[0].tolist())]) <= 64 * 2.0**-52 * (known.size + 5) + 1e-4
        )
        if known.size * 2.0**-50 <= 1e-5:
            rounding = 2e-5 if dtype == torch.float32 else 1e-5 if known.size > 1e6 else 1e-9
            torch.testing.assert_close(found.unary[0].double(), known.cells, rtol=0, atol=rounding)
            steps = torch.stack([found.pair[0, 0], found.pair[0, 1].T, found.pair[0, 2]])
            torch.testing.assert_close(steps.double(), known.steps, rtol=0, atol=rounding)


def test_an_answer_that_must_break_one_mask_is_still_the_best_of_these():
    generator = torch.Generator().manual_seed(3)
    trees = forest.order_trees(np.array([[[cell, cell + 1] for cell in range(19)]]), np.ones((1, 20), dtype=bool))
    for shared in (True, False):
        unary = torch.randn(1, 20, 5, generator=generator)
        pair = torch.randn(1, 1 if shared else 19, 5, 5, generator=generator)
        masked, free = unary.clone(), unary.clone()
        masked[:, 10], free[:, 10] = -1e9, 0
        found, expected = (forest.sweep(trees, one, pair, maximise=True).labels for one in (masked, free))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("labels", [0, 1])
@pytest.mark.parametrize("nodes", [0, 1, 3])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sizes_of_zero(dtype, batch, nodes, labels):
    for edges in range(3):
        ends = np.array([[[edge, edge + 1] for edge in range(edges)]] * batch, dtype=np.int64).reshape(batch, edges, 2)
        trees = forest.order_trees(ends, np.ones((batch, nodes), dtype=bool))
        unary = torch.zeros(batch, nodes, labels, dtype=dtype)
        value = torch.full((batch,), 0.0 if labels or not nodes else -math.inf, dtype=torch.float64)
        for pair in (
            torch.zeros(1, 1, labels, labels, dtype=dtype),
            unary.new_zeros(batch, max(1, edges), labels, labels),
        ):
            weights = torch.ones(batch, dtype=torch.float64)
            assert torch.equal(forest.sweep(trees, unary, pair).total, value)
            assert torch.equal(forest.sweep(trees, unary, pair, weights=weights, pairs=True).total, value)
            assert torch.equal(forest.sweep(trees, unary, pair, maximise=True).total, value)
            answers = torch.zeros(batch, nodes, dtype=torch.int64)
            assert forest.sweep(trees, unary, pair, answers=answers).total.shape == (batch,)

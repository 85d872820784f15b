"""Chains whose scores are of any finite magnitude, as masks are written, against sums without rounding."""

import math
import os

import pytest
import torch

import energyml as em
from energyml.native import available
from energyml.native import chain as native
from energyml.resolution import UNSEEN
from tests.native.enumeration import enumerated

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

TIMES = max(1, int(os.environ.get("ENERGYML_FUZZ") or 300) // 300)
MASKS = [-1e4, -1e9, -1e12, -1e30, torch.finfo(torch.float32).min]
DENSE = [30.0, 300.0, 1e4, 1e12, 1e15, 1e18]
# chains that are taken one by one and in groups; cells; labels
SIZES = [(1, 4, 2), (3, 3, 3), (5, 2, 9), (16, 3, 2), (13, 3, 4), (40, 2, 5), (2, 2, 17), (2, 2, 40)]
TABLES = ["one", "by step", "by chain", "by both"]


def draw(shape, scale, dtype, generator, fraction=0.4, holes=False):
    """Ordinary numbers of which two in five are a mask, or all of which are large; -inf here and there."""
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if scale > 0:
        scores *= scale
    else:
        scores[torch.rand(shape, generator=generator) < fraction] = scale
    if holes:
        scores[torch.rand(shape, generator=generator) < 0.2] = -math.inf
    return scores.to(dtype)


def chains(batch, size, labels, table, seed):
    """Scores of some kind, ragged or not."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [*MASKS, *DENSE]
    scale = kinds[int(torch.randint(len(kinds), (), generator=generator))]
    dtype = [torch.float32, torch.float64][seed % 2]
    lead = {"one": (), "by step": (size - 1,), "by chain": (batch, 1), "by both": (batch, size - 1)}[table]
    fraction = [0.1, 0.4, 1.0][seed % 3]
    unary = draw((batch, size, labels), scale, dtype, generator, fraction, seed % 5 == 0)
    pair = draw((*lead, labels, labels), scale, dtype, generator, fraction, seed % 5 == 0)
    count = torch.randint(0, size + 1, (batch,), generator=generator) if seed % 4 == 0 else None
    return unary, pair, count, torch.randint(0, labels, (batch, size), generator=generator)


def one_chain(unary, pair, count, number):
    """The scores of the cells and steps that a chain has."""
    batch, size, labels = unary.shape
    n = size if count is None else int(count[number])
    every = pair[(None,) * (4 - pair.dim())].expand(batch, size - 1, labels, labels)[number]
    return unary[number, :n], every[: max(0, n - 1)]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", SIZES)
def test_every_answer_is_that_of_enumeration(shape, table):
    for seed in range(7 * TIMES):
        unary, pair, count, labels = chains(*shape, table, 100 * seed + shape[0] * shape[2])
        given = unary.clone().requires_grad_(), pair.clone().requires_grad_()
        log_z = native.log_partition(*given, count)
        torch.testing.assert_close(log_z.detach(), native.log_partition(unary, pair, count), rtol=1e-6, atol=1e-5)
        (by_unary,) = torch.autograd.grad(log_z.masked_fill(log_z.isinf(), 0).sum(), given[0])
        cells, steps = native.marginals(unary, pair, count, True)
        nll, slope, _ = native.nll_and_slopes(unary, pair, count, labels)
        best, score = native.viterbi(unary, pair, count)
        eps = torch.finfo(unary.dtype).eps
        for number in range(min(shape[0], 3)):
            own = one_chain(unary, pair, count, number)
            n = len(own[0])
            known = enumerated(*own)
            if known is None:
                assert log_z[number] == score[number] == -math.inf
                assert not cells[number].any() and not by_unary[number].any() and (best[number] == -1).all()
                continue
            if n:
                ones = torch.ones(n)
                torch.testing.assert_close(cells[number, :n].sum(-1).float(), ones)
                torch.testing.assert_close(steps[number, : max(0, n - 1)].sum((-1, -2)).float(), ones[1:])
            close = (8 if unary.dtype == torch.float32 else 64) * eps * (known.size + 1 + n)
            if abs(known.log_z) < torch.finfo(unary.dtype).max:
                assert abs(float(log_z[number].detach()) - known.log_z) <= close
                assert abs(float(score[number]) - float(known.best)) <= close
            found = tuple(best[number, :n].tolist())
            assert found in known.score
            assert float(known.best - known.score[found]) <= close
            if known.size * 4 * torch.finfo(torch.float64).eps > UNSEEN:
                continue  # double precision does not tell the answers apart
            rounding = 2e-5 if unary.dtype == torch.float32 else 1e-5 if known.size > 1e6 else 1e-9
            for one in (cells, by_unary):
                torch.testing.assert_close(one[number, :n].double(), known.cells, rtol=0, atol=rounding)
            torch.testing.assert_close(steps[number, : max(0, n - 1)].double(), known.steps, rtol=0, atol=rounding)
            if nll[number].isfinite():
                hot = torch.nn.functional.one_hot(labels[number, :n], shape[2])
                torch.testing.assert_close(slope[number, :n].double(), known.cells - hot, rtol=0, atol=rounding)
        assert not by_unary.isnan().any() and not cells.isnan().any() and not steps.isnan().any()


@pytest.mark.parametrize("mask", MASKS)
def test_one_masked_transition(mask):
    unary = torch.tensor([[[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]]])
    pair = torch.tensor([[0.1, mask], [-0.3, 0.2]])
    known = enumerated(*one_chain(unary, pair, None, 0))
    assert abs(float(em.functional.chain_log_partition(unary, pair)) - known.log_z) < 1e-6
    cells = em.functional.chain_marginals(unary, pair)
    torch.testing.assert_close(cells[0].double(), known.cells, rtol=0, atol=1e-6)


@pytest.mark.parametrize("labels", [3, 23])
@pytest.mark.parametrize("batch", [1, 16])
def test_an_answer_that_must_break_one_mask_is_still_the_best_of_these(labels, batch):
    """All labels of one cell are masked: beside -1e9, floats would have no digits for the others."""
    generator = torch.Generator().manual_seed(labels)
    unary = torch.randn(batch, 20, labels, generator=generator)
    pair = torch.randn(labels, labels, generator=generator)
    masked = unary.clone()
    for cell in (7, 16, 19):
        masked[:, cell] = -1e9
    free = unary.clone()
    free[:, [7, 16, 19]] = 0
    expected, _ = native.viterbi(free, pair, None)
    assert torch.equal(native.viterbi(masked, pair, None)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_chains_with_masks_are_those_with_forbidden_labels(dtype):
    """Masks leave room for every sum of ordinary scores, so that both have the same log Z."""
    generator = torch.Generator().manual_seed(0)
    for batch, size, labels in [(16, 700, 3), (3, 400, 23), (1, 900, 40)]:
        unary = torch.randn(batch, size, labels, generator=generator).to(dtype)
        pair = torch.randn(labels, labels, generator=generator).to(dtype)
        cells = torch.rand(unary.shape, generator=generator) < 0.3
        steps = torch.rand(pair.shape, generator=generator) < 0.1
        cells[..., 0], steps[0] = False, False  # something is possible
        expected, expected_cells = (
            f(unary.masked_fill(cells, -math.inf), pair.masked_fill(steps, -math.inf), None)
            for f in (native.log_partition, native.marginals)
        )
        for mask in (-1e4, -1e9, -1e30):
            given = unary.masked_fill(cells, mask), pair.masked_fill(steps, mask)
            torch.testing.assert_close(native.log_partition(*given, None), expected, rtol=1e-6, atol=0)
            torch.testing.assert_close(native.marginals(*given, None)[0], expected_cells[0], rtol=0, atol=1e-5)


def test_pairs_that_would_be_infinite_times_zero():
    """Factors of a pair's probability grow with what the table forbids."""
    for seed in range(200 * TIMES):
        generator = torch.Generator().manual_seed(seed)
        unary = 300 * torch.randn(16, 3, 2, generator=generator, dtype=torch.float64)
        pair = 300 * torch.randn(2, 2, generator=generator, dtype=torch.float64)
        pair[torch.rand(2, 2, generator=generator) < 0.3] = [-1e30, -math.inf][seed % 2]
        steps = native.marginals(unary, pair, None, True)[1]
        possible = native.log_partition(unary, pair, None).isfinite()
        torch.testing.assert_close(steps[possible].sum((-1, -2)), torch.ones(int(possible.sum()), 2).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [0, 1, 16])
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("labels", [0, 1])
def test_sizes_of_zero(labels, size, batch, dtype):
    for lead in ((), (max(0, size - 1),), (1, 1), (batch, max(0, size - 1))):
        unary, pair = torch.zeros(batch, size, labels, dtype=dtype), torch.zeros(*lead, labels, labels, dtype=dtype)
        for count in (None, torch.zeros(batch, dtype=torch.int64)):
            empty = size == 0 or count is not None
            value = torch.full((batch,), 0.0 if labels or empty else -math.inf, dtype=dtype)
            given = unary.clone().requires_grad_(), pair.clone().requires_grad_()
            log_z = em.functional.chain_log_partition(*given, count)
            assert torch.equal(log_z.detach(), value)
            torch.autograd.grad(log_z.masked_fill(log_z.isinf(), 0).sum(), given, materialize_grads=True)
            answer, score = em.functional.chain_best(unary, pair, count)
            assert torch.equal(score, value)
            assert torch.equal(answer, torch.full((batch, size), 0 if labels and not empty else -1))
            cells, steps = native.tracked_marginals(*given, count)
            torch.autograd.grad(cells.sum() + steps.sum(), given, materialize_grads=True)

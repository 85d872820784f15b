"""The native chain kernels against a plain recursion in float64."""

import pytest
import torch

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best
from energyml.backends.exact.recursion import log_partition_of as twin
from energyml.native import available
from energyml.native import chain as native
from tests.native.log_space import chain_log_partition

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

SIZES = [(1, 1, 1), (1, 7, 2), (5, 4, 3), (4, 9, 8), (9, 6, 23), (3, 5, 50), (2, 3, 130), (6, 0, 4), (0, 3, 4)]


def draw(batch, size, labels, *, scale=1.0, ragged=True, forbidden=0.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unary = scale * torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
    pair = scale * torch.randn(labels, labels, generator=generator, dtype=torch.float64)
    if forbidden:
        unary[torch.rand(unary.shape, generator=generator) < forbidden] = float("-inf")
        pair[torch.rand(pair.shape, generator=generator) < forbidden] = float("-inf")
    count = torch.randint(0, size + 1, (batch,), generator=generator) if ragged else None
    return unary.to(dtype), pair.to(dtype), count


def reference(unary, pair, count):
    """Values and gradients of the plain recursion in float64."""
    unary = unary.double().detach().requires_grad_()
    pair = pair.double().detach().requires_grad_()
    value = chain_log_partition(spread(unary, pair, count))
    total = value.masked_fill(value.isneginf(), 0).sum()
    gradients = torch.autograd.grad(total, (unary, pair), materialize_grads=True)
    return value.detach(), *gradients


def spread(unary, pair, count):
    return Potentials(unary, pair[None, None], count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("forbidden", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4, 1e6])
def test_log_partition_and_gradients(dtype, ragged, forbidden, scale):
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    for number, shape in enumerate(SIZES):
        unary, pair, count = draw(*shape, scale=scale, ragged=ragged, forbidden=forbidden, dtype=dtype, seed=number)
        expected, by_unary, by_pair = reference(unary, pair, count)
        unary.requires_grad_()
        pair.requires_grad_()
        value = native.log_partition(unary, pair, count)
        assert value.dtype == dtype
        finite = expected.isfinite()
        assert torch.equal(value.isfinite(), finite)
        relative = 1e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(value[finite].double(), expected[finite], rtol=relative, atol=tolerance)
        total = value.masked_fill(value.isneginf(), 0).sum()
        if not total.requires_grad:
            continue
        found = torch.autograd.grad(total, (unary, pair), materialize_grads=True)
        for one, other in zip(found, (by_unary, by_pair), strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=10 * tolerance)


# One to eight vectors of 32 bytes and more, whole ones and others: all widths of panels, and what is left behind them.
WIDTHS = [33, 40, 41, 48, 50, 56, 63, 64, 65, 72, 80, 89, 96, 97, 104, 113, 121, 129]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e5])
@pytest.mark.parametrize("rows", range(1, 10))
def test_every_width_of_panels_and_number_of_rows(dtype, scale, rows):
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    for labels in WIDTHS if dtype == torch.float32 else [n // 2 for n in WIDTHS]:
        unary, pair, _ = draw(rows, 4, labels, scale=scale, ragged=False, dtype=dtype, seed=labels)
        expected, by_unary, by_pair = reference(unary, pair, None)
        potentials = spread(unary.double(), pair.double(), None)
        best, score = native.viterbi(unary, pair, None)
        true_best, true_score = chain_best(potentials, 1)
        assert torch.equal(best, true_best[:, 0])
        torch.testing.assert_close(score.double(), true_score[:, 0], rtol=1e-6, atol=tolerance)
        unary.requires_grad_()
        pair.requires_grad_()
        value = native.log_partition(unary, pair, None)
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=tolerance)
        found = torch.autograd.grad(value.sum(), (unary, pair))
        torch.testing.assert_close(found[0].double(), by_unary, rtol=1e-4, atol=10 * tolerance)
        torch.testing.assert_close(found[1].double(), by_pair, rtol=1e-4, atol=10 * tolerance)


def test_examples_of_all_tiers_in_one_batch():
    unary, pair, _ = draw(6, 5, 4, ragged=False)
    unary[1] *= 100
    unary[3] *= 1e5
    count = torch.tensor([5, 5, 3, 4, 1, 0])
    expected, by_unary, by_pair = reference(unary, pair, count)
    unary.requires_grad_()
    pair.requires_grad_()
    value = native.log_partition(unary, pair, count)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-5)
    found = torch.autograd.grad(value.sum(), (unary, pair))
    torch.testing.assert_close(found[0].double(), by_unary, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1].double(), by_pair, rtol=1e-4, atol=1e-5)


def test_a_path_that_only_survives_far_below_the_best():
    """The best prefix is forbidden later, so the answer runs through scores that plain exp space has long lost."""
    labels = 3
    unary = torch.zeros(1, 30, labels)
    unary[0, :, 0] = 30.0
    unary[0, -1, 0] = float("-inf")
    pair = torch.zeros(labels, labels).fill_diagonal_(5.0)
    pair[0, 1:] = float("-inf")
    expected, by_unary, _ = reference(unary, pair, None)
    unary.requires_grad_()
    value = native.log_partition(unary, pair, None)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-4)
    (found,) = torch.autograd.grad(value.sum(), unary)
    torch.testing.assert_close(found.double(), by_unary, rtol=1e-4, atol=1e-5)


def test_first_and_second_derivatives():
    unary, pair, count = draw(3, 4, 3, dtype=torch.float64)
    unary.requires_grad_()
    pair.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, p: native.log_partition(u, p, count, twin), (unary, pair))
    assert torch.autograd.gradgradcheck(lambda u, p: native.log_partition(u, p, count, twin), (unary, pair))
    # incoming gradients that depend on the scores themselves
    assert torch.autograd.gradgradcheck(lambda u, p: native.log_partition(u, p, count, twin).square(), (unary, pair))


def test_a_second_backward_pass_gives_the_same():
    unary, pair, count = draw(4, 6, 5)
    unary.requires_grad_()
    value = native.log_partition(unary, pair, count).sum()
    first = torch.autograd.grad(value, unary, retain_graph=True)
    second = torch.autograd.grad(value, unary)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("forbidden", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_viterbi(dtype, forbidden, scale):
    for number, shape in enumerate(SIZES):
        unary, pair, count = draw(*shape, scale=scale, forbidden=forbidden, dtype=dtype, seed=number)
        labels, score = native.viterbi(unary, pair, count)
        _, expected = chain_best(spread(unary.double(), pair.double(), count), 1)
        torch.testing.assert_close(score.double(), expected[:, 0], rtol=1e-6, atol=1e-5)
        exists = torch.ones_like(labels, dtype=torch.bool)
        if count is not None:
            exists = torch.arange(shape[1]) < count.unsqueeze(1)
        exists = exists & score.isfinite().unsqueeze(1)
        assert torch.equal(labels >= 0, exists)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_agree(threads, use_threads):
    use_threads(threads)
    unary, pair, count = draw(11, 20, 30)
    expected, by_unary, by_pair = reference(unary, pair, count)
    unary.requires_grad_()
    pair.requires_grad_()
    value = native.log_partition(unary, pair, count)
    found = torch.autograd.grad(value.sum(), (unary, pair))
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found[0].double(), by_unary, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1].double(), by_pair, rtol=1e-4, atol=1e-4)

"""The native chain kernels with pair scores of every shape, against a plain recursion in float64."""

import pytest
import torch

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best
from energyml.backends.exact.recursion import log_partition_of as twin
from energyml.native import available
from energyml.native import chain as native
from tests.native.log_space import chain_log_partition

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

SIZES = [(1, 1, 1), (2, 7, 2), (5, 4, 3), (11, 6, 8), (3, 5, 23), (2, 3, 50), (3, 0, 4), (0, 3, 4)]
SHARED = {"shared": (True, True), "by step": (True, False), "by example": (False, True), "each": (False, False)}
SCALES = [1.0, 5.0, 30.0, 100.0, 1e4, 1e6]


def draw(batch, size, labels, shared, *, scale=1.0, forbidden=0.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    steps = (1 if shared[0] else batch, 1 if shared[1] else max(0, size - 1), labels, labels)
    unary = scale * torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
    pair = scale * torch.randn(steps, generator=generator, dtype=torch.float64)
    if forbidden:
        unary[torch.rand(unary.shape, generator=generator) < forbidden] = float("-inf")
        pair[torch.rand(pair.shape, generator=generator) < forbidden] = float("-inf")
    count = torch.randint(0, size + 1, (batch,), generator=generator) if seed % 2 else None
    return unary.to(dtype), pair.to(dtype), count


def reference(unary, pair, count, weight):
    """Values, gradients of the weighted sum, and marginals of the plain recursion in float64."""
    unary = unary.double().detach().requires_grad_()
    pair = pair.double().detach().requires_grad_()
    each = pair.detach().expand(unary.shape[0], max(0, unary.shape[1] - 1), *pair.shape[2:]).clone().requires_grad_()
    value = chain_log_partition(Potentials(unary, pair, count))
    weighted = (value.masked_fill(value.isneginf(), 0) * weight).sum()
    by_unary, by_pair = torch.autograd.grad(weighted, (unary, pair), materialize_grads=True)
    value = chain_log_partition(Potentials(unary, each, count))
    total = value.masked_fill(value.isneginf(), 0).sum()
    cells, steps = torch.autograd.grad(total, (unary, each), materialize_grads=True)
    return value.detach(), by_unary, by_pair, cells, steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shared", SHARED)
def test_against_the_recursion(shared, scale, forbidden, dtype):
    # The reference rounds to float64 what it adds up: 1e6 leaves ten digits of a probability.
    near = {"rtol": 0.0, "atol": 1e-5 if dtype == torch.float32 else 1e-10 * max(1.0, scale / 1e4)}
    for number, shape in enumerate(SIZES):
        seed = number + int(scale)
        unary, pair, count = draw(*shape, SHARED[shared], scale=scale, forbidden=forbidden, dtype=dtype, seed=seed)
        weight = torch.randn(shape[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weight[::4] = 0
        expected, by_unary, by_pair, cells, steps = reference(unary, pair, count, weight)
        finite = expected.isfinite()

        found_cells, found_steps = native.marginals(unary, pair, count, pairs=True)
        log_z = native.log_partition(unary, pair, count)
        assert torch.equal(log_z.isfinite(), finite)
        relative = 1e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(log_z[finite].double(), expected[finite], rtol=relative, atol=near["atol"])
        torch.testing.assert_close(found_cells.double(), cells, **near)
        torch.testing.assert_close(found_steps.double(), steps, **near)
        # without those of steps, chains of few labels are answered side by side, which rounds in another order
        alone = native.marginals(unary, pair, count)[0]
        torch.testing.assert_close(alone, found_cells, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-14)

        torch.testing.assert_close(native.log_partition(unary, pair, count), log_z, rtol=relative, atol=near["atol"])
        unary.requires_grad_()
        pair.requires_grad_()
        value = native.log_partition(unary, pair, count)
        torch.testing.assert_close(value.detach(), log_z, rtol=relative, atol=near["atol"])
        value.backward(weight.to(dtype))
        close = {"rtol": 1e-5, "atol": 10 * near["atol"]}  # sums over cells and chains
        torch.testing.assert_close(unary.grad.double(), by_unary, **close)
        torch.testing.assert_close(pair.grad.double(), by_pair, **close)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
@pytest.mark.parametrize("shared", SHARED)
def test_viterbi(shared, forbidden, scale):
    for number, shape in enumerate(SIZES):
        unary, pair, count = draw(*shape, SHARED[shared], scale=scale, forbidden=forbidden, seed=number)
        labels, score = native.viterbi(unary, pair, count)
        best, expected = chain_best(Potentials(unary.double(), pair.double(), count), 1)
        torch.testing.assert_close(score.double(), expected[:, 0], rtol=1e-6, atol=1e-5)
        assert torch.equal(labels, best[:, 0])


@pytest.mark.parametrize("shared", SHARED)
def test_derivatives(shared):
    unary, pair, count = draw(3, 4, 3, SHARED[shared], dtype=torch.float64, seed=1)
    unary.requires_grad_()
    pair.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, p: native.log_partition(u, p, count, twin), (unary, pair))
    assert torch.autograd.gradgradcheck(lambda u, p: native.log_partition(u, p, count, twin), (unary, pair))


@pytest.mark.parametrize("shared", SHARED)
def test_only_what_is_asked_for_gets_a_gradient(shared):
    unary, pair, count = draw(4, 5, 3, SHARED[shared], seed=3)
    _, by_unary, by_pair, _, _ = reference(unary, pair, count, torch.ones(4))
    for one, other, expected in ((unary, pair, by_unary), (pair, unary, by_pair)):
        one.requires_grad_()
        other.requires_grad_(False)
        (found,) = torch.autograd.grad(native.log_partition(unary, pair, count).sum(), one)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 8.0, 30.0, 1e4])
@pytest.mark.parametrize("shape", [(1, 700, 9), (3, 400, 20), (2, 60, 130)])
def test_long_chains_keep_their_digits(shape, scale):
    unary, pair, _ = draw(*shape, (True, True), scale=scale)
    expected, _, by_pair, cells, _ = reference(unary, pair, None, torch.ones(shape[0]))
    found, _ = native.marginals(unary, pair, None)
    log_z = native.log_partition(unary, pair, None)
    torch.testing.assert_close(log_z.double(), expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found.double(), cells, rtol=0, atol=1e-5)
    pair.requires_grad_()
    (gradient,) = torch.autograd.grad(native.log_partition(unary, pair, None).sum(), pair)
    torch.testing.assert_close(gradient.double(), by_pair, rtol=1e-5, atol=1e-4)

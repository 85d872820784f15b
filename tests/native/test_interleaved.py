"""Chains side by side, one in each lane: few labels, several chains, one table for all of them."""

import pytest
import torch

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best, chain_score
from energyml.native import available
from energyml.native import chain as native
from tests.native.log_space import chain_log_partition

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

NOTHING = float("-inf")
# labels below, at and between whole vectors of both types; chains that fill lanes and that leave some empty
SIZES = [
    (8, 5, 1),
    (6, 4, 2),
    (20, 25, 7),
    (16, 9, 8),
    (23, 6, 10),
    (8, 1, 3),
    (24, 30, 15),
    (7, 12, 16),
    (32, 5, 26),
    (14, 8, 32),
    (31, 7, 5),
    (13, 9, 3),
    (40, 6, 16),
    (16, 40, 17),
]


def draw(batch, size, labels, *, scale=1.0, forbidden=0.0, dtype=torch.float32):
    """Scores, lengths from 0 to T (all T where the batch is even), labels, and NaN in cells that do not exist."""
    generator = torch.Generator().manual_seed(batch * labels)
    unary = scale * torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
    pair = scale * torch.randn(labels, labels, generator=generator, dtype=torch.float64)
    if forbidden:
        unary[torch.rand(unary.shape, generator=generator) < forbidden] = NOTHING
        pair[torch.rand(pair.shape, generator=generator) < forbidden] = NOTHING
        unary[1, -1] = NOTHING  # no answer
    count = torch.randint(0, size + 1, (batch,), generator=generator)
    answer = torch.randint(0, labels, (batch, size), generator=generator)
    exists = torch.arange(size) < count.unsqueeze(1)
    unary = unary.masked_fill(~exists.unsqueeze(-1), float("nan"))
    return unary.to(dtype), pair.to(dtype), count, answer


def reference(unary, pair, count):
    """The scores in float64, and what the plain recursion takes."""
    exists = torch.arange(unary.shape[1]) < count.unsqueeze(1)
    scores = torch.where(exists.unsqueeze(-1), unary.double(), 0.0).requires_grad_()
    table = pair.double().requires_grad_()
    return scores, table, Potentials(scores, table[None, None], count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 8.0, 30.0, 1e4])
def test_values_and_marginals(scale, forbidden, dtype):
    close = 1e-5 if dtype == torch.float32 else 1e-10
    for shape in SIZES:
        unary, pair, count, _ = draw(*shape, scale=scale, forbidden=forbidden, dtype=dtype)
        scores, _, potentials = reference(unary, pair, count)
        expected = chain_log_partition(potentials)
        (cells,) = torch.autograd.grad(expected.masked_fill(expected.isneginf(), 0).sum(), scores)
        log_z = native.log_partition(unary, pair, count)
        torch.testing.assert_close(log_z.double(), expected.detach(), rtol=close / 10, atol=close)
        torch.testing.assert_close(native.marginals(unary, pair, count)[0].double(), cells, rtol=0, atol=close)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("weights", ["alike", "apart"])
def test_likelihoods_and_gradients(weights, scale):
    for shape in SIZES:
        unary, pair, count, answer = draw(*shape, scale=scale)
        weight = -torch.ones(shape[0])
        if weights == "apart":
            weight = torch.linspace(-1, 2, shape[0])
            weight[::3] = 0
        given = unary.clone().requires_grad_(), pair.clone().requires_grad_()
        value = native.log_likelihood(*given, count, answer)
        found = torch.autograd.grad((value * weight).sum(), given)
        scores, table, potentials = reference(unary, pair, count)
        expected = chain_score(potentials, answer.unsqueeze(1)).squeeze(1) - chain_log_partition(potentials)
        by = torch.autograd.grad((expected * weight.double()).sum(), (scores, table))
        torch.testing.assert_close(value.detach().double(), expected.detach(), rtol=1e-6, atol=1e-5)
        for one, other in zip(found, by, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_viterbi(scale, forbidden, dtype):
    for shape in SIZES:
        unary, pair, count, _ = draw(*shape, scale=scale, forbidden=forbidden, dtype=dtype)
        labels, score = native.viterbi(unary, pair, count)
        with torch.no_grad():
            best, expected = chain_best(reference(unary, pair, count)[2], 1)
        torch.testing.assert_close(score.double(), expected[:, 0], rtol=1e-6, atol=1e-5)
        assert torch.equal(labels, best[:, 0].masked_fill(expected.isneginf(), -1))


def test_the_first_of_equal_answers():
    labels, score = native.viterbi(torch.zeros(9, 40, 5), torch.zeros(5, 5), None)
    assert not labels.any()
    assert not score.any()


def test_one_extreme_chain_leaves_the_others_alone():
    unary, pair, count, _ = draw(16, 12, 6)
    count = torch.full_like(count, 12)
    unary = torch.randn(16, 12, 6, generator=torch.Generator().manual_seed(0))
    calm = native.marginals(unary, pair, count)[0], native.log_partition(unary, pair, count)
    wild = unary.clone()
    wild[5] *= 1e5
    cells, log_z = native.marginals(wild, pair, count)[0], native.log_partition(wild, pair, count)
    others = torch.arange(16) != 5
    assert torch.equal(cells[others], calm[0][others])
    assert torch.equal(log_z[others], calm[1][others])
    expected = chain_log_partition(reference(wild, pair, count)[2]).detach()
    torch.testing.assert_close(log_z.double(), expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(cells.sum(-1), torch.ones(16, 12))


def test_answers_do_not_depend_on_the_number_of_threads(use_threads):
    unary, pair, count, answer = draw(23, 40, 9)
    use_threads(1)
    alone = native.nll_and_slopes(unary, pair, count, answer), native.viterbi(unary, pair, count)
    use_threads(2)
    together = native.nll_and_slopes(unary, pair, count, answer), native.viterbi(unary, pair, count)
    for one, other in zip([*alone[0], *alone[1]], [*together[0], *together[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)

"""The likelihood of labels as one step, against the score and the log-partition of a plain recursion in float64."""

import pytest
import torch

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_score
from energyml.backends.exact.recursion import log_partition_of as twin
from energyml.native import available
from energyml.native import chain as native
from tests.native.log_space import chain_log_partition

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

SHARED = {"shared": (1, 1), "by step": (1, 6), "by example": (5, 1), "each": (5, 6)}


def draw(shared, scale=1.0, dtype=torch.float32, labels=9):
    generator = torch.Generator().manual_seed(3)
    unary = scale * torch.randn(5, 7, labels, generator=generator, dtype=dtype)
    pair = scale * torch.randn(*SHARED[shared], labels, labels, generator=generator, dtype=dtype)
    answer = torch.randint(0, labels, (5, 7), generator=generator)
    count = torch.tensor([7, 3, 1, 0, 5])
    return unary, pair, count, answer


def reference(unary, pair, count, answer):
    potentials = Potentials(unary, pair, count)
    return chain_score(potentials, answer.unsqueeze(1)).squeeze(1) - chain_log_partition(potentials)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("shared", SHARED)
def test_value_and_gradients(shared, scale):
    unary, pair, count, answer = draw(shared, scale)
    weight = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0])
    found = []
    for kind, likelihood in ((torch.float32, native.log_likelihood), (torch.float64, reference)):
        scores = unary.to(kind).requires_grad_(), pair.to(kind).requires_grad_()
        value = likelihood(*scores, count, answer)
        found.append((value.detach(), *torch.autograd.grad((value * weight).sum(), scores)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(native.log_likelihood(unary, pair, count, answer), found[0][0])


LOSSES = {
    "minus the sum": lambda value: -value.sum(),
    "the sum of losses": lambda value: (-value).sum(),
    "the mean of losses": lambda value: (-value).mean(),
    "the mean over cells": lambda value: (-value).sum() / 16,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_with_equal_weights_runs_the_chains_once(loss, monkeypatch):
    unary, pair, count, answer = draw("shared")
    again = []
    slopes = native.kernels.chain_slopes
    monkeypatch.setattr(native.kernels, "chain_slopes", lambda *args: again.append(1) or slopes(*args))
    found = []
    for kind, likelihood in ((torch.float32, native.log_likelihood), (torch.float64, reference)):
        scores = unary.to(kind).requires_grad_(), pair.to(kind).requires_grad_()
        found.append(torch.autograd.grad(LOSSES[loss](likelihood(*scores, count, answer)), scores))
    assert not again
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shared", SHARED)
def test_first_and_second_derivatives(shared):
    unary, pair, count, answer = draw(shared, dtype=torch.float64, labels=2)
    unary.requires_grad_()
    pair.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, p: native.log_likelihood(u, p, count, answer, twin), (unary, pair))
    assert torch.autograd.gradgradcheck(lambda u, p: native.log_likelihood(u, p, count, answer, twin), (unary, pair))


def test_forbidden_labels_have_no_likelihood():
    unary, pair, count, answer = draw("shared")
    unary[0, 2, answer[0, 2]] = float("-inf")
    unary[1, 1] = float("-inf")
    unary.requires_grad_()
    value = native.log_likelihood(unary, pair, count, answer)
    assert value[:2].tolist() == [float("-inf")] * 2
    assert value[2:].isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum(), unary)
    assert gradient.isfinite().all()
    assert not gradient[:2].any()


def test_a_missing_label_is_told():
    unary, pair, count, answer = draw("shared")
    answer[1, 5] = -1  # beyond the chain
    assert native.log_likelihood(unary, pair, count, answer).isfinite().all()
    answer[1, 2] = -1
    assert native.log_likelihood(unary, pair, count, answer) is None

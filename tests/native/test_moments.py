"""Gradients of marginals: covariances by the kernels against autograd through a plain recursion in float64."""

import pytest
import torch

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import log_partition_of as twin
from energyml.native import available
from energyml.native import chain as native
from tests.native.log_space import chain_log_partition
from tests.native.test_chain import draw

pytestmark = pytest.mark.skipif(not available, reason="the native extension was not built")

SIZES = [(1, 1, 1), (1, 7, 2), (5, 4, 3), (4, 6, 8), (3, 5, 23), (2, 3, 50)]


def tables(pair, batch, size, kind):
    """One table for all, one for each step, one for each example, or one for both."""
    labels = pair.shape[0]
    if kind == "shared":
        return pair
    shape = {"steps": (1, max(1, size - 1)), "examples": (batch, 1), "each": (batch, max(1, size - 1))}[kind]
    spread = torch.linspace(0.5, 1.5, shape[0] * shape[1], dtype=pair.dtype).reshape(*shape, 1, 1)
    return (pair * spread).reshape(*shape, labels, labels)


def reference(unary, pair, count, by_cells, by_steps):
    unary, pair = (one.detach().double().requires_grad_() for one in (unary, pair))
    batch, size, labels = unary.shape
    steps = (pair if pair.dim() > 2 else pair[None, None]).expand(batch, size - 1, labels, labels)
    log_z = chain_log_partition(Potentials(unary, steps, count))
    total = log_z.masked_fill(log_z.isneginf(), 0).sum()
    moments = torch.autograd.grad(total, (unary, steps), create_graph=True, materialize_grads=True)
    value = (moments[0] * by_cells).sum() + (moments[1] * by_steps).sum()
    return torch.autograd.grad(value, (unary, pair), materialize_grads=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["shared", "steps", "examples", "each"])
@pytest.mark.parametrize(("forbidden", "scale"), [(0.0, 1.0), (0.3, 1.0), (0.3, 30.0), (0.0, 1e4), (1.0, 1.0)])
def test_gradients_of_marginals(dtype, kind, forbidden, scale):
    for number, (batch, size, labels) in enumerate(SIZES):
        unary, pair, count = draw(batch, size, labels, scale=scale, forbidden=forbidden, dtype=dtype, seed=number)
        pair = tables(pair, batch, size, kind).nan_to_num(neginf=float("-inf"))
        if pair.dim() > 2 and size == 1 and kind in ("steps", "each"):
            continue
        generator = torch.Generator().manual_seed(number)
        by_cells = torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
        by_steps = torch.randn(batch, size - 1, labels, labels, generator=generator, dtype=torch.float64)
        expected = reference(unary, pair, count, by_cells, by_steps)
        unary.requires_grad_()
        pair.requires_grad_()
        cells, steps = native.tracked_marginals(unary, pair, count)
        value = (cells * by_cells.to(dtype)).sum() + (steps * by_steps.to(dtype)).sum()
        found = torch.autograd.grad(value, (unary, pair), retain_graph=True)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)
        alone = torch.autograd.grad((cells * by_cells.to(dtype)).sum(), (unary, pair))
        only = reference(unary, pair, count, by_cells, torch.zeros_like(by_steps))
        for one, other in zip(alone, only, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def test_third_derivatives():
    unary, pair, count = draw(2, 4, 3, dtype=torch.float64, seed=3)
    unary.requires_grad_()
    pair.requires_grad_()

    def moments(u, p):
        return native.tracked_marginals(u, p, count, twin)

    def curved(u, p):
        """Incoming gradients that depend on the scores themselves."""
        cells, steps = moments(u, p)
        return (cells + 0.1).log().sum() * steps.square().sum()

    for function in (moments, curved):
        assert torch.autograd.gradcheck(function, (unary, pair))
        assert torch.autograd.gradgradcheck(function, (unary, pair))


def test_the_loss_of_an_unlikely_label_keeps_its_slope():
    """d -log p / d score is p - 1 at the gold label, even where p is next to nothing."""
    unary = torch.zeros(1, 3, 2)
    unary[0, 1, 1] = -60.0
    unary.requires_grad_()
    cells, _ = native.tracked_marginals(unary, torch.zeros(2, 2), None)
    (slope,) = torch.autograd.grad(-cells[0, 1, 1].log(), unary)
    torch.testing.assert_close(slope[0, 1], torch.tensor([1.0, -1.0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["shared", "steps", "each"])
def test_threads_agree(kind, use_threads):
    unary, pair, count = draw(7, 6, 5, dtype=torch.float64)
    pair = tables(pair, 7, 6, kind)
    found = []
    for threads in (1, 3):
        use_threads(threads)
        one, other = unary.clone().requires_grad_(), pair.clone().requires_grad_()
        cells, steps = native.tracked_marginals(one, other, count)
        found.append(torch.autograd.grad(cells.square().sum() + steps.square().sum(), (one, other)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_more_marginals_than_are_kept(monkeypatch):
    unary, pair, count = draw(2, 4, 3, ragged=False)
    monkeypatch.setattr(native, "LARGEST", 10)
    assert native.tracked_marginals(unary.requires_grad_(), pair, count) is None

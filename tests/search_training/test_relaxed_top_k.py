"""The continuous top-k: its limits, its safety at -inf, its gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energyml.backends.beam.relaxed import continuous_top_k

torch.set_num_threads(1)
NINF = float("-inf")


def spaced(batch: int, rows: int, count: int, seed: int, gap: float = 0.5) -> torch.Tensor:
    """Scores in a random order whose neighbours are `gap` apart."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(rows * count, generator=generator) for _ in range(batch)])
    return (gap * order.double() - 2).reshape(batch, rows, count)


def test_selections_are_the_printed_ones() -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = continuous_top_k(scores, 3, 0.7)
    for example in range(2):
        flat = scores[example].flatten()
        for number, peak in enumerate(flat.sort(descending=True).values[:3]):
            p = torch.softmax(-0.7 * (flat - peak) ** 2, 0).reshape(3, 4)
            torch.testing.assert_close(found.labels[example, number], p.sum(0))
            torch.testing.assert_close(found.pointers[example, number], p.sum(1))
            torch.testing.assert_close(found.score[example, number], (p * scores[example]).sum())


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 6))
def test_a_peaked_selection_is_the_hard_one(seed: int, width: int) -> None:
    scores = spaced(2, 2, 4, seed)
    soft, hard = continuous_top_k(scores, width, 1e4), continuous_top_k(scores, width, math.inf)
    for one, other in zip(soft, hard, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    best, index = scores.flatten(1).topk(width, 1)
    torch.testing.assert_close(hard.score, best)
    torch.testing.assert_close(hard.row * 4 + hard.label, index)


def test_the_gap_decides_how_peaked_is_peaked_enough() -> None:
    error = {}
    for gap in (1.0, 0.1):
        for alpha in (10.0, 1000.0):
            found = continuous_top_k(spaced(1, 1, 5, 0, gap), 2, alpha)
            error[gap, alpha] = float(1 - found.labels.amax(2).min())
    assert error[1.0, 10.0] < 1e-3 < 0.1 < error[0.1, 10.0]
    assert error[0.1, 1000.0] < 1e-3


def test_ties_split_evenly_for_ever() -> None:
    found = continuous_top_k(torch.tensor([[[1.0, 1.0, 0.0]]]), 2, 1e6)
    torch.testing.assert_close(found.labels, torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]]))


@pytest.mark.parametrize("alpha", [0.5, 1e3, 1e8, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_is_ruled_out_has_no_weight_and_no_gradient(alpha: float, dtype: torch.dtype) -> None:
    scores = torch.tensor([[[-90.0, NINF, -91.0]], [[NINF, NINF, NINF]], [[NINF, NINF, 2.0]]], dtype=dtype)
    scores.requires_grad_()
    found = continuous_top_k(scores, 4, alpha)
    assert found.score.isneginf().tolist() == [[False, False, True, True], [True] * 4, [False, True, True, True]]
    for one in (found.labels, found.pointers):
        assert not one.isnan().any()
        torch.testing.assert_close(one.sum(2), (~found.score.isneginf()).to(dtype))
    assert found.labels[0, :, 1].eq(0).all() and found.labels[2, 0].tolist() == [0, 0, 1]
    total = found.labels.square().sum() + found.score.masked_fill(found.score.isneginf(), 0).sum()
    total.backward()
    assert scores.grad is not None and not scores.grad.isnan().any()
    assert scores.grad[scores.isneginf()].eq(0).all()


def test_gradients() -> None:
    scores = spaced(2, 2, 3, 1, 0.3).requires_grad_()

    def weighted(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(continuous_top_k(values, 3, 1.3)[:3])

    assert torch.autograd.gradcheck(weighted, (scores,))
    assert torch.autograd.gradgradcheck(weighted, (scores,))


def test_gradients_vanish_as_alpha_grows() -> None:
    sizes = []
    for alpha in (1.0, 10.0, 100.0, 1000.0):
        scores = spaced(1, 1, 6, 3, 0.4).requires_grad_()
        continuous_top_k(scores, 2, alpha).labels.square().sum().backward()
        assert scores.grad is not None
        sizes.append(float(scores.grad.norm()))
    assert sizes[1] > 100 * sizes[2] > 100 * sizes[3]

"""First-order chains with torch operations: every shape of tables against enumeration and float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from energyml.backends.exact import partition, scaled
from energyml.backends.exact import viterbi as best
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import (
    chain_best,
    chain_draws,
    chain_entropy,
    chain_expected,
    chain_log_partition,
    chain_marginals,
    chain_max_marginals,
    chain_score,
)
from energyml.backends.exact.scan import Blocks, cut
from energyml.backends.exact.struct_engine import struct_log_partition
from energyml.backends.exact.unscaled import LogSpace
from tests.contract.device_harness import DeviceHarness
from tests.exact.torch_chains import KINDS, NINF, SIZES, answers, double, draw, gradients, reference, same, tracked

torch.set_num_threads(1)


@pytest.fixture(params=["whole", "blocks", "paired"])
def cutting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Chains as a whole, cut into three blocks wherever there are steps enough, and both directions in one row."""

    def cut_always(batch: int, steps: int, *_: Any) -> Blocks:
        return Blocks(3, -(-steps // 3)) if steps >= 3 and request.param == "blocks" else Blocks(1, steps)

    monkeypatch.setattr(scaled, "cut", cut_always)
    monkeypatch.setattr(best, "cut_maxima", cut_always)
    if request.param != "paired":
        monkeypatch.setattr(partition, "paired", lambda *_: None)
        monkeypatch.setattr(partition, "forward_log_z", lambda *_: None)
    return str(request.param)


# --------------------------------------------------------------------------------------------------- values, gradients


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_everything_against_enumeration(kind: str, forbidden: float, cutting: str) -> None:
    for seed, ragged in enumerate((False, True)):
        potentials = draw(3, 5, 3, kind, forbidden=forbidden, ragged=ragged, seed=seed)
        log_z, _, _ = gradients(potentials, chain_log_partition)
        cells, joint = chain_marginals(potentials, True)
        labels, score = chain_best(potentials, 1)
        assert joint is not None
        highest = chain_max_marginals(potentials)
        entropy = chain_entropy(cells, joint)
        for b, every, scores in answers(potentials):
            same(log_z[b], scores.logsumexp(0), 1e-10)
            same(score[b, 0], scores.amax(), 1e-10)
            torch.testing.assert_close(chain_score(potentials, every.expand(3, *every.shape))[b], scores)
            length = 5 if potentials.count is None else int(potentials.count[b])
            possible = not log_z[b].isneginf()
            assert labels[b, 0].tolist()[length:] == [-1] * (5 - length)
            assert (labels[b, 0, :length] >= 0).all() or not possible
            p = (scores - log_z[b]).exp() if possible else torch.zeros_like(scores)
            if possible:
                terms = torch.where(p > 0, -p * torch.where(p > 0, p, 1).log(), 0)
                same(entropy[b], terms.sum(), 1e-9)
            wanted = torch.zeros(5, 3, dtype=torch.float64)
            beside = torch.zeros(4, 3, 3, dtype=torch.float64)
            for t in range(length):
                wanted[t].index_add_(0, every[:, t], p)
                for c in range(3):
                    same(highest[b, t, c], scores[every[:, t] == c].amax(), 1e-10)
                if t:
                    beside[t - 1].view(-1).index_add_(0, every[:, t - 1] * 3 + every[:, t], p)
            same(cells[b], wanted, 1e-10)
            same(joint[b], beside, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 5.0, 30.0, 1e4, 1e6])
def test_log_partition_and_gradients(kind: str, dtype: torch.dtype, scale: float, cutting: str) -> None:
    error = 1e-5 if dtype == torch.float32 else 1e-9
    for seed, shape in enumerate(SIZES):
        for forbidden in (0.0, 0.3, 0.8):
            potentials = draw(
                *shape, kind, scale=scale, forbidden=forbidden, ragged=seed % 2 == 0, dtype=dtype, seed=seed
            )
            wanted = reference(potentials)
            found = gradients(potentials, chain_log_partition)
            assert found[0].dtype == dtype
            same(found[0], wanted[0], error * max(1, shape[1]))
            for one, other in zip(found[1:], wanted[1:], strict=True):
                same(one, other, error * max(1, shape[0] * shape[1]), 1e-4)
            with torch.no_grad():
                torch.testing.assert_close(chain_log_partition(potentials), found[0])
            if shape[1] > 1:
                run = LogSpace(potentials.scores, potentials.steps, potentials.exists)
                same(run.log_z, wanted[0], 1e-9)
                by_cell, by_pair = run.moments(torch.arange(1, shape[0] + 1))
                same(by_cell, wanted[1], 1e-8, 1e-7)
                assert by_pair is not None
                same(by_pair, wanted[2], 1e-8, 1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_examples_of_all_tiers_in_one_batch(kind: str, forbidden: float, cutting: str) -> None:
    for seed in range(4):
        potentials = draw(5, 20, 4, kind, forbidden=forbidden, ragged=seed > 1, dtype=torch.float32, seed=seed)
        potentials.scores[1] *= 100
        potentials.scores[3] *= 1e5
        wanted, found = reference(potentials), gradients(potentials, chain_log_partition)
        same(found[0], wanted[0], 1e-4)
        same(found[1], wanted[1], 1e-4)
        same(found[2], wanted[2], 1e-3)
        cells, joint = chain_marginals(potentials, True)
        exact = chain_marginals(double(potentials), True)
        assert joint is not None and exact[1] is not None
        same(cells, exact[0], 1e-5)
        same(joint, exact[1], 1e-5)


def test_a_path_that_survives_far_below_the_best(cutting: str) -> None:
    """The best prefix is forbidden later, so the answer runs through scores that plain exp space has long lost."""
    scores = torch.zeros(1, 40, 3)
    scores[0, :, 0] = 30.0
    scores[0, -1, 0] = NINF
    steps = torch.zeros(3, 3).fill_diagonal_(5.0)
    steps[0, 1:] = NINF
    potentials = Potentials(scores, steps[None, None], None)
    wanted, found = reference(potentials), gradients(potentials, chain_log_partition)
    for one, other in zip(found, wanted, strict=True):
        same(one, other, 1e-4)


def test_a_label_that_cannot_be_reached_and_would_weigh_everything() -> None:
    scores = torch.zeros(2, 50, 4)
    scores[:, :, 3] = 40.0
    steps = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    steps[:3, 3] = NINF
    scores[0, 0, 3] = NINF
    potentials = Potentials(scores, steps[None, None], None)
    wanted, found = reference(potentials), gradients(potentials, chain_log_partition)
    for one, other in zip(found, wanted, strict=True):
        same(one, other, 1e-3)


def test_a_long_chain_is_cut_and_stays_right() -> None:
    assert cut(1, 1999, 23, True).number > 1
    assert cut(32, 49, 23, True).number == 1
    for scale in (1.0, 4.0):
        potentials = draw(1, 1500, 12, scale=scale, dtype=torch.float32)
        wanted, found = reference(potentials), gradients(potentials, chain_log_partition)
        same(found[0], wanted[0], 1e-3)
        same(found[1], wanted[1], 1e-5)
        same(found[2], wanted[2], 1e-3, 1e-5)


def test_what_is_no_number_stays_none() -> None:
    for bad in (float("nan"), float("inf")):
        potentials = draw(2, 4, 3, dtype=torch.float32)
        potentials.scores[0, 2, 1] = bad
        value = chain_log_partition(potentials)
        assert not value[0].isfinite() and not value[0].isneginf() and value[1].isfinite()


def test_a_second_backward_pass_gives_the_same() -> None:
    potentials = tracked(draw(4, 6, 5, dtype=torch.float32))
    value = chain_log_partition(potentials).sum()
    first = torch.autograd.grad(value, potentials.scores, retain_graph=True)
    second = torch.autograd.grad(value, potentials.scores)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------ low precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["shared", "both"])
def test_low_precision_sums_in_high_precision(dtype: torch.dtype, kind: str) -> None:
    potentials = draw(4, 60, 7, kind, ragged=True, dtype=dtype)
    wanted, found = reference(potentials), gradients(potentials, chain_log_partition)
    unit = torch.finfo(dtype).eps
    assert all(one.dtype == dtype for one in found)
    same(found[0], wanted[0], unit, unit)  # nothing but the rounding of the answer
    for one, other in zip(found[1:], wanted[1:], strict=True):
        same(one, other, 4 * unit, unit)
    cells, joint = chain_marginals(potentials, True)
    assert joint is not None and cells.dtype == joint.dtype == dtype
    exact = chain_marginals(double(potentials), True)
    assert exact[1] is not None
    same(cells, exact[0], unit, unit)
    same(joint, exact[1], unit, unit)
    for count in (1, 3):
        labels, rounded = chain_best(potentials, count)
        _, score = chain_best(double(potentials), count)
        assert rounded.dtype == dtype
        same(rounded, score, unit, unit)
        same(chain_score(double(potentials), labels), score, 1e-4)
    best = chain_max_marginals(potentials)
    assert best.dtype == dtype
    same(best, chain_max_marginals(double(potentials)), unit, unit)
    struct = struct_log_partition(potentials)
    assert struct.dtype == dtype
    same(struct, wanted[0], unit, unit)


def test_types_that_differ_and_autocast() -> None:
    potentials = draw(2, 70, 4, dtype=torch.float32)
    mixed = Potentials(potentials.scores.bfloat16(), potentials.steps, None)
    assert chain_log_partition(mixed).dtype == torch.float32
    wanted = reference(mixed)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(mixed, chain_log_partition)
    assert (found[1].dtype, found[2].dtype) == (torch.bfloat16, torch.float32)
    same(found[0], wanted[0], 1e-4)
    same(found[2], wanted[2], 1e-4)


# ------------------------------------------------------------------------------------------------ other recursions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_best_answer_equals_the_first_of_many(
    kind: str, few: int, scale: float, cutting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best, "FEW", few)
    monkeypatch.setattr(best, "HELD", 64)
    for seed, shape in enumerate(SIZES):
        for forbidden in (0.0, 0.4):
            potentials = draw(*shape, kind, scale=scale, forbidden=forbidden, ragged=seed % 2 == 1, seed=seed)
            labels, score = chain_best(potentials, 1)
            many, scores = chain_best(potentials, 2)
            assert labels.shape == (shape[0], 1, shape[1])
            same(score[:, 0], scores[:, 0], 1e-9, 1e-12)
            assert torch.equal(labels[:, 0] >= 0, many[:, 0] >= 0)
            possible = score.isfinite()
            same(chain_score(potentials, labels)[possible], score[possible], 1e-9, 1e-12)


def test_gradients_of_the_best_score_are_its_path() -> None:
    potentials = tracked(draw(2, 5, 3, "both", ragged=True, seed=3))
    labels, score = chain_best(potentials, 1)
    score.sum().backward()
    wanted = torch.nn.functional.one_hot(labels[:, 0].clamp(min=0), 3) * (labels[:, 0] >= 0).unsqueeze(-1)
    assert potentials.scores.grad is not None
    torch.testing.assert_close(potentials.scores.grad, wanted.double())


def test_draws_follow_the_marginals() -> None:
    for scale, kind in ((1.0, "shared"), (1e4, "both")):
        potentials = draw(3, 4, 3, kind, scale=scale, forbidden=0.2, dtype=torch.float32, seed=5)
        potentials = Potentials(potentials.scores, potentials.steps, torch.tensor([4, 2, 0]))
        generator = torch.Generator().manual_seed(0)
        drawn, possible = chain_draws(potentials, 4000, generator)
        assert torch.equal(possible, ~chain_log_partition(potentials).isneginf())
        cells, joint = chain_marginals(potentials, True)
        assert joint is not None
        hot = torch.nn.functional.one_hot(drawn, 3).double()
        for b in range(3):
            if not possible[b]:
                continue
            length = (4, 2, 0)[b]
            assert ((hot[b].mean(0)[:length] - cells[b, :length]).abs() < 0.04).all()
            if length > 1:
                found = torch.einsum("nti,ntj->tij", hot[b, :, : length - 1], hot[b, :, 1:length]) / 4000
                assert ((found - joint[b, : length - 1]).abs() < 0.04).all()


def test_the_expectation_of_another_score() -> None:
    for seed, kind in enumerate(KINDS):
        model = draw(3, 4, 3, kind, forbidden=0.2, ragged=True, seed=seed)
        other = draw(3, 4, 3, KINDS[-1 - seed], seed=seed + 9)
        other = Potentials(other.scores, other.steps, model.count)
        cells, joint = chain_marginals(model, True)
        assert joint is not None
        found = chain_expected(cells, joint, other.scores, other.steps)
        for (b, _, scores), (_, _, values) in zip(answers(model), answers(other), strict=True):
            total = scores.logsumexp(0)
            p = (scores - total).exp() if total.isfinite() else torch.zeros_like(scores)
            same(found[b], (p * values).sum(), 1e-9)


def test_an_expectation_meets_forbidden_answers() -> None:
    cells = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]], requires_grad=True)
    joint = torch.zeros(2, 0, 3, 3)
    scores = torch.tensor([[[1.0, NINF, NINF]], [[2.0, NINF, float("nan")]]], requires_grad=True)
    found = chain_expected(cells, joint, scores, torch.zeros(1, 1, 3, 3))
    assert found.tolist() == [NINF, 2.0]
    found.masked_fill(found.isneginf(), 0).sum().backward()
    assert cells.grad is not None and scores.grad is not None
    assert cells.grad.isfinite().all() and scores.grad.tolist() == [[[0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]]


# ------------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
def test_nothing_leaves_the_device(kind: str, ragged: bool) -> None:
    small = draw(3, 5, 4, kind, ragged=ragged, dtype=torch.float32)
    count = None if small.count is None else small.count.to("meta")
    scores, steps = (one.to("meta").requires_grad_() for one in (small.scores, small.steps))
    with DeviceHarness([scores, steps]):
        potentials = Potentials(scores, steps, count)
        chain_log_partition(potentials).sum().backward()
        labels, score = chain_best(potentials, 1)
        cells, joint = chain_marginals(potentials, True)
        drawn, _ = chain_draws(potentials, 2, None)
        assert joint is not None
        for one in (labels, score, cells, joint, drawn, chain_expected(cells, joint, scores, steps)):
            assert one.device.type == "meta"


def test_cost_of_a_cut_is_weighed() -> None:
    """Few labels and many steps are cut; many labels are not, for that costs as many times the products."""
    assert cut(1, 5000, 400, True).number == 1
    assert cut(512, 2000, 50, True).number == 1
    blocks = cut(1, 5000, 5, True)
    assert math.isclose(blocks.number, blocks.length, rel_tol=0.1)

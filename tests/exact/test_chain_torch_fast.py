"""Short cuts of chains with torch operations: small ones, known labels, both ends at once, blocks of long ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from energyml.backends.exact import meeting, merging
from energyml.backends.exact.meeting import best_from_both_ends, holds
from energyml.backends.exact.merging import best_in_blocks, cut_for_merging
from energyml.backends.exact.paired import forward_log_z, paired
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import (
    chain_best,
    chain_likelihood,
    chain_log_partition,
    chain_marginals,
    chain_score,
)
from energyml.backends.exact.unscaled import LogSpace
from tests.exact.torch_chains import CASES, KINDS, NINF, SIZES, double, draw, gradients, same, tracked

torch.set_num_threads(1)

# ------------------------------------------------------------------------------------- small chains, and their labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ragged", [False, True])
def test_forward_and_backward_side_by_side(dtype: torch.dtype, ragged: bool) -> None:
    error = 1e-5 if dtype == torch.float32 else 1e-11
    for seed, shape in enumerate([(3, 2, 3), (5, 3, 4), (4, 9, 1), (2, 70, 5), (7, 131, 3), (1, 40, 48), (6, 200, 2)]):
        for scale in (0.0, 1.0, 2.0):
            potentials = draw(*shape, scale=scale, ragged=ragged, dtype=dtype, seed=seed)
            potentials.scores += 1000.0 * (seed % 3)
            wanted = LogSpace(potentials.scores, potentials.steps, potentials.exists)
            weight = torch.linspace(-1e5, 1e5, shape[0], dtype=torch.float64)
            met = forward_log_z(potentials.scores, potentials.steps, potentials.count)
            run = paired(potentials.scores, potentials.steps, potentials.exists)
            assert met is not None and run is not None
            same(met, wanted.log_z, error * shape[1])
            same(run.log_z, wanted.log_z, error * shape[1])
            for each in (False, True):
                found, truth = (one.moments(weight, True, each) for one in (run, wanted))
                assert found[1] is not None and truth[1] is not None
                same(found[0], truth[0], 1e5 * error)
                same(found[1], truth[1], 1e5 * error * shape[1], 1e-4 if dtype == torch.float32 else 1e-9)


def test_what_side_by_side_does_not_serve() -> None:
    near = draw(3, 5, 4, dtype=torch.float32)
    for serve in (lambda *given: paired(*given, None), lambda *given: forward_log_z(*given, None)):
        what_it_serves(serve, near)


def what_it_serves(serve: Callable[[Tensor, Tensor], object], near: Potentials) -> None:
    assert serve(near.scores, near.steps) is not None
    assert serve(near.scores, near.steps.expand(3, 1, 4, 4)) is None
    for bad in (NINF, float("nan"), float("inf"), 100.0):
        for place in (near.scores, near.steps):
            kept = place[0, 0, 0].clone()
            place[0, 0, 0] = bad
            assert serve(near.scores, near.steps) is None
            place[0, 0, 0] = kept


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), NINF, 1e30, 7.0])
def test_what_stands_behind_the_end_does_not_matter(garbage: float) -> None:
    for size in (9, 150, 700):
        clean = draw(3, size, 4, dtype=torch.float32, seed=size)
        clean = Potentials(clean.scores, clean.steps, torch.tensor([0, size // 3, size - 1]))
        assert clean.exists is not None
        filled = clean.scores.masked_fill(~clean.exists.unsqueeze(-1), garbage)
        dirty = Potentials(filled, clean.steps, clean.count)
        found, wanted = (gradients(one, chain_log_partition) for one in (dirty, clean))
        for one, other in zip(found, wanted, strict=True):
            same(one, other, 1e-4, 1e-4)
        likelihoods = [chain_likelihood(one, torch.zeros(3, size, dtype=torch.long)) for one in (dirty, clean)]
        torch.testing.assert_close(*likelihoods, rtol=1e-4, atol=1e-4)
        for answer in (
            lambda given: chain_best(given, 1)[0],
            lambda given: chain_best(given, 1)[1],
            lambda given: chain_marginals(given, False)[0],
        ):
            torch.testing.assert_close(answer(dirty), answer(clean), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_the_likelihood_is_the_score_less_the_log_partition(kind: str, ragged: bool, forbidden: float) -> None:
    for seed, shape in enumerate(SIZES):
        for scale in (1.0, 1e4):
            potentials = draw(*shape, kind, scale=scale, ragged=ragged, forbidden=forbidden, seed=seed)
            labels = torch.randint(shape[2], shape[:2], generator=torch.Generator().manual_seed(seed))
            if potentials.exists is not None:
                labels = labels.masked_fill(~potentials.exists, -1)

            def apart(given: Potentials, labels: Tensor = labels) -> Tensor:
                score = chain_score(given, labels.unsqueeze(1))[:, 0]
                gone = score.isneginf()
                total = score.masked_fill(gone, 0) - chain_log_partition(given).masked_fill(gone, 0)
                return total.masked_fill(gone, NINF)

            def whole(given: Potentials, labels: Tensor = labels) -> Tensor:
                found = chain_likelihood(given, labels)
                assert found is not None
                return found

            for one, other in zip(gradients(potentials, whole), gradients(potentials, apart), strict=True):
                same(one, other, 1e-7)
            with torch.no_grad():
                same(whole(potentials), apart(potentials), 1e-7)


@CASES
def test_the_likelihood_to_second_order(case: Potentials) -> None:
    case, labels = tracked(case), torch.tensor([[0, 2, 1, 1], [1, 0, 0, 2]])

    def value(scores: Tensor, steps: Tensor) -> Tensor:
        found = chain_likelihood(Potentials(scores, steps, case.count), labels)
        assert found is not None
        return found

    assert torch.autograd.gradcheck(value, (case.scores, case.steps))
    assert torch.autograd.gradgradcheck(value, (case.scores, case.steps))


def test_a_likelihood_that_is_small_beside_its_parts() -> None:
    potentials = draw(4, 60, 5, dtype=torch.float32)
    potentials.scores += 1e4
    labels = torch.zeros(4, 60, dtype=torch.long)
    found, wanted = chain_likelihood(potentials, labels), chain_likelihood(double(potentials), labels)
    assert found is not None and wanted is not None
    same(found, wanted, 1e-3)


def test_labels_that_are_not_known_are_left_to_others() -> None:
    potentials = draw(2, 4, 3)
    for strange in (-1, 3):
        labels = torch.tensor([[0, 1, 2, 0], [1, strange, 0, 0]])
        assert chain_likelihood(potentials, labels) is None
        short = Potentials(potentials.scores, potentials.steps, torch.tensor([4, 1]))
        assert chain_likelihood(short, labels) is not None


# ------------------------------------------------------------------------------------------------------- best answers


def decoded_well(potentials: Potentials, labels: Tensor, score: Tensor, error: float) -> None:
    """Whether labels [B, T] have the score that is said, and the best score in float64."""
    exact = double(potentials)
    _, wanted = best_from_both_ends(exact.scores, exact.steps, exact.count)
    same(chain_score(exact, labels.unsqueeze(1))[:, 0], wanted, error)
    same(score, wanted, error)


@pytest.mark.parametrize("kind", ["shared", "example"])
@pytest.mark.parametrize("forbidden", [0.0, 0.1])
def test_both_ends_of_long_chains(kind: str, forbidden: float) -> None:
    for seed, shape in enumerate([(3, 129, 4), (2, 200, 7), (9, 161, 2), (1, 400, 20)]):
        for ragged in (False, True):
            potentials = draw(*shape, kind, forbidden=forbidden, ragged=ragged, seed=seed)
            found = best_from_both_ends(potentials.scores, potentials.steps, potentials.count)
            _, scores = chain_best(potentials, 2)
            same(found[1], scores[:, 0], 1e-9)
            reached = chain_score(potentials, found[0].unsqueeze(1))[:, 0]
            same(reached, scores[:, 0], 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
def test_sums_of_all_steps_held(kind: str, forbidden: float, scale: float) -> None:
    for seed, shape in enumerate([(3, 2, 3), (20, 25, 7), (1, 30, 12), (100, 5, 2), (4, 9, 1)]):
        for ragged in (False, True):
            potentials = draw(*shape, kind, scale=scale, forbidden=forbidden, ragged=ragged, seed=seed)
            assert holds(potentials.scores)
            labels, score = best_from_both_ends(potentials.scores, potentials.steps, potentials.count)
            _, wanted = chain_best(potentials, 2)
            same(score, wanted[:, 0], 1e-9)
            same(chain_score(potentials, labels.unsqueeze(1))[:, 0], wanted[:, 0], 1e-9, 1e-9)


@pytest.mark.parametrize("few", [0, 1 << 20], ids=["asked", "held"])
@pytest.mark.parametrize("labels", [3, 90], ids=["chains innermost", "labels innermost"])
@pytest.mark.parametrize("size", [4, 5, 40])
def test_chains_of_all_lengths_are_met_in_the_middle(
    size: int, labels: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lengths at once, one beyond the end too; what stands behind the end is no number."""
    monkeypatch.setattr(meeting, "FEW", few)
    monkeypatch.setattr(meeting, "HELD", few * size)
    potentials = draw(size + 2, size, labels, seed=size)
    count = torch.arange(size + 2)
    assert holds(potentials.scores) == bool(few) and (2 * len(count) >= labels) == (labels == 3)
    filled = potentials.scores.masked_fill((torch.arange(size) >= count.unsqueeze(1)).unsqueeze(-1), float("nan"))
    found, score = best_from_both_ends(filled, potentials.steps, count)
    given = Potentials(potentials.scores, potentials.steps, count)
    same(score, chain_best(given, 2)[1][:, 0], 1e-9)
    same(chain_score(given, found.unsqueeze(1))[:, 0], score, 1e-9)


@pytest.mark.parametrize("few", [0, 1 << 20], ids=["asked", "held"])
def test_labels_are_labels_where_all_is_forbidden(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An even number of cells is filled up with one more, whose label is none of an answer."""
    monkeypatch.setattr(meeting, "FEW", few)
    scores = torch.full((2, 4, 3), NINF, dtype=torch.float64)
    labels, score = best_from_both_ends(scores, torch.zeros(1, 1, 3, 3, dtype=torch.float64), None)
    assert score.isneginf().all() and (labels >= 0).all() and (labels < 3).all()


def test_best_answers_can_be_gone_on_from() -> None:
    """Nothing that autograd refuses leaves the recursion."""
    for shape in ((2, 5, 3), (9, 30, 20), (1, 1500, 12)):
        potentials = draw(*shape, ragged=True)
        labels, score = chain_best(potentials, 1)
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        (factor * score * labels.sum()).sum().backward()
        assert potentials.exists is not None and not potentials.exists.is_inference()
        assert not labels.is_inference() and not score.is_inference()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ragged", [False, True])
def test_blocks_of_long_chains_whose_ways_merge(dtype: torch.dtype, ragged: bool) -> None:
    error, merged = 0.02 if dtype == torch.float32 else 1e-8, 0
    for seed, shape in enumerate([(1, 1500, 12), (2, 700, 6), (3, 601, 30), (2, 900, 3)]):
        blocks = cut_for_merging(shape[0], shape[1] - 1, shape[2])
        assert blocks.number > 1
        potentials = draw(*shape, ragged=ragged, dtype=dtype, seed=seed)
        found = best_in_blocks(potentials.scores, potentials.steps, potentials.exists, blocks)
        if found is not None:
            merged += 1
            decoded_well(potentials, *found, error)
        labels, score = chain_best(potentials, 1)
        decoded_well(potentials, labels[:, 0], score[:, 0], error)
    assert merged


@pytest.mark.parametrize("early", [1, 2, 20])
def test_ways_that_do_not_merge_are_found_all_the_same(early: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties, labels that stay what they are, forbidden ones, and blocks that start too late."""
    monkeypatch.setattr(meeting, "EARLY", early)
    monkeypatch.setattr(merging, "EARLY", early)
    for seed, stay in enumerate((0.0, 6.0, 50.0)):
        potentials = draw(2, 600, 4, ragged=seed == 1, seed=seed)
        steps = potentials.steps.round() + stay * torch.eye(4, dtype=torch.float64)
        for forbid in (False, True):
            steps[0, 0, 1, 2] = NINF if forbid else 0
            for scores in (potentials.scores, potentials.scores.round(), torch.zeros_like(potentials.scores)):
                given = Potentials(scores, steps, potentials.count)
                labels, score = chain_best(given, 1)
                decoded_well(given, labels[:, 0], score[:, 0], 1e-8)


@pytest.mark.parametrize("size", [7, 8, 600])
def test_gradients_of_the_best_score_are_its_path_where_chains_end(size: int) -> None:
    potentials = draw(3, size, 3, seed=3)
    potentials = tracked(Potentials(potentials.scores, potentials.steps, torch.tensor([0, size // 3, size])))
    labels, score = chain_best(potentials, 1)
    score.sum().backward()
    wanted = torch.nn.functional.one_hot(labels[:, 0].clamp(min=0), 3) * (labels[:, 0] >= 0).unsqueeze(-1)
    assert potentials.scores.grad is not None
    torch.testing.assert_close(potentials.scores.grad, wanted.double())

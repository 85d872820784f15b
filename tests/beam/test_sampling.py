"""Draws from left to right: their laws, on trees small enough to be written down."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from energyml.backends.beam.sampling import Proposal, ancestral, without_replacement
from tests.beam.models import MIXED, tagger, translation
from tests.beam.test_steps import EXAMPLES, every_example

DRAWS = 4000


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The statistic over its degrees of freedom: near 1 where the law is right."""
    kept = expected > 5
    return float(((counts - expected).square() / expected)[kept].sum() / max(1, int(kept.sum()) - 1))


@pytest.mark.parametrize("decoder", ["lstm", "transformer"])
def test_ancestral_draws_follow_the_model(decoder: str) -> None:
    example = tagger(decoder, size=2, kind="plain")
    with torch.no_grad():
        drawn = example.infer("ancestral").sample(DRAWS, generator())
        truth = example.infer("enumerate").n_best(9)
    for b in range(3):
        code = drawn["y"][:, b] @ torch.tensor([3, 1])
        counts = torch.bincount(code, minlength=9).double()
        expected = torch.zeros(9, dtype=torch.float64).scatter(
            0, truth["y"][b] @ torch.tensor([3, 1]), truth.score[b].exp()
        )
        torch.testing.assert_close(expected.sum(), torch.tensor(1.0, dtype=torch.float64))
        assert chi_square(counts, DRAWS * expected) < 2.5


@every_example
def test_draws_come_with_the_probability_of_drawing_them(name: str) -> None:
    example = EXAMPLES[name]()
    with torch.no_grad():
        posterior = example.infer("ancestral")
        result = posterior.ask("sample", count=6, generator=generator())
        done = ~result.value.score.isneginf()
        scores = torch.stack([posterior.problem.score({"y": one}) for one in result.value["y"]])
        torch.testing.assert_close(result.value.score[done], scores[done])
        if posterior.problem.steps().local and posterior.problem.steps().end is None:
            torch.testing.assert_close(result.statistics["log_proposal"], result.value.score)


def test_importance_weights_estimate_the_partition_function() -> None:
    """With tables a draw is a proposal: the mean weight is Z, whatever dead ends there are."""
    example = tagger("lstm", "global", more=MIXED, size=3, kind="plain")
    with torch.no_grad():
        result = example.infer("ancestral").ask("sample", count=DRAWS, generator=generator())
        weights = (result.value.score - result.statistics["log_proposal"].nan_to_num(neginf=0)).exp()
        truth = example.infer("enumerate").log_partition.exp()
    error = weights.std(0) / DRAWS**0.5
    assert ((weights.mean(0) - truth).abs() < 4 * error + 1e-9).all()


def test_proposals_are_cut_and_sharpened() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, float("-inf")]], dtype=torch.float64)
    p = scores.softmax(-1)
    torch.testing.assert_close(Proposal(0.5).log_probabilities(scores), (scores / 0.5).log_softmax(-1))
    assert Proposal(top=2).log_probabilities(scores).isneginf().tolist() == [[False, False, True, True]]
    assert Proposal(nucleus=float(p[0, 0]) + 0.01).log_probabilities(scores).isneginf().tolist() == [
        [False, False, True, True]
    ]
    assert Proposal(nucleus=0.0).log_probabilities(scores).isneginf().tolist() == [[False, True, True, True]]
    for proposal in (Proposal(0.7), Proposal(top=2), Proposal(nucleus=0.8)):
        total = proposal.log_probabilities(scores).exp().sum()
        torch.testing.assert_close(total, torch.tensor(1.0, dtype=torch.float64))
    nothing = torch.full((1, 4), float("-inf"))
    assert Proposal(nucleus=0.5).log_probabilities(nothing).isneginf().all()


def test_options_reach_the_draws() -> None:
    example = tagger(kind="plain")
    with torch.no_grad():
        best = example.infer("greedy").map()["y"]
        for using in ("ancestral(top: 1)", "ancestral(nucleus: 0)", "ancestral(temperature: 0.0001)"):
            assert (example.infer(using).sample(3, generator())["y"] == best).all()


def test_draws_without_replacement_follow_their_law() -> None:
    """The ordered draws of two leaves have the law of drawing one after the other from what is left."""
    example = tagger("gru", size=2, kind="plain")
    steps = example.infer("stochastic_beam").problem.steps()
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3)).expand(3, -1, -1)
    with torch.no_grad():
        p = steps.score(every).exp()[0]
        counts = torch.zeros(9, 9, dtype=torch.float64)
        random = generator()
        for _ in range(500):
            labels = without_replacement(steps, Proposal(), 2, random).labels[0] @ torch.tensor([3, 1])
            counts[labels[0], labels[1]] += 1
    expected = torch.zeros(9, 9, dtype=torch.float64)
    for one, two in permutations(range(9), 2):
        expected[one, two] = p[one] * p[two] / (1 - p[one])
    torch.testing.assert_close(expected.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert counts.diagonal().sum() == 0
    assert chi_square(counts.flatten(), 500 * expected.flatten()) < 1.8


@pytest.mark.parametrize("count", [1, 2, 4])
def test_inclusion_weights_are_unbiased(count: int) -> None:
    """The weighted sum of a function of the draws has its expectation as mean (Kool et al. 2019, section 4.2)."""
    example = tagger("gru", size=2, kind="plain")
    steps = example.infer("stochastic_beam").problem.steps()
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3)).expand(3, -1, -1)
    with torch.no_grad():
        chances = steps.score(every).exp()
        wanted = torch.stack([(chances * (every[..., 1] == 1)).sum(1), chances.sum(1)], -1)
        random, estimates = generator(), []
        for _ in range(500):
            draws = without_replacement(steps, Proposal(), count, random)
            weights = (draws.log_proposal - draws.log_inclusion).exp()
            estimates.append(torch.stack([(weights * (draws.labels[..., 1] == 1)).sum(1), weights.sum(1)], -1))
    found = torch.stack(estimates)
    assert ((found.mean(0) - wanted).abs() < 4 * found.std(0) / 500**0.5 + 1e-9).all()


@every_example
def test_all_answers_are_drawn_once(name: str) -> None:
    """Asked for more than there are, a stochastic beam gives each answer once, with certainty."""
    example = EXAMPLES[name]()
    with torch.no_grad():
        result = example.infer("stochastic_beam").ask("sample", count=200, generator=generator())
        truth = example.infer("enumerate").log_partition
    torch.testing.assert_close(result.value.score.logsumexp(0), truth)
    drawn = ~result.value.score.isneginf()
    assert (result.statistics["log_inclusion"][drawn] == 0).all()


def test_the_generator_decides() -> None:
    example = translation()
    with torch.no_grad():
        for using in ("ancestral", "stochastic_beam"):
            one, two = (example.infer(using).sample(4, generator())["y"] for _ in range(2))
            assert torch.equal(one, two)


def test_ancestral_counts() -> None:
    steps = translation().infer("beam").problem.steps()
    labels, score, log_q = ancestral(steps, Proposal(), 5, generator())
    assert labels.shape == (2, 5, 4) and score.shape == log_q.shape == (2, 5)
    assert ((labels == steps.end).any(-1)).all()

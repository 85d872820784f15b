"""The STEP view: prefixes scored by networks, tables, constraints and evidence together."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import energyml as em
from energyml.bind.steps import Steps
from energyml.diagnostics import QueryRefused
from tests.beam.models import DECODERS, FREE_TABLES, MIXED, Example, tagger, translation

every_decoder = pytest.mark.parametrize("decoder", DECODERS)
EXAMPLES = {
    "ragged": lambda: tagger(),
    "gaps": lambda: tagger(kind="gaps"),
    "global": lambda: tagger("gru", "global"),
    "with tables": lambda: tagger("transformer", more=MIXED),
    "with tables and gaps": lambda: tagger("lstm", "global", more=MIXED, kind="gaps"),
    "free length": lambda: translation("transformer"),
    "free length with tables": lambda: translation("gru", "global", more=FREE_TABLES),
}
every_example = pytest.mark.parametrize("name", EXAMPLES)


def problem_of(example: Example) -> em.backend.Problem:
    return example.infer("beam").problem


def answers(steps: Steps, seed: int = 0, count: int = 4) -> Tensor:
    """Random answers [B, n, T] by step: one end label where there is one, label 0 behind the end."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps.batch.size, count, steps.size)
    if steps.end is None:
        labels = torch.randint(0, steps.count, shape, generator=generator)
        return labels.masked_fill(torch.arange(steps.size) >= steps.lengths.reshape(-1, 1, 1), 0)
    labels = torch.randint(0, steps.end, shape, generator=generator)
    last = torch.randint(0, steps.size, (*shape[:2], 1), generator=generator)
    return labels.masked_fill(torch.arange(steps.size) >= last, steps.end)


@every_example
def test_steps_add_up_to_the_score(name: str) -> None:
    problem = problem_of(EXAMPLES[name]())
    steps = problem.steps()
    labels = answers(steps)
    placed = steps.place(labels)
    wanted = torch.stack([problem.score({"y": placed[:, n]}) for n in range(labels.shape[1])], 1)
    torch.testing.assert_close(steps.score(labels), wanted)


@every_example
def test_distributions_agree_with_labels_at_the_corners(name: str) -> None:
    steps = problem_of(EXAMPLES[name]()).steps()
    labels = answers(steps).flatten(0, 1)
    hard, soft = steps.start(4), steps.start(4)
    for t in range(steps.size):
        before = labels[:, t - 1] if t else None
        wanted, hard = steps.advance(hard, before, t)
        found, soft = steps.advance(soft, None if before is None else F.one_hot(before, steps.count).double(), t)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(soft.normalizer, hard.normalizer)


@every_example
def test_rows_are_selected_and_blended(name: str) -> None:
    """Selected rows go on as their parents do; a blend by one-hot weights selects."""
    steps = problem_of(EXAMPLES[name]()).steps()
    labels = answers(steps, count=3)
    state = steps.start(3)
    for t in range(2):
        _, state = steps.advance(state, labels[:, :, t - 1].flatten() if t else None, t)
    index = torch.tensor([2, 0, 0, 1, 2]).expand(labels.shape[0], -1)
    before = labels[:, :, 1].gather(1, index).flatten()
    wanted, _ = steps.advance(state, labels[:, :, 1].flatten(), 2)
    chosen = wanted.unflatten(0, (-1, 3)).gather(1, index.unsqueeze(-1).expand(-1, -1, steps.count)).flatten(0, 1)
    torch.testing.assert_close(steps.advance(steps.select(state, index), before, 2)[0], chosen)
    blended = steps.blend(state, F.one_hot(index, 3).double())
    torch.testing.assert_close(steps.advance(blended, before, 2)[0], chosen)


@every_decoder
def test_blends_of_hidden_states_are_means(decoder: str) -> None:
    """Where all rows are the same, any weights give the same state."""
    steps = problem_of(tagger(decoder)).steps()
    state = steps.start(2)
    for t in range(2):
        wanted, state = steps.advance(state, torch.ones(6, dtype=torch.long) if t else None, t)
    weights = torch.tensor([[[0.2, 0.8]]], dtype=torch.float64).expand(3, -1, -1)
    found, _ = steps.advance(steps.blend(state, weights), torch.ones(3, dtype=torch.long), 2)
    wanted, _ = steps.advance(state, torch.ones(6, dtype=torch.long), 2)
    torch.testing.assert_close(found, wanted[::2])


def test_log_probabilities_and_the_normalizer() -> None:
    steps = problem_of(tagger(kind="plain")).steps()
    assert steps.local
    scores, state = steps.advance(steps.start(), None, 0)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    raw, other = problem_of(tagger("lstm", "global", kind="plain")).steps().advance(steps.start(), None, 0)
    torch.testing.assert_close(raw - other.normalizer.unsqueeze(1), scores)
    torch.testing.assert_close(state.normalizer, other.normalizer)


def test_evidence_and_the_ends_of_sequences() -> None:
    example = tagger(kind="ragged")
    allowed = torch.ones(3, 4, 3, dtype=torch.bool)
    allowed[0, 0, 1] = False
    steps = example.infer("beam", evidence={"y": allowed}).problem.steps()
    scores, _ = steps.advance(steps.start(), None, 0)
    assert scores[0].isneginf().tolist() == [False, True, False]
    assert scores[2].tolist() == [0.0, float("-inf"), float("-inf")]  # an empty sentence
    assert not steps.local


def test_a_free_length_ends_once_and_at_last() -> None:
    steps = problem_of(translation()).steps()
    state, previous = steps.start(), None
    for t in range(steps.size):
        scores, state = steps.advance(state, previous, t)
        previous = torch.tensor([2, 0]) if t == 0 else torch.tensor([2, 1])
        if t:
            assert scores[0].tolist() == [float("-inf"), float("-inf"), 0.0]
    assert scores[1].isneginf().tolist() == [True, True, False]


def test_half_ended_distributions_mix_probabilities() -> None:
    steps = problem_of(translation()).steps()
    _, state = steps.advance(steps.start(), None, 0)
    p = torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.5, 0.0]], dtype=torch.float64)
    scores, _ = steps.advance(state, p, 1)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(2, dtype=torch.float64))
    assert (scores[0, 2].exp() > 0.4).all()


@pytest.mark.parametrize("name", ["ragged", "with tables", "free length with tables"])
def test_gradients(name: str) -> None:
    problem = problem_of(EXAMPLES[name]())
    parameters = list(problem.env.module.parameters())
    labels = answers(problem.steps())
    score = problem.steps().score(labels)
    total = torch.where(score.isneginf(), 0, score).sum()
    placed = problem.steps().place(labels)
    direct = torch.stack([problem.score({"y": placed[:, n]}) for n in range(labels.shape[1])], 1)
    wanted = torch.autograd.grad(
        torch.where(direct.isneginf(), 0, direct).sum(), parameters, allow_unused=True, retain_graph=True
    )
    for one, two in zip(torch.autograd.grad(total, parameters, allow_unused=True), wanted, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert one.isfinite().all()
            torch.testing.assert_close(one, two)


def test_soft_steps_pass_gradcheck() -> None:
    steps = problem_of(tagger("transformer", more=MIXED)).steps()

    def last(logits: Tensor) -> Tensor:
        state, previous = steps.start(), None
        for t in range(3):
            scores, state = steps.advance(state, previous, t)
            previous = logits[:, t].softmax(-1)
        return torch.where(scores.isneginf(), 0, scores)

    logits = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(last, (logits,))


def test_bounds_hold() -> None:
    for name in EXAMPLES:
        steps = problem_of(EXAMPLES[name]()).steps()
        bounds = steps.best_remaining()[0]
        every = torch.tensor(list(product(range(steps.count), repeat=steps.size))).expand(steps.batch.size, -1, -1)
        assert (steps.score(every).amax(1) <= bounds + 1e-9).all(), name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("output z : Tag[T]\nfactor f [t in T] (a: y[t], b: z[t]) = w", "beside `y` there is `z`"),
        ("net f = pooled(hidden: 2)\nscore whole (y) = f(soft(y))", "scores whole answers"),
    ],
)
def test_refusals_say_why(text: str, reason: str) -> None:
    spec = (
        "labels Tag = {A, B}\ndim T = 2\noutput y : Tag[T]\nparam w : real[a: Tag, b: Tag]\n"
        + text
        + "\ninput k : real\n"
    )
    model = em.compile(spec + "infer enumerate\n")
    with pytest.raises(QueryRefused, match=reason):
        model.problem(k=torch.zeros(1)).steps()

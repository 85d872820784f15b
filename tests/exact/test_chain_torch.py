"""First-order chains with torch operations: every shape of tables against enumeration and float64, every transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.utils._pytree import tree_leaves

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
from energyml.backends.exact.unscaled import LogSpace, taped_log_partition
from tests.contract.device_harness import DeviceHarness

torch.set_num_threads(1)

NINF = float("-inf")
# What torch says of itself when its forward derivatives and its compiler are loaded.
LOADING = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
SIZES = [(1, 2, 1), (3, 2, 3), (5, 4, 3), (4, 9, 8), (2, 30, 5), (3, 1, 4), (2, 70, 3), (2, 0, 3), (0, 4, 2)]
KINDS = ["shared", "example", "step", "both"]


def draw(
    batch: int, size: int, labels: int, kind: str = "shared", *, scale: float = 1.0, forbidden: float = 0.0,
    ragged: bool = False, dtype: torch.dtype = torch.float64, seed: int = 0,
) -> Potentials:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    examples = max(1, batch) if kind in ("example", "both") else 1
    positions = max(1, size - 1) if kind in ("step", "both") else 1
    scores = scale * torch.randn(batch, size, labels, generator=generator, dtype=torch.float64)
    steps = scale * torch.randn(examples, positions, labels, labels, generator=generator, dtype=torch.float64)
    if forbidden:
        scores[torch.rand(scores.shape, generator=generator) < forbidden] = NINF
        steps[torch.rand(steps.shape, generator=generator) < forbidden] = NINF
    count = torch.randint(0, size + 1, (batch,), generator=generator) if ragged else None
    if count is not None and not batch:
        count = None
    return Potentials(scores.to(dtype), steps.to(dtype), count)


def tracked(potentials: Potentials) -> Potentials:
    scores, steps = (one.detach().clone().requires_grad_() for one in (potentials.scores, potentials.steps))
    return Potentials(scores, steps, potentials.count)


def double(potentials: Potentials) -> Potentials:
    return Potentials(potentials.scores.double(), potentials.steps.double(), potentials.count)


def gradients(potentials: Potentials, value: Callable[[Potentials], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-partitions, and the gradients of their sum, each weighted by another number."""
    potentials = tracked(potentials)
    found = value(potentials)
    weights = torch.arange(1, len(found) + 1, dtype=found.dtype)
    total = (found.masked_fill(found.isneginf(), 0) * weights).sum()
    wanted = (potentials.scores, potentials.steps)
    by = torch.autograd.grad(total, wanted, materialize_grads=True, allow_unused=True)
    return found.detach(), by[0], by[1]


def reference(potentials: Potentials) -> tuple[Tensor, Tensor, Tensor]:
    def value(one: Potentials) -> Tensor:
        if one.scores.shape[1] == 0:
            return one.scores.sum((1, 2)) + 0 * one.steps.sum().nan_to_num(0, 0, 0)
        return taped_log_partition(one.scores, one.steps, one.exists)

    return gradients(double(potentials), value)


def same(found: Tensor, wanted: Tensor, error: float, relative: float = 1e-6) -> None:
    assert not found.isnan().any()
    assert torch.equal(found.isneginf(), wanted.isneginf())
    finite = wanted.isfinite()
    torch.testing.assert_close(found[finite].double(), wanted[finite].double(), atol=error, rtol=relative)


def answers(potentials: Potentials) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each example all its answers [n, T], cells that do not exist being 0, and their scores [n]."""
    batch, size, labels = potentials.scores.shape
    for b in range(batch):
        length = size if potentials.count is None else int(potentials.count[b])
        every = torch.zeros(labels**length, size, dtype=torch.long)
        if length:
            every[:, :length] = torch.cartesian_prod(*[torch.arange(labels)] * length).reshape(-1, length)
        table = potentials.steps.expand(batch, size - 1, labels, labels)[b] if size > 1 else None
        total = torch.zeros(len(every), dtype=torch.float64)
        for t in range(length):
            total = total + potentials.scores[b, t, every[:, t]].double()
            if t:
                assert table is not None
                total = total + table[t - 1, every[:, t - 1], every[:, t]].double()
        yield b, every, total


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


# ------------------------------------------------------------------------------------------- transforms, second order


def cases() -> list[tuple[Potentials, str]]:
    return [
        (draw(2, 4, 3, kind, ragged=ragged, seed=number), f"{kind}-{ragged}")
        for number, kind in enumerate(KINDS)
        for ragged in (False, True)
    ]


CASES = pytest.mark.parametrize("case", [one for one, _ in cases()], ids=[name for _, name in cases()])


@LOADING
@CASES
def test_derivatives_to_second_order_backward_and_forward(case: Potentials) -> None:
    case = tracked(case)

    def value(scores: Tensor, steps: Tensor) -> Tensor:
        return chain_log_partition(Potentials(scores, steps, case.count))

    point = (case.scores, case.steps)
    assert torch.autograd.gradcheck(value, point, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(value, point)


@LOADING
@CASES
def test_transforms_equal_those_of_the_recorded_recursion(case: Potentials) -> None:
    case.steps[0, 0, 0, 1] = NINF

    def value(scores: Tensor, steps: Tensor) -> Tensor:
        return chain_log_partition(Potentials(scores, steps, case.count)).sum()

    def recorded(scores: Tensor, steps: Tensor) -> Tensor:
        return taped_log_partition(scores, steps, case.exists).sum()

    both = (0, 1)
    transforms: list[Callable[[Any], Any]] = [
        lambda f: grad(f, both),
        lambda f: hessian(f, both),
        lambda f: jacrev(jacrev(f, both), both),
        lambda f: jacfwd(f, both),
        lambda f: jacrev(jacfwd(f, both), both),
    ]
    for transform in transforms:
        found, wanted = (tree_leaves(transform(f)(case.scores, case.steps)) for f in (value, recorded))
        for one, other in zip(found, wanted, strict=True):
            assert not one.isnan().any()
            torch.testing.assert_close(one, other)


@CASES
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0), (3, 1)])
def test_vmap_equals_the_loop(case: Potentials, dims: tuple[int | None, int | None]) -> None:
    def value(scores: Tensor, steps: Tensor) -> Tensor:
        return chain_log_partition(Potentials(scores, steps, case.count))

    def by_both(scores: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return grad(lambda *one: value(*one).sum(), (0, 1))(scores, steps)

    generator = torch.Generator().manual_seed(1)
    given = []
    for one, dim in zip((case.scores, case.steps), dims, strict=True):
        if dim is None:
            given.append([one] * 5)
        else:
            more = torch.randn(5, *one.shape, generator=generator, dtype=one.dtype)
            given.append(list(more.unbind(0)))
    stacked = [one[0] if dim is None else torch.stack(one, dim) for one, dim in zip(given, dims, strict=True)]
    torch.testing.assert_close(
        vmap(value, dims)(*stacked), torch.stack([value(*one) for one in zip(*given, strict=True)])
    )
    found = vmap(by_both, dims)(*stacked)
    looped = [by_both(*one) for one in zip(*given, strict=True)]
    for number in (0, 1):
        torch.testing.assert_close(found[number], torch.stack([one[number] for one in looped]))


@CASES
def test_vmap_of_other_answers_equals_the_loop(case: Potentials) -> None:
    more = torch.randn(5, *case.scores.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def asked(scores: Tensor) -> tuple[Tensor, ...]:
        potentials = Potentials(scores, case.steps, case.count)
        cells, joint = chain_marginals(potentials, True)
        assert joint is not None
        return cells, joint, chain_marginals(potentials, False)[0], *chain_best(potentials, 1)

    for found, looped in zip(vmap(asked)(more), zip(*[asked(one) for one in more], strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(looped))


def test_second_derivatives_are_numbers_where_answers_are_forbidden() -> None:
    for seed in range(6):
        potentials = tracked(draw(3, 5, 3, KINDS[seed % 4], forbidden=0.5, ragged=seed > 2, seed=seed))
        value = chain_log_partition(potentials)
        total = value.masked_fill(value.isneginf(), 0).sum()
        given = (potentials.scores, potentials.steps)
        first = torch.autograd.grad(total, given, create_graph=True)
        second = torch.autograd.grad(sum((one * one).sum() for one in first), given)
        for one in (*first, *second):
            assert one.isfinite().all()


# ---------------------------------------------------------------------------------------------------------- compiling


@LOADING
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_as_one_graph(backend: str) -> None:
    torch.compiler.reset()
    for count in (None, torch.tensor([4, 2])):
        potentials = draw(2, 4, 3, dtype=torch.float32)
        potentials.steps[0, 0, 0, 1] = NINF

        def value(scores: Tensor, steps: Tensor, count: Tensor | None = count) -> Tensor:
            return chain_log_partition(Potentials(scores, steps, count)).sum()

        def decoded(scores: Tensor, steps: Tensor, count: Tensor | None = count) -> tuple[Tensor, ...]:
            potentials = Potentials(scores, steps, count)
            cells, joint = chain_marginals(potentials, True)
            assert joint is not None
            return *chain_best(potentials, 1), cells, joint

        scores, steps = potentials.scores, potentials.steps
        results = []
        for function in (value, torch.compile(value, fullgraph=True, backend=backend)):
            given = scores.clone().requires_grad_(), steps.clone().requires_grad_()
            total = function(*given)
            results.append((total.detach(), *torch.autograd.grad(total, given)))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)
        for one, other in zip(
            decoded(scores, steps),
            torch.compile(decoded, fullgraph=True, backend=backend)(scores, steps),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


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
    labels, _ = chain_best(potentials, 1)
    _, score = chain_best(double(potentials), 1)
    reached = chain_score(double(potentials), labels)
    same(reached, score, 16 * unit * 60)


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

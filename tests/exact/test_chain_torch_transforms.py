"""First-order chains with torch operations under every transform: second order, `torch.func`, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.utils._pytree import tree_leaves

from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.recursion import chain_best, chain_log_partition, chain_marginals
from energyml.backends.exact.unscaled import taped_log_partition
from tests.exact.torch_chains import CASES, KINDS, LOADING, NINF, draw, tracked

torch.set_num_threads(1)


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

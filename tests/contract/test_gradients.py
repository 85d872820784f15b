"""Gradients: never NaN, right to second order, and without side effects on the inputs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from energyml.energy_model import EnergyModel
from energyml.result import Assignment
from tests.contract.cases import Case
from tests.contract.checks import Question
from tests.contract.reference import examples
from tests.contract.settings import (
    BACKENDS,
    ENGINES,
    FAMILIES,
    TABLES,
    card_of,
    exact_objectives,
    exact_queries,
    some,
)

torch.set_num_threads(1)


DIFFERENTIABLE = (
    "log_partition", "entropy", "marginals", "factor_marginals", "max_marginals", "map", "map_bound", "n_best",
)  # fmt: skip


def numbers_of(value: object) -> list[Tensor]:
    """The real tensors of an answer."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Assignment):
        return [value.score]
    assert isinstance(value, dict)
    return list(value.values())


def weighted_sum(tensors: list[Tensor]) -> Tensor:
    """A scalar in which every finite entry counts."""
    generator = torch.Generator().manual_seed(1)
    parts = []
    for one in tensors:
        weights = torch.rand(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) + 0.5
        parts.append((one.masked_fill(one.isinf(), 0) * weights).sum())
    return torch.stack(parts).sum() if parts else torch.zeros(())


def check_gradients(total: Tensor, case: Case, what: str) -> None:
    wanted = [one for one in (*case.inputs.values(), *case.model.parameters()) if one.requires_grad]
    if not total.requires_grad:
        return
    for found in torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=True):
        assert found is None or not found.isnan().any(), f"NaN in a gradient of {what}"
        assert found is None or not found.isinf().any(), f"inf in a gradient of {what}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("using", [*BACKENDS, *ENGINES])
def test_gradients_are_numbers(using: str, family: str) -> None:
    @some(25)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        if not case.model.plan(using).verdict.serves:
            return
        case = case.tracked()
        before = {name: (one, one._version, one.requires_grad) for name, one in case.inputs.items()}
        posterior = case.infer(using)
        for kind in sorted(set(DIFFERENTIABLE) & exact_queries(using)):
            check_gradients(weighted_sum(numbers_of(posterior.ask(kind, count=2).value)), case, kind)
        question = Question(case, posterior, examples(replace(case, inputs=detached(case))))
        gold = question.best_answer()
        for objective in exact_objectives(using):
            if objective == "pseudo_likelihood" and not question.is_full(gold):
                continue
            losses = case.model.loss(objective=objective, using=using, reduction="none", **case.arguments(**gold))
            check_gradients(weighted_sum([losses]), case, objective)
        for name, one in case.inputs.items():
            assert before[name] == (one, one._version, one.requires_grad), f"`{name}` was changed"

    run()


APPROXIMATIONS = [
    using for using in BACKENDS if set(card_of(using).answers) & set(DIFFERENTIABLE) - exact_queries(using)
]


@pytest.mark.parametrize("family", TABLES)
@pytest.mark.parametrize("using", APPROXIMATIONS)
def test_gradients_of_approximations_are_numbers(using: str, family: str) -> None:
    @some(25)
    @given(case=FAMILIES[family])
    def run(case: Case) -> None:
        verdict = case.model.plan(using).verdict
        if not verdict.serves:
            return
        case = case.tracked()
        posterior = case.infer(using)
        for kind in sorted(set(DIFFERENTIABLE) & set(verdict.answers)):
            check_gradients(weighted_sum(numbers_of(posterior.ask(kind, count=2).value)), case, f"{kind} by {using}")

    run()


def detached(case: Case) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in case.inputs.items()}


@pytest.mark.parametrize("using", [*BACKENDS, *ENGINES])
def test_inputs_keep_their_requires_grad(using: str) -> None:
    case = small_cases()["chain"]
    for kind in sorted({*DIFFERENTIABLE, "sample"} & exact_queries(using)):
        case.infer(using).ask(kind, count=2)
        assert not any(one.requires_grad for one in case.inputs.values()), kind
    text = case.text.replace("param w", "input w")
    inputs = {**case.inputs, "w": torch.randn(2, 3, 3, dtype=torch.float64)}
    frozen = replace(case, text=text, inputs=inputs)
    for kind in sorted(set(DIFFERENTIABLE) & exact_queries(using)):
        assert not any(one.requires_grad for one in numbers_of(frozen.infer(using).ask(kind).value)), kind


# ------------------------------------------------------------------------------------------------------- second order


def small_cases() -> dict[str, Case]:
    """Small models with constraints, masks and lengths; all inputs finite, so that differences can be taken."""
    generator = torch.Generator().manual_seed(11)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    chain = """\
dim T
labels Tag = {A, B, C}
input u : real[T, Tag]
output y : Tag[T]
param w : real[from: Tag, to: Tag]
chain y { unary: u, pair: w }
forbid [t in T-1] y[t] = A and y[t+1] = B
forbid y[0] = C
"""
    positions = """\
dim T
labels Tag = {A, B}
input u : real[T, Tag]
input v : real[T-1, from: Tag, to: Tag]
output y : Tag[T]
factor unary [t in T] (y[t]) = u[t]
factor pair [t in T-1] (to: y[t+1], from: y[t]) = v[t]
"""
    grid = """\
dim H = 2, W = 2
labels Tag = {A, B}
input u : real[H, W, Tag]
input k : real
output y : Tag[H, W]
latent s : Tag
param w : real[a: Tag, b: Tag]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(k)
factor whole [i in H, j in W] (a: y[i, j], b: s) = w
"""
    trees = """\
dim T, E
labels Tag = {A, B}
input u : real[T, Tag]
input link : edge(T, T)[E]
output y : Tag[T]
param w : real[a: Tag, b: Tag]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = w
"""
    link = torch.tensor([[[0, 1], [2, 1]], [[1, 0], [-1, -1]]])
    lengths = {"T": torch.tensor([3, 1])}
    masks = {"y": torch.tensor([[False, True, True], [True, False, True]])}
    return {
        "chain": Case(chain, {"u": real(2, 3, 3)}, {"T": 3}, lengths, batch=2),
        "positions": Case(positions, {"u": real(2, 3, 2), "v": real(2, 2, 2, 2)}, {"T": 3}, {}, masks, batch=2),
        "trees": Case(trees, {"u": real(2, 3, 2), "link": link}, {"T": 3, "E": 2}, batch=2),
        "grid": Case(grid, {"u": real(1, 2, 2, 2), "k": real(1)}, {}, batch=1),
    }


class Asked(nn.Module):
    """A model and a question, as one function of parameters and inputs: a posterior computes when it is asked."""

    def __init__(self, model: EnergyModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, kind: str, **arguments: Any) -> Tensor:
        return torch.cat([one.flatten() for one in numbers_of(self.model.infer(**arguments).ask(kind).value)])


MODELS = ("chain", "positions", "trees", "grid")
SECOND = ("log_partition", "entropy", "marginals")
SERVE_ALL = ("exact", "enumerate", "exact(engine: torch)")


def entry_by_entry(using: str, name: str, kind: str) -> bool:
    """Whether second derivatives are compared one by one, or along random directions, which is ten times cheaper.

    One by one for one in three of the backends that serve all models: every backend meets every model, every backend
    every query, every model every query. For other backends, and with ENERGYML_FUZZ, always.
    """
    if using not in SERVE_ALL or "ENERGYML_FUZZ" in os.environ:
        return True
    return (SERVE_ALL.index(using) + MODELS.index(name) + SECOND.index(kind)) % 3 == 0


@pytest.mark.parametrize("kind", SECOND)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("using", [*BACKENDS, *ENGINES])
def test_derivatives_to_second_order(using: str, name: str, kind: str) -> None:
    case = small_cases()[name]
    if not case.model.plan(using).verdict.serves or kind not in exact_queries(using):
        return
    names = [name for name, one in case.inputs.items() if one.is_floating_point()]
    parameters = dict(case.model.named_parameters())
    asked = Asked(case.model)

    def function(*tensors: Tensor) -> Tensor:
        given_ = dict(zip([*names, *parameters], tensors, strict=True))
        bound = {f"model.{key}": given_.pop(key) for key in parameters}
        arguments = replace(case, inputs={**case.inputs, **given_}).arguments(using=using)
        return torch.func.functional_call(asked, bound, (kind,), arguments)

    leaves = [*(case.inputs[key] for key in names), *parameters.values()]
    point = tuple(one.detach().clone().requires_grad_() for one in leaves)
    assert torch.autograd.gradcheck(function, point)
    assert torch.autograd.gradgradcheck(function, point, fast_mode=not entry_by_entry(using, name, kind))

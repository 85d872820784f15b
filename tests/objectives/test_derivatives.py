"""Derivatives of losses: right to second order where the backend gives it, and numbers where labels are forbidden."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from energyml.energy_model import EnergyModel
from tests.objectives.models import BATCH, FORBIDDEN, SIZE, SPECS, compiled, gold_labels, inputs

torch.set_num_threads(1)

SMOOTH = (
    "nll",
    "softmax_margin(cost: confusion({ O: { B: 2 } }))",
    "marginal_ce",
    "pseudo_likelihood",
)
OBJECTIVES = (*SMOOTH, "ssvm")
EXACT = ("exact", "exact(engine: torch)", "enumerate")


def entry_by_entry(using: str, name: str, objective: str) -> bool:
    """Whether second derivatives are compared one by one, or along random directions, which is ten times cheaper.

    One by one for one in three: every backend meets every model, every backend every objective, every model every
    objective. ENERGYML_FUZZ asks for all.
    """
    places = EXACT.index(using) + list(SPECS).index(name) + OBJECTIVES.index(objective)
    return places % 3 == 0 or "ENERGYML_FUZZ" in os.environ


def gradients(losses: Tensor, model: EnergyModel, u: Tensor) -> list[Tensor]:
    """Of the sum of losses, by the scores and all parameters."""
    return list(torch.autograd.grad(losses.sum(), [u, *model.parameters()], retain_graph=True))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("using", EXACT)
def test_derivatives(using: str, name: str, objective: str) -> None:
    model, given, gold = compiled(name, 9), inputs(name, 9), gold_labels(9, 1.0 if "pseudo" in objective else 0.7)
    parameters = dict(model.named_parameters())
    rest = {key: one for key, one in given.items() if key != "u"}

    class Lossy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, u: Tensor) -> Tensor:
            return self.model.loss(objective=objective, using=using, reduction="none", y=gold, u=u, **rest)

    lossy = Lossy()

    def function(u: Tensor, *tensors: Tensor) -> Tensor:
        bound = {f"model.{key}": one for key, one in zip(parameters, tensors, strict=True)}
        return torch.func.functional_call(lossy, bound, (u,))

    point = tuple(one.detach().clone().requires_grad_() for one in (given["u"], *parameters.values()))
    assert torch.autograd.gradcheck(function, point)
    if objective in SMOOTH:
        fast = not entry_by_entry(using, name, objective)
        assert torch.autograd.gradgradcheck(function, point, fast_mode=fast)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("using", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forbidden_labels_cost_everything(using: str, name: str, objective: str, dtype: torch.dtype) -> None:
    model, given, gold = compiled(name, 1).to(dtype), inputs(name, 1), gold_labels(1)
    gold[1, 0] = FORBIDDEN
    u = given["u"].to(dtype).requires_grad_()
    losses = model.loss(objective=objective, using=using, reduction="none", y=gold, **{**given, "u": u})
    assert losses.isposinf().tolist() == [False, True, False]
    found = gradients(losses, model, u)
    assert all(one.isfinite().all() for one in found)
    # The example whose labels are forbidden pulls at nothing; the others pull as they do without it.
    assert not found[0][1].any() and found[0][0].any()
    for one, other in zip(found, gradients(losses[torch.tensor([0, 2])], model, u), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("objective", ["nll", "ssvm", "softmax_margin", "marginal_ce"])
@pytest.mark.parametrize("using", EXACT)
def test_partial_labels_may_be_forbidden_too(using: str, objective: str) -> None:
    model, given = compiled("loop", 1), inputs("loop", 1)
    gold = torch.full((BATCH, SIZE), -1)
    gold[0, 0] = FORBIDDEN
    u = given["u"].requires_grad_()
    losses = model.loss(objective=objective, using=using, reduction="none", y=gold, **{**given, "u": u})
    assert losses[0].isposinf() and (losses[1:].abs() < 1e-9).all()
    assert all(one.isfinite().all() for one in gradients(losses, model, u))


@pytest.mark.parametrize("using", [*EXACT, "mean_field", "bp"])
def test_probabilities_that_underflow_are_not_forbidden(using: str) -> None:
    model, given, gold = compiled("chain", 1).float(), inputs("chain", 1), gold_labels(1)
    u = (given["u"] - 1000 * torch.nn.functional.one_hot(gold, 3)).float().requires_grad_()
    losses = model.loss(objective="marginal_ce", using=using, reduction="none", y=gold, **{**given, "u": u})
    assert losses.isfinite().all() and (losses > 80).all()
    assert all(one.isfinite().all() for one in gradients(losses, model, u))

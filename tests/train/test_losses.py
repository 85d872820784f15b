"""Losses as Python asks for them: costs as tensors, sets of allowed labels, networks that run once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import energyml as em
from energyml.data.load import load_data
from energyml.driver import compile_source, read_source
from energyml.train.balance import make_balance
from energyml.train.loss import StageLoss
from energyml.train.stages import plan_stages
from tests.train.small import STAGE, write_task

SPEC = """\
labels Tag = {A, B, C}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(0.5)
chain y { unary: u, pair: W }
infer exact
"""


@pytest.fixture
def model() -> em.EnergyModel:
    return em.compile(SPEC, seed=0).double()


def inputs() -> dict[str, torch.Tensor]:
    made = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {"u": made, "lengths": torch.tensor([3, 2])}


GOLD = torch.tensor([[2, 0, 1], [1, 1, -1]])


# ------------------------------------------------------------------------------------------------------------- costs


@pytest.mark.parametrize("objective", ["ssvm", "softmax_margin"])
def test_the_share_of_wrong_cells_as_a_tensor_is_the_default(model: em.EnergyModel, objective: str) -> None:
    share = (1 / torch.tensor([3.0, 2.0])).reshape(2, 1, 1).expand(2, 3, 3)
    given = model.loss(y=GOLD, objective=objective, cost={"y": share}, **inputs())
    assert torch.allclose(given, model.loss(y=GOLD, objective=objective, **inputs()))


def test_costs_are_taken_as_they_are_but_for_the_gold_label(model: em.EnergyModel) -> None:
    cost = 3 * torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = model.loss(y=GOLD, objective="ssvm", cost={"y": cost}, reduction="none", **inputs())
    known = inputs()
    for row, length in enumerate((3, 2)):
        answers = torch.cartesian_prod(*[torch.arange(3)] * length)
        u, gold = known["u"][row : row + 1, :length], GOLD[row, :length]
        scores = torch.cat([model.score(u=u, y=one[None]) for one in answers])
        wrong = answers != gold
        costs = (cost[row, :length].expand(len(answers), -1, -1).gather(-1, answers[..., None])[..., 0] * wrong).sum(1)
        assert torch.allclose(found[row], (scores + costs).max() - model.score(u=u, y=gold[None])[0])


def test_costs_that_do_not_fit_are_refused(model: em.EnergyModel) -> None:
    with pytest.raises(em.EnergyError, match="`nll` has no cost; `ssvm` and `softmax_margin` take `cost=`"):
        model.loss(y=GOLD, objective="nll", cost={"y": torch.ones(2, 3, 3)}, **inputs())
    with pytest.raises(em.EnergyError, match="expected \\[2, 3, 3\\]"):
        model.loss(y=GOLD, objective="ssvm", cost={"y": torch.ones(2, 3)}, **inputs())


def test_an_input_may_be_called_cost() -> None:
    model = em.compile(SPEC.replace(" u ", " cost ").replace("unary: u", "unary: cost"), seed=0)
    known = inputs()
    assert model.loss(y=GOLD, objective="nll", cost=known["u"], lengths=known["lengths"]).isfinite()


# ---------------------------------------------------------------------------------------------------- allowed labels


def test_sets_of_one_label_are_labels(model: em.EnergyModel) -> None:
    sets = torch.nn.functional.one_hot(GOLD.clamp(min=0), 3).bool()
    sets[1, 1] = True  # a cell of which nothing is known
    labels = GOLD.clone()
    labels[1, 1] = -1
    for reduction in ("example", "cell", "sum"):
        asked = {"objective": "nll", "reduction": reduction, **inputs()}
        assert torch.allclose(model.loss(y=sets, **asked), model.loss(y=labels, **asked))


def test_the_likelihood_of_sets_is_that_of_their_answers(model: em.EnergyModel) -> None:
    sets = torch.tensor([[[1, 1, 0], [0, 1, 1], [1, 0, 1]], [[1, 0, 1], [1, 1, 0], [0, 0, 0]]]).bool()
    known = inputs()
    found = model.loss(y=sets, objective="nll", reduction="none", **known)
    for row, length in enumerate((3, 2)):
        answers = torch.cartesian_prod(*[torch.arange(3)] * length)
        scores = torch.cat([model.score(u=known["u"][row : row + 1, :length], y=one[None]) for one in answers])
        inside = torch.stack([sets[row, place][answers[:, place]] for place in range(length)]).all(0)
        assert torch.allclose(found[row], scores.logsumexp(0) - scores[inside].logsumexp(0))
    found.sum().backward()
    assert model.W.grad.isfinite().all() and model.W.grad.abs().sum() > 0


def test_sets_that_are_empty_or_for_another_objective(model: em.EnergyModel) -> None:
    sets = torch.ones(2, 3, 3, dtype=torch.bool)
    sets[0, 0] = False
    found = model.loss(y=sets, objective="nll", reduction="none", **inputs())
    assert found[0].isposinf() and found[1].abs() < 1e-9
    found[1].backward()
    assert model.W.grad.isfinite().all()
    with pytest.raises(em.EnergyError, match="`ssvm` needs one label a cell; sets of allowed labels"):
        model.loss(y=sets, objective="ssvm", **inputs())


# ------------------------------------------------------------------------------------------------------- networks once


def test_a_penalty_does_not_run_networks_again(tmp_path: Path) -> None:
    stage = f"{STAGE}, balance: offline(alpha: 2.0, regularized: true)"
    spec = compile_source(read_source(write_task(tmp_path, stage)))
    model = em.compile(spec.source.text, seed=0)
    [planned] = plan_stages(spec.model.choices.train, model.graph)
    calls: list[int] = []
    model.f.register_forward_hook(lambda *given: calls.append(1))
    batch = load_data(spec).train.batch(range(8))
    StageLoss(model, planned, make_balance(planned["balance"], model.graph), None, 1)(batch).backward()
    assert len(calls) == 1

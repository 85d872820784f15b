"""Instance tailoring: lower energies, and a network that is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from energyml.backends.infnet.tailoring import SteppedLSTM, Tailoring
from energyml.nets.recurrent import run_lstm
from tests.infnet.toys import CHOICES, tagger, with_options, words


@pytest.mark.parametrize("choice", CHOICES)
def test_tailoring_lowers_the_energy_and_restores_the_network(choice: str) -> None:
    model, given = tagger(), words()
    net = model.inference_module(choice)
    assert net is not None
    before = {name: one.clone() for name, one in net.state_dict().items()}
    with torch.no_grad():
        plain = model.infer(using=choice, **given).ask("map")
        found = model.infer(using=with_options(choice, "tailor: 4, lr: 0.05"), **given).ask("map")
    began, ended = found.statistics["score_before"], found.statistics["score_after"]
    torch.testing.assert_close(began, plain.statistics["relaxed_score"])
    torch.testing.assert_close(ended, found.statistics["relaxed_score"])
    assert (ended >= began).all() and (ended > began).sum() >= 4
    assert (found.value.score >= plain.value.score).all()
    assert not found.statistics["one_by_one"]
    after = net.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], one) for name, one in before.items())
    assert all(one.grad is None and one.requires_grad for one in net.parameters())


@pytest.mark.parametrize("choice", ["infnet(blstm(hidden: 4), plus: true)", "infnet(cnn(hidden: 4))"])
def test_one_step_is_gradient_descent_on_a_copy(choice: str) -> None:
    """Written down again: one example, one copy of the parameters, the plain network."""
    model, given = tagger(), words(3, 4)
    net = model.inference_module(choice)
    assert net is not None
    problem = model.problem(**given)
    lr, momentum = 0.05, 0.9
    with torch.no_grad():
        found = model.infer(using=with_options(choice, f"tailor: 2, lr: {lr}"), **given).ask("soft_decode")
    for row in range(3):
        one = {"word": given["word"][row : row + 1], "lengths": given["lengths"][row : row + 1]}
        weights = {name: w.detach().clone().requires_grad_() for name, w in net.named_parameters()}
        speed = {name: torch.zeros_like(w) for name, w in weights.items()}
        tried = []
        for _ in range(3):
            tensors = {"word": one["word"], "positions of T": torch.ones(1, 4, dtype=torch.float64)}
            masks = {"T": torch.arange(4) < one["lengths"].unsqueeze(1)}
            logits = functional_call(net, weights, (tensors, masks))["y"]
            q = logits.softmax(-1) * masks["T"].unsqueeze(-1)
            score = model.soft_score(y=q, **one)
            tried.append((float(score.detach()), q))
            slopes = torch.autograd.grad(score.sum(), list(weights.values()))
            for (name, w), slope in zip(list(weights.items()), slopes, strict=True):
                speed[name] = momentum * speed[name] + slope
                weights[name] = (w + lr * speed[name]).detach().requires_grad_()
        best = max(range(3), key=lambda step: tried[step][0])
        torch.testing.assert_close(found.value["y"][row], tried[best][1][0].detach())
    assert problem.env.batch.size == 3


def test_gradients_reach_the_network_through_tailored_labels() -> None:
    model, given = tagger(), words(2, 3)
    net = model.inference_module("infnet(cnn(hidden: 3))")
    assert net is not None
    q = model.infer(using="infnet(cnn(hidden: 3), tailor: 2)", **given).ask("soft_decode").value["y"]
    slopes = torch.autograd.grad(q[..., 0].sum(), list(net.parameters()))
    assert all(one.isfinite().all() for one in slopes) and any(one.abs().sum() > 0 for one in slopes)


def test_a_loop_of_cells_is_an_lstm() -> None:
    torch.manual_seed(0)
    for layers in (1, 2):
        lstm = nn.LSTM(3, 4, layers, batch_first=True).double()
        x = torch.randn(2, 5, 3, dtype=torch.float64)
        stepped: Tensor = SteppedLSTM(lstm)(x)[0]
        torch.testing.assert_close(stepped, run_lstm(lstm, x))


def test_networks_without_a_batched_form_run_one_by_one() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([_Recurrent()])

        def forward(self, tensors: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
            found: dict[str, Tensor] = self.parts[0](tensors)
            return found

    torch.manual_seed(0)
    net = Reader().double()
    x = torch.randn(3, 4, 2, dtype=torch.float64)
    tailoring = Tailoring(net, {"x": x}, {})  # type: ignore[arg-type]
    assert tailoring.looped
    found = tailoring.run(lambda scores: scores["y"].sum((1, 2)), 1, 0.1, 0.0)
    assert (found.ended > found.began).all()


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(2, 3, batch_first=True)

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": self.inner(tensors["x"])[0]}

"""Training inference networks: the loss, its weights, and both players of a structured prediction energy network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.objectives.infnet_loss import relaxation_of
from energyml.training_state import TrainingState
from tests.infnet.toys import CHOICES, check_slope, gold, tagger, trained, with_options, words

CNN = "infnet(cnn(hidden: 6), plus: true)"


def test_the_loss_is_energy_plus_local_cross_entropy() -> None:
    model, given = tagger(), words()
    y = gold(given)
    y[0, 2] = -1
    model.inference_module("infnet")
    q = model.infer(using="infnet", **given).ask("soft_decode").value["y"]
    exists = (torch.arange(6) < given["lengths"].unsqueeze(1)) & (y >= 0)
    local = -torch.where(exists, q.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1), 1).log()
    smooth = -torch.where(exists.unsqueeze(-1), q, 1).log().mean(-1)
    energy = -model.soft_score(y=q, **given)
    entropy = -torch.where(q > 0, q * q.clamp(min=1e-300).log(), 0).sum((1, 2))

    def found(objective: str, using: str) -> Tensor:
        return model.loss(objective=objective, using=using, reduction="none", y=y, **given)

    torch.testing.assert_close(found("infnet_loss", "infnet"), energy + local.sum(1))
    torch.testing.assert_close(found("infnet_loss", "infnet(weight: 0)"), energy)
    torch.testing.assert_close(found("infnet_loss", "infnet(weight: 0.5)"), energy + 0.5 * local.sum(1))
    torch.testing.assert_close(found("infnet_loss(energy: 0)", "infnet(weight: 2)"), 2 * local.sum(1))
    torch.testing.assert_close(found("infnet_loss(energy: 3)", "infnet"), 3 * energy + local.sum(1))
    wanted = energy + (0.9 * local + 0.1 * smooth).sum(1) + 2 * entropy
    torch.testing.assert_close(found("infnet_loss(smoothing: 0.1, entropy: 2)", "infnet"), wanted)


def test_the_weight_falls_over_the_epochs() -> None:
    model, given = tagger(), words()
    model.inference_module("infnet")

    def weight(using: str, epoch: int) -> float:
        posterior = model.infer(using=using, **given)
        posterior.problem.state = TrainingState(epoch, 11)
        return relaxation_of(posterior, "infnet_loss").weight

    assert [weight("infnet(weight: 2 -> 1)", epoch) for epoch in (0, 5, 10)] == pytest.approx([2, 1.5, 1])
    annealed = [weight("infnet(weight: 2, anneal: 0.01)", epoch) for epoch in (0, 1, 10)]
    assert annealed == pytest.approx([2 * math.exp(-0.01 * epoch) for epoch in (0, 1, 10)])


@pytest.mark.parametrize("choice", CHOICES)
def test_slopes_of_the_loss(choice: str) -> None:
    model, given = tagger(), words(3, 4)
    net = model.inference_module(choice)
    assert net is not None
    y = gold(given)

    def loss() -> Tensor:
        return model.loss(objective="infnet_loss(entropy: 0.3, smoothing: 0.1)", using=choice, y=y, **given)

    assert check_slope(net.parameters(), loss) != 0
    loss().backward()
    assert all(one.grad is None for name, one in model.named_parameters() if not name.startswith("infer."))


@pytest.mark.parametrize("kind", ["margin", "contrastive"])
def test_each_player_has_its_own_slope(kind: str) -> None:
    model, given = tagger(), words(3, 4)
    net = model.inference_module("infnet(cnn(hidden: 4))")
    assert net is not None
    y = gold(given)
    y[0, 1] = -1
    energy = [one for name, one in model.named_parameters() if not name.startswith("infer.")]

    def loss(player: str | None) -> Tensor:
        state = TrainingState(0, 1, player)
        using = "infnet(cnn(hidden: 4))"
        return model.loss(objective=f"spen(loss: {kind})", using=using, training_state=state, y=y, **given)

    own, other = check_slope(net.parameters(), lambda: loss("infer")), check_slope(energy, lambda: loss("model"))
    assert own and other
    assert not any(one is not None for one in torch.autograd.grad(loss("infer"), energy, allow_unused=True))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(loss("model"), list(net.parameters()))
    torch.testing.assert_close(loss(None), loss("infer") + loss("model"))


def test_the_margin_is_that_of_the_definition() -> None:
    model, given = tagger(), words(3, 4)
    model.inference_module("infnet")
    y = gold(given)
    with torch.no_grad():
        q = model.infer(using="infnet", **given).ask("soft_decode").value["y"]
        exists = torch.arange(4) < given["lengths"].unsqueeze(1)
        wrong = torch.where(exists, 1 - q.gather(-1, y.unsqueeze(-1)).squeeze(-1), 0).sum(1) / given["lengths"]
        margin = wrong + model.soft_score(y=q, **given) - model.score(y=y, **given)
        state = TrainingState(0, 1, "model")
        found = model.loss(objective="spen", using="infnet", reduction="none", training_state=state, y=y, **given)
    torch.testing.assert_close(found, margin.clamp(min=0))


def test_lower_energy_than_the_local_baseline() -> None:
    model, given = tagger(), words(12, 6)
    y = gold(given)
    local, fitted = model.inference_module("infnet(cnn(hidden: 8))"), model.inference_module("infnet(cnn(hidden: 9))")
    assert local is not None and fitted is not None

    def cross_entropy() -> Tensor:
        posterior = model.infer(using="infnet(cnn(hidden: 8))", **given)
        found = relaxation_of(posterior, "infnet_loss").logits["y"].log_softmax(-1)
        exists = torch.arange(6) < given["lengths"].unsqueeze(1)
        return -found.gather(-1, y.unsqueeze(-1)).squeeze(-1)[exists].mean()

    trained(local.parameters(), cross_entropy, 40)
    using = "infnet(cnn(hidden: 9), weight: 0.2)"
    trained(fitted.parameters(), lambda: model.loss(objective="infnet_loss", using=using, y=y, **given), 40)
    with torch.no_grad():
        below = model.infer(using="infnet(cnn(hidden: 8))", **given).map().score.mean()
        above = model.infer(using=using, **given).map().score.mean()
        best = model.infer(**given).map().score.mean()
    assert below + 0.5 < above <= best


def test_an_energy_learns_against_its_network() -> None:
    model, given = tagger(), words(12, 6)
    y = given["word"] % 3
    net = model.inference_module(CNN)
    assert net is not None
    exists = torch.arange(6) < given["lengths"].unsqueeze(1)

    def accuracy(using: str) -> float:
        with torch.no_grad():
            return float((model.infer(using=using, **given).map().labels["y"] == y)[exists].double().mean())

    before = accuracy("exact")
    trained(model.parameters(), lambda: model.loss(objective="spen", using=CNN, y=y, **given), 40, lr=0.02)
    assert accuracy("exact") > before + 0.3 and accuracy(CNN) > 0.95


def test_only_inference_networks_are_fitted() -> None:
    model, given = tagger(), words()
    y = gold(given)
    with pytest.raises(em.EnergyError, match="`infnet_loss` trains an inference network, and `relaxed` is none"):
        model.loss(objective="infnet_loss", using="relaxed", y=y, **given)
    with pytest.raises(em.EnergyError, match="does not answer `soft_decode`"):
        model.loss(objective="spen", using="exact", y=y, **given)
    with pytest.raises(em.EnergyError, match="has not been fitted"):
        model.loss(objective="infnet_loss", using=with_options("infnet", "weight: 2"), y=y, **given)

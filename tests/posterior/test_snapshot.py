"""A posterior is about the weights and inputs at the time of `infer`: later it gives kept answers, or refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import energyml as em
from energyml.bind.snapshot import PosteriorOutdated

torch.set_num_threads(1)

CHAIN = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
chain y { unary: u, pair: W }
"""
NETWORK = """\
labels L = {a, b, c}
dim T
input x : real[T, 4]
output y : L[T]
net emit = mlp(out: L, hidden: 8)
param W : real[from: L, to: L] = normal(1.0)
chain y { unary: emit(x), pair: W }
"""
FIELD = """\
dim N = 4
input u : real[N]
field s : real[N]
param w : real[N-1] = normal(0.1)
factor lin (s) = u
gaussian s { linear: u, smooth: w, ridge: 1.0 }
"""
BACKENDS = [
    "exact", "exact(engine: torch)", "enumerate", "mean_field", "bp", "trw", "dual", "ilp", "relaxed", "beam", "greedy",
    "best_first", "stochastic_beam", "relaxed_beam", "ancestral", "gibbs", "metropolis", "tempering", "bridge", "ais",
]  # fmt: skip
QUERIES = ["log_partition", "marginals", "map", "sample", "log_prob", "entropy", "max_marginals"]
Change = Callable[[em.EnergyModel, Tensor], None]


def by_optimizer(model: em.EnergyModel, u: Tensor) -> None:
    model.W.grad = torch.ones_like(model.W)
    torch.optim.SGD([model.W], lr=1.0).step()


def by_loading(model: em.EnergyModel, u: Tensor) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.W.add_(1)
    model.load_state_dict(other.state_dict())


def by_data(model: em.EnergyModel, u: Tensor) -> None:
    model.W.data = model.W.data + 1


def by_replacing(model: em.EnergyModel, u: Tensor) -> None:
    model._parameters["W"] = nn.Parameter(model.W.detach() + 1)


def by_type(model: em.EnergyModel, u: Tensor) -> None:
    model.double()


def of_input(model: em.EnergyModel, u: Tensor) -> None:
    u.add_(torch.randn_like(u))


def of_input_view(model: em.EnergyModel, u: Tensor) -> None:
    u[0, 1, 2] = 5.0


CHANGES = [by_optimizer, by_loading, by_data, by_replacing, by_type, of_input, of_input_view]


def asked(posterior: em.Posterior, kind: str, labels: Tensor) -> object:
    return posterior.ask(kind, **({"answer": {"y": labels}} if kind == "log_prob" else {}))


@pytest.mark.parametrize("using", BACKENDS)
@pytest.mark.parametrize("change", [by_optimizer, of_input], ids=lambda one: one.__name__)
def test_every_query_of_every_backend_refuses_after_a_change(using: str, change: Change) -> None:
    model, u, labels = em.compile(CHAIN, seed=0), torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.long)
    posterior = model.infer(u=u, using=using)
    change(model, u)
    for kind in posterior.answers:
        if kind in QUERIES:
            with pytest.raises(PosteriorOutdated, match="infer again"):
                asked(posterior, kind, labels)


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_kept_tensors_stay_and_others_are_refused(change: Change) -> None:
    model, u = em.compile(CHAIN, seed=0), torch.randn(2, 3, 3)
    posterior = model.infer(u=u, using="exact")
    before, kept = posterior.log_partition, posterior.log_partition.detach().clone()
    change(model, u)
    assert posterior.log_partition is before and torch.equal(before.detach(), kept)
    with pytest.raises(PosteriorOutdated, match=r"the weights have changed; infer again|the input `u` has changed"):
        posterior.marginals  # noqa: B018
    with pytest.raises(PosteriorOutdated):
        posterior.map()


def test_a_weight_deep_inside_a_network_is_noticed() -> None:
    model = em.compile(NETWORK, seed=0)
    posterior = model.infer(x=torch.randn(2, 3, 4), using="exact")
    with torch.no_grad():
        next(iter(model._modules["emit"].parameters())).mul_(2)
    with pytest.raises(PosteriorOutdated, match="the weights have changed; infer again"):
        posterior.map()


def test_the_mode_of_networks_is_part_of_the_snapshot() -> None:
    model = em.compile(NETWORK, seed=0)
    posterior = model.infer(x=torch.randn(2, 3, 4), using="exact")
    model.eval()
    with pytest.raises(PosteriorOutdated, match="infer again"):
        posterior.map()


@pytest.mark.parametrize("what", ["labels", "allowed", "mask", "lengths"])
def test_changed_evidence_masks_and_lengths_are_named(what: str) -> None:
    model, u = em.compile(CHAIN, seed=0), torch.randn(2, 3, 3)
    labels, allowed = torch.full((2, 3), -1), torch.ones(2, 3, 3, dtype=torch.bool)
    mask, lengths = torch.ones(2, 3, dtype=torch.bool), torch.tensor([3, 2])
    given = {
        "labels": ({"evidence": {"y": labels}}, labels, "the evidence about `y`"),
        "allowed": ({"evidence": {"y": allowed}}, allowed, "the evidence about `y`"),
        "mask": ({"mask": mask}, mask, "the mask of `y`"),
        "lengths": ({"lengths": lengths}, lengths, "the lengths of `T`"),
    }
    arguments, tensor, named = given[what]
    posterior = model.infer(u=u, using="exact", **arguments)
    tensor[0] = 0
    with pytest.raises(PosteriorOutdated, match=named):
        posterior.map()
    with pytest.raises(PosteriorOutdated, match=named):
        posterior.again()


def test_inference_tensors_are_compared_by_value() -> None:
    model = em.compile(CHAIN, seed=0)
    with torch.inference_mode():
        u = torch.randn(2, 3, 3)
        posterior = model.infer(u=u, using="exact")
        posterior.log_partition  # noqa: B018
        posterior.map()
        u.add_(1)
        with pytest.raises(PosteriorOutdated, match="the input `u` has changed"):
            posterior.map()


def test_gains_of_a_posterior_are_those_of_the_call() -> None:
    model, u = em.compile(CHAIN, seed=0), torch.randn(2, 3, 3)
    posterior = model.infer(u=u, using="exact")
    truth = model.infer(u=u, using="exact").map().score
    model.gains["y.pair"] = 10.0
    torch.testing.assert_close(posterior.map().score, truth)
    assert not torch.equal(posterior.again().map().score, truth)


def test_running_statistics_that_a_forward_pass_updates_are_no_change() -> None:
    text = NETWORK.replace(
        "emit = mlp(out: L, hidden: 8)",
        'emit : (real[T, 4]) -> real[T, L] = python("tests.posterior.test_snapshot:Normed")',
    )
    model = em.compile(text, seed=0)
    posterior = model.infer(x=torch.randn(2, 3, 4), using="exact")
    posterior.log_partition  # noqa: B018
    posterior.map()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]))


def test_a_network_that_draws_is_evaluated_once() -> None:
    model = em.compile(NETWORK.replace("mlp(out: L, hidden: 8)", "blstm(out: L, hidden: 8, dropout: 0.5)"), seed=0)
    with torch.no_grad():
        posterior = model.infer(x=torch.randn(2, 3, 4), using="exact")
        best = posterior.map()
        score = posterior.problem.score(best.labels)
    torch.testing.assert_close(posterior.problem.score(best.labels), score)  # now with gradients
    torch.testing.assert_close(best.score, score)

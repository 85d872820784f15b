"""Scores that are NaN or +inf are refused by name before a backend reads them; -inf is a score."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import energyml as em
from energyml.bind import finite
from energyml.diagnostics import QueryRefused
from tests.posterior.test_snapshot import BACKENDS, CHAIN, NETWORK

torch.set_num_threads(1)

SEQUENCE = """\
labels L = {a, b, c}
dim T
input x : real[T, 4]
output y : L[T]
net decoder = lstm_decoder(hidden: 8, embed: 4)
sequence y { step: decoder, given: x, normalize: local }
"""
MASKED = """\
labels L = {a, b, c}
dim T
output y : L[T]
net near = masked_blstm(hidden: 8, embed: 4)
masked y { conditionals: near, energy: raw }
"""
WHOLE = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
net whole = pooled(hidden: 4)
factor unary [t in T] (y[t]) = u[t]
score tail (y) = whole(soft(y))
"""
GRID = """\
labels L = {a, b}
dim H, W
input u : real[H, W, L]
output y : L[H, W]
param down : real[p: L, q: L] = normal(1.0)
factor unary [i in H, j in W] (y[i, j]) = u[i, j]
factor below [i in H-1, j in W] (p: y[i, j], q: y[i+1, j]) = down
factor right [i in H, j in W-1] (p: y[i, j], q: y[i, j+1]) = down
"""


def spoil(model: em.EnergyModel, net: str, value: float) -> None:
    with torch.no_grad():
        for parameter in model._modules[net].parameters():
            parameter.view(-1)[-1] = value


def every_answer(posterior: em.Posterior) -> None:
    """Ask all that needs no argument; each must refuse."""
    asked = 0
    for kind in posterior.answers:
        if kind in ("log_partition", "marginals", "factor_marginals", "max_marginals", "map", "sample", "entropy"):
            with pytest.raises(em.EnergyError, match="E0515"):
                posterior.ask(kind)
            asked += 1
    assert asked


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("using", BACKENDS)
def test_every_backend_refuses_the_scores_of_a_network(using: str, value: float) -> None:
    model = em.compile(NETWORK, seed=0)
    spoil(model, "emit", value)
    every_answer(model.infer(x=torch.randn(2, 3, 4), using=using))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("using", BACKENDS)
def test_every_backend_refuses_a_parameter(using: str, value: float) -> None:
    model = em.compile(CHAIN, seed=0)
    with torch.no_grad():
        model.W[1, 2] = value
    every_answer(model.infer(u=torch.randn(2, 3, 3), using=using))


@pytest.mark.parametrize("using", ["exact", "enumerate", "bp", "trw", "mean_field", "gibbs", "swendsen_wang", "ilp"])
def test_graphs_refuse_a_parameter(using: str) -> None:
    model = em.compile(GRID, seed=0)
    with torch.no_grad():
        model.down[1, 1] = float("nan")
    with pytest.raises(em.EnergyError, match=r"the scores of `below` hold NaN in .* example.*parameter `down`"):
        posterior = model.infer(u=torch.randn(2, 2, 2, 2), using=using)
        posterior.ask("map" if "map" in posterior.answers else "sample")


def test_the_message_names_term_example_place_and_network() -> None:
    model = em.compile(NETWORK, seed=0)
    x = torch.randn(2, 3, 4)
    x[1, 2] = 1e38
    with torch.no_grad():
        for parameter in model._modules["emit"].parameters():
            parameter.mul_(1e4)
    with pytest.raises(em.EnergyError, match=r"`y.unary` hold (NaN|inf) in example 1, at \[2, .\].*network `emit`"):
        model.infer(x=x, using="exact").map()


@pytest.mark.parametrize(
    ("text", "net", "given", "backends"),
    [
        (SEQUENCE, "decoder", {"x": torch.ones(2, 3, 4)},
         ["beam", "greedy", "enumerate", "gibbs", "relaxed", "ancestral"]),
        (MASKED, "near", {"lengths": torch.tensor([3, 2])}, ["enumerate", "gibbs", "metropolis", "mask_predict"]),
        (WHOLE, "whole", {"u": torch.ones(2, 3, 3)}, ["enumerate", "gibbs", "relaxed"]),
    ],
    ids=["step network", "masked network", "black box"],
)  # fmt: skip
def test_networks_over_whole_answers_are_checked(
    text: str, net: str, given: dict[str, Tensor], backends: list[str]
) -> None:
    for using in backends:
        model = em.compile(text, seed=0)
        spoil(model, net, float("nan"))
        posterior = model.infer(**given, using=using)
        kinds = [kind for kind in ("map", "sample", "log_partition", "marginals") if kind in posterior.answers]
        for kind in kinds:
            with pytest.raises(em.EnergyError, match="E0515"):
                posterior.ask(kind)
    with pytest.raises(em.EnergyError, match="E0515"):
        model.score(**given, y=torch.zeros(2, 3, dtype=torch.long))


def test_scores_and_losses_refuse_too() -> None:
    model = em.compile(NETWORK, seed=0)
    spoil(model, "emit", float("nan"))
    x, y = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(em.EnergyError, match="E0515"):
        model.score(x=x, y=y)
    with pytest.raises(em.EnergyError, match="E0515"):
        model.loss(x=x, y=y, objective="nll", using="exact")


class OddPadding(nn.Module):
    """Scores that are NaN where the input is zero throughout, as an attention over nothing gives."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x == 0).all(-1, keepdim=True), float("nan"), x[..., :3])


@pytest.mark.parametrize("using", ["exact", "enumerate", "mean_field", "bp", "beam", "gibbs"])
def test_padding_may_hold_anything(using: str) -> None:
    text = NETWORK.replace(
        "emit = mlp(out: L, hidden: 8)",
        'emit : (real[T, 4]) -> real[T, L] = python("tests.posterior.test_not_a_number:OddPadding")',
    )
    model = em.compile(text, seed=0)
    x = torch.randn(2, 3, 4)
    x[1, 2] = 0
    posterior = model.infer(x=x, lengths=torch.tensor([3, 2]), using=using)
    result = posterior.ask("map" if "map" in posterior.answers else "sample")
    assert result.status.ok
    with pytest.raises(em.EnergyError, match=r"(example 1|the example), at \[2, 0\]"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zeros at the end look like padding
        model.infer(x=x, using=using).ask("map" if "map" in posterior.answers else "sample")


def test_a_parameter_is_looked_at_again_when_it_has_changed() -> None:
    model, u = em.compile(CHAIN, seed=0), torch.randn(2, 3, 3)
    assert model.infer(u=u, using="exact").log_partition.isfinite().all()
    with torch.no_grad():
        model.W[0, 0] = float("nan")
    with pytest.raises(em.EnergyError, match="E0515"):
        model.infer(u=u, using="exact").map()
    with torch.no_grad():
        model.W[0, 0] = -torch.inf
    assert model.infer(u=u, using="exact").ask("map").status.ok
    model.W.data = torch.full((3, 3), float("nan"))
    with pytest.raises(em.EnergyError, match="E0515"):
        model.infer(u=u, using="exact").map()


def test_a_repeated_call_on_a_graph_looks_at_its_parameters() -> None:
    text = GRID.replace("dim H, W", "dim H = 2\ndim W = 2").replace("input u : real[H, W, L]", "").replace(
        "u[i, j]", "u"
    ).replace("param down", "param u : real[L] = normal(1.0)\nparam down")  # fmt: skip
    model = em.compile(text, seed=0).double()
    with torch.no_grad():
        posterior = model.infer(using="exact")
        posterior.log_partition  # noqa: B018
        model.down[0, 0] = float("nan")
        with pytest.raises(em.EnergyError, match="E0515"):
            posterior.again().log_partition  # noqa: B018


@pytest.mark.parametrize("using", ["exact", "enumerate", "mean_field", "bp", "trw"])
def test_on_a_device_the_status_tells_when_it_is_read(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_host_readable` is false for tensors whose values the host would have to wait for."""
    monkeypatch.setattr(finite, "is_host_readable", lambda tensor: False)
    for text, net in ((NETWORK, "emit"), (CHAIN, None)):
        model = em.compile(text, seed=0)
        given = {"x": torch.randn(2, 3, 4)} if net else {"u": torch.randn(2, 3, 3)}
        assert model.infer(**given, using=using).ask("map").status.ok
        with torch.no_grad():
            (next(model._modules[net].parameters()) if net else model.W).fill_(float("nan"))
        posterior = model.infer(**given, using=using)
        for kind in ("map", "log_partition", "marginals"):
            try:
                status = posterior.ask(kind).status
            except QueryRefused:
                continue
            assert status.is_useless and "NaN" in status.message, kind

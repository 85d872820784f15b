"""Models and functions under `torch.compile`: the same answers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

import energyml as em

torch.set_num_threads(1)

HEAD = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact(engine: torch)
"""
SKIP = HEAD + "factor skip [t in T-2] (from: y[t], to: y[t+2]) = W\n"


def draw() -> torch.Tensor:
    return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
def test_graphs_compile() -> None:
    """Eliminations are planned outside of the graph."""
    model, scores = em.compile(SKIP, seed=0), draw().requires_grad_()

    def asked(u: torch.Tensor) -> torch.Tensor:
        posterior = model.infer(u=u)
        return posterior.marginals["y"].square().sum() + posterior.entropy.sum() + posterior.log_partition.sum()

    found, wanted = torch.compile(asked, backend="aot_eager")(scores), asked(scores)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(*(torch.autograd.grad(value, (scores, model.W)) for value in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="chains of order 1 compile with fullgraph=True"):
        torch.compile(asked, backend="eager", fullgraph=True)(scores)


LENGTHS, GOLD, PARTIAL = (
    torch.tensor([4, 3]),
    torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]]),
    torch.tensor([[0, -1, 2, 0]] * 2),
)
GAPS = torch.tensor([[True, False, True, True], [True] * 4])
COSTS = {"y": torch.arange(24.0).reshape(2, 4, 3) / 24}


def probabilities(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    one, shorter = m.infer(u=u), m.infer(u=u, lengths=LENGTHS)
    return [
        shorter.log_partition,
        shorter.marginals["y"],
        shorter.entropy,
        m.infer(u=u, mask=GAPS).marginals["y"],
        one.log_prob(y=PARTIAL),
        one.log_prob_with_cost({"y": GOLD}, COSTS),
        one.expectation({"y": COSTS["y"]}),
        one.kl(m.infer(u=u * 0.5)),
        m.infer(u=u, evidence={"y": PARTIAL}, using="exact(memory: 7)").log_partition,
    ]


def best(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    one, shorter = m.infer(u=u), m.infer(u=u, lengths=LENGTHS)
    return [
        shorter.map().score,
        shorter.map()["y"],
        one.n_best(3).score,
        shorter.max_marginals["y"],
        one.max_with_cost(**COSTS).score,
        m.score(u=u, y=GOLD),
    ]


def losses(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    objectives = ("ssvm", "softmax_margin", "marginal_ce")
    return [
        m.loss(u=u, y=PARTIAL),
        *(m.loss(u=u, y=GOLD, lengths=LENGTHS, objective=one) for one in objectives),
    ]


def common(m: em.EnergyModel, u: torch.Tensor) -> list[torch.Tensor]:
    return [m.infer(u=u).factor_marginals["two"], m.loss(u=u, y=GOLD)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
@pytest.mark.parametrize(
    ("asked", "engine", "backend"),
    [
        (probabilities, "exact", "eager"),
        (best, "exact", "eager"),
        (losses, "exact", "eager"),
        (common, "exact(engine: torch)", "aot_eager"),
    ],
)
def test_chains_compile_as_one_graph(
    asked: Callable[[em.EnergyModel, torch.Tensor], list[torch.Tensor]], engine: str, backend: str
) -> None:
    """From the inputs to the answers, without a call before that would have planned; -inf has zero gradients."""
    torch.compiler.reset()
    model = em.compile(HEAD.replace("exact(engine: torch)", engine) + "train nll\n", seed=0)
    scores = draw()
    scores[0, 1, 1] = float("-inf")
    scores.requires_grad_()
    found = torch.compile(lambda u: asked(model, u), backend=backend, fullgraph=True)(scores)
    wanted = asked(model, scores)
    totals = []
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for values in (found, wanted):
        real = [one for one in values if one.is_floating_point()]
        totals.append(torch.stack([one.masked_fill(one.isinf(), 0).square().sum() for one in real]).sum())
    for one, other in zip(*(torch.autograd.grad(total, (scores, model.W)) for total in totals), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_models_meet_other_sizes_and_train() -> None:
    """Networks are part of the graph; another size compiles again, and a copy is a model of its own."""
    torch.compiler.reset()
    text = HEAD.replace("input u : real[T, L]", "input x : real[T, 2]\nnet f = linear(out: L)").replace(
        "u[t]", "f(x)[t]"
    )
    model = em.compile(text, seed=0)
    step = torch.compile(
        lambda x, y, n: model.loss(x=x, y=y, lengths=n, objective="nll"), backend="eager", fullgraph=True
    )
    for batch, size in ((2, 4), (3, 4), (3, 3)):
        x, y = torch.randn(batch, size, 2), torch.randint(3, (batch, size))
        lengths = torch.randint(1, size + 1, (batch,))
        losses = [step(x, y, lengths), model.loss(x=x, y=y, lengths=lengths, objective="nll")]
        torch.testing.assert_close(*losses)
        slopes = [torch.autograd.grad(one, list(model.parameters())) for one in losses]
        for one, other in zip(*slopes, strict=True):
            torch.testing.assert_close(one, other)
    again = copy.deepcopy(model)
    assert torch.equal(again.infer(x=x).log_partition, pickle.loads(pickle.dumps(model)).infer(x=x).log_partition)


FUNCTIONS = {
    "log_partition": lambda u, w, n: em.functional.chain_log_partition(u, w, n),
    "log_prob": lambda u, w, n: em.functional.chain_log_prob(u, w, torch.tensor([[0, 1, 2, 0], [2, -1, 0, 1]]), n),
    "marginals": lambda u, w, n: em.functional.chain_marginals(u, w, n),
    "best": lambda u, w, n: em.functional.chain_best(u, w, n)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compile_as_one_graph(name: str) -> None:
    given = draw(), draw()[0, :3], torch.tensor([4, 3])
    found = torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True)(*given)
    torch.testing.assert_close(found, FUNCTIONS[name](*given))

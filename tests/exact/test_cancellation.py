"""What large sums differ by, in float32: probabilities, divergences and losses have the digits of float64.

All scores lie within a few units of a number that cancels.  The truth is enumeration in float64 of the same scores.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml import functional
from energyml.posterior import Posterior
from tests.exact.test_half_precision import CASES, LINKS, QUERIES, STRUCTURES

MAGNITUDES = [1.0, 30.0, 1e3, 1e4, 1e5]
ASKED = (
    "marginals", "factor_marginals", "expectation", "entropy", "kl", "cross_entropy",
    "log_prob", "log_prob of some cells", "log_prob_with_cost",
)  # fmt: skip
OWN = [(structure, query) for structure, query in CASES if query in ASKED]
TRACKED = pytest.mark.parametrize("grad", [False, True], ids=["plain", "tracked"])


def models(structure: str, magnitude: float) -> list[em.EnergyModel]:
    """Two models in float32, and the same in float64."""
    generator = torch.Generator().manual_seed(0)
    found = [em.compile(STRUCTURES[structure], seed=0) for _ in range(2)]
    with torch.no_grad():
        for parameter in (one for model in found for one in model.parameters()):
            parameter.copy_(magnitude + torch.randn(parameter.shape, generator=generator))
    for model in found[:2]:
        found.append(em.compile(STRUCTURES[structure], seed=0).double())
        found[-1].load_state_dict(model.state_dict())
    return found


def inputs(magnitude: float, *shape: int) -> Tensor:
    return magnitude + torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def opened(pair: list[em.EnergyModel], u: Tensor, using: str, **given: Tensor) -> tuple[Posterior, Posterior]:
    if "links" in pair[0].compiled.source.text:
        given["links"] = LINKS
    return pair[0].infer(u=u, using=using, **given), pair[1].infer(u=u.flip(0), using=using, **given)


@TRACKED
@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize(("structure", "query"), OWN)
def test_answers_beside_enumeration(structure: str, query: str, engine: str, grad: bool) -> None:
    for magnitude in MAGNITUDES:
        single = models(structure, magnitude)
        double, u = single[2:], inputs(magnitude, 2, 3, 3)
        with torch.set_grad_enabled(grad):
            found = QUERIES[query](*opened(single[:2], u, f"exact(engine: {engine})"))
            wanted = QUERIES[query](*opened(double, u.double(), "enumerate"))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        if not grad:
            continue
        found.sum().backward()
        wanted.sum().backward()
        for one, other in zip(single[:2], double, strict=True):
            for mine, true in zip(one.parameters(), other.parameters(), strict=True):
                assert (mine.grad is None) == (true.grad is None)
                if mine.grad is not None and true.grad is not None:
                    assert mine.grad.dtype == torch.float32
                    torch.testing.assert_close(mine.grad.double(), true.grad, rtol=1e-5, atol=1e-5)


def same_slopes(found: Tensor, wanted: Tensor, model: em.EnergyModel, exact: em.EnergyModel) -> None:
    """The gradients of losses by the parameters of two models."""
    found.backward()
    wanted.backward()
    for mine, true in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), true.grad, rtol=1e-5, atol=1e-5)


@TRACKED
@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("structure", ["chain", "tree", "order two"])
def test_hinge_losses(structure: str, engine: str, grad: bool) -> None:
    """Two maxima, which are subtracted; one of them with costs."""
    labels = torch.tensor([[0, 1, 2], [2, 2, 0]])
    for magnitude in MAGNITUDES:
        single, u = models(structure, magnitude), inputs(magnitude, 2, 3, 3)
        given = {"links": LINKS} if structure == "tree" else {}
        found, wanted = (
            model.loss(u=of, y=labels, objective="ssvm", using=using, **given)
            for model, of, using in ((single[0], u, f"exact(engine: {engine})"), (single[2], u.double(), "enumerate"))
        )
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        if grad:
            same_slopes(found, wanted, single[0], single[2])


@TRACKED
@pytest.mark.parametrize("structure", ["chain", "tree", "order two", "grid"])
def test_pseudo_likelihoods(structure: str, grad: bool) -> None:
    labels = torch.tensor([[0, 1, 2], [2, 2, 0]])
    labels = labels.unsqueeze(-1).expand(2, 3, 2) if structure == "grid" else labels
    for magnitude in MAGNITUDES:
        single, u = models(structure, magnitude), inputs(magnitude, 2, 3, 3)
        given = {"links": LINKS} if structure == "tree" else {}
        found, wanted = (
            model.loss(u=of, y=labels, objective="pseudo_likelihood", **given)
            for model, of in ((single[0], u), (single[2], u.double()))
        )
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        if grad:
            same_slopes(found, wanted, single[0], single[2])


@TRACKED
@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("structure", ["chain", "tree", "order two", "grid"])
def test_large_costs(structure: str, engine: str, grad: bool) -> None:
    """Scores are small, costs are not."""
    single, u = models(structure, 1.0), inputs(1.0, 2, 3, 3)
    shape = (2, 3, 2) if structure == "grid" else (2, 3)
    labels = torch.arange(torch.Size(shape).numel()).reshape(shape) % 3
    for magnitude in (1e3, 1e5):
        cost = inputs(magnitude, *shape, 3)
        with torch.set_grad_enabled(grad):
            one, _ = opened(single[:2], u, f"exact(engine: {engine})")
            true, _ = opened(single[2:], u.double(), "enumerate")
            found = one.log_prob_with_cost({"y": labels}, {"y": cost})
            wanted = true.log_prob_with_cost({"y": labels}, {"y": cost.double()})
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
        best, exact = one.max_with_cost(y=cost), true.max_with_cost(y=cost.double())
        assert torch.equal(best.labels["y"], exact.labels["y"])


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_scores_that_meet_at_a_cell(engine: str) -> None:
    """Elements of one factor that are added up at the same cell, and cancel there."""
    text = """
labels L = {a, b, c}
dim T
dim E
input u : real[E, L]
input links : edge(T, T)[E]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
factor own [e = (i, j) in links] (y[j]) = u[e]
factor two [t in T-1] (from: y[t], to: y[t+1]) = W
infer exact
"""
    model, exact = em.compile(text, seed=0), em.compile(text, seed=0).double()
    exact.load_state_dict(model.state_dict())
    links = torch.tensor([[[0, 1], [2, 1], [3, 1], [0, 2]]])
    u = inputs(0.0, 1, 4, 3) + torch.tensor([1e5, 1e5, -2e5, 0.0]).reshape(1, 4, 1)
    lengths = torch.tensor([4])
    found = model.infer(u=u, links=links, lengths=lengths, using=f"exact(engine: {engine})")
    wanted = exact.infer(u=u.double(), links=links, lengths=lengths, using="enumerate")
    torch.testing.assert_close(found.marginals["y"].double(), wanted.marginals["y"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy.double(), wanted.entropy, rtol=1e-5, atol=1e-5)


def test_many_factors_of_moderate_scores() -> None:
    """None of them is large, and their sums on the way are."""
    count = 40
    lines = [f"param v{k} : real[L] = constant(60.0)\nfactor f{k} [t in T] (y[t]) = v{k}\n" for k in range(count)]
    text = STRUCTURES["chain"] + "".join(lines)
    model, exact = em.compile(text, seed=0), em.compile(text, seed=0).double()
    with torch.no_grad():
        for k, parameter in enumerate(p for name, p in model.named_parameters() if name not in ("W", "v")):
            parameter.copy_((60 if k % 2 else -60) + inputs(0.0, 3) * k / count)
    exact.load_state_dict(model.state_dict())
    u, labels = inputs(50.0, 2, 3, 3), torch.tensor([[0, 1, 2], [2, 2, 0]])
    found = model.infer(u=u, using="exact").log_prob(y=labels)
    wanted = exact.infer(u=u.double(), using="enumerate").log_prob(y=labels)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_scores_at_the_ends_of_a_chain(magnitude: float) -> None:
    """They are added to those of the first and the last cell."""
    text = """
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
param first : real[L] = normal(1.0)
param last : real[L] = normal(1.0)
chain y { unary: u, pair: W, start: first, end: last }
infer exact
"""
    model, exact = em.compile(text, seed=0), em.compile(text, seed=0).double()
    exact.load_state_dict(model.state_dict())
    u, lengths = inputs(magnitude, 3, 5, 3), torch.tensor([5, 1, 3])
    u[0, 2, 1] = float("-inf")  # of numbers that are not finite the others count
    found, wanted = model.infer(u=u, lengths=lengths), exact.infer(u=u.double(), lengths=lengths, using="enumerate")
    torch.testing.assert_close(found.marginals["y"].double(), wanted.marginals["y"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy.double(), wanted.entropy, rtol=1e-5, atol=1e-5)


@TRACKED
@pytest.mark.parametrize("engine", ["auto", "torch", "torch_struct"])
@pytest.mark.parametrize("query", ["kl", "cross_entropy", "log_prob of some cells"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_long_chains_of_some_lengths(query: str, engine: str, grad: bool) -> None:
    """The truth is the same recursion in float64."""
    single, u, lengths = models("chain", 1e4), inputs(1e4, 3, 60, 3), torch.tensor([60, 1, 37])
    labels = torch.randint(0, 3, (3, 60), generator=torch.Generator().manual_seed(2))
    labels[:, ::2] = -1

    def asked(pair: list[em.EnergyModel], u: Tensor) -> Tensor:
        one, other = opened(pair, u, f"exact(engine: {engine})", lengths=lengths)
        return one.log_prob(y=labels) if query == "log_prob of some cells" else QUERIES[query](one, other)

    with torch.set_grad_enabled(grad):
        found, wanted = asked(single[:2], u), asked(single[2:], u.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", ["chain", "order two"])
@pytest.mark.parametrize("second", ["chain", "order two"])
def test_models_that_join_other_cells(first: str, second: str) -> None:
    one, other, u = models(first, 1e4), models(second, 1e4), inputs(1e4, 2, 3, 3)
    found = QUERIES["kl"](*opened([one[0], other[1]], u, "exact"))
    wanted = QUERIES["kl"](*opened([one[2], other[3]], u.double(), "enumerate"))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("structure", ["chain", "order two"])
def test_compiled_and_mapped_answers(structure: str) -> None:
    torch.compiler.reset()
    single, u = models(structure, 1e4), inputs(1e4, 2, 3, 3)
    names = ("kl", "cross_entropy", "log_prob of some cells", "log_prob")

    def asked(pair: list[em.EnergyModel], u: Tensor, using: str) -> list[Tensor]:
        posteriors = opened(pair, u, using)
        return [QUERIES[name](*posteriors) for name in names]

    wanted = [one.float() for one in asked(single[2:], u.double(), "enumerate")]
    compiled = torch.compile(lambda u: asked(single[:2], u, "exact"), fullgraph=True, backend="eager")(u)
    mapped = torch.func.vmap(lambda u: asked(single[:2], u, "exact"))(u.unsqueeze(0))
    for found, each, true in zip(compiled, mapped, wanted, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(each[0], true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "tracked"])
def test_bare_scores_of_some_cells(grad: bool) -> None:
    u, w = inputs(1e4, 2, 20, 3), inputs(1e4, 3, 3)
    labels = torch.arange(40).reshape(2, 20) % 4 - 1
    given = u.clone().requires_grad_(grad), w.clone().requires_grad_(grad)
    exact = u.double().requires_grad_(grad), w.double().requires_grad_(grad)
    found, wanted = functional.chain_log_prob(*given, labels), functional.chain_log_prob(*exact, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    if grad:
        slopes, true = torch.autograd.grad(found.sum(), given), torch.autograd.grad(wanted.sum(), exact)
        for one, other in zip(slopes, true, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)

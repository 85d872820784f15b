"""Half precision: scores are added up in float32; every answer has the type of the scores and is right to its digits.

The truth is enumeration in float64 of the same rounded scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml.posterior import Posterior

START = """\
labels L = {a, b, c}
dim T
input u : real[T, L]
output y : L[T]
param W : real[from: L, to: L] = normal(1.0)
param v : real[L] = normal(1.0)
factor one [t in T] (y[t]) = u[t]
factor own [t in T] (y[t]) = v
"""
CHAIN = START + "factor two [t in T-1] (from: y[t], to: y[t+1]) = W\n"
STRUCTURES = {
    "chain": CHAIN,
    "order two": CHAIN + "factor skip [t in T-2] (from: y[t], to: y[t+2]) = W\n",
    "tree": START + "dim E\ninput links : edge(T, T)[E]\nfactor two [e = (i, j) in links] (from: y[i], to: y[j]) = W\n",
    "grid": CHAIN.replace("dim T", "dim T\ndim S = 2")
    .replace("L[T]\n", "L[T, S]\n")
    .replace("t in T]", "t in T, s in S]")
    .replace("t in T-1]", "t in T-1, s in S]")
    .replace("y[t]", "y[t, s]")
    .replace("y[t+1]", "y[t+1, s]")
    + "factor across [t in T, s in S-1] (from: y[t, s], to: y[t, s+1]) = W\n",
    "latents": CHAIN.replace(
        "factor one", "latent z : L[T]\nfactor hidden [t in T] (from: y[t], to: z[t]) = W\nfactor one"
    ),
}
SIZE = 3
LINKS = torch.tensor([[[0, 1], [2, 1]], [[1, 2], [0, 2]]])


def labels_of(posterior: Posterior) -> Tensor:
    shape = [posterior.problem.env.batch.size_of(dim) for dim in posterior.problem.graph.variables["y"].dims]
    return torch.arange(2 * torch.Size(shape).numel()).reshape(2, *shape) % 3


def cost_of(posterior: Posterior) -> Tensor:
    wrong = labels_of(posterior).unsqueeze(-1) != torch.arange(3)
    return 1.5 * wrong.to(posterior.problem.env.batch.dtype)


def partial(posterior: Posterior) -> Tensor:
    labels = labels_of(posterior)
    labels[:, 1] = -1
    return labels


Asked = Callable[[Posterior, Posterior], Tensor]
QUERIES: dict[str, Asked] = {
    "log_partition": lambda one, other: one.log_partition,
    "marginals": lambda one, other: one.marginals["y"],
    "factor_marginals": lambda one, other: one.factor_marginals["two"],
    "max_marginals": lambda one, other: one.max_marginals["y"],
    "map": lambda one, other: one.map().score,
    "n_best": lambda one, other: one.n_best(5).score,
    "entropy": lambda one, other: one.entropy,
    "log_prob": lambda one, other: one.log_prob(y=labels_of(one)),
    "log_prob of some cells": lambda one, other: one.log_prob(y=partial(one)),
    "max_with_cost": lambda one, other: one.max_with_cost(y=cost_of(one)).score,
    "log_prob_with_cost": lambda one, other: one.log_prob_with_cost({"y": labels_of(one)}, {"y": cost_of(one)}),
    "expectation": lambda one, other: one.expectation({"y": cost_of(one)}),
    "cross_entropy": lambda one, other: one.cross_entropy(other),
    "kl": lambda one, other: one.kl(other),
}
ENGINES = ["auto", "torch"]
# Two models with latents are not compared.
CASES = [
    (structure, query)
    for structure in STRUCTURES
    for query in QUERIES
    if not (structure == "latents" and query in ("cross_entropy", "kl"))
]
TYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
TRACKED = pytest.mark.parametrize("grad", [False, True], ids=["plain", "tracked"])


def both(structure: str, dtype: torch.dtype) -> tuple[em.EnergyModel, em.EnergyModel, Tensor]:
    """Two models of the same cells in some type, and an input that is as large as scores of networks are."""
    models = [em.compile(STRUCTURES[structure], seed=seed).to(dtype) for seed in (1, 2)]
    generator = torch.Generator().manual_seed(2)
    return models[0], models[1], (4 * torch.randn(2, SIZE, 3, generator=generator) + 6).to(dtype)


def opened(models: tuple[em.EnergyModel, em.EnergyModel], u: Tensor, using: str) -> Iterator[Posterior]:
    for model in models:
        given = {"links": LINKS} if "links" in model.compiled.source.text else {}
        yield model.infer(u=u.detach() if model is models[1] else u, using=using, **given)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype, slack: float = 1.0) -> None:
    """Nothing but the rounding of the answer, and of sums in float32."""
    unit = slack * torch.finfo(dtype).eps
    torch.testing.assert_close(found.detach().double(), wanted.detach(), rtol=unit, atol=1e-5 + (slack - 1) * unit)


@TYPES
@TRACKED
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("structure", "query"), CASES)
def test_answers_have_the_type_of_the_scores(
    structure: str, query: str, engine: str, grad: bool, dtype: torch.dtype
) -> None:
    first, second, u = both(structure, dtype)
    wide = tuple(em.compile(STRUCTURES[structure], seed=seed).to(dtype).double() for seed in (1, 2))
    given = u.clone().requires_grad_(grad)
    exact = u.double().requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        found = QUERIES[query](*opened((first, second), given, f"exact(engine: {engine})"))
        wanted = QUERIES[query](*opened((wide[0], wide[1]), exact, "enumerate"))
    assert found.dtype == dtype
    assert found.requires_grad == grad
    close(found, wanted, dtype)
    if not grad:
        return
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    finite = wanted.isfinite()
    (found[finite] * weights[finite]).sum().backward()
    (wanted[finite] * weights.double()[finite]).sum().backward()
    for one, other in ((given, exact), *zip(first.parameters(), wide[0].parameters(), strict=True)):
        if other.grad is None:
            continue
        assert one.grad is not None and one.grad.dtype == dtype
        close(one.grad, other.grad, dtype, slack=8.0)


@TYPES
@TRACKED
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "latents"])
def test_draws_have_the_scores_of_their_labels(structure: str, engine: str, grad: bool, dtype: torch.dtype) -> None:
    """The truth is the score of the drawn labels in float64."""
    first, second, u = both(structure, dtype)
    wide = em.compile(STRUCTURES[structure], seed=1).to(dtype).double()
    u.requires_grad_(grad)
    posterior, _ = opened((first, second), u, f"exact(engine: {engine})")
    drawn = posterior.sample(4, generator=torch.Generator().manual_seed(0))
    assert drawn.score.dtype == dtype
    for labels, score in zip(drawn["y"], drawn.score, strict=True):
        given = {"links": LINKS} if structure == "tree" else {}
        close(score, wide.score(u=u.detach().double(), y=labels, **given), dtype)
    if grad:
        drawn.score.sum().backward()
        assert u.grad is not None and u.grad.dtype == dtype
        chosen = torch.nn.functional.one_hot(drawn["y"], 3).sum(0)
        chosen = chosen.sum(2) if structure == "grid" else chosen
        assert torch.equal(u.grad.double(), chosen.double())


@TYPES
@pytest.mark.parametrize("structure", ["chain", "order two"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_compiled_answers_have_the_type_of_the_scores(structure: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    first, second, u = both(structure, dtype)

    def asked(u: Tensor) -> list[Tensor]:
        pair = first.infer(u=u, using="exact"), second.infer(u=u, using="exact")
        return [QUERIES[one](*pair) for one in ("log_partition", "marginals", "max_marginals", "entropy", "map", "kl")]

    found = torch.compile(asked, fullgraph=True, backend="eager")(u)
    assert {one.dtype for one in found} == {dtype}
    torch.testing.assert_close(found, asked(u))


@TYPES
@pytest.mark.parametrize("engine", ["auto", "torch", "torch_struct"])
@pytest.mark.parametrize("query", [query for query in QUERIES if query != "factor_marginals"])
def test_lengths_evidence_and_engines_keep_the_type(query: str, engine: str, dtype: torch.dtype) -> None:
    first, second, u = both("chain", dtype)
    lengths, evidence = torch.tensor([3, 2]), {"y": torch.tensor([[-1, -1, 2], [-1, 1, -1]])}
    found, wanted = (
        QUERIES[query](
            models[0].infer(u=given, lengths=lengths, evidence=evidence, using=using),
            models[1].infer(u=given, lengths=lengths, using=using),
        )
        for models, given, using in (
            ((first, second), u, f"exact(engine: {engine})"),
            ([em.compile(CHAIN, seed=seed).to(dtype).double() for seed in (1, 2)], u.double(), "enumerate"),
        )
    )
    assert found.dtype == dtype
    close(found, wanted, dtype)

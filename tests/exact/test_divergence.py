"""Divergences between models whose terms differ, against enumeration."""

from __future__ import annotations

import pytest
import torch

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.queries import Quality

HEAD = """
labels A = {a, b, c}
dim T
input u : real[T, A]
input w : real[f: A, t: A]
output y : A[T]
factor own [t in T] (y[t]) = u[t]
"""
TERMS = {
    "chain": "factor pair [t in T-1] (f: y[t], t: y[t+1]) = w",
    "skipping": "factor skip [t in T-2] (f: y[t], t: y[t+2]) = w",
    "constants": "factor ends (f: y[0], t: y[-1]) = w",
    "triples": "param x : real[f: A, m: A, t: A]\nfactor triple [t in T-2] (f: y[t], m: y[t+1], t: y[t+2]) = x",
}


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("second", TERMS)
@pytest.mark.parametrize("first", TERMS)
def test_the_second_model_may_join_other_cells(first: str, second: str, engine: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def posteriors(using: str) -> list[em.Posterior]:
        return [em.compile(HEAD + TERMS[name], seed=0).infer(**one, mask=mask, using=using) for name, one in given]

    given = []
    for name in (first, second):
        numbers = {"u": (2, 4, 3), "w": (2, 3, 3)}
        given.append((name, {key: torch.randn(size, generator=generator) for key, size in numbers.items()}))
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    p, q = posteriors(f"exact(engine: {engine})")
    wanted, other = posteriors("enumerate")
    torch.testing.assert_close(p.cross_entropy(q), wanted.cross_entropy(other))
    torch.testing.assert_close(p.kl(q), wanted.kl(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("first", ["chain", "skipping"])
def test_a_second_model_without_tables_is_refused(first: str) -> None:
    u, w = torch.zeros(1, 3, 3), torch.zeros(1, 3, 3)
    whole = em.compile(HEAD + "net whole = pooled(hidden: 4)\nscore tail (y) = whole(soft(y))", seed=0)
    other = whole.infer(u=u, using="enumerate")
    with pytest.raises(QueryRefused, match="`tail` of the second model has no table"):
        em.compile(HEAD + TERMS[first], seed=0).infer(u=u, w=w, using="exact").kl(other)


@pytest.mark.parametrize("first", ["exact", "enumerate"])
@pytest.mark.parametrize("kind", ["cross_entropy", "kl"])
def test_a_bound_of_the_second_log_partition_bounds_the_answer(kind: str, first: str) -> None:
    generator = torch.Generator().manual_seed(0)
    loop = em.compile(HEAD + TERMS["chain"] + "\n" + TERMS["constants"])
    one, two = (
        {key: 2 * torch.randn(2, *size, generator=generator) for key, size in (("u", (5, 3)), ("w", (3, 3)))}
        for _ in range(2)
    )

    def asked(using: str) -> em.Result:
        return loop.infer(**one, using=first).ask(kind, other=loop.infer(**two, using=using))

    true = asked("enumerate")
    found = {using: asked(using) for using in ("exact", "mean_field", "trw", "bp")}
    assert true.quality is found["exact"].quality is Quality.EXACT
    torch.testing.assert_close(found["exact"].value, true.value)
    assert found["mean_field"].quality is Quality.LOWER
    assert (found["mean_field"].value < true.value).all()
    assert found["trw"].quality is Quality.UPPER
    assert (found["trw"].value > true.value).all()
    assert found["bp"].quality is Quality.ESTIMATE


def test_a_second_model_without_log_partition_is_refused() -> None:
    u, w = torch.zeros(1, 3, 3), torch.zeros(1, 3, 3)
    chain = em.compile(HEAD + TERMS["chain"])
    with pytest.raises(QueryRefused, match="second model, which `dual` does not answer; infer that model with `exact`"):
        chain.infer(u=u, w=w, using="exact").kl(chain.infer(u=u, w=w, using="dual"))

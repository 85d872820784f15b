"""Certificates as people ask for them: whose answer, whose bound, what they say, and what they refuse."""

from __future__ import annotations

import sys

import pytest
import torch

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.queries import Quality
from tests.variational.graphs import CHAIN, GRID, chain, compiled, grid, real

torch.set_num_threads(1)

BIG = GRID.replace("{a, b, c}", "{a, b, c, d, e, f, g, h, i, j, k, l}")
LATENT = """\
labels Tag = {A, B}
dim T
input u : real[T, Tag]
input k : real[a: Tag, b: Tag]
output y : Tag[T]
latent z : Tag[T]
factor one [t in T] (y[t]) = u[t]
factor both [t in T] (a: y[t], b: z[t]) = k
factor next [t in T-1] (a: z[t], b: z[t+1]) = k
"""


def test_small_models_get_exact_certificates() -> None:
    model = compiled(GRID)
    with torch.no_grad():
        posterior = model.infer(using="mean_field", **grid(0))
        made = posterior.certificate()
        best = model.infer(using="exact", **grid(0)).map().score
    assert made.method == "exact"
    torch.testing.assert_close(made.bound, best)
    lower, upper = made.log_partition
    assert lower is not None and upper is not None
    assert (lower <= upper).all()


def test_large_models_get_dual_certificates() -> None:
    model = compiled(BIG)
    given = {"u": real(0, 2, 8, 8, 12), "k": real(1, 2, 12, 12)}
    with torch.no_grad():
        made = model.infer(using="mean_field(steps: 3)", **given).certificate()
        alone = model.infer(using="dual", **given).certificate(log_partition=False)
    assert made.method == "dual" and (made.gap >= 0).all() and made.gap.isfinite().all()
    torch.testing.assert_close(made.bound, alone.bound)
    assert alone.log_partition == (None, None)
    lower, upper = made.log_partition
    assert lower is not None and upper is not None and (lower <= upper).all() and (made.bound <= upper).all()


def test_an_answer_of_ones_own() -> None:
    model = compiled(CHAIN)
    given = chain(1)
    with torch.no_grad():
        posterior = model.infer(using="bp", **given)
        exact = model.infer(using="exact", **given)
        zeros = torch.zeros(4, 6, dtype=torch.long)
        made = posterior.certificate({"y": zeros})
        torch.testing.assert_close(made.score, model.score(y=zeros, **given))
        torch.testing.assert_close(made.gap, exact.map().score - made.score)
        assert bool(posterior.certificate(exact.map()).proven.all())
    with pytest.raises(QueryRefused, match="has none for `y`"):
        posterior.certificate({})


def test_evidence_counts() -> None:
    model = compiled(CHAIN)
    given = chain(1, batch=2)
    known = torch.full((2, 6), -1)
    known[:, 0] = 2
    with torch.no_grad():
        posterior = model.infer(using="mean_field", evidence={"y": known}, **given)
        made = posterior.certificate({"y": torch.zeros(2, 6, dtype=torch.long)})
    assert made.score.isneginf().all() and made.gap.isposinf().all() and not made.proven.any()
    assert "the answer is forbidden" in made.describe()
    nothing = torch.zeros(2, 6, 3, dtype=torch.bool)
    with torch.no_grad():
        empty = model.infer(using="dual", evidence={"y": nothing}, **given).certificate(log_partition=False)
    assert empty.bound.isneginf().all() and (empty.gap == 0).all() and "no answer is possible" in empty.describe()


def test_latents_are_summed_out() -> None:
    model = compiled(LATENT)
    given = {"u": real(0, 20, 4, 2), "k": real(1, 20, 2, 2, scale=2.0)}
    with torch.no_grad():
        exact = model.infer(using="enumerate", **given)
        best = exact.map()
        bound = model.infer(using="dual", **given).ask("map_bound").value
        assert (bound >= best.score - 1e-9).all()
        made = model.infer(using="mean_field", **given).certificate(best)
    torch.testing.assert_close(made.score, best.score)
    assert bool(made.proven.all()) and "20 of 20 answers are the best possible" in repr(made)


def test_who_cannot_give_a_bound_says_so() -> None:
    model = compiled(CHAIN)
    posterior = model.infer(using="mean_field", **chain(0))
    with pytest.raises(QueryRefused, match="`mean_field` gives none"):
        posterior.certificate(using="mean_field")
    whole = em.compile(
        "labels Tag = {A, B}\ndim T\ninput x : real[T, 2]\noutput y : Tag[T]\nnet f = pooled(hidden: 3)\n"
        "score tail (y) = f(soft(y))\n",
        seed=0,
    )
    small = whole.infer(using="enumerate", x=torch.zeros(1, 3, 2)).certificate()
    assert small.method == "enumerate" and bool(small.proven.all())
    with pytest.raises(QueryRefused, match=r"no upper bound of the best score: .*`tail` has none"):
        answer = {"y": torch.zeros(1, 30, dtype=torch.long)}
        whole.infer(using="enumerate", x=torch.zeros(1, 30, 2)).certificate(answer, using="dual")


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (0.231, "0.24"),
        (0.3, "0.3"),
        (1.701, "1.8"),
        (258.0, "260"),
        (0.00912, "0.0092"),
        (1234.0, "1300"),
        (9.99, "10"),
    ],
)
def test_what_is_said_is_rounded_upwards(gap: float, text: str) -> None:
    score = torch.tensor([0.0], dtype=torch.float64)
    made = em.Certificate(score, score + gap, score + gap, (score - 1.23456, score + 98.76543), "dual")
    assert f"at most {text}" in repr(made) and "log Z within [-1.235, 98.77]" in repr(made)
    said = float(repr(made).partition("at most ")[2].partition(" ")[0])
    assert gap <= said <= 1.1 * gap


# ----------------------------------------------------------------------------------------------- integer programming


def test_a_proof_that_runs_out_of_time_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from energyml.backends.ilp import backend
    from energyml.backends.ilp.program import Example, Solution

    solve = backend.solve

    def interrupted(example: Example, seconds: float) -> Solution:
        found = solve(example, seconds)
        return Solution(None, found.bound + 1, False, found.nodes)

    monkeypatch.setattr(backend, "solve", interrupted)
    model = compiled(GRID)
    with torch.no_grad():
        posterior = model.infer(using="ilp(seconds: 5)", **grid(0))
        found = posterior.ask("map")
        best = model.infer(using="exact", **grid(0)).map().score
    assert found.quality is Quality.LOWER and not found.status.ok
    assert "could not prove 4 of 4 answers to be best: (a) 5 s each" in found.status.message
    assert (found.value.score <= best + 1e-9).all() and not found.value.score.isinf().any()
    torch.testing.assert_close(found.statistics["bound"], best + 1)
    torch.testing.assert_close(posterior.ask("map_bound").value, best + 1)


def test_a_time_limit_ends_the_search() -> None:
    """A frustrated graph that takes the solver far longer than this."""
    nodes = 90
    generator = torch.Generator().manual_seed(0)
    pairs = [(i, j) for i in range(nodes) for j in range(i) if torch.rand((), generator=generator) < 0.3]
    model = em.compile(
        "labels Spin = {a, b}\ndim N, E\ninput link : edge(N, N)[E]\ninput v : real[E]\ninput u : real[N, Spin]\n"
        "output y : Spin[N]\nfactor one [n in N] (y[n]) = u[n]\n"
        "factor two [e = (i, j) in link] (y[i], y[j]) = potts(v[e])\n"
    ).double()
    v = torch.randn(1, len(pairs), generator=generator, dtype=torch.float64)
    given = {"link": torch.tensor([pairs]), "v": v, "u": torch.zeros(1, nodes, 2, dtype=torch.float64)}
    with torch.no_grad():
        found = model.infer(using="ilp(seconds: 0.2)", **given).ask("map")
    assert found.quality is Quality.LOWER and (found.statistics["bound"] >= found.value.score).all()


def test_programs_that_are_too_large_are_refused() -> None:
    with pytest.raises(QueryRefused, match=r"would need \d+ indicators for example 0, and `limit` is 50"):
        compiled(GRID).infer(using="ilp(limit: 50)", **grid(0)).map()


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(em.EnergyError, match=r"`ilp` needs scipy.*pip install scipy"):
        compiled(GRID).infer(using="ilp", **grid(0))

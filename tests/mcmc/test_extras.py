"""ArviZ and Pyro, where they are installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.inference.convergence import effective, split_rhat
from tests.mcmc.models import CHAIN, GRID, HARD, LATENT
from tests.mcmc.test_draws import LONG, posterior

torch.set_num_threads(1)
FIELD = """
labels Seg = {off, on}
dim H = 2, W = 2
input u : real[Seg, H, W]
input e : real[3, H, W]
field s : real[Seg, H, W]
output y : Seg[H, W] = argmax s over Seg
gaussian s { unary: u, pair: potts(e), ridge: 1.5 }
"""


@pytest.mark.filterwarnings("ignore")
def test_arviz_names_the_axes_and_agrees() -> None:
    arviz = pytest.importorskip("arviz")
    torch.manual_seed(0)
    found = posterior(GRID, "gibbs(sweeps: 200, burn_in: 10, chains: 4)")
    data, trace = found.to_arviz(), found.trace()
    assert data.posterior["y"].dims == ("chain", "draw", "example", "H", "W")
    assert data.posterior["y"].attrs["labels"] == ["down", "up"]
    assert data.sample_stats["lp"].shape == (4, 200, 1)
    lp = data.sample_stats["lp"].values[:, :, 0]
    assert abs(float(arviz.rhat(lp)) - float(split_rhat(trace.score)[0])) < 1e-6
    assert abs(float(arviz.ess(lp, method="mean")) / float(effective(trace.score)[0]) - 1) < 0.1


def test_who_keeps_no_draws_says_so() -> None:
    with pytest.raises(QueryRefused, match="keeps no draws"):
        posterior(CHAIN, "exact").to_arviz()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", [CHAIN, HARD, LATENT], ids=["chain", "hard", "latent"])
def test_pyro_distribution(text: str) -> None:
    pytest.importorskip("pyro")
    found = posterior(text, "exact")
    made = found.to_pyro()
    every = made.enumerate_support()
    assert every.shape[1:] == made.batch_shape + made.event_shape
    log_p = made.log_prob(every)
    assert torch.allclose(log_p.exp().sum(0), torch.ones(1, dtype=torch.float64))
    torch.manual_seed(0)
    drawn = made.sample((7, 2))
    assert drawn.shape == (7, 2, *made.batch_shape, *made.event_shape)
    assert made.log_prob(drawn).shape == (7, 2, 1) and made.log_prob(drawn).isfinite().all()


@pytest.mark.filterwarnings("ignore")
def test_inside_a_pyro_program() -> None:
    pyro: Any = pytest.importorskip("pyro")
    made = posterior(CHAIN, "exact").to_pyro()

    def program() -> Any:
        with pyro.plate("examples", 1):
            y = pyro.sample("y", made)
            return pyro.sample("x", pyro.distributions.Normal(y.double().sum(-1), 1.0), obs=torch.ones(1))

    traced = pyro.poutine.trace(program).get_trace()
    assert torch.isfinite(traced.log_prob_sum())
    with pytest.raises(QueryRefused, match="exact `log_prob`"):
        posterior(CHAIN, "gibbs").to_pyro()


@pytest.mark.skipif(not LONG, reason="long: `make validity`")
@pytest.mark.filterwarnings("ignore")
def test_nuts_agrees_with_exact_variances() -> None:
    pyro = pytest.importorskip("pyro")
    pyro.set_rng_seed(0)
    model = em.compile(FIELD, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    given = {"u": torch.randn(1, 2, 2, 2, generator=generator), "e": torch.randn(1, 3, 2, 2, generator=generator)}
    given = {name: one.double() for name, one in given.items()}
    seen = torch.full((1, 2, 2, 2), float("nan"), dtype=torch.float64)
    seen[0, 0, 0, 0] = 0.3
    with torch.no_grad():
        exact = model.infer(using="exact", evidence={"s": seen}, **given)
        found = model.infer(using="nuts(draws: 400, warmup: 100, chains: 2)", evidence={"s": seen}, **given)
        want, have = exact.variance["s"], found.ask("variance").value["s"]
        drawn = found.ask("sample", count=10).value
    assert have[0, 0, 0, 0] == 0 and want[0, 0, 0, 0] == 0
    # A variance of n independent draws has the relative error sqrt(2 / n); NUTS draws are worth about as many.
    assert ((have - want).abs() <= 5 * want * (2 / 400) ** 0.5).all()
    assert drawn["s"].shape == (10, 1, 2, 2, 2) and drawn["y"].shape == (10, 1, 2, 2)


@pytest.mark.filterwarnings("ignore")
def test_nuts_reports_how_often_it_moved() -> None:
    pyro = pytest.importorskip("pyro")
    pyro.set_rng_seed(0)
    model = em.compile(FIELD, seed=0).double()
    given = {"u": torch.zeros(1, 2, 2, 2, dtype=torch.float64), "e": torch.ones(1, 3, 2, 2, dtype=torch.float64)}
    with torch.no_grad():
        result = model.infer(using="nuts(draws: 6, warmup: 6, chains: 1)", **given).ask("sample", count=2)
    assert 0.3 < result.statistics["acceptance"] <= 1


def test_without_the_extras_errors_name_them() -> None:
    for name, ask in (("arviz", "to_arviz"), ("pyro", "to_pyro")):
        try:
            __import__(name)
        except ImportError:
            using = "gibbs(sweeps: 2, burn_in: 0)" if name == "arviz" else "exact"
            with pytest.raises(em.EnergyError, match="pip install"):
                getattr(posterior(CHAIN, using), ask)()

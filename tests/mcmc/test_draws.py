"""Draws against enumeration, Geweke's joint test, resuming, and what a run says about itself.

ENERGYML_VALIDITY=1 (`make validity`) draws a hundred times as much.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml import native
from energyml.backends.mcmc import swendsen_wang
from energyml.backends.mcmc.gibbs import ChainGibbs, FactorGibbs, SiteGibbs
from energyml.backends.mcmc.gibbs_native import NativeChains, NativeGibbs
from energyml.backends.mcmc.gradient import DiscreteLangevin, GradientGibbs
from energyml.backends.mcmc.kernel import Current, Kernel, State
from energyml.backends.mcmc.metropolis import DegenerateGibbs, Metropolis
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.swendsen_wang import SwendsenWang
from energyml.backends.mcmc.target import ScoreTarget, Target
from energyml.diagnostics import QueryRefused
from energyml.inference.convergence import effective, split_rhat, total_variation_bound
from energyml.inference.trace import Progress
from tests.contract.device_harness import DeviceHarness
from tests.mcmc.exhaustive import all_labels, numbered, target_distribution
from tests.mcmc.models import CHAIN, FREE, GLOBAL, GRID, HARD, LATENT, MASKED, STEPS, problem
from tests.mcmc.test_balance import LONG, Forgetful, factors, inconsistent, states

torch.set_num_threads(1)
CHAINS = 200_000 if LONG else 2000


def scores(**options: Any) -> Any:
    return lambda text: Metropolis(ScoreTarget(problem(text, 0.6), CHAINS), **options)


SAMPLERS: dict[str, tuple[Any, str, int]] = {
    "gibbs": (lambda text: FactorGibbs(factors(problem(text), CHAINS), "sequential"), HARD, 12),
    "colours": (lambda text: FactorGibbs(factors(problem(text), CHAINS), "coloured"), GRID, 12),
    "chains": (lambda text: ChainGibbs(factors(problem(text), CHAINS)), GRID, 8),
    "latent": (lambda text: FactorGibbs(factors(problem(text), CHAINS), "sequential"), LATENT, 12),
    "sites": (lambda text: SiteGibbs(ScoreTarget(problem(text), CHAINS)), GLOBAL, 8),
    "free length": (lambda text: SiteGibbs(ScoreTarget(problem(text, 0.6), CHAINS)), FREE, 25),
    "metropolis": (scores(), STEPS, 10),
    "blocks": (scores(block=2, temperature=1.5), MASKED, 15),
    "mixture": (scores(nucleus=0.7, mixture=0.3), MASKED, 15),
    "gradients": (lambda text: GradientGibbs(factors(problem(text), CHAINS)), CHAIN, 15),
    "langevin": (lambda text: DiscreteLangevin(factors(problem(text), CHAINS), 0.8), GRID, 60),
    "clusters": (lambda text: SwendsenWang(factors(problem(text), CHAINS)), GRID, 10),
}


if native.gibbs is not None:
    SAMPLERS["gibbs, native"] = (lambda text: NativeGibbs(factors(problem(text), CHAINS), "sequential"), HARD, 12)
    SAMPLERS["colours, native"] = (lambda text: NativeGibbs(factors(problem(text), CHAINS), "coloured"), GRID, 12)
    SAMPLERS["latent, native"] = (lambda text: NativeGibbs(factors(problem(text), CHAINS), "sequential"), LATENT, 12)
    SAMPLERS["chains, native"] = (lambda text: NativeChains(factors(problem(text), CHAINS)), HARD, 1)


def distance(kernel: Kernel, sweeps: int) -> tuple[float, float]:
    """The total variation between independent chains after some sweeps and the truth, and its bound."""
    state = kernel.init(torch.Generator().manual_seed(11))
    for _ in range(sweeps):
        state, _ = kernel.step(state)
    target = kernel.target
    count = states(target)
    found = numbered(target, dict(state.labels)).bincount(minlength=count).double() / target.chains
    with torch.no_grad():
        p = target_distribution(target.score(all_labels(target))[0])
    return float((found - p).abs().sum() / 2), total_variation_bound(int((p > 0).sum()), target.chains)


@pytest.mark.parametrize("name", SAMPLERS)
def test_total_variation(name: str) -> None:
    make, text, sweeps = SAMPLERS[name]
    far, bound = distance(make(text), sweeps)
    assert far < bound


def test_total_variation_catches_a_broken_sampler() -> None:
    far, bound = distance(Forgetful(ScoreTarget(problem(STEPS, 0.6), CHAINS)), 10)
    assert far > bound


# ----------------------------------------------------------------------------------------------------- Geweke 2004


def geweke(make: Any, count: int, rounds: int = 3) -> tuple[float, float]:
    """Successive conditionals: y given z by a kernel, z given y exactly; started from the joint, they stay there."""
    model = em.compile(LATENT.replace("latent z", "output z"), seed=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(1, 2, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        exact = model.infer(u=u, using="enumerate")
        drawn = exact.sample(count, generator=generator)
        y, z = drawn["y"][:, 0], drawn["z"][:, 0]
        every = torch.cartesian_prod(*[torch.arange(2)] * 4)
        many = model.infer(u=u.expand(16, -1, -1), using="enumerate")
        p = many.log_prob(y=every[:, :2], z=every[:, 2:]).exp()
        for number in range(rounds):
            given = model.problem(u=u.expand(count, -1, -1), evidence={"z": z})
            kernel = make(given)
            start = {"y": y.unsqueeze(1), "z": z.unsqueeze(1)}
            state = kernel.init(torch.Generator().manual_seed(number), labels=start)
            state, _ = kernel.step(state)
            y = state.labels["y"][:, 0]
            assert torch.equal(state.labels["z"][:, 0], z), "evidence was moved"
            z = model.infer(u=u.expand(count, -1, -1), evidence={"y": y}, using="exact").sample(1, generator)["z"][0]
    found = (torch.cat([y, z], 1) * torch.tensor([8, 4, 2, 1])).sum(1).bincount(minlength=16).double() / count
    return float((found - p).abs().sum() / 2), total_variation_bound(16, count)


@pytest.mark.parametrize(
    "make",
    [
        lambda given: FactorGibbs(factors(given), "sequential"),
        lambda given: FactorGibbs(factors(given), "coloured"),
        lambda given: (FactorGibbs if native.gibbs is None else NativeGibbs)(factors(given), "coloured"),
        lambda given: Metropolis(ScoreTarget(given, 1), block=2, temperature=2.0),
        lambda given: GradientGibbs(factors(given)),
        lambda given: DiscreteLangevin(factors(given), 1.0),
    ],
    ids=["gibbs", "colours", "native", "metropolis", "gradients", "langevin"],
)
def test_joint_distribution(make: Any) -> None:
    far, bound = geweke(make, 20_000 if LONG else 2000)
    assert far < bound


def test_joint_distribution_catches_a_broken_sampler() -> None:
    class Cold(FactorGibbs):
        def init(self, generator: torch.Generator, beta: Tensor | None = None, labels: Any = None) -> State:
            return super().init(generator, 4 * torch.ones(1, dtype=torch.float64), labels)

    far, bound = geweke(lambda given: Cold(factors(given), "sequential"), 2000)
    assert far > bound


# --------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "make",
    [
        lambda: FactorGibbs(factors(problem(GRID), 3), "coloured"),
        lambda: (FactorGibbs if native.gibbs is None else NativeGibbs)(factors(problem(GRID), 3), "coloured"),
        lambda: Metropolis(ScoreTarget(problem(MASKED, 0.6), 3), block=2, order="random"),
        lambda: GradientGibbs(factors(problem(CHAIN), 3)),
    ],
    ids=["gibbs", "native", "metropolis", "gradients"],
)
def test_saved_chains_resume_bit_by_bit(make: Any, tmp_path: Any) -> None:
    from safetensors.torch import load_file, save_file

    kernel = make()
    state = kernel.init(torch.Generator().manual_seed(4))
    for _ in range(3):
        state, _ = kernel.step(state)
    save_file({name: one.contiguous() for name, one in state.tensors().items()}, tmp_path / "chains")
    other, loaded = make(), State.from_tensors(load_file(tmp_path / "chains"))
    for _ in range(4):
        state, _ = kernel.step(state)
        loaded, _ = other.step(loaded)
    for name, one in state.tensors().items():
        assert torch.equal(one, loaded.tensors()[name]), name


@pytest.mark.parametrize("kind", [FactorGibbs, *([] if native.gibbs is None else [NativeGibbs])])
def test_a_step_changes_nothing_in_place(kind: type[FactorGibbs]) -> None:
    kernel = kind(factors(problem(CHAIN), 5), "sequential")
    state = kernel.init(torch.Generator().manual_seed(4))
    before = {name: one.clone() for name, one in state.tensors().items()}
    kernel.step(state)
    assert all(torch.equal(one, before[name]) for name, one in state.tensors().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: SiteGibbs(ScoreTarget(problem(GLOBAL), 50)),
        lambda: FactorGibbs(factors(problem(CHAIN), 50), "sequential"),
        lambda: Metropolis(ScoreTarget(problem(MASKED, 0.6), 50)),
        lambda: DegenerateGibbs(ScoreTarget(problem(MASKED, 0.6), 50)),
        lambda: GradientGibbs(factors(problem(CHAIN), 50)),
    ],
    ids=["sites", "gibbs", "metropolis", "degenerate", "gradients"],
)
def test_rates_count_what_happened(make: Any) -> None:
    """A chain that ends elsewhere made a novel transition, and no move is novel that was not accepted."""
    kernel = make()
    state = kernel.init(torch.Generator().manual_seed(6))
    new, info = kernel.step(state)
    moved = torch.stack([(new.labels[name] != one).any(-1) for name, one in state.labels.items()]).any(0)
    assert moved.any() and (info.novel[moved] >= 1).all()
    assert (info.novel <= info.accepted).all() and (info.accepted <= info.proposed).all()
    assert (info.proposed == 3).all()


@pytest.mark.parametrize(
    ("kind", "most"), [(SiteGibbs, 2 + 29), (Metropolis, 2 * (2 + 30))], ids=["gibbs", "metropolis"]
)
def test_cells_behind_the_end_cost_no_steps(kind: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers end at their first cell: a trial of that cell takes two steps, one of another cell takes one."""
    given = problem(FREE.replace("free <= 3", "free <= 30"), 0.6)
    net: Any = given.env.module._modules["d"]
    with torch.no_grad():
        net.readout.bias[:2] = -40.0  # of all labels but the end
    target = ScoreTarget(given, 4)
    kernel = kind(target)
    start = {"y": torch.full((1, 4, 30), 2)}
    state, steps, plain = kernel.init(torch.Generator().manual_seed(0), labels=start), [], net.step

    def counted(*arguments: Any) -> Any:
        steps.append(arguments[2])
        return plain(*arguments)

    monkeypatch.setattr(net, "step", counted)
    state, _ = kernel.step(state)
    assert (target.outward(state.labels)["y"][..., 0] == 2).all()
    # A trial of the first cell with another label than the end goes on to the next end, at the second cell.
    assert len(steps) <= most


# --------------------------------------------------------------------------------------------------------- backends


def posterior(text: str, using: str, **more: Any) -> em.Posterior:
    given = problem(text)
    model = given.env.module
    assert isinstance(model, em.EnergyModel)
    return model.infer(using=using, **given.env.batch.tensors, **more)


def test_marginals_with_standard_errors() -> None:
    torch.manual_seed(0)
    exact = posterior(CHAIN, "exact").marginals["y"].detach()
    result = posterior(CHAIN, "gibbs(sweeps: 300, burn_in: 20, chains: 8)").ask("marginals")
    error = result.statistics["standard_error"]["y"]
    assert result.status.ok
    assert ((result.value["y"] - exact).abs() < 5 * error + 1e-9).all()
    assert (error < 0.03).all() and (error > 0).all()


def test_chains_that_have_not_mixed_say_so() -> None:
    # So strong that cells flip, but never all of them; by clusters they do.
    text = GRID.replace("constant(0.7)", "constant(3)").replace("H = 2, W = 2", "H = 3, W = 3")
    torch.manual_seed(0)
    result = posterior(text, "gibbs(sweeps: 60, burn_in: 5, chains: 8)").ask("marginals")
    assert not result.status.ok and "HAVE NOT MIXED" in result.status.message and "raise" in result.status.message
    with pytest.warns(UserWarning, match="HAVE NOT MIXED"):
        posterior(text, "gibbs(sweeps: 60, burn_in: 5, chains: 8)").sample(4)
    joined = posterior(text, "swendsen_wang(sweeps: 200, burn_in: 20, chains: 8)").ask("marginals")
    assert joined.status.ok


def test_degenerate_gibbs_is_labelled() -> None:
    result = posterior(MASKED, "degenerate_gibbs(sweeps: 5, burn_in: 0)").ask("sample", count=2)
    assert result.quality.value == "read-out"
    assert result.statistics["valid"] is False and "not the model's own" in result.statistics["warning"]


def test_annealing_is_labelled_and_never_too_cold() -> None:
    kernel = Metropolis(ScoreTarget(problem(MASKED, 0.6), 2), anneal=0.06)
    state = kernel.init(torch.Generator().manual_seed(0))
    assert not kernel.valid and "no samples" in str(kernel.warning)
    for _ in range(25):
        state, _ = kernel.step(state)
    from energyml.backends.mcmc.kernel import Current

    assert torch.allclose(kernel._beta(Current(state)), torch.tensor(20.0, dtype=torch.float64))


@pytest.mark.parametrize("text", [CHAIN, HARD, FREE, GLOBAL], ids=["chain", "hard", "free", "global"])
def test_log_partition_with_its_error(text: str) -> None:
    exact = posterior(text, "enumerate").log_partition.detach()
    torch.manual_seed(1)
    for using in ("ais(steps: 40, chains: 100)", "bridge(sweeps: 60, burn_in: 10, rungs: 4)"):
        result = posterior(text, using).ask("log_partition")
        error = result.statistics["error"]
        assert ((result.value - exact).abs() < 5 * error + 1e-9).all(), using
        assert (error < 0.3).all(), using


def test_evidence_that_rules_out_everything() -> None:
    labels = torch.tensor([[1, 1, -1]])
    drawn = posterior(HARD, "gibbs(sweeps: 5, burn_in: 0)", evidence={"y": labels}).ask("sample", count=3)
    assert (drawn.value["y"] == -1).all() and drawn.value.score.isneginf().all()
    assert "NO POSSIBLE ANSWER" in drawn.status.message


def test_refusals_name_the_reason() -> None:
    with pytest.raises(QueryRefused, match="attract"):
        posterior(GRID.replace("constant(0.7)", "constant(-1)"), "swendsen_wang").sample(1)
    with pytest.raises(QueryRefused, match="potts"):
        posterior(CHAIN, "swendsen_wang").sample(1)
    with pytest.raises(QueryRefused, match="no neighbours"):
        posterior(LATENT, "gibbs(block: chains)").sample(1)
    with pytest.raises(em.EnergyError, match="needs a table from every term"):
        posterior(MASKED, "gibbs(block: chains)")


def test_the_same_seed_gives_the_same_draws() -> None:
    one, two = (
        posterior(CHAIN, "gibbs(sweeps: 6, burn_in: 0)").ask("sample", count=30, generator=seeded()).value
        for seeded in [lambda: torch.Generator().manual_seed(3)] * 2
    )
    assert torch.equal(one["y"], two["y"]) and one["y"].shape == (30, 1, 3)
    assert torch.equal(one.score, two.score)


def test_progress_is_told() -> None:
    told: list[Progress] = []
    found = posterior(CHAIN, "gibbs(sweeps: 4, burn_in: 2)")
    found._session.progress = told.append  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.sample(1)
    assert [one.done for one in told] == [1, 2, 3, 4, 5, 6] and [one.burning for one in told].count(True) == 2


# ----------------------------------------------------------------------------------------------------- convergence


def test_convergence_of_known_series() -> None:
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(1000, 4, generator=generator, dtype=torch.float64)
    assert split_rhat(white) < 1.01
    assert 3000 < effective(white) < 5500
    assert split_rhat(white + torch.tensor([0.0, 0, 0, 3])) > 1.3
    slow = torch.zeros(4000, 4, dtype=torch.float64)
    for t in range(1, 4000):
        slow[t] = 0.9 * slow[t - 1] + torch.randn(4, generator=generator, dtype=torch.float64)
    # An autoregression of 0.9 is worth (1 - 0.9) / (1 + 0.9) of its draws.
    assert 0.5 < effective(slow) / (16000 * 0.1 / 1.9) < 2
    still = torch.ones(50, 4)
    assert split_rhat(still) == 1
    assert split_rhat(still * torch.tensor([1.0, 2, 1, 1])) == float("inf")


def test_targets_agree() -> None:
    """The factor graph and the terms' own scores, on all answers."""
    for text in (CHAIN, HARD, GRID, LATENT):
        given = problem(text)
        pair: list[Target] = [factors(given), ScoreTarget(given, 1)]
        labels = all_labels(pair[0])
        one, two = (target.score(labels) for target in pair)
        assert torch.equal(one.isneginf(), two.isneginf())
        assert torch.allclose(one.nan_to_num(neginf=0.0), two.nan_to_num(neginf=0.0))


def test_draws_of_inconsistent_conditionals() -> None:
    """Section 6.2.1 in draws: degenerate Gibbs fails, Metropolis-Hastings passes."""
    given = inconsistent("raw")
    far, bound = distance(DegenerateGibbs(ScoreTarget(given, CHAINS)), 20)
    assert far > bound
    # Chains rarely cross between the two likely answers, but start on both sides alike.
    far, bound = distance(Metropolis(ScoreTarget(given, CHAINS)), 40)
    assert far < bound


# --------------------------------------------------------------------------------------------------------- devices


def test_clusters_never_wait_for_a_device() -> None:
    given = problem(GRID)
    model: Any = given.env.module
    meta = model.to("meta")
    u = torch.randn(1, 2, 2, 2, dtype=torch.float64).to("meta")
    with torch.no_grad(), DeviceHarness([u, *meta.parameters()]) as harness:
        kernel = SwendsenWang(factors(meta.problem(u=u), 3))
        random = Randomness(torch.Generator().manual_seed(0))
        labels = kernel.target.spread(random)
        beta = torch.ones(3, dtype=torch.float64, device="meta")
        state = State(labels, kernel.target.score(labels), beta, torch.zeros((), device="meta"), random.state)
        kernel.advance(Current(state), random)
    assert harness.operations > 20


def test_clusters_are_the_same_where_the_host_cannot_look(monkeypatch: pytest.MonkeyPatch) -> None:
    using = "swendsen_wang(sweeps: 30, burn_in: 5)"
    large = GRID.replace("H = 2, W = 2", "H = 5, W = 5")
    torch.manual_seed(0)
    usual = posterior(large, using).trace()
    monkeypatch.setattr(swendsen_wang, "is_host_readable", lambda tensor: False)
    torch.manual_seed(0)
    blind = posterior(large, using)
    assert torch.equal(blind.trace().labels["y"], usual.labels["y"])
    assert not blind.ask("marginals").status.is_useless
    refused = posterior(GRID.replace("constant(0.7)", "constant(-1)"), using).ask("marginals").status
    assert refused.is_useless and "attract" in refused.message
    monkeypatch.setattr(swendsen_wang, "ROUNDS", 0)
    late = posterior(large, using).ask("marginals").status
    assert late.is_useless and "too winding" in late.message

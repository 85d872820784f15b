"""What statuses of samplers say: scores that are no numbers, answers that were not found, bounds, modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import energyml as em
from energyml.backends.mcmc.estimates import Estimate
from energyml.backends.mcmc.gibbs import FactorGibbs
from energyml.backends.mcmc.gradient import differences
from energyml.backends.mcmc.kernel import Kernel
from energyml.backends.mcmc.modes import Modes, told
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.starts import BurnIn
from energyml.backends.mcmc.target import ScoreTarget, Target
from energyml.inference.trace import Trace
from energyml.result import Failed
from tests.mcmc.models import CHAIN, FREE, GLOBAL, GRID, HARD, LOCAL, MASKED, PAIR, STEPS, problem
from tests.mcmc.test_balance import factors
from tests.mcmc.test_draws import posterior

torch.set_num_threads(1)
_FEW = "sweeps: 8, burn_in: 4, chains: 2"
EVERY = [
    f"gibbs({_FEW})", f"gibbs({_FEW}, block: colour)", f"gibbs({_FEW}, block: chains)", f"metropolis({_FEW})",
    f"gradient_gibbs({_FEW})", f"langevin({_FEW})", f"swendsen_wang({_FEW})", f"tempering({_FEW}, rungs: 2)",
    f"degenerate_gibbs({_FEW})", "mask_predict(2)", "ais(steps: 3, chains: 4)", f"bridge({_FEW}, rungs: 2)",
]  # fmt: skip
NETWORK = GRID.replace(
    "param J", "net f = linear(out: Spin)\nfactor more [i in H, j in W] (y[i, j]) = f(u)[i, j]\nparam J"
)


def asked(text: str, using: str, **more: Any) -> list[em.result.Result]:
    """Every answer that a sampler has; none where it refuses a model."""
    try:
        found = posterior(text, using, **more)
    except em.energy_model.BackendRefused:
        return []
    kinds = [kind for kind in ("sample", "marginals", "map", "log_partition") if kind in found.answers]
    return [found.ask(kind) for kind in kinds]


# ----------------------------------------------------------------------------------------------------- no numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("text", [NETWORK, MASKED, LOCAL, STEPS, FREE, GLOBAL], ids=lambda text: text.split("\n")[-2])
def test_scores_that_are_no_numbers_are_refused_by_every_sampler(text: str, value: float) -> None:
    served = 0
    for using in EVERY:
        given = problem(text)
        model: Any = given.env.module
        (net,) = model.graph.nets
        try:
            found = model.infer(using=using, **given.env.batch.tensors)
        except em.energy_model.BackendRefused:
            continue
        with torch.no_grad():
            for parameter in model._modules[net].parameters():
                parameter.view(-1)[-1] = value
        found = model.infer(using=using, **given.env.batch.tensors)
        for kind in ("sample", "marginals", "map", "log_partition"):
            if kind in found.answers:
                with pytest.raises(em.EnergyError, match="E0515"):
                    found.ask(kind)
        served += 1
    assert served >= 4


class Cusp(nn.Module):
    """A score that is finite everywhere, with a slope that is infinite at its corners."""

    def forward(self, y: Tensor, masks: Any) -> Tensor:
        return y[..., 0].sum(-1).clamp(min=0).sqrt()


def test_slopes_that_are_no_numbers_guide_nothing() -> None:
    given = problem(GLOBAL)
    given.env.module._modules["g"] = Cusp()
    target = ScoreTarget(given, 2)
    labels = {"y": torch.ones(1, 2, 3, dtype=torch.long)}
    assert all(bool(one.isfinite().all()) for one in differences(target, labels).values())


# ------------------------------------------------------------------------------------------------- answers not found


@pytest.mark.parametrize("using", EVERY)
def test_an_answer_that_was_not_found_is_not_called_impossible(using: str) -> None:
    results = asked(HARD, using, evidence={"y": torch.tensor([[1, 1, -1]])}) if "swendsen" not in using else []
    for result in results:
        message = result.status.message
        assert result.status.is_useless, message
        assert "NO POSSIBLE ANSWER" in message and "does not show that there is none" in message
        assert "`exact`" in message and "raise" in message
    assert results or "swendsen" in using


def test_failing_answers_are_not_handed_out() -> None:
    impossible = {"y": torch.tensor([[1, 1, -1]])}
    with pytest.raises(Failed, match="NO POSSIBLE ANSWER"):
        _ = posterior(HARD, "ais", evidence=impossible).log_partition
    with pytest.raises(Failed, match="NO POSSIBLE ANSWER"):
        posterior(HARD, f"gibbs({_FEW})", evidence=impossible).sample()


@pytest.mark.parametrize("using", EVERY)
def test_no_label_for_a_cell_is_a_proof(using: str) -> None:
    """Single cells show at once that there is no answer: no chain has to look for one."""
    text = GRID if "swendsen" in using else CHAIN
    allowed = torch.ones(problem(text).env.batch.tensors["u"].shape, dtype=torch.bool)
    allowed[:, 0] = False
    for result in asked(text, using, evidence={"y": allowed}):
        assert not result.status.is_useless, result.status.message
        assert "NO POSSIBLE" not in result.status.message


def test_one_lost_example_fails_its_batch() -> None:
    given = problem(HARD)
    model: Any = given.env.module
    u = given.env.batch.tensors["u"].expand(3, -1, -1)
    labels = torch.tensor([[1, 1, -1], [0, -1, -1], [-1, -1, 2]])
    for using in ("ais", "bridge(sweeps: 20, burn_in: 5)", "gibbs(sweeps: 20, burn_in: 5)"):
        found = model.infer(u=u, using=using, evidence={"y": labels})
        status = found.ask("log_partition" if "log_partition" in found.answers else "marginals").status
        assert status.is_useless and "1 of 3 examples" in status.message


@pytest.mark.parametrize("using", EVERY)
def test_scores_that_leave_their_type_are_said(using: str) -> None:
    model = em.compile(GRID, seed=0)
    u = torch.full((1, 2, 2, 2), 3e38)
    try:
        found = model.infer(u=u, using=using)
    except em.energy_model.BackendRefused:
        return
    for kind in ("sample", "marginals", "map", "log_partition"):
        if kind in found.answers:
            status = found.ask(kind).status
            assert status.is_useless and ("float32" in status.message or "NaN" in status.message)


# ------------------------------------------------------------------------------------------------------------ bounds


def test_an_estimate_of_log_z_is_held_to_what_was_seen() -> None:
    text, scale = CHAIN, 20.0
    given = problem(text, scale)
    model: Any = given.env.module
    u = 20 * given.env.batch.tensors["u"]
    best = model.infer(u=u, using="enumerate").map().score.detach()
    torch.manual_seed(1)
    found = model.infer(u=u, using="ais(steps: 1, chains: 2)").ask("log_partition")
    assert torch.allclose(found.value, best)  # by a search that follows; the weights are of uniform labels
    assert not found.status.ok and not found.status.is_useless
    assert (found.statistics["error"] > 1).all()


def test_bounds_hold_estimates() -> None:
    target = factors(problem(GRID), 2)
    exact = posterior(GRID, "enumerate")
    log_z, best = exact.log_partition.detach(), exact.map().score.detach()
    ceiling = target.ceiling()
    assert (log_z <= ceiling).all() and (ceiling < log_z + 5).all()
    one = torch.ones_like(log_z)
    for estimate, wanted in ((best - 3, best), (ceiling + 3, ceiling), (log_z, log_z)):
        made = Estimate.bounded(target, estimate, 0.1 * one, one, one, best)
        assert torch.equal(made.log_z, wanted)
        assert torch.equal(made.missed, (wanted - estimate).abs())
        trouble = made.trouble()
        assert (trouble is None) == (estimate is log_z)
    # Chance may lead a little past a bound: the error covers it.
    near = Estimate.bounded(target, best - 0.2, 0.1 * one, one, one, best)
    assert torch.equal(near.log_z, best) and near.trouble() is None and (near.error >= 0.2 - 1e-9).all()


# ------------------------------------------------------------------------------------------------------------- starts


@pytest.mark.parametrize("make", [lambda given: factors(given, 6), lambda given: ScoreTarget(given, 6)])
def test_half_of_the_chains_start_at_opposite_answers(make: Any) -> None:
    allowed = torch.tensor([[[True, True, False], [True, True, True], [False, False, True]]])
    target: Target = make(problem(CHAIN, evidence={"y": allowed}))
    labels = target.spread(Randomness(torch.Generator().manual_seed(0)))["y"]
    assert allowed[0].gather(1, labels[0].T).all()
    assert (labels[:, :3, :2] != labels[:, 3:, :2]).all() and (labels[..., 2] == 2).all()
    assert target.apart({"y": labels}).all() and not target.apart({"y": labels[:, :1].expand(-1, 6, -1)}).any()
    single = make(problem(CHAIN, evidence={"y": torch.tensor([[0, 1, 2]])}))
    assert single.apart(single.spread(Randomness(torch.Generator().manual_seed(0)))).all()  # there is but one answer


def test_burn_in_ends_at_the_usual_temperatures() -> None:
    kernel: Kernel = FactorGibbs(factors(problem(GRID), 4), "sequential")
    state = kernel.init(torch.Generator().manual_seed(0))
    before = BurnIn(kernel, 4, state.beta, 40)
    assert before.ready(state, 0).beta.tolist() == [1, 100, 1, 100]
    done = before.run(state)
    assert int(done.sweep) == 40 and torch.equal(done.beta, state.beta)
    assert torch.equal(done.score, kernel.target.score(done.labels))
    one_by_one = state
    for sweep in range(40):
        one_by_one, _ = kernel.step(before.ready(one_by_one, sweep))
    assert torch.equal(one_by_one.labels["y"], done.labels["y"])


def test_modes_that_no_chain_crosses_are_named() -> None:
    text = GRID.replace("constant(0.7)", "constant(8)").replace("H = 2, W = 2", "H = 3, W = 3")
    for seed in range(5):
        torch.manual_seed(seed)
        status = posterior(text, "gibbs(sweeps: 60, burn_in: 20)").ask("marginals").status
        assert not status.ok and ("several modes" in status.message or "DID NOT MOVE" in status.message)


def test_a_likely_answer_that_no_chain_drew_is_said() -> None:
    given = problem(CHAIN)
    torch.manual_seed(0)
    found = posterior(CHAIN, "gibbs(sweeps: 400)")
    trace = found.trace()
    kernel = FactorGibbs(factors(given, 4), "sequential")
    modes = Modes.found(kernel, 4)
    best = posterior(CHAIN, "enumerate").map()
    assert torch.equal(modes.score.amax(1), best.score) and (modes.missed(trace) == 0).all()
    assert told(modes.missed(trace)) is None
    # Draws without the best answer: its probability beside theirs follows from the share of the second best.
    others = (trace.labels["y"] != best["y"].to(torch.int8)).any(-1)
    spot = others.nonzero()[0]
    second = trace.labels["y"][spot[0], spot[1], spot[2]]
    score = trace.score[spot[0], spot[1], spot[2]]
    frozen = replace(
        trace,
        labels={"y": second.expand_as(trace.labels["y"])},
        score=score.expand_as(trace.score),
    )
    ratio = (best.score - score).exp()
    assert torch.allclose(modes.missed(frozen), ratio / (1 + ratio))
    assert "MISS A MODE" in str(told(modes.missed(frozen)))


def test_draws_of_a_large_model_need_not_hold_its_best_answers() -> None:
    """No draw is as good as what a search finds, and each is drawn once: nothing is missed."""
    text = GRID.replace("constant(0.7)", "constant(0.3)").replace("H = 2, W = 2", "H = 15, W = 15")
    torch.manual_seed(0)
    found = posterior(text, "gibbs(block: colour, sweeps: 400)")
    modes = Modes.found(FactorGibbs(factors(found.problem, 4), "coloured"), 4)
    assert modes.score.max() > found.trace().score.max()
    assert found.ask("marginals").status.ok


def test_chains_with_one_start_show_nothing() -> None:
    torch.manual_seed(0)
    found = posterior(PAIR, "gibbs(sweeps: 300)").trace()
    assert found.trouble() is None
    alike: Trace = replace(found, apart=torch.zeros(1, dtype=torch.bool))
    trouble = alike.trouble()
    assert trouble is not None and not trouble[0] and "SAME ANSWER" in trouble[1]


def test_few_draws_are_named() -> None:
    torch.manual_seed(0)
    found = posterior(CHAIN, "gibbs(sweeps: 20, chains: 4)").trace()
    assert found.mixed
    trouble = found.trouble()
    assert trouble is not None and not trouble[0] and "TOO FEW DRAWS" in trouble[1] and "raise" in trouble[1]


def test_labels_that_were_never_drawn_have_an_error() -> None:
    """A label of probability 1e-6 is not drawn, which shows that it has less than about 3 / n."""
    given = problem(CHAIN)
    model: Any = given.env.module
    u = given.env.batch.tensors["u"].clone()
    u[0, 0, 0] -= 30
    result = model.infer(u=u, using="gibbs(sweeps: 500)").ask("marginals")
    error = result.statistics["standard_error"]["y"]
    assert result.value["y"][0, 0, 0] == 0 and 1 / 2000 < error[0, 0, 0] < 1 / 100


# --------------------------------------------------------------------------------------------------- large scores

MASKING = """
labels Tag = {A, B}
dim T = 2
input u : real[T, Tag]
output y : Tag[T]
param w : real[a: Tag, b: Tag]
factor one [t in T] (y[t]) = u[t]
factor two [t in T-1] (a: y[t], b: y[t+1]) = w
"""


@pytest.mark.parametrize("using", ["gibbs", "gibbs(engine: torch)", "gibbs(block: colour)", "tempering", "metropolis"])
@pytest.mark.parametrize(("dtype", "mask"), [(torch.float32, -1e9), (torch.float64, -1e18)])
def test_a_large_negative_score_for_a_mask_hides_no_other_score(using: str, dtype: torch.dtype, mask: float) -> None:
    """B before A is masked: the other scores still count, in draws and in the scores beside them."""
    model = em.compile(MASKING).to(dtype)
    with torch.no_grad():
        model.w.copy_(torch.tensor([[0.0, -3.0], [mask, 0.5]]))
    u = torch.zeros(1, 2, 2, dtype=dtype)
    u[0, 1, 0] = -4  # so that the second cell is B, which leaves the first one a choice
    torch.manual_seed(0)
    found = model.infer(u=u, using=using.rstrip(")") + (", " if "(" in using else "(") + "sweeps: 250)")
    exact = model.infer(u=u, using="enumerate").marginals["y"].detach()
    result, trace = found.ask("marginals"), found.trace()
    assert ((result.value["y"] - exact).abs() < 5 * result.statistics["standard_error"]["y"] + 1e-6).all()
    labels = trace.labels["y"].flatten(0, 1)[:50].long().flatten(0, 1)
    score = model.score(y=labels, u=u.expand(len(labels), -1, -1))
    assert torch.allclose(score, trace.score.flatten()[: len(labels)], rtol=1e-6)


def test_clusters_of_tables_with_masks_are_no_potts() -> None:
    model = em.compile(MASKING).double()
    for table in ([[0.0, -1e9], [-1e9, 3.0]], [[1e9, 0.0], [0.0, 1e9 - 5000]]):
        with torch.no_grad():
            model.w.copy_(torch.tensor(table))
        with pytest.raises(em.backend.QueryRefused, match="potts"):
            model.infer(u=torch.zeros(1, 2, 2, dtype=torch.float64), using="swendsen_wang").sample()


@pytest.mark.parametrize("using", ["gibbs", "gibbs(block: chains)", "tempering", "swendsen_wang", "langevin"])
def test_draws_come_with_the_scores_of_the_model(using: str) -> None:
    """However a sampler adds up differences: the score of an answer is that of `model.score`."""
    model = em.compile(GRID).double()
    u = 1e4 * torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        model.J.fill_(12345.678)
        drawn = model.infer(u=u, using=using).ask("sample", count=20).value
        for labels, score in zip(drawn["y"], drawn.score, strict=True):
            assert torch.equal(score, model.score(u=u, y=labels))

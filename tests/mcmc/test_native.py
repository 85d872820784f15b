"""Native sweeps against the torch path: the same conditionals and scores, and draws that depend on the key alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import energyml as em
from energyml import native
from energyml.backends.mcmc.factor_target import FactorTarget, picked, replaced
from energyml.backends.mcmc.gibbs import ChainGibbs, FactorGibbs
from energyml.backends.mcmc.gibbs_graphs import paired
from energyml.backends.mcmc.gibbs_native import NativeChains, NativeGibbs, PathSites, Sites
from energyml.backends.mcmc.kernel import Current, State
from energyml.backends.mcmc.tempering import Tempering
from energyml.diagnostics import QueryRefused
from energyml.native.sweep import swept
from tests.mcmc.exhaustive import all_labels
from tests.mcmc.models import CHAIN as TINY
from tests.mcmc.models import GRID as SPINS
from tests.mcmc.models import HARD, problem
from tests.mcmc.test_balance import factors, states
from tests.variational.graphs import CHAIN, GRAPH, GRID, TRIPLES, chain, grid, random_graph, triples

pytestmark = pytest.mark.skipif(native.gibbs is None, reason="native code was not built")
CHAINS = 37  # no whole number of vectors

ISING = """
labels Spin = {down, up}
dim H, W
input u : real[H, W, Spin]
input J : real[H, W, a: Spin, b: Spin]
output y : Spin[H, W]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor below [i in H-1, j in W] (a: y[i, j], b: y[i+1, j]) = J[i, j]
factor right [i in H, j in W-1] (a: y[i, j], b: y[i, j+1]) = J[i, j]
"""
TWO = """
labels Tag = {A, B}
labels Kind = {p, q, r}
dim T
input u : real[T, Tag]
output y : Tag[T]
latent z : Kind[T]
param w : real[a: Tag, b: Kind]
param v : real[a: Kind, b: Kind]
factor one [t in T] (y[t]) = u[t]
factor two [t in T] (a: y[t], b: z[t]) = w
factor three [t in T-1] (a: z[t], b: z[t+1]) = v
"""


def ising() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "u": torch.randn(3, 4, 5, 2, generator=generator, dtype=torch.float64),
        "J": torch.randn(3, 4, 5, 2, 2, generator=generator, dtype=torch.float64),
    }


def labelled(text: str, count: int) -> str:
    """A model of three labels with more of them: native code has ways of its own for few, some and many."""
    return text.replace("{A, B, C}", "{" + ", ".join(["A", "B", *(f"t{number}" for number in range(count - 2))]) + "}")


def wide(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return {
        "u": torch.randn(2, 5, count, generator=generator, dtype=torch.float64),
        "w": torch.randn(2, count, count, generator=generator, dtype=torch.float64),
    }


def spans(batch: int, size: int, labels: int) -> Tensor:
    """Evidence that fixes a cell of each example and rules out a label of another."""
    allowed = torch.ones(batch, size, labels, dtype=torch.bool)
    allowed[:, 0] = torch.arange(labels) == 1
    allowed[:, 2, 0] = False
    return allowed


# A graph of each layout: rows of examples, one row for all of them, tables for all factors or each, masks, evidence.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ising": (ISING, ising()),
    "ising, fixed": (ISING, {**ising(), "evidence": {"y": spans(3, 20, 2).reshape(3, 4, 5, 2)}}),
    "chain": (CHAIN, chain()),
    "lengths": (CHAIN, {**chain(), "lengths": [6, 1, 4, 3]}),
    "evidence": (CHAIN, {**chain(), "evidence": {"y": spans(4, 6, 3)}}),
    "gaps": (CHAIN, {**chain(), "mask": torch.tensor([[1, 0, 1, 1, 0, 1]] * 4).bool()}),
    "grid": (GRID, grid()),
    "graphs": (GRAPH, random_graph()),
    "triples": (TRIPLES, triples()),
    "two variables": (TWO, {"u": chain()["u"][..., :2]}),
    "forbidden": (CHAIN + "forbid [t in T-1] y[t] = B and y[t+1] = B\n", chain()),
    "7 labels": (
        labelled(CHAIN, 7) + "forbid [t in T-1] y[t] = B and y[t+1] = B\n",
        {**wide(7), "evidence": {"y": spans(2, 5, 7)}},
    ),
    "12 labels": (labelled(CHAIN, 12), {**wide(12), "lengths": [5, 2]}),
    "20 labels": (labelled(CHAIN, 20) + "forbid [t in T-1] y[t] = B and y[t+1] = B\n", wide(20)),
}


def target(case: str, chains: int = CHAINS, dtype: torch.dtype = torch.float64) -> FactorTarget:
    text, given = CASES[case]
    model = em.compile(text, seed=1).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    inputs = {
        name: one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one
        for name, one in given.items()
    }
    return factors(model.problem(**inputs), chains)


def by_torch(own: FactorTarget, order: str, state: State, wanted: dict[str, Tensor]) -> Tensor:
    """[B, C]: the probability that a sweep of the torch path draws labels, by example."""
    placed = {name: own.rows(one).clone() for name, one in state.labels.items()}
    given = {name: own.rows(one) for name, one in wanted.items()}
    total = torch.zeros(own.size, own.chains, dtype=torch.float64)
    for step in own.schedule(order).sweeps(1):
        for name, pick in step.cells.items():
            scores = own.local(placed, name, step).double() * state.beta.reshape(1, -1, 1, 1)
            old, new = picked(placed[name], pick), picked(given[name], pick)
            stuck = scores.isneginf().all(-1)
            each = scores.log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
            each = torch.where(stuck, torch.where(old == new, 0.0, float("-inf")), each)
            full = torch.zeros(placed[name].shape, dtype=torch.float64)
            replaced(full, pick, each)
            total = total + own.by_example(full).sum(-1)
            replaced(placed[name], pick, new)
    return total.exp()


@pytest.mark.parametrize("order", ["sequential", "coloured"])
@pytest.mark.parametrize("case", CASES)
def test_conditionals_and_scores(case: str, order: str) -> None:
    """At random labels and several temperatures."""
    own = target(case)
    kernel = NativeGibbs(own, order)
    generator = torch.Generator().manual_seed(4)
    state = kernel.init(generator, beta=torch.linspace(0.2, 1.5, CHAINS, dtype=torch.float64))
    wanted = kernel.step(kernel.init(generator))[0].labels
    current = Current(state)
    chance = Sites(kernel, current, None).take(wanted)
    found, expected = chance.log(), by_torch(own, order, state, dict(wanted)).log()
    assert found.shape == (own.size, CHAINS)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(current.labels[name], one) for name, one in wanted.items())
    assert torch.allclose(current.score, own.score(wanted), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("case", ["ising", "ising, fixed", "lengths", "graphs", "7 labels", "12 labels", "20 labels"])
def test_single_precision(case: str) -> None:
    own, exact = target(case, dtype=torch.float32), target(case)
    kernel = NativeGibbs(own, "coloured")
    state = kernel.init(torch.Generator().manual_seed(4))
    after, _ = kernel.step(state)
    chance = Sites(kernel, Current(state), None).take(after.labels)
    reference = Sites(NativeGibbs(exact, "coloured"), Current(state), None).take(after.labels)
    assert torch.allclose(chance.log(), reference.log(), rtol=1e-4, atol=1e-4)
    assert after.score.dtype is torch.float32
    assert torch.allclose(after.score, own.score(after.labels), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", ["chain", "lengths", "gaps", "evidence", "12 labels", "grid"])
def test_chains_have_the_same_law(case: str) -> None:
    """Backward sampling by native code, against the exact distribution; grids stay in torch."""
    own = target(case, 4)
    kernel = NativeChains(own)
    state = kernel.init(torch.Generator().manual_seed(4))
    after, _ = kernel.step(state)
    assert torch.equal(after.score, own.score(after.labels))
    assert not after.score.isneginf().any()
    if case == "grid":
        return
    (paths,) = kernel.paths
    placed = {name: own.rows(one).clone() for name, one in state.labels.items()}
    wanted = {name: own.rows(one) for name, one in after.labels.items()}
    chance = PathSites(kernel, placed, paths, kernel._shared(paths, state.beta[:1])).take(wanted)
    last = torch.logsumexp(kernel._shared(paths, state.beta[:1]).ahead[-1], -1).sum(-1)
    assert torch.allclose(chance.log(), after.score - last, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", ["ising", "chain", "20 labels", "graphs"])
def test_threads_and_groups_change_nothing(case: str) -> None:
    """The draws of a chain depend on its number, not on how many run beside it, or on how many threads."""
    many = 300  # more than one task
    own = target(case, many)
    kernel = NativeGibbs(own, "coloured")
    state = kernel.init(torch.Generator().manual_seed(5))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(swept(kernel.graph, state.labels, state.beta, [7, 8]).labels)
    finally:
        torch.set_num_threads(before)
    few = {name: one[:, :11] for name, one in state.labels.items()}
    found.append(swept(kernel.graph, few, state.beta[:11], [7, 8]).labels)
    for name, one in found[0].items():
        assert torch.equal(one, found[1][name])
        assert torch.equal(one[:, :11], found[2][name])


def test_sweeps_together_are_sweeps_one_after_another() -> None:
    for case in ("ising", "chain"):
        kernel = NativeGibbs(target(case), "coloured")
        state = kernel.init(torch.Generator().manual_seed(5))
        apart, total = state, None
        for _ in range(4):
            apart, info = kernel.step(apart)
            total = info if total is None else total + info
        assert torch.equal(kernel.run(state, 0)[0].score, state.score)
        together, all_of_them = kernel.run(state, 4)
        for name, one in apart.tensors().items():
            assert torch.equal(one, together.tensors()[name]), name
        assert total is not None and torch.equal(total.novel, all_of_them.novel)
        assert torch.equal(total.proposed, all_of_them.proposed)


def test_known_numbers() -> None:
    """Threefry-4x32 with 20 rounds, from the test vectors of Random123."""
    assert native.gibbs is not None
    numbers, ones = native.gibbs.numbers, 2**32 - 1
    assert numbers(0, 0, 0, 0, 0, 0, 0) == (0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8)
    assert numbers(2**64 - 1, ones, ones, *[ones] * 4) == (0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732)
    pi = (0x299F31D0A4093822, 0x082EFA98, 0xEC4E6C89, 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert numbers(*pi) == (0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84)


@pytest.mark.parametrize("text", [SPINS, HARD, labelled(HARD, 7), labelled(HARD, 20)], ids=["2", "3", "7", "20"])
def test_draws_are_even_over_their_probabilities(text: str) -> None:
    """One cell in many chains: a chi-squared test of frequencies, and no correlation between neighbouring chains."""
    many = 20_000
    own = factors(problem(text), many)
    kernel = NativeGibbs(own, "sequential")
    (name,) = own.counts
    start = {name: torch.zeros(1, many, own.cells[name], dtype=torch.long)}
    state = kernel.init(torch.Generator().manual_seed(0), labels=start)
    current = Current(state)
    Sites(kernel, current, kernel.spans[0]).draw(12345)
    cell = int(kernel.graph.order.cells[0])
    step = own.schedule("sequential").sweeps(1)[0]
    p = own.local({name: own.rows(start[name][:, :1])}, name, step)[0, 0, 0].double().softmax(-1)
    drawn = current.labels[name][0, :, cell]
    counts = drawn.bincount(minlength=len(p)).double()
    live = p > 0
    statistic = float((((counts - many * p) ** 2)[live] / (many * p)[live]).sum())
    assert counts[~live].sum() == 0
    assert statistic < 25 + 2 * len(p)  # chance below 1e-5
    hit = (drawn == int(p.argmax())).double() - p.max()
    for lag in (1, 8, 16, 32):
        assert abs(float((hit[lag:] * hit[:-lag]).mean()) / float(hit.var())) < 5 / many**0.5


def test_what_is_fixed_stays_fixed_at_infinite_temperature() -> None:
    for case, (cell, label) in {"ising, fixed": (0, 1), "evidence": (0, 1)}.items():
        own = target(case)
        kernel = NativeGibbs(own, "coloured")
        state = kernel.init(torch.Generator().manual_seed(1), beta=torch.zeros(CHAINS, dtype=torch.float64))
        state, _ = kernel.step(state)
        assert (state.labels["y"][:, :, cell] == label).all()
        assert (state.labels["y"][:, :, 2] != 0).all()
        assert not state.score.isneginf().any()


def test_temperatures() -> None:
    """The inner kernel of a ladder follows each chain's own."""
    own = target("ising", 4 * 50)
    kernel = Tempering(NativeGibbs(own, "coloured"), [1.0, 0.5, 0.2, 0.05])
    state = kernel.init(torch.Generator().manual_seed(1))
    for _ in range(20):
        state, _ = kernel.step(state)
    rungs = state.score.mean(0).reshape(50, 4).mean(0)
    assert (rungs[:-1] > rungs[1:]).all()


def test_labels_that_do_not_exist_are_refused() -> None:
    kernel = NativeGibbs(target("chain"), "coloured")
    state = kernel.init(torch.Generator().manual_seed(1))
    state.labels["y"][0, 0, 0] = 3
    with pytest.raises(ValueError, match="none of its variable's"):
        kernel.step(state)


def test_whole_chains_serve_every_example() -> None:
    """All answers of a chain with the frequencies of the model."""
    own = factors(problem(TINY), 4000)
    kernel = NativeChains(own)
    state, _ = kernel.step(kernel.init(torch.Generator().manual_seed(3)))
    every = all_labels(own)
    with torch.no_grad():
        p = own.score(every)[0].softmax(0)
    digits = torch.tensor([9, 3, 1])
    found = (state.labels["y"][0] * digits).sum(-1).bincount(minlength=states(own)).double()
    assert float(((found - 4000 * p) ** 2 / (4000 * p)).sum()) < 80  # 26 degrees of freedom


# ---------------------------------------------------------------------------------------------------------- the option


def test_the_engine_is_chosen_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = em.compile(CHAIN).double()
    given = model.problem(**chain())

    def kernel(using: str) -> object:
        session: Any = model.infer(using=using, **chain())._session
        return session.backend.kernel(given, 2)

    assert isinstance(kernel("gibbs"), NativeGibbs)
    assert isinstance(kernel("gibbs(block: chains)"), NativeChains)
    assert isinstance(kernel("gibbs(engine: torch)"), FactorGibbs)
    torch_chains = kernel("gibbs(block: chains, engine: torch)")
    assert isinstance(torch_chains, ChainGibbs) and not isinstance(torch_chains, NativeChains)
    assert paired(target("ising")) and not paired(target("chain"))
    monkeypatch.setattr("energyml.native.sweep.kernels", None)
    assert isinstance(kernel("gibbs"), FactorGibbs)
    with pytest.raises(QueryRefused, match="`engine: torch` has the same distribution"):
        kernel("gibbs(engine: native)")

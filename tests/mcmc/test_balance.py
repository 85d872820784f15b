"""Exact transition matrices of tiny models: each move in detailed balance, each sweep stationary."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from energyml import native
from energyml.backends.mcmc.factor_target import FactorTarget
from energyml.backends.mcmc.gibbs import ChainGibbs, FactorGibbs, SiteGibbs
from energyml.backends.mcmc.gibbs_native import NativeChains, NativeGibbs
from energyml.backends.mcmc.gradient import DiscreteLangevin, GradientGibbs
from energyml.backends.mcmc.kernel import Current, Kernel
from energyml.backends.mcmc.metropolis import DegenerateGibbs, Metropolis
from energyml.backends.mcmc.swendsen_wang import SwendsenWang
from energyml.backends.mcmc.target import ScoreTarget, Target
from energyml.backends.mcmc.tempering import Tempering
from energyml.bind.problem import Problem
from energyml.grounded.factors import Grounder
from tests.mcmc.exhaustive import (
    Script,
    all_labels,
    drift,
    imbalance,
    numbered,
    state_of,
    target_distribution,
    transitions,
)
from tests.mcmc.models import CHAIN, FREE, GLOBAL, GRID, HARD, LATENT, LOCAL, MASKED, PAIR, STEPS, problem

torch.set_num_threads(1)
EXACT = 1e-12


def factors(given: Problem, chains: int = 1) -> FactorTarget:
    return FactorTarget(given, chains, Grounder(given.graph, given.tables()))


def states(target: Target) -> int:
    return prod(target.counts[name] ** cells for name, cells in target.cells.items())


class Matrices:
    """The target's distribution, the matrix of a sweep, and those of its moves."""

    def __init__(self, make: Callable[[Any], Kernel], target: Target, moves: int | None = None) -> None:
        count = target.chains = states(target)
        kernel = make(target)
        state = state_of(kernel, all_labels(target))
        self.p = target_distribution(state.score[0])

        def place(current: Current) -> Tensor:
            return numbered(target, current.labels)

        plan = list(kernel.plan(Current(state), Script([], count)))[:moves]

        def sweep(current: Current, random: Any) -> None:
            if moves is None:
                kernel.advance(current, random)
            else:
                for move in plan:
                    kernel.move(current, move, random)

        self.sweep = transitions(kernel, state, sweep, count, place)
        self.moves = [
            transitions(kernel, state, lambda now, random, one=one: kernel.move(now, one, random), count, place)
            for one in plan
        ]

    def check(self) -> None:
        for matrix in (self.sweep, *self.moves):
            assert torch.allclose(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))
        assert drift(self.p, self.sweep) < EXACT
        assert max(imbalance(self.p, one) for one in self.moves) < EXACT


GIBBS = {
    "sequential": lambda given: (lambda t: FactorGibbs(t, "sequential"), factors(given)),
    "colours": lambda given: (lambda t: FactorGibbs(t, "coloured"), factors(given)),
    "chains": lambda given: (ChainGibbs, factors(given)),
    "sites": lambda given: (SiteGibbs, ScoreTarget(given, 1)),
}
if native.gibbs is not None:
    GIBBS["sequential, native"] = lambda given: (lambda t: NativeGibbs(t, "sequential"), factors(given))
    GIBBS["chains, native"] = lambda given: (NativeChains, factors(given))
    GIBBS["colours, native"] = lambda given: (lambda t: NativeGibbs(t, "coloured"), factors(given))


@pytest.mark.parametrize("text", [CHAIN, HARD, GRID, LATENT], ids=["chain", "hard", "grid", "latent"])
@pytest.mark.parametrize("kind", GIBBS)
def test_gibbs(kind: str, text: str) -> None:
    if kind.startswith("chains") and text is LATENT:
        return  # a factor of three cells joins neighbours: refused
    Matrices(*GIBBS[kind](problem(text))).check()


@pytest.mark.parametrize("kind", [kind for kind in GIBBS if kind.startswith("chains")])
def test_whole_chains_are_independent_draws(kind: str) -> None:
    found = Matrices(*GIBBS[kind](problem(HARD)))
    possible = found.p > 0
    assert torch.allclose(found.sweep[possible], found.p.expand(int(possible.sum()), -1))


def test_gibbs_under_evidence() -> None:
    allowed = torch.tensor([[[True, True, False], [True, True, True], [False, False, True]]])
    for kind in GIBBS:
        found = Matrices(*GIBBS[kind](problem(CHAIN, evidence={"y": allowed})))
        found.check()
        assert int((found.p > 0).sum()) == 6


@pytest.mark.parametrize("text", [FREE, GLOBAL], ids=["free", "global"])
def test_gibbs_of_whole_terms(text: str) -> None:
    Matrices(SiteGibbs, ScoreTarget(problem(text), 1)).check()


MASKS: dict[str, dict[str, Any]] = {
    "one": {},
    "two, hot": {"block": 2, "temperature": 1.4},
    "nucleus": {"block": 2, "nucleus": 0.6},
    "mixture": {"nucleus": 0.6, "mixture": 0.2},
    "hidden": {"block": 2, "hide": "some"},
}
# A table reads labels of a block that the network does not see.
COUPLED = f"{LOCAL}param w : real[a: Tag, b: Tag]\nfactor both [t in T-1] (a: y[t], b: y[t+1]) = w\n"


TEXTS = {"raw": MASKED, "local": LOCAL, "coupled": COUPLED, "steps": STEPS, "free": FREE}
# The energies differ in nothing that a proposal sees; all pairs are checked by `make validity`.
SHORT = [*(("raw", name) for name in MASKS), ("local", "two, hot"), ("coupled", "hidden"), ("steps", "two, hot"),
         ("free", "one"), ("free", "mixture")]  # fmt: skip
LONG = bool(os.environ.get("ENERGYML_VALIDITY"))


@pytest.mark.parametrize(("text", "options"), list(product(TEXTS, MASKS)) if LONG else SHORT)
def test_metropolis(text: str, options: str) -> None:
    moves = 2 if text == "free" else None  # three labels: the third move has as many outcomes again
    Matrices(lambda t: Metropolis(t, **MASKS[options]), ScoreTarget(problem(TEXTS[text], 0.6), 1), moves).check()


@pytest.mark.parametrize("options", [{}, {"block": 2}, {"block": 2, "hide": "some"}], ids=["one", "two", "hidden"])
def test_metropolis_under_evidence(options: dict[str, Any]) -> None:
    given = problem(LOCAL, 0.6, evidence={"y": torch.tensor([[-1, 1, -1]])})
    kernel = Metropolis(ScoreTarget(given, 1), **options)
    assert [cell for _, cell in kernel.cells(Script([], 1))] == [0, 2]  # no move is spent on what is known
    found = Matrices(lambda t: Metropolis(t, **options), ScoreTarget(given, 1))
    assert drift(found.p, found.sweep) < EXACT and int((found.p > 0).sum()) == 4
    possible = found.p > 0  # from elsewhere no chain begins
    for one in found.moves:
        assert imbalance(found.p[possible], one[possible][:, possible]) < EXACT


def test_metropolis_in_random_order() -> None:
    two = MASKED.replace("T = 3", "T = 2")
    found = Matrices(lambda t: Metropolis(t, order="random"), ScoreTarget(problem(two, 0.6), 1))
    assert drift(found.p, found.sweep) < EXACT
    # Both orders are as likely: unlike a sweep in one order, the mixture is reversible.
    assert imbalance(found.p, found.sweep) < EXACT


def test_a_nucleus_may_be_left_but_not_entered() -> None:
    """Absorbing answers exist, and the kernel says so; a mixture with full support has none."""
    target = ScoreTarget(problem(MASKED, 1.5), 1)
    narrow = Matrices(lambda t: Metropolis(t, nucleus=0.5), target)
    narrow.check()
    assert (narrow.sweep.diagonal() > 1 - 1e-12).any()
    assert "not irreducible" in str(Metropolis(target, nucleus=0.5).warning)
    wide = Matrices(lambda t: Metropolis(t, nucleus=0.5, mixture=0.1), target)
    wide.check()
    assert (torch.linalg.matrix_power(wide.sweep, 40) > 0).all()
    assert Metropolis(target, nucleus=0.5, mixture=0.1).warning is None


@pytest.mark.parametrize("text", [CHAIN, GRID, HARD, GLOBAL, STEPS], ids=["chain", "grid", "hard", "global", "steps"])
def test_gradients(text: str) -> None:
    def target() -> Target:
        given = problem(text)
        return factors(given) if text in (CHAIN, GRID, HARD) else ScoreTarget(given, 1)

    Matrices(GradientGibbs, target(), 1).check()
    Matrices(lambda t: DiscreteLangevin(t, 0.8), target()).check()


def test_unadjusted_langevin_says_what_it_is() -> None:
    found = Matrices(lambda t: DiscreteLangevin(t, 0.8, adjusted=False), factors(problem(GRID)))
    assert drift(found.p, found.sweep) > 1e-3
    assert not DiscreteLangevin(factors(problem(GRID)), 0.8, adjusted=False).valid


def test_clusters() -> None:
    Matrices(SwendsenWang, factors(problem(GRID))).check()


@pytest.mark.parametrize("kind", [FactorGibbs, *([] if native.gibbs is None else [NativeGibbs])])
def test_tempering(kind: type[FactorGibbs]) -> None:
    """Both rungs together: the product of their distributions is stationary, and swaps are in balance with it."""
    betas, target = [1.0, 0.4], factors(problem(PAIR, 2.0), 32)
    kernel = Tempering(kind(target, "sequential"), betas)
    single = all_labels(target)["y"][0]
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    state = state_of(kernel, {"y": single[pairs.flatten()].unsqueeze(0)})
    assert state.beta.tolist() == betas * 16
    each = [(state.score[0, ::2][::4] * beta).softmax(0) for beta in betas]
    p = (each[0].unsqueeze(1) * each[1]).flatten()

    def place(current: Current) -> Tensor:
        both = numbered(target, current.labels).reshape(16, 2)
        return both[:, 0] * 4 + both[:, 1]

    sweep = transitions(kernel, state, kernel.advance, 16, place)
    assert drift(p, sweep) < EXACT
    swap = transitions(kernel, state, lambda now, random: kernel.move(now, 0, random), 16, place)
    assert imbalance(p, swap) < EXACT
    assert swap.diagonal().min() < 0.9


# ------------------------------------------------------------------------------------------------- what must be caught


class DifferingOnly(Metropolis):
    """Broken: the proposal's probability is taken over the cells that differ, not over the block."""

    def log_proposal(self, log_q: Tensor, start: Tensor, end: Tensor) -> Tensor:
        each = log_q.gather(-1, end.unsqueeze(-1)).squeeze(-1)
        return torch.where(start == end, 0, each).sum(-1)


class Forgetful(Metropolis):
    """Broken: the ratio of proposals is left out."""

    def log_proposal(self, log_q: Tensor, start: Tensor, end: Tensor) -> Tensor:
        return torch.zeros(log_q.shape[:2], dtype=log_q.dtype)


class Conditionals(torch.nn.Module):
    """The example of section 6.2.1: y2 tells y1, and y1 does not tell y2."""

    def masked_scores(self, y: Tensor, given: Any, masks: Any) -> Tensor:
        first = torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64).log()
        return torch.stack([first[y[:, 1]], torch.full_like(first, 0.5).log()[y[:, 0]]], 1)


def inconsistent(energy: str) -> Problem:
    """Two cells with the conditionals of section 6.2.1."""
    given = problem(MASKED.replace("T = 3", "T = 2").replace("raw", energy))
    given.env.module._modules["m"] = Conditionals()
    return given


@pytest.mark.parametrize("broken", [DifferingOnly, Forgetful])
def test_broken_samplers_are_caught(broken: type[Metropolis]) -> None:
    """On a model without symmetries: on the example below, errors of the second one circulate and cancel out."""
    found = Matrices(lambda t: broken(t, block=2), ScoreTarget(problem(STEPS, 0.6), 1))
    with pytest.raises(AssertionError):
        found.check()
    # No matter of rounding: what valid kernels are held to is a million times smaller.
    assert drift(found.p, found.sweep) > 1e6 * EXACT
    assert max(imbalance(found.p, one) for one in found.moves) > 1e6 * EXACT
    Matrices(lambda t: Metropolis(t, block=2), ScoreTarget(problem(STEPS, 0.6), 1)).check()


@pytest.mark.parametrize("energy", ["raw", "local"])
def test_inconsistent_conditionals(energy: str) -> None:
    """Section 6.2.1 of the thesis: degenerate Gibbs depends on the order, and misses; Metropolis-Hastings does not."""
    given = inconsistent(energy)
    valid = Matrices(lambda t: Metropolis(t), ScoreTarget(given, 1))
    valid.check()
    degenerate = Matrices(DegenerateGibbs, ScoreTarget(given, 1))
    with pytest.raises(AssertionError):
        degenerate.check()
    assert max(imbalance(degenerate.p, one) for one in degenerate.moves) > 0.1
    # Each order has its own stationary distribution: the conditionals belong to no joint distribution.
    forward, backward = degenerate.moves[0] @ degenerate.moves[1], degenerate.moves[1] @ degenerate.moves[0]
    ends = [torch.linalg.matrix_power(one, 200)[0] for one in (forward, backward)]
    assert (ends[0] - ends[1]).abs().sum() / 2 > 0.4
    assert max(float((end - degenerate.p).abs().sum() / 2) for end in ends) > 0.4

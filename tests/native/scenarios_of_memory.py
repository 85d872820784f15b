"""Calls every function of native code, and each of them again and again with another allocation that fails.

Run as a program with `failing_memory.cpp` preloaded.  Prints how many failures there were, and the functions that were
not called; any other end than a `MemoryError` ends it.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

import energyml as em
from energyml import native
from energyml.native import beam, chain, forest, graph, lowrank, planning, stencil, sweep
from tests.native.test_products import Model, ask

GRID = """\
labels Spin = {{{labels}}}
dim H, W
input u : real[H, W, Spin]
output s : Spin[H, W]
param J : real = constant(0.6)
factor site [i in H, j in W] (s[i, j]) = u[i, j]
factor below [i in H-1, j in W] (s[i, j], s[i+1, j]) = potts(J)
factor right [i in H, j in W-1] (s[i, j], s[i, j+1]) = potts(J)
"""
BEAM = """\
labels Word = {{a, b, c, d, end}}
dim S
dim T
input memory : real[S, 16]
output y : Word[T]
net decoder = {net}
sequence y {{ step: decoder, given: memory, normalize: local }}
infer beam(width: 3)
"""

MEMORY: Any = ctypes.CDLL(None)
failures: Counter[str] = Counter()
calls: Counter[str] = Counter()


def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called once for each allocation of its that may fail, until none does."""

    def call(*args: Any) -> Any:
        calls[name] += 1
        for number in itertools.count(1):
            MEMORY.fail_allocation(number)
            try:
                found = function(*args)
            except MemoryError:
                failures[name] += 1
                continue
            finally:
                left = MEMORY.allocations_left()
                MEMORY.fail_allocation(0)
            assert left > 0, f"{name}: allocation {number} failed, and nothing was said"
            return found
        return None

    return call


def watch(module: ModuleType) -> None:
    for name in [one for one in dir(module) if callable(getattr(module, one)) and not one.startswith("_")]:
        if name not in ("introduce", "instruction_sets", "has_openmp"):
            full = f"{module.__name__.rpartition('.')[2]}.{name}"
            calls[full] += 0
            setattr(module, name, watched(full, getattr(module, name)))


def chains() -> None:
    # few labels side by side, many in rows, a table for each step, scores for double precision and for log space
    for batch, size, labels, scale, steps in (
        (20, 6, 5, 1.0, 1), (4, 5, 40, 1.0, 1), (3, 5, 7, 1.0, 4), (20, 6, 5, 3e3, 1), (3, 6, 5, 1e5, 5),
        (3, 6, 5, 1e5, 1),
    ):  # fmt: skip
        dtype = torch.float64 if labels == 7 else torch.float32
        unary = (scale * torch.randn(batch, size, labels, dtype=dtype)).requires_grad_()
        pair = (scale * torch.randn(steps, labels, labels, dtype=dtype).squeeze(0)).requires_grad_()
        count = torch.randint(1, size + 1, (batch,))
        gold = torch.randint(labels, (batch, size))
        for lengths in (None, count):
            total = chain.log_partition(unary, pair, lengths)
            assert total is not None
            (total * torch.rand(batch, dtype=dtype)).sum().backward()
            likelihood = chain.log_likelihood(unary, pair, lengths, gold)
            assert likelihood is not None
            (likelihood * torch.rand(batch, dtype=dtype)).sum().backward()
            moments = chain.tracked_marginals(unary, pair, lengths)
            assert moments is not None
            (moments[0].square().sum() + moments[1].square().sum()).backward()
            with torch.no_grad():
                chain.marginals(unary, pair, lengths, pairs=True)
                chain.log_partition(unary, pair, lengths)
                chain.viterbi(unary, pair, lengths)
                chain.nll_and_slopes(unary, pair, lengths, gold)


def trees() -> None:
    ends = np.array([[[0, 1], [2, 1], [2, 3], [3, 4]]] * 3)
    found = forest.order_trees(ends, np.ones((3, 5), dtype=bool))
    assert found is not None
    for labels, scale, shared in ((3, 1.0, True), (20, 1.0, False), (3, 1e4, True), (3, 1e4, False)):
        unary = scale * torch.randn(3, 5, labels)
        pair = scale * torch.randn(1 if shared else 3, 1 if shared else 4, labels, labels)
        forest.sweep(found, unary, pair, weights=torch.ones(3, dtype=torch.float64), pairs=True)
        forest.sweep(found, unary, pair, maximise=True)


def graphs() -> None:
    for seed, sizes, factors, arity, known in (
        (0, [3] * 8, 9, 3, 0),
        (1, [2, 5, 3, 9, 2, 4], 7, 4, 1),
        (2, [12] * 5, 6, 3, 0),
    ):
        model = Model(seed, sizes, factors, arity, known)
        tables = model.draw(1.0, 0.1)
        for products in (True, False):
            ask(model, tables, products, examples=3)
        members = np.array([cell for scope in model.scopes for cell in scope], dtype=np.int64)
        starts = np.array([0, *itertools.accumulate(map(len, model.scopes))], dtype=np.int64)
        scopes = planning.Scopes(members, starts)
        compiler = planning.NativeCompiler(scopes, tuple(sizes), model.known, frozenset())
        for method in planning.METHODS:
            order = compiler.order(method, None)
            assert order is not None
            compiler.program(order, model.known, method)
    planning.gathered([np.array([[0, 1], [1, 2]]), (0, 3)], 3)


def fields() -> None:
    offsets = ((0, 0, 1), (0, 1, 0))
    for dtype, cells in ((torch.float32, 1), (torch.float64, 35)):
        rhs, diag = torch.randn(3, 2, 35, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype)
        weights = torch.rand(1, 2, cells, dtype=dtype)
        stencil.solve(rhs, diag, weights, offsets, (1, 5, 7), tol=1e-6, iterations=20)
        stencil.multiply(rhs, diag, weights, offsets, (1, 5, 7))
    for channels, rank in ((2, 3), (1, 9)):  # the small inverse of a subspace for all channels, and for one
        coupling = lowrank.Coupling(0.0 if channels > 1 else 1.0, 1.0)
        rhs = torch.randn(3, channels, 35, requires_grad=True)
        ridge, values = torch.full((3,), 2.0, requires_grad=True), torch.randn(3, rank, 35, requires_grad=True)
        for strength in (None, torch.full((3,), 0.01, requires_grad=True)):
            solved = lowrank.solve(rhs, ridge, values, strength, coupling, unused)
            solved.x.square().sum().backward()


def unused(ridge: Any, values: Any, strength: Any, rhs: Any) -> Any:
    raise AssertionError("first derivatives are the kernel's own")


def gibbs() -> None:
    assert native.gibbs is not None
    native.gibbs.numbers(1, 2, 3, 4, 5, 6, 7)
    for labels in ("a, b", "a, b, c", "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r"):
        inputs = {"u": torch.randn(2, 3, 3, len(labels.split(",")))}
        text = GRID.format(labels=labels)
        em.compile(f"{text}infer gibbs(sweeps: 3, burn_in: 1, chains: 3)\n").infer(**inputs).marginals  # noqa: B018
        em.compile(f"{text}infer ais(steps: 3, chains: 3)\n").infer(**inputs).log_partition  # noqa: B018


def beams() -> None:
    for net in (
        "lstm_decoder(hidden: 16, embed: 16, attention: bahdanau)",
        "transformer_decoder(hidden: 16, heads: 4, layers: 1)",
    ):
        model = em.compile(BEAM.format(net=net)).eval()
        with torch.no_grad():
            model.infer(memory=torch.randn(2, 4, 16), lengths={"T": torch.tensor([5, 3])}).map()


if __name__ == "__main__":
    for part in native.PARTS:
        watch(getattr(native, part))
    for worth in (10**9, 1):
        for door in (chain, beam, graph):
            door.WORTH_A_THREAD = worth
        lowrank.PRODUCTS_WORTH_A_THREAD = worth
        stencil.SOLVES_WORTH_A_THREAD = stencil.SHARES_WORTH_A_THREAD = stencil.PRODUCTS_WORTH_A_THREAD = worth
        sweep.PAIRS_WORTH_A_THREAD = sweep.TABLES_WORTH_A_THREAD = worth
        torch.set_num_threads(1 if worth > 1 else 2)
        chains()
        trees()
        graphs()
        fields()
        gibbs()
        beams()
    print(sum(failures.values()), "failures:", *sorted(failures.items()))
    print("not called:", *sorted(name for name, count in calls.items() if not count))

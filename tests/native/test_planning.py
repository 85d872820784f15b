"""Orders and programs by native code against their twins in Python; kernels on large cliques against torch."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import energyml as em
from energyml.native import elimination as graphs
from energyml.native import planning
from energyml.native.planning import NativeCompiler, Scopes
from energyml.plan.elimination import SEARCHES, Compiler, PlainCompiler, Program, TooWide, cheapest

pytestmark = pytest.mark.skipif(graphs is None, reason="the native extension was not built")

torch.set_num_threads(1)


def compilers(
    scopes: list[tuple[int, ...]], sizes: list[int], known: set[int], first: set[int]
) -> tuple[PlainCompiler, NativeCompiler]:
    members = np.array([cell for scope in scopes for cell in scope], dtype=np.int64)
    starts = np.cumsum([0, *map(len, scopes)], dtype=np.int64)
    fixed, early = frozenset(known), frozenset(first)
    return PlainCompiler(scopes, sizes, fixed, early), NativeCompiler(Scopes(members, starts), sizes, fixed, early)


def same(one: Program, other: Program) -> None:
    assert tuple(one.scopes) == tuple(other.scopes)
    assert tuple(one.steps) == tuple(other.steps)
    assert len(one.steps) == len(other.steps)
    assert (tuple(one.loose), one.known, one.slices) == (tuple(other.loose), other.known, other.slices)
    assert (one.method, one.costs) == (other.method, other.costs)


@st.composite
def hypergraphs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int], set[int], set[int]]:
    """Scopes, some with a cell twice or without cells; sizes; known cells; cells to eliminate first."""
    count = draw(st.integers(1, 12))
    cell = st.integers(0, count - 1)
    scopes = draw(st.lists(st.lists(cell, max_size=4).map(tuple), max_size=20))
    sizes = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    known = draw(st.sets(cell, max_size=3))
    return scopes, sizes, known, draw(st.sets(cell, max_size=3)) - known


@settings(max_examples=200, deadline=None)
@given(case=hypergraphs(), limit=st.none() | st.integers(0, 5), budget=st.sampled_from([math.inf, 1e3, 200.0]))
def test_native_plans_are_those_of_python(
    case: tuple[list[tuple[int, ...]], list[int], set[int], set[int]], limit: int | None, budget: float
) -> None:
    plain, native = compilers(*case)
    for method in SEARCHES:
        order = plain.order(method, limit)
        found = native.order(method, limit)
        assert (None if order is None else list(order)) == found
        if order is not None:
            same(plain.program(order, plain.known, method), native.program(order, native.known, method))

    def planned(compiler: Compiler) -> Program | str:
        try:
            return cheapest(compiler, budget)
        except TooWide as wide:
            return str(wide)

    one, other = planned(plain), planned(native)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        same(one, other)


@pytest.mark.parametrize("seed", range(6))
def test_native_plans_of_larger_graphs(seed: int) -> None:
    """More cells than one word of a bit set has; sizes alike and not."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(60, 200))
    scopes = [tuple(draw.integers(0, count, size=draw.integers(1, 4)).tolist()) for _ in range(count)]
    scopes += [tuple(map(int, (cell, min(count - 1, cell + draw.integers(1, 9))))) for cell in range(count)]
    sizes = [2] * count if seed % 2 else draw.integers(2, 9, size=count).tolist()
    known = set(draw.integers(0, count, size=seed).tolist())
    plain, native = compilers(scopes, sizes, known, set(draw.integers(0, count, size=seed).tolist()) - known)
    for method, ties in [*((method, 0) for method in SEARCHES), ("min-fill", 1), ("min-fill", 5)]:
        order = plain.order(method, None, ties)
        assert order is not None
        assert list(order) == native.order(method, None, ties)
        same(plain.program(order, plain.known, method), native.program(order, native.known, method))
    same(cheapest(plain), cheapest(native))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3)).flatmap(
            lambda shape: st.lists(
                st.lists(st.integers(-1, 6), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
            ).map(lambda rows: np.array(rows, dtype=np.int64).reshape(shape))
        ),
        min_size=1,
        max_size=4,
    )
)
def test_factors_are_gathered_as_by_numpy(places: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements with a cell that there is not are left out; tables may have no elements, and scopes no cells."""
    found = planning.gathered(places, 5)
    with monkeypatch.context() as without:
        without.setattr(planning, "kernels", None)
        truth = planning.gathered(places, 5)
    assert [one.tolist() for one in found[:2]] == [one.tolist() for one in truth[:2]]
    assert tuple(found[2]) == tuple(truth[2])
    assert all(place in range(5) for scope in truth[2] for place in scope)


TRIPLES = """\
labels L = {{{labels}}}
dim T, E
input u : real[T, L]
input link : edge(T, T, T)[E]
input w : real[E, a: L, b: L, c: L]
output y : L[T]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j, k) in link] (a: y[i], b: y[j], c: y[k]) = w[e]
"""


@pytest.mark.parametrize(("labels", "cells", "edges"), [(2, 18, 30), (3, 12, 20), (5, 8, 9)])
@pytest.mark.parametrize("magnitude", [1.0, 300.0])
def test_large_cliques_by_the_kernel_and_by_torch(labels: int, cells: int, edges: int, magnitude: float) -> None:
    """Cliques of several blocks whose tables lie in them in runs, scattered, and with known cells."""
    generator = torch.Generator().manual_seed(labels)
    model = em.compile(TRIPLES.format(labels=", ".join(f"l{label}" for label in range(labels)))).double()
    tensors = {
        "u": magnitude * torch.randn(2, cells, labels, generator=generator, dtype=torch.float64),
        "link": torch.randint(0, cells, (1, edges, 3), generator=generator).expand(2, edges, 3).contiguous(),
        "w": magnitude * torch.randn(2, edges, labels, labels, labels, generator=generator, dtype=torch.float64),
    }
    known = torch.full((2, cells), -1)
    known[:, 3] = torch.tensor([0, 1])
    found, truth = (
        model.infer(**tensors, evidence={"y": known}, using=using) for using in ("exact", "exact(engine: torch)")
    )
    torch.testing.assert_close(found.log_partition, truth.log_partition)
    torch.testing.assert_close(found.marginals["y"], truth.marginals["y"])
    torch.testing.assert_close(found.factor_marginals["arc"], truth.factor_marginals["arc"])
    torch.testing.assert_close(found.entropy, truth.entropy)
    torch.testing.assert_close(found.max_marginals["y"], truth.max_marginals["y"])
    torch.testing.assert_close(found.map().score, truth.map().score)
    torch.testing.assert_close(model.score(**tensors, y=found.map()["y"]), truth.map().score)


TREES = """\
labels L = {{{labels}}}
dim T, E
input u : real[T, L]
input w : real[E, a: L, b: L]
input link : edge(T, T)[E]
output y : L[T]
param p : real[a: L, b: L]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = {table}
"""


@pytest.mark.parametrize("labels", [1, 2, 7, 8, 9, 20])
@pytest.mark.parametrize("table", ["p", "w[e]"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_best_answers_of_trees(labels: int, table: str, dtype: torch.dtype) -> None:
    """Whole numbers for scores, so that many answers are equally good, and labels that are ruled out."""
    generator = torch.Generator().manual_seed(labels)
    names = ", ".join(f"l{label}" for label in range(labels))
    model = em.compile(TREES.format(labels=names, table=table)).to(dtype)
    with torch.no_grad():
        model.p.copy_(torch.randint(-2, 3, (labels, labels), generator=generator))
    parents = [[int(torch.randint(0, node, (), generator=generator)), node] for node in range(1, 12)]
    link = torch.tensor([parents, [pair[::-1] for pair in parents]])
    u = torch.randint(-2, 3, (2, 12, labels), generator=generator).to(dtype)
    u[:, 5, 1:] = float("-inf")
    w = torch.randint(-2, 3, (2, 11, labels, labels), generator=generator).to(dtype)
    truth = model.infer(u=u, w=w, link=link, using="exact(engine: torch)").map()
    found = model.infer(u=u, w=w, link=link, using="exact").map()
    assert torch.equal(found.score, truth.score)
    assert torch.equal(model.score(u=u, w=w, link=link, y=found["y"]), truth.score)
    nothing = torch.full_like(u, float("-inf"))
    none = model.infer(u=nothing, w=w, link=link, using="exact").map()
    assert none.score.isneginf().all() and (none["y"] == -1).all()


STARVED = """
import resource
import numpy as np
from energyml.native import elimination as graphs
from energyml.native import planning

count = 20000
members = np.array([cell for one in range(count) for cell in (one, (one * 7919 + 13) % count)], dtype=np.int64)
starts = np.arange(0, 2 * count + 1, 2, dtype=np.int64)
sizes, marks, order = np.full(count, 2), np.zeros(count, dtype=np.uint8), np.empty(count, dtype=np.int64)
graph = [count, count, *(one.ctypes.data for one in (members, starts, sizes, marks))]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 21),) * 2)
try:
    graphs.search_order(*graph, 1, float("inf"), 0, order.ctypes.data)
except MemoryError:
    print("told")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the memory of a process as Linux does")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends a process without memory")
def test_a_lack_of_memory_is_an_error_and_does_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr

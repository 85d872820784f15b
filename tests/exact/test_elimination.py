"""Elimination: orders, programs, slices and refusals; answers are held against enumeration in tests/contract."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product

import numpy as np
import opt_einsum
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import energyml as em
from energyml.diagnostics import QueryRefused
from energyml.energy_model import BackendRefused
from energyml.plan.elimination import PlainCompiler, Program, TooWide, compile_order, make_program, primal
from energyml.plan.width import Primal, least_width, min_fill, min_weight, natural

torch.set_num_threads(1)

GRID = """\
labels L = {a, b, c}
dim H, W
input u : real[H, W, L]
output y : L[H, W]
param p : real[a: L, b: L]
factor site [i in H, j in W] (y[i, j]) = u[i, j]
factor down [i in H-1, j in W] (a: y[i, j], b: y[i+1, j]) = p
factor right [i in H, j in W-1] (a: y[i, j], b: y[i, j+1]) = p
"""


def grid_scopes(height: int, width: int) -> list[tuple[int, ...]]:
    cells = [(i, j) for i in range(height) for j in range(width)]
    right = [(i * width + j, i * width + j + 1) for i, j in cells if j + 1 < width]
    down = [(i * width + j, (i + 1) * width + j) for i, j in cells if i + 1 < height]
    return [*right, *down]


@st.composite
def hypergraphs(draw: st.DrawFn, most: int = 7) -> tuple[list[tuple[int, ...]], list[int], set[int], set[int]]:
    """Scopes, sizes, known cells and cells to eliminate first."""
    count = draw(st.integers(1, most))
    cell = st.integers(0, count - 1)
    scopes = draw(st.lists(st.lists(cell, min_size=1, max_size=3).map(tuple), max_size=8))
    sizes = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    known = draw(st.sets(cell, max_size=2))
    return [*scopes, *((one,) for one in range(count))], sizes, known, draw(st.sets(cell, max_size=2)) - known


def total(program: Program, tables: list[np.ndarray], labels: dict[int, int]) -> float:
    """log Z by running a program with plain arrays: its own small interpreter."""
    grand = -math.inf
    for values in product(*(range(program.sizes[cell]) for cell in program.slices)):
        fixed = {**labels, **dict(zip(program.slices, values, strict=True))}
        pieces: list[tuple[tuple[int, ...], dict[tuple[int, ...], float]]] = []
        for scope, table in zip(program.scopes, tables, strict=True):
            cells = tuple(dict.fromkeys(cell for cell in scope if cell not in program.known))
            entries = {}
            for entry in product(*(range(program.sizes[cell]) for cell in cells)):
                place = {**fixed, **dict(zip(cells, entry, strict=True))}
                entries[entry] = float(table[tuple(place[cell] for cell in scope)])
            pieces.append((cells, entries))
        for step in program.steps:
            entries = {}
            for entry in product(*(range(program.sizes[cell]) for cell in step.kept)):
                at = dict(zip(step.kept, entry, strict=True))
                rows = []
                for label in range(program.sizes[step.cell]):
                    here = {**at, step.cell: label}
                    rows.append(sum(pieces[t][1][tuple(here[c] for c in pieces[t][0])] for t in step.inputs))
                entries[entry] = float(np.logaddexp.reduce(rows))
            pieces.append((step.kept, entries))
        grand = float(np.logaddexp(grand, sum(pieces[table][1][()] for table in program.loose)))
    return grand


def by_enumeration(
    scopes: list[tuple[int, ...]], sizes: list[int], tables: list[np.ndarray], labels: dict[int, int]
) -> float:
    scores = []
    for answer in product(*(range(size) for size in sizes)):
        if all(answer[cell] == label for cell, label in labels.items()):
            pairs = zip(scopes, tables, strict=True)
            scores.append(sum(table[tuple(answer[cell] for cell in scope)] for scope, table in pairs))
    return float(np.logaddexp.reduce(scores))


@settings(max_examples=150, deadline=None)
@given(case=hypergraphs(), tight=st.booleans())
def test_every_program_sums_every_answer_once(
    case: tuple[list[tuple[int, ...]], list[int], set[int], set[int]], tight: bool
) -> None:
    scopes, sizes, known, first = case
    generator = np.random.default_rng(len(scopes))
    tables = [generator.normal(size=[sizes[cell] for cell in scope]) for scope in scopes]
    labels = {cell: int(generator.integers(sizes[cell])) for cell in known}
    program = make_program(scopes, sizes, known=known, first=first)
    if tight:
        smaller = 16 * max(1.0, program.message_entries / 2)
        try:
            program = make_program(scopes, sizes, known=known, first=first, budget=smaller)
        except TooWide:
            return
        assert program.memory <= smaller
    assert sorted((*program.order, *program.known)) == list(range(len(sizes)))
    early = [cell for cell in program.order if cell in first]
    assert list(program.order[: len(early)]) == early
    assert math.isclose(total(program, tables, labels), by_enumeration(scopes, sizes, tables, labels), abs_tol=1e-9)


@pytest.mark.parametrize("search", [min_fill, min_weight, natural])
def test_orders_of_known_width(search: object) -> None:
    chain = [{1}, *({i - 1, i + 1} for i in range(1, 9)), {8}]
    found = search(Primal(chain, [2] * 10))  # type: ignore[operator]
    assert found.width == 1
    grid = Primal([set(around) for around in _neighbours(grid_scopes(4, 5), 20)], [2] * 20)
    assert 4 <= search(grid).width <= 5  # type: ignore[operator]
    assert search(grid, 3) is None  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(case=hypergraphs(most=6))
def test_no_order_is_narrower_than_the_lower_bound(
    case: tuple[list[tuple[int, ...]], list[int], set[int], set[int]],
) -> None:
    scopes, sizes, known, _ = case
    graph = Primal(primal(scopes, len(sizes)), sizes, known=frozenset(known))
    narrowest = min(compile_order(scopes, sizes, order, graph.known).width for order in permutations(graph.cells))
    assert least_width(graph) <= narrowest


def test_the_lower_bound_of_known_graphs() -> None:
    whole = [set(range(9)) - {cell} for cell in range(9)]
    assert least_width(Primal(whole, [2] * 9)) == 8
    assert least_width(Primal(whole, [2] * 9, known=frozenset({0, 1}))) == 6
    assert least_width(Primal([{1}, {0, 2}, {1}], [2] * 3)) == 1
    assert least_width(Primal([set(), set()], [2] * 2)) == 0
    grid = Primal(_neighbours(grid_scopes(6, 6), 36), [2] * 36)
    assert 2 < least_width(grid) <= 5


def searches(
    scopes: list[tuple[int, ...]], cells: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[TooWide, list[tuple[str, int]]]:
    """Why a graph of binary cells is refused, and which searches were asked for before: methods and ties."""
    asked: list[tuple[str, int]] = []
    search, greedy = PlainCompiler.search, opt_einsum.paths.greedy

    def by_compiler(self: PlainCompiler, method: str, limit: float | None, ties: int = 0) -> Program | None:
        asked.append((method, ties))
        return search(self, method, limit, ties)

    def by_opt_einsum(*arguments: object) -> object:
        asked.append(("opt_einsum", 0))
        return greedy(*arguments)

    monkeypatch.setattr(PlainCompiler, "search", by_compiler)
    monkeypatch.setattr(opt_einsum.paths, "greedy", by_opt_einsum)
    with pytest.raises(TooWide) as refused:
        make_program(scopes, [2] * cells, budget=2.0**31)
    return refused.value, asked


def test_a_lower_bound_refuses_dense_graphs_before_a_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, asked = searches(list(combinations(range(60), 2)), 60, monkeypatch)
    assert not refused.searched
    assert asked == [("min-fill", 0)]


def test_no_better_order_is_looked_for_where_slices_cannot_help(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, asked = searches(grid_scopes(36, 36), 36 * 36, monkeypatch)
    assert (refused.searched, refused.width) == (True, 36)
    assert asked == [("min-weight", 0), ("min-fill", 0), ("natural", 0)]


def test_an_order_that_slices_might_bring_in_is_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = searches(grid_scopes(26, 26), 26 * 26, monkeypatch)
    assert ("min-fill", 1) in asked
    assert asked[-1] == ("opt_einsum", 0)


def _neighbours(scopes: list[tuple[int, ...]], cells: int) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(cells)]
    for one, other in scopes:
        found[one].add(other)
        found[other].add(one)
    return found


def test_a_cell_of_many_labels_is_avoided() -> None:
    """A hub of 1,000 labels between small cells stays until one of them is left: no clique is larger than a pair."""
    program = make_program([(0, leaf) for leaf in range(1, 6)], [1000, 2, 2, 2, 2, 2])
    assert program.width == 1
    assert program.operations <= 2 * 5 * 2 * 1000


def test_costs_are_counted() -> None:
    program = compile_order([(0, 1), (1, 2)], [2, 3, 5], [0, 1, 2])
    assert [step.kept for step in program.steps] == [(1,), (2,), ()]
    assert program.operations == 2 * 3 + 2 * 3 * 5 + 5
    assert program.message_entries == 3 + 5 + 1
    assert program.width == 1


# --------------------------------------------------------------------------------------------------------- the backend


def test_slices_change_nothing() -> None:
    model = em.compile(GRID, seed=1).double()
    u = torch.randn(2, 9, 9, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = model.infer(u=u, using="exact")
    sliced = model.infer(u=u, using="exact(memory: 1)")
    programs = [plan.program for plan in model.prepared("exact(memory: 1)")[0].plans._known.values()]
    assert not programs  # planned when first asked
    torch.testing.assert_close(sliced.log_partition, whole.log_partition)
    programs = [plan.program for plan in model.prepared("exact(memory: 1)")[0].plans._known.values()]
    assert programs[0].slices and programs[0].memory <= 1 << 20
    torch.testing.assert_close(sliced.marginals["y"], whole.marginals["y"])
    torch.testing.assert_close(sliced.entropy, whole.entropy)
    torch.testing.assert_close(sliced.max_marginals["y"], whole.max_marginals["y"])
    assert torch.equal(sliced.map()["y"], whole.map()["y"])
    drawn = sliced.sample(3, generator=torch.Generator().manual_seed(0))
    log_p = torch.stack([whole.log_prob(y=one) for one in drawn["y"]])
    torch.testing.assert_close(drawn.score - whole.log_partition, log_p)


def test_slices_have_gradients() -> None:
    model = em.compile(GRID, seed=1).double()
    u = torch.randn(1, 8, 8, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    slopes = [
        torch.autograd.grad(model.infer(u=u, using=using).log_partition.sum(), [u, model.p])
        for using in ("exact", "exact(memory: 1)", "exact(engine: torch)")
    ]
    for other in slopes[1:]:
        torch.testing.assert_close(other[0], slopes[0][0])
        torch.testing.assert_close(other[1], slopes[0][1])


def test_the_best_answers_of_slices_are_merged() -> None:
    model = em.compile(GRID.replace("{a, b, c}", "{a, b}"), seed=1).double()
    u = torch.randn(1, 3, 4, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    truth = model.infer(u=u, using="enumerate").n_best(5)
    for budget in (math.inf, 300.0):
        backend, _ = model.prepared("exact")
        backend.plans.budget = budget  # bytes: smaller than any that the option allows
        backend.plans._known.clear()
        found = model.infer(u=u, using="exact").n_best(5)
        torch.testing.assert_close(found.score, truth.score)
        assert torch.equal(found["y"], truth["y"])


def test_a_graph_too_wide_is_refused_with_numbers() -> None:
    fixed = em.compile(GRID.replace("dim H, W", "dim H = 60, W = 60"))
    with pytest.raises(
        BackendRefused,
        match=r"every order has a width above \d+: it needs more than \d+ TB for one example",
    ):
        fixed.infer(u=torch.zeros(1, 60, 60, 3), using="exact")
    open_sizes = em.compile(GRID)
    with pytest.raises(QueryRefused, match=r"width.*budget is 2\.15 GB; observe more cells, or"):
        _ = open_sizes.infer(u=torch.zeros(1, 60, 60, 3), using="exact").log_partition
    with pytest.raises(QueryRefused, match=r"the induced width is 14: it needs .* GB .*`exact\(memory: \d+\)`"):
        _ = open_sizes.infer(u=torch.zeros(1, 14, 14, 3), using="exact(memory: 1)").log_partition


def test_trees_and_elimination_agree() -> None:
    """The same trees as edges, and with a cycle beside them that keeps the tree kernel away."""
    text = """\
labels L = {a, b, c, d, e}
dim T, E
input u : real[T, L]
input link : edge(T, T)[E]
output y : L[T]
param p : real[a: L, b: L]
factor node [t in T] (y[t]) = u[t]
factor arc [e = (i, j) in link] (a: y[i], b: y[j]) = p
factor other [e = (i, j) in link] (a: y[i], b: y[j]) = 0 * p
"""
    generator = torch.Generator().manual_seed(5)
    both = em.compile(text, seed=1)
    single = em.compile(text.rsplit("factor other", 1)[0], seed=1)
    single.load_state_dict(both.state_dict())
    link = torch.stack(
        [
            torch.tensor([[int(torch.randint(0, node, (), generator=generator)), node] for node in range(1, 30)])
            for _ in range(4)
        ]
    )
    for magnitude in (1.0, 30.0, 1e4):
        u = torch.randn(4, 30, 5, generator=generator) * magnitude
        for dtype, error in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
            trees = single.to(dtype).infer(u=u.to(dtype), link=link)
            truth = both.double().infer(u=u.double(), link=link)
            scale = magnitude * 30
            torch.testing.assert_close(
                trees.log_partition.double(), truth.log_partition, atol=error * scale, rtol=error
            )
            torch.testing.assert_close(trees.marginals["y"].double(), truth.marginals["y"], atol=1e-4, rtol=1e-4)
            arcs = trees.factor_marginals["arc"].double()
            torch.testing.assert_close(arcs, truth.factor_marginals["arc"], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(trees.map().score.double(), truth.map().score, atol=error * scale, rtol=error)


def test_transforms_of_torch_func() -> None:
    """Gradients, Hessians and vmap through a posterior: by the torch operations behind the kernel."""
    model = em.compile(GRID.replace("{a, b, c}", "{a, b}"), seed=1).double()
    u = torch.randn(3, 2, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def log_z(field: torch.Tensor) -> torch.Tensor:
        return model.infer(u=field.unsqueeze(0), using="exact").log_partition.squeeze(0)

    slopes = torch.func.vmap(torch.func.grad(log_z))(u)
    torch.testing.assert_close(slopes, model.infer(u=u, using="exact").marginals["y"].detach())
    curve = torch.func.jacrev(torch.func.grad(log_z))(u[0])
    twice = torch.autograd.functional.hessian(log_z, u[0])
    torch.testing.assert_close(curve, twice)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_single(dtype: torch.dtype) -> None:
    model = em.compile(GRID, seed=1).to(dtype)
    u = torch.randn(2, 4, 4, 3, generator=torch.Generator().manual_seed(2)).to(dtype)
    wide = em.compile(GRID, seed=1).to(dtype).double()
    truth = wide.infer(u=u.double(), using="exact")
    for using in ("exact", "exact(engine: torch)"):
        found = model.infer(u=u, using=using)
        assert found.log_partition.dtype == dtype
        torch.testing.assert_close(found.log_partition.double(), truth.log_partition, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(found.marginals["y"].double(), truth.marginals["y"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("using", ["exact", "exact(engine: torch)", "sliced"])
def test_draws_follow_the_distribution(using: str) -> None:
    """Frequencies of whole answers: with 16 answers and 20,000 draws the total variation is 0.011 on average."""
    model = em.compile(GRID.replace("{a, b, c}", "{a, b}"), seed=1).double()
    u = torch.randn(1, 2, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    if using == "sliced":
        backend, _ = model.prepared("exact")
        backend.plans.budget = 100.0
        using = "exact"
    drawn = model.infer(u=u, using=using).sample(20_000, generator=torch.Generator().manual_seed(0))["y"][:, 0]
    counts = torch.bincount((drawn.flatten(1) * torch.tensor([8, 4, 2, 1])).sum(1), minlength=16) / 20_000
    answers = torch.tensor(list(product((0, 1), repeat=4))).reshape(16, 2, 2)
    truth = model.infer(u=u.expand(16, -1, -1, -1), using="enumerate").log_prob(y=answers).exp()
    assert (counts - truth).abs().sum() / 2 < 0.03


def test_an_edge_without_an_end_has_no_factor_on_its_other_end() -> None:
    text = """
labels Tag = {A, B}
dim N, E
input link : edge(N, N)[E]
input u : real[N, Tag]
output y : Tag[N]
param w : real[Tag] = normal(1.0)
factor own [n in N] (y[n]) = u[n]
param v : real[a: Tag, b: Tag] = normal(1.0)
factor near [e = (i, j) in link] (y[j]) = w
factor both [e = (i, j) in link] (a: y[i], b: y[j]) = v
"""
    model = em.compile(text, seed=0).double()
    link = torch.tensor([[[0, 1], [-1, 2], [1, 2], [2, -1]]])
    u = torch.zeros(1, 3, 2, dtype=torch.float64)
    exact, truth = (model.infer(link=link, u=u, using=using) for using in ("exact", "enumerate"))
    assert torch.allclose(exact.log_partition, truth.log_partition)


def test_second_derivatives_where_the_incoming_gradient_depends_on_the_scores() -> None:
    model = em.compile(
        """
        labels L = {a, b}
        dim H = 2, W = 2
        input s : real[H, W, L]
        output y : L[H, W]
        param c : real = 0.4
        factor site [i in H, j in W] (y[i, j]) = s[i, j]
        factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(c)
        factor right [i in H, j in W-1] (y[i, j], y[i, j+1]) = potts(c)
        """
    ).double()
    scores = torch.randn(1, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: model.infer(using="exact", s=s).log_partition.square(), (scores,))


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["alike", "apart", "sets", "half", "contradicted"])
@pytest.mark.parametrize("masked", [False, True])
def test_what_programs_know_and_what_tables_rule_out(engine: str, kind: str, masked: bool) -> None:
    """Cells that all examples observe are taken out of the graph; other evidence is -inf in a table."""
    generator = torch.Generator().manual_seed(3)
    model = em.compile(GRID, seed=0).double()
    u = torch.randn(2, 3, 3, 3, generator=generator, dtype=torch.float64)
    labels = torch.full((2, 3, 3), -1)
    labels[:, 1, 1] = torch.tensor([0, 2])
    if kind == "apart":
        labels[0, 0, 2], labels[1, 2, 2] = 1, 1
    evidence = labels
    if kind in ("sets", "half"):
        evidence = (labels.unsqueeze(-1) == torch.arange(3)) | (labels < 0).unsqueeze(-1)
        evidence[:, 0, 0, 1] = kind == "sets"
    if kind == "contradicted":
        u[0, 1, 1, 0] = float("-inf")
    mask = torch.ones(2, 3, 3, dtype=torch.bool)
    mask[1, 2, 2] = not masked or kind == "apart"
    given = {"u": u, "evidence": {"y": evidence}, "mask": mask}
    found, truth = (model.infer(**given, using=using) for using in (f"exact(engine: {engine})", "enumerate"))
    torch.testing.assert_close(found.log_partition, truth.log_partition)
    torch.testing.assert_close(found.marginals["y"], truth.marginals["y"])
    torch.testing.assert_close(found.max_marginals["y"], truth.max_marginals["y"])
    torch.testing.assert_close(found.entropy, truth.entropy)
    torch.testing.assert_close(found.map().score, truth.map().score)

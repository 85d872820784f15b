"""Contract cases that are other graphs: skip edges, run-time edges, several variables, latents, grids, nested dims."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st

from tests.contract.cases import Case
from tests.contract.chains import CHAIN_TERMS, Maker, forbid
from tests.contract.draft import TAGS, Draft, edges, finish, ragged, sizes, start, tree_edges


def _skip(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T-2", "from: y[t], to: y[t+2]", draft.param("from: Tag, to: Tag"))


def _triple(draft: Draft, size: int, count: int) -> None:
    table = draft.real("T, a: Tag, b: Tag, c: Tag", size, count, count, count)
    draft.factor("t in T-2", "c: y[t], a: y[t+1], b: y[t+2]", f"{table}[t+2]")


def _around(draft: Draft, size: int, count: int) -> None:
    draft.factor("", "a: y[0], b: y[-1]", draft.param("a: Tag, b: Tag"))


def _to_first(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T", "a: y[t], b: y[0]", draft.param("a: Tag, b: Tag"))


def _every_pair(draft: Draft, size: int, count: int) -> None:
    table = draft.real("one: T, two: T, a: Tag, b: Tag", size, size, count, count, holes=False)
    draft.factor("t in T, s in T-1", "a: y[s+1], b: y[t]", f"{table}[s, t]")


def _link(draft: Draft, size: int, count: int) -> None:
    draft.declare("dim E")
    draft.declare("input link : edge(T, T)[E]")
    if "link" not in draft.inputs:
        draft.sizes["E"] = 3
        draft.inputs["link"] = edges(draft, size, 3)


def _link_shared(draft: Draft, size: int, count: int) -> None:
    _link(draft, size, count)
    draft.factor("e = (i, j) in link", "a: y[j], b: y[i]", draft.param("a: Tag, b: Tag"))


def _link_table(draft: Draft, size: int, count: int) -> None:
    _link(draft, size, count)
    table = draft.real("E, a: Tag, b: Tag", 3, count, count)
    draft.factor("e = (i, j) in link", "a: y[i], b: y[j]", f"{table}[e]")


def _link_net(draft: Draft, size: int, count: int) -> None:
    _link(draft, size, count)
    net = draft.net("linear(out: [a: Tag, b: Tag])")
    x = draft.feature("T, 2", size, 2)
    draft.factor("e = (i, j) in link", "a: y[i], b: y[j]", f"{net}({x}[i], {x}[j])")


def _link_potts(draft: Draft, size: int, count: int) -> None:
    _link(draft, size, count)
    draft.factor("e = (i, j) in link", "y[i], y[j]", f"potts({draft.real('E', 3, holes=False)}[e])")


def _link_range(draft: Draft, size: int, count: int) -> None:
    """Edges and a range in one index set."""
    _link(draft, size, count)
    table = draft.real("T, E, a: Tag, b: Tag", size, 3, count, count, holes=False)
    draft.factor("t in T-1, e = (i, j) in link", "a: y[t+1], b: y[j]", f"{table}[t, e]")


def _link_cell(draft: Draft, size: int, count: int) -> None:
    """A variable for each edge."""
    _link(draft, size, count)
    draft.declare("output r : Tag[E]")
    draft.variables["r"] = (("E",), count)
    draft.factor("e = (i, j) in link", "a: y[i], b: r[e]", draft.param("a: Tag, b: Tag"))
    draft.factor("e in E", "r[e]", f"{draft.real('E, Tag', 3, count)}[e]")


def _scalar(draft: Draft, size: int, count: int) -> None:
    draft.declare("output s : Tag")
    draft.variables["s"] = ((), count)
    draft.factor("t in T", "a: y[t], b: s", draft.param("a: Tag, b: Tag"))
    draft.factor("", "s", draft.real("Tag", count))


def _other(kind: str) -> Maker:
    def make(draft: Draft, size: int, count: int) -> None:
        if "z" in draft.variables:
            return
        draft.declare("labels State = {on, off}")
        draft.declare(f"{kind} z : State[T]")
        draft.variables["z"] = (("T",), 2)
        draft.factor("t in T", "z[t], y[t]", draft.param("Tag, State"))
        draft.factor("t in T-1", "from: z[t], to: z[t+1]", draft.param("from: State, to: State"))
        draft.factor("t in T-1", "y[t+1], z[t]", f"{draft.real('T, State, Tag', size, 2, count)}[t]")

    return make


GRAPH_TERMS: tuple[Maker, ...] = (
    *CHAIN_TERMS, _skip, _triple, _around, _to_first, _every_pair, _link_shared, _link_table, _link_net, _link_potts,
    _link_range, _link_cell, _scalar, _other("output"), _other("latent"), forbid("y[0] = y[-1]"),
    forbid("[t in T-2] y[t] = y[t+2]"),
)  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Case:
    """Skip edges, run-time edges, several variables, latents."""
    draft, size = start(draw, 3)
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 2)
    for maker in draw(st.lists(st.sampled_from(GRAPH_TERMS), min_size=1, max_size=4, unique=True)):
        maker(draft, size, 2)
    ragged(draw, draft, "T", size)
    if "E" in draft.sizes:
        ragged(draw, draft, "E", 3)
    return finish(draw, draft)


@st.composite
def trees(draw: st.DrawFn) -> Case:
    """Trees that are given at run time, another one for each example."""
    draft, size = start(draw, 5)
    rows = draw(st.integers(max(1, size - 1), 5))
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 2)
    draft.declare("dim E")
    draft.declare("input link : edge(T, T)[E]")
    draft.sizes["E"] = rows
    draft.inputs["link"] = tree_edges(draft, size, rows)

    def table() -> str:
        return draft.real("E, a: Tag, b: Tag", rows, 2, 2)

    pairs: list[Callable[[], None]] = [
        lambda: draft.factor("e = (i, j) in link", "a: y[i], b: y[j]", f"{table()}[e]"),
        lambda: draft.factor("e = (i, j) in link", "a: y[j], b: y[i]", draft.param("a: Tag, b: Tag")),
        lambda: draft.factor("e = (i, j) in link", "y[i], y[j]", f"potts({draft.real('E', rows, holes=False)}[e])"),
        lambda: draft.factor("e = (i, j) in link", "a: y[i], b: y[j]", draft.real("a: Tag, b: Tag", 2, 2)),
    ]
    singles: list[Callable[[], None]] = [
        lambda: draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, 2)}[t]"),
        lambda: draft.factor("e = (i, j) in link", "y[j]", f"{draft.real('E, Tag', rows, 2)}[e]"),
        lambda: draft.factor("", "y[-1]", draft.param("Tag")),
        lambda: draft.terms.append("forbid y[0] = A"),
    ]
    for number in draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=2, unique=True)):
        pairs[number]()
    for number in draw(st.lists(st.integers(0, len(singles) - 1), max_size=3, unique=True)):
        singles[number]()
    ragged(draw, draft, "T", size)
    ragged(draw, draft, "E", rows)
    return finish(draw, draft)


@st.composite
def triples(draw: st.DrawFn) -> Case:
    """Factors of three cells that overlap in every way, given at run time, another set for each example."""
    draft, size = start(draw, 5, 3)
    rows = draw(st.integers(1, 10))
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 2)
    draft.declare("dim E")
    draft.declare("input link : edge(T, T, T)[E]")
    draft.sizes["E"] = rows
    every = torch.combinations(torch.arange(size), 3)
    draft.inputs["link"] = every[draft.below(len(every), draft.batch, rows)]
    table = draft.real("E, a: Tag, b: Tag, c: Tag", rows, 2, 2, 2)
    draft.factor("e = (i, j, k) in link", "b: y[i], a: y[j], c: y[k]", f"{table}[e]")
    if draw(st.booleans()):
        draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, 2)}[t]")
    if draw(st.booleans()):
        draft.factor("t in T-1", "from: y[t], to: y[t+1]", draft.param("from: Tag, to: Tag"))
    ragged(draw, draft, "E", rows)
    return finish(draw, draft)


@st.composite
def grids(draw: st.DrawFn) -> Case:
    """Variables over two dims, with a sequence along one of them."""
    draft, size = start(draw, 3)
    width = draw(st.integers(0, 2))
    fixed = draw(st.booleans()) and width > 1
    draft.declare(f"dim W = {width}" if fixed else "dim W")
    draft.sizes["W"] = width
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T, W]")
    draft.variables["y"] = (("T", "W"), 2)

    def diagonal() -> str:
        return draft.real("T-1, a: Tag, b: Tag", max(0, size - 1), 2, 2)

    terms: list[Callable[[], None]] = [
        lambda: draft.factor("i in T, j in W", "y[i, j]", f"{draft.real('T, W, Tag', size, width, 2)}[i, j]"),
        lambda: draft.factor("j in W, i in T", "y[i, j]", f"{draft.real('T, Tag, W', size, 2, width)}[i, j]"),
        lambda: draft.factor("i in T-1, j in W", "y[i, j], y[i+1, j]", f"potts({draft.param('')})"),
        lambda: draft.factor("i in T, j in W-1", "b: y[i, j+1], a: y[i, j]", draft.param("a: Tag, b: Tag")),
        lambda: draft.factor("i in T-1, j in W-1", "a: y[i+1, j], b: y[i, j+1]", f"{diagonal()}[i]"),
        lambda: draft.factor("j in W", "y[-1, j]", f"{draft.real('W, Tag', width, 2)}[j]"),
        lambda: draft.factor("", "a: y[0, -1], b: y[-1, 0]", draft.param("a: Tag, b: Tag")),
        lambda: draft.terms.append("forbid [i in T-1, j in W] y[i, j] = A and y[i+1, j] = A"),
        lambda: draft.terms.append("forbid [i in T] y[i, 0] = B"),
        lambda: draft.terms.append(f"score whole (y) = {draft.net('pooled(hidden: 3, activation: tanh)')}(soft(y))"),
        lambda: _row(draft, size),
    ]
    for number in draw(st.lists(st.integers(0, len(terms) - 1), min_size=1, max_size=4, unique=True)):
        terms[number]()
    ragged(draw, draft, "T", size)
    if not fixed:
        ragged(draw, draft, "W", width)
    return finish(draw, draft)


def _row(draft: Draft, size: int) -> None:
    """A sequence variable beside the grid: along its dim, indices count its cells."""
    draft.declare("output z : Tag[T]")
    draft.variables["z"] = (("T",), 2)
    draft.factor("i in T, j in W", "a: y[i, j], b: z[i]", draft.param("a: Tag, b: Tag"))
    draft.factor("i in T-1", "a: z[i], b: z[i+1]", f"{draft.real('T-1, a: Tag, b: Tag', max(0, size - 1), 2, 2)}[i]")


@st.composite
def nested(draw: st.DrawFn) -> Case:
    """A dim with one size for each position of another, for variables and for inputs."""
    draft, size = start(draw, 2)
    width = draw(sizes(0, 3))
    draft.declare("dim M[T]")
    draft.sizes["M"] = width
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("labels Char = {k, l}")
    over = draw(st.sampled_from(["T, M", "T"]))
    draft.declare(f"output y : Tag[{over}]")
    draft.variables["y"] = (("T", "M") if over == "T, M" else ("T",), 2)

    def table() -> str:
        return draft.real("T, M, Tag", size, width, 2)

    def shorter() -> str:
        return draft.real("T, M-1, Tag", size, max(0, width - 1), 2)

    def weight() -> str:
        return draft.real("T, M", size, width)

    inner: list[Callable[[], None]] = [
        lambda: draft.factor("t in T, m in M", "y[t, m]", f"{table()}[t, m]"),
        lambda: draft.factor("t in T, m in M-1", "y[t, m]", f"{shorter()}[t, m]"),
        lambda: draft.factor("t in T, m in M-1", "from: y[t, m], to: y[t, m+1]", draft.param("from: Tag, to: Tag")),
        lambda: draft.factor("t in T, m in M-1", "y[t, m], y[t, m+1]", f"potts({weight()}[t, m+1])"),
        lambda: draft.terms.append("forbid [t in T, m in M-1] y[t, m] = y[t, m+1]"),
        lambda: _outer(draft),
    ]
    outer: list[Callable[[], None]] = [
        lambda: _characters(draft, size, width),
        lambda: draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, 2)}[t]"),
    ]
    terms = inner if over == "T, M" else outer
    for number in draw(st.lists(st.integers(0, len(terms) - 1), min_size=1, max_size=3, unique=True)):
        terms[number]()
    ragged(draw, draft, "T", size)
    used = any("[T, M" in line for line in draft.declarations if not line.startswith("dim"))
    if used and draw(st.integers(0, 3)):
        draft.lengths["M"] = draft.below(width + 1, draft.batch, size)
    return finish(draw, draft)


def _outer(draft: Draft) -> None:
    draft.declare("output z : Tag[T]")
    draft.variables["z"] = (("T",), 2)
    draft.factor("t in T, m in M", "a: y[t, m], b: z[t]", draft.param("a: Tag, b: Tag"))


def _characters(draft: Draft, size: int, width: int) -> None:
    """A network that reads the characters of one word at a time."""
    net, name = draft.net("pooled(out: Tag, hidden: 3, embed: 2)"), draft.name("c")
    draft.declare(f"input {name} : Char[T, M]")
    draft.inputs[name] = draft.below(2, draft.batch, size, width)
    draft.factor("t in T", "y[t]", f"{net}({name}[t])")

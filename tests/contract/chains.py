"""Contract cases that are chains: random sums of unary and pair tables, constraints and schemes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tests.contract.cases import Case
from tests.contract.draft import SCHEME_TAGS, TAGS, Draft, edges, finish, ragged, start

Maker = Callable[[Draft, int, int], None]


def _unary_input(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, count)}[t]")


def _unary_net(draft: Draft, size: int, count: int) -> None:
    net = draft.net("linear(out: Tag)")
    draft.factor("t in T", "y[t]", f"{net}({draft.feature('T, 2', size, 2)})[t]")


def _unary_recurrent(draft: Draft, size: int, count: int) -> None:
    net = draft.net("blstm(out: Tag, hidden: 3)")
    draft.factor("t in T", "y[t]", f"{net}({draft.feature('T, 2', size, 2)})[t]")


def _unary_pointwise(draft: Draft, size: int, count: int) -> None:
    net = draft.net("mlp(out: Tag, hidden: 3, activation: tanh)")
    x = draft.feature("T, 2", size, 2)
    draft.factor("t in T-1", "y[t+1]", f"{net}({x}[t], {x}[t+1])")


def _unary_words(draft: Draft, size: int, count: int) -> None:
    draft.declare("labels Word = {p, q, r}")
    name = draft.name("v")
    draft.declare(f"input {name} : Word[T]")
    draft.inputs[name] = draft.below(3, draft.batch, size)
    net = draft.net("linear(out: Tag, embed: 2)")
    draft.factor("t in T", "y[t]", f"{net}({name})[t]")


def _unary_shared(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T", "y[t]", draft.param("Tag"))


def _unary_example(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T", "y[t]", draft.real("Tag", count))


def _unary_arithmetic(draft: Draft, size: int, count: int) -> None:
    u, v, k = draft.real("T, Tag", size, count), draft.param("Tag"), draft.feature("")
    draft.factor("t in T-1", "y[t]", f"2 * {u}[t] + {v} * 0.5 - {v} / 4 + {k} * {v}")


def _unary_let(draft: Draft, size: int, count: int) -> None:
    name = draft.name("h")
    net = draft.net("linear(out: Tag)")
    draft.declare(f"let {name} = {net}({draft.feature('T, 2', size, 2)}) + {draft.real('T, Tag', size, count)}")
    draft.factor("t in T", "y[t]", f"{name}[t]")


def _unary_late(draft: Draft, size: int, count: int) -> None:
    u = draft.real("T-1, Tag", max(0, size - 1), count)
    draft.factor("t in T-2", "y[t+2]", f"{u}[t+1]")


def _unary_at_ends(draft: Draft, size: int, count: int) -> None:
    link, rows = draft.name("l"), 3
    draft.declare(f"dim E{link}")
    draft.declare(f"input {link} : edge(T, T)[E{link}]")
    draft.sizes[f"E{link}"] = rows
    draft.inputs[link] = edges(draft, size, rows)
    table = draft.real(f"E{link}, Tag", rows, count)
    draft.factor(f"e = (i, j) in {link}", "y[j]", f"{table}[e] + {draft.real('T, Tag', size, count, holes=False)}[i]")


def _pair_shared(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T-1", "from: y[t], to: y[t+1]", draft.param("from: Tag, to: Tag"))


def _pair_swapped(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T-1", "to: y[t+1], from: y[t]", draft.param("from: Tag, to: Tag"))


def _pair_position(draft: Draft, size: int, count: int) -> None:
    table = draft.real("T-1, from: Tag, to: Tag", max(0, size - 1), count, count)
    draft.factor("t in T-1", "from: y[t], to: y[t+1]", f"{table}[t]")


def _pair_example(draft: Draft, size: int, count: int) -> None:
    table = draft.real("from: Tag, to: Tag", count, count)
    draft.factor("t in T-1", "from: y[t+1], to: y[t]", table)


def _pair_net(draft: Draft, size: int, count: int) -> None:
    net = draft.net("linear(out: [from: Tag, to: Tag])")
    x = draft.feature("T-1, 2", max(0, size - 1), 2)
    draft.factor("t in T-1", "from: y[t], to: y[t+1]", f"{net}({x})[t]")


def _pair_potts(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T-1", "y[t], y[t+1]", f"potts({draft.real('T', size)}[t+1])")


def _pair_late(draft: Draft, size: int, count: int) -> None:
    table = draft.real("T, a: Tag, b: Tag", size, count, count)
    draft.factor("t in T-2", "b: y[t+1], a: y[t+2]", f"{table}[t+1]")


def _pair_early(draft: Draft, size: int, count: int) -> None:
    draft.factor("t in T-3", "from: y[t+1], to: y[t]", draft.param("from: Tag, to: Tag"))


def _first(draft: Draft, size: int, count: int) -> None:
    draft.factor("", "y[0]", draft.param("Tag"))


def _last(draft: Draft, size: int, count: int) -> None:
    draft.factor("", "y[-1]", f"{draft.real('T, Tag', size, count)}[-1]")


def _second(draft: Draft, size: int, count: int) -> None:
    u = draft.real("T-1, Tag", max(0, size - 1), count)
    draft.factor("", "y[1]", f"{u}[-1] + {u}[0]")


def _far_constant(draft: Draft, size: int, count: int) -> None:
    """A table that reads a position which may not exist: the factor vanishes with it."""
    draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, count)}[2]")


def _let_constant(draft: Draft, size: int, count: int) -> None:
    name = draft.name("h")
    draft.declare(f"let {name} = {draft.real('T, Tag', size, count, holes=False)}[-2]")
    draft.factor("t in T", "y[t]", name)


def forbid(condition: str) -> Maker:
    return lambda draft, size, count: draft.terms.append(f"forbid {condition}")


CHAIN_TERMS: tuple[Maker, ...] = (
    _unary_input, _unary_net, _unary_recurrent, _unary_pointwise, _unary_words, _unary_shared, _unary_example,
    _unary_arithmetic, _unary_let, _unary_late, _unary_at_ends, _pair_shared, _pair_swapped, _pair_position,
    _pair_example, _pair_net, _pair_potts, _pair_late, _pair_early, _first, _last, _second, _far_constant,
    _let_constant,
    forbid("[t in T-1] y[t] = A and y[t+1] = B"), forbid("[t in T-1] y[t] = y[t+1]"),
    forbid("[t in T-1] y[t+1] != y[t] and y[t] ~ 'B*'"), forbid("[t in T] y[t] !~ '*'"),
    forbid("[t in T-2] y[t+2] = A"),
    forbid("y[0] = A"), forbid("y[-1] != B"), forbid("y[1] ~ 'B*'"),
)  # fmt: skip


@st.composite
def chains(draw: st.DrawFn) -> Case:
    """First-order chains: what `exact` serves."""
    count = draw(st.sampled_from([2, 2, 3]))
    draft, size = start(draw, 5 if count == 2 else 4)
    draft.declare(f"labels Tag = {TAGS[count]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), count)
    for maker in draw(st.lists(st.sampled_from(CHAIN_TERMS), min_size=1, max_size=4)):
        maker(draft, size, count)
    ragged(draw, draft, "T", size)
    return finish(draw, draft)


@st.composite
def sugar(draw: st.DrawFn) -> Case:
    """The `chain` block and labelling schemes."""
    draft, size = start(draw, 4)
    draft.declare(f"labels Tag = {SCHEME_TAGS}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 3)
    pair = draft.param("from: Tag, to: Tag")
    if draw(st.booleans()):
        pair = draft.real("T-1, from: Tag, to: Tag", max(0, size - 1), 3, 3)
    options = [f"unary: {draft.real('T, Tag', size, 3)}", f"pair: {pair}", f"start: {draft.param('Tag')}"]
    options.append(f"end: {draft.real('Tag', 3)}")
    chosen = draw(st.sets(st.sampled_from(options)))
    draft.terms.append(f"chain y {{ {', '.join(sorted({*chosen, options[1]}))} }}")
    scheme = draw(st.sampled_from(["", "", "bio", "bioes"]))
    if scheme:
        draft.terms.append(f"scheme y {scheme}")
    used = "\n".join(draft.terms)
    draft.declarations = [d for d in draft.declarations if not d.startswith(("input", "param")) or d.split()[1] in used]
    draft.inputs = {name: one for name, one in draft.inputs.items() if name in used}
    ragged(draw, draft, "T", size)
    return finish(draw, draft)

"""Hypothesis strategies for contract cases: specs that are random sums of terms, and tensors for them.

Structure is drawn by hypothesis, so that failures shrink; numbers come from a seeded generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.cases import Case

Draw = Callable[[st.SearchStrategy], object]

TAGS = {2: "{A, B}", 3: "{A, B, 'B-x'}"}
SCHEME_TAGS = "{O, 'B-x', 'I-x'}"
END_TAGS = "{A, B, stop}"


@dataclass
class Numbers:
    """How tensors look."""

    dtype: torch.dtype = torch.float64
    magnitude: float = 1.0
    holes: bool = False
    garbage: bool = False


@dataclass
class Draft:
    """A spec in the making, with the sizes that its tensors need."""

    numbers: Numbers
    seed: int
    batch: int
    sizes: dict[str, int] = field(default_factory=dict)
    declarations: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[object, ...]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    lengths: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    evidence: dict[str, Tensor] = field(default_factory=dict)
    variables: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    counter: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def name(self, stem: str) -> str:
        """A fresh name."""
        self.counter += 1
        return f"{stem}{self.counter}"

    def declare(self, line: str) -> None:
        """Add a declaration once."""
        if line not in self.declarations:
            self.declarations.append(line)

    def real(self, type_: str, *shape: int, holes: bool = True) -> str:
        """A real input that is read as a table: its numbers may be huge, and -inf here and there."""
        name = self.name("u")
        self.declare(f"input {name} : real[{type_}]" if type_ else f"input {name} : real")
        values = torch.randn(self.batch, *shape, generator=self.generator, dtype=torch.float64) * self.numbers.magnitude
        if self.numbers.holes and holes:
            gone = torch.rand(self.batch, *shape, generator=self.generator) < 0.2
            values = values.masked_fill(gone, float("-inf"))
        self.inputs[name] = values.to(self.numbers.dtype)
        return name

    def feature(self, type_: str, *shape: int) -> str:
        """A real input that networks read."""
        name = self.name("x")
        self.declare(f"input {name} : real[{type_}]" if type_ else f"input {name} : real")
        values = torch.randn(self.batch, *shape, generator=self.generator, dtype=torch.float64)
        self.inputs[name] = values.to(self.numbers.dtype)
        return name

    def param(self, type_: str) -> str:
        """A parameter."""
        name = self.name("w")
        self.declare(f"param {name} : real{f'[{type_}]' if type_ else ''}")
        return name

    def net(self, call: str) -> str:
        """A network."""
        name = self.name("f")
        self.declare(f"net {name} = {call}")
        return name

    def factor(self, binders: str, scope: str, value: str) -> None:
        """A factor."""
        self.terms.append(f"factor {self.name('g')} {f'[{binders}] ' if binders else ''}({scope}) = {value}")

    def below(self, high: int, *shape: int) -> Tensor:
        """Random integers."""
        return torch.randint(0, high, shape, generator=self.generator)

    def case(self) -> Case:
        """The finished case."""
        for dim in self.sizes:
            self._anchor(dim)
        if self.numbers.garbage:
            self._fill_padding()
        text = "\n".join([*self.declarations, *self.terms, "infer auto", ""])
        return Case(
            text, self.inputs, self.sizes, self.lengths, self.masks, self.evidence, self.batch,
            self.numbers.magnitude, self.numbers.dtype,
        )  # fmt: skip

    def _anchor(self, dim: str) -> None:
        """Let an input that no score reads say how large a dim is, where nothing else does."""
        line = next(one for one in self.declarations if one.startswith((f"dim {dim}", f"dim {dim}[")))
        if "free" in line or "=" in line:
            return
        told = any(f"real[{dim}," in one or f"real[{dim}]" in one or f"[{dim}]" in one.partition("edge")[2]
                   for one in self.declarations if one.startswith("input"))  # fmt: skip
        told = told or any(dim in self.variables[name][0] for name in self.masks)
        full = dim in self.lengths and self.lengths[dim].numel() and int(self.lengths[dim].max()) == self.sizes[dim]
        if told or full:
            return
        within = line.partition("[")[2].rstrip("]")
        dims = [within, dim] if within else [dim]
        name = self.name("n")
        self.declare(f"input {name} : real[{', '.join(dims)}]")
        self.inputs[name] = torch.zeros(self.batch, *(self.sizes[d] for d in dims), dtype=self.numbers.dtype)

    def _fill_padding(self) -> None:
        """What lies beyond the lengths is never read, whatever it is."""
        for name, tensor in list(self.inputs.items()):
            line = next(one for one in self.declarations if one.startswith(f"input {name} :"))
            if "T" not in self.lengths or not any(mark in line for mark in ("[T,", "[T]")):
                continue
            filler = float("nan") if tensor.is_floating_point() else 99
            beyond = torch.arange(tensor.shape[1]) >= self.lengths["T"].reshape(-1, 1)
            shape = (*beyond.shape, *[1] * (tensor.dim() - 2))
            self.inputs[name] = tensor.masked_fill(beyond.reshape(shape), filler)


# ------------------------------------------------------------------------------------------------------- batch and numbers


@st.composite
def numbers(draw: Draw) -> Numbers:
    """Precisions, magnitudes and -inf."""
    wide = draw(st.sampled_from([1.0, 1.0, 1.0, 1e4, 1e6]))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    return Numbers(dtype, wide, draw(st.booleans()), draw(st.booleans()))  # type: ignore[arg-type]


def _ragged(draw: Draw, draft: Draft, dim: str, size: int) -> None:
    """Lengths, which may be 0 and 1, or none at all."""
    if draw(st.booleans()):
        drawn = draw(st.lists(st.integers(0, size), min_size=draft.batch, max_size=draft.batch))
        draft.lengths[dim] = torch.tensor(drawn, dtype=torch.long)


def _masked(draw: Draw, draft: Draft) -> None:
    """Masks with gaps anywhere: the first cell absent, all absent, or nothing absent."""
    for name, (dims, _) in draft.variables.items():
        kind = draw(st.sampled_from(["none", "none", "gaps", "first", "all"]))
        if kind == "none":
            continue
        shape = (draft.batch, *(draft.sizes[dim] for dim in dims))
        mask = torch.rand(shape, generator=draft.generator) < 0.6
        if kind == "first" and mask.dim() > 1:
            mask[:, :1] = False
        if kind == "all" and draft.batch:
            mask[0] = False
        draft.masks[name] = mask


def _observed(draw: Draw, draft: Draft) -> None:
    """Evidence: labels with -1, or allowed sets; sometimes nothing is left."""
    for name, (dims, count) in draft.variables.items():
        kind = draw(st.sampled_from(["none", "none", "none", "labels", "sets", "nothing"]))
        shape = (draft.batch, *(draft.sizes[dim] for dim in dims))
        if kind == "labels":
            labels = draft.below(count, *shape)
            draft.evidence[name] = labels.masked_fill(torch.rand(shape, generator=draft.generator) < 0.6, -1)
        elif kind in ("sets", "nothing"):
            allowed = torch.rand((*shape, count), generator=draft.generator) < 0.7
            if kind == "nothing" and draft.batch:
                allowed[0] = False
            draft.evidence[name] = allowed


def _start(draw: Draw, largest: int, smallest: int = 0) -> tuple[Draft, int]:
    draft = Draft(draw(numbers()), draw(st.integers(0, 2**16)), draw(st.sampled_from([1, 2, 3])))  # type: ignore[arg-type]
    size = draw(st.integers(smallest, largest))
    assert isinstance(size, int)
    draft.sizes["T"] = size
    draft.declare("dim T")
    return draft, size


def _finish(draw: Draw, draft: Draft, masks: bool = True) -> Case:
    if masks:
        _masked(draw, draft)
    _observed(draw, draft)
    return draft.case()


# --------------------------------------------------------------------------------------------------------- terms of chains

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
    draft.inputs[link] = _edges(draft, size, rows)
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


def _forbid(condition: str) -> Maker:
    return lambda draft, size, count: draft.terms.append(f"forbid {condition}")


CHAIN_TERMS: tuple[Maker, ...] = (
    _unary_input, _unary_net, _unary_recurrent, _unary_pointwise, _unary_words, _unary_shared, _unary_example,
    _unary_arithmetic, _unary_let, _unary_late, _unary_at_ends, _pair_shared, _pair_swapped, _pair_position, _pair_example,
    _pair_net, _pair_potts, _pair_late, _pair_early, _first, _last, _second, _far_constant, _let_constant,
    _forbid("[t in T-1] y[t] = A and y[t+1] = B"), _forbid("[t in T-1] y[t] = y[t+1]"),
    _forbid("[t in T-1] y[t+1] != y[t] and y[t] ~ 'B*'"), _forbid("[t in T] y[t] !~ '*'"), _forbid("[t in T-2] y[t+2] = A"),
    _forbid("y[0] = A"), _forbid("y[-1] != B"), _forbid("y[1] ~ 'B*'"),
)  # fmt: skip


@st.composite
def chains(draw: Draw) -> Case:
    """First-order chains: what `exact` serves."""
    count = draw(st.sampled_from([2, 2, 3]))
    assert isinstance(count, int)
    draft, size = _start(draw, 5 if count == 2 else 4)
    draft.declare(f"labels Tag = {TAGS[count]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), count)
    for maker in draw(st.lists(st.sampled_from(CHAIN_TERMS), min_size=1, max_size=4)):  # type: ignore[attr-defined]
        maker(draft, size, count)
    _ragged(draw, draft, "T", size)
    return _finish(draw, draft)


@st.composite
def sugar(draw: Draw) -> Case:
    """The `chain` block and labelling schemes."""
    draft, size = _start(draw, 4)
    draft.declare(f"labels Tag = {SCHEME_TAGS}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 3)
    pair = draft.param("from: Tag, to: Tag")
    if draw(st.booleans()):
        pair = draft.real("T-1, from: Tag, to: Tag", max(0, size - 1), 3, 3)
    options = [f"unary: {draft.real('T, Tag', size, 3)}", f"pair: {pair}", f"start: {draft.param('Tag')}"]
    options.append(f"end: {draft.real('Tag', 3)}")
    chosen = draw(st.sets(st.sampled_from(options)))
    draft.terms.append(f"chain y {{ {', '.join(sorted({*chosen, options[1]}))} }}")  # type: ignore[misc]
    scheme = draw(st.sampled_from(["", "", "bio", "bioes"]))
    if scheme:
        draft.terms.append(f"scheme y {scheme}")
    used = "\n".join(draft.terms)
    draft.declarations = [d for d in draft.declarations if not d.startswith(("input", "param")) or d.split()[1] in used]
    draft.inputs = {name: one for name, one in draft.inputs.items() if name in used}
    _ragged(draw, draft, "T", size)
    return _finish(draw, draft)


# ------------------------------------------------------------------------------------------------------------ other graphs


def _edges(draft: Draft, size: int, rows: int) -> Tensor:
    """Edges that differ from example to example; some rows are padding."""
    found = torch.randint(-1, max(size, 1), (draft.batch, rows, 2), generator=draft.generator)
    return found if size else torch.full_like(found, -1)


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
        draft.inputs["link"] = _edges(draft, size, 3)


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
    *CHAIN_TERMS, _skip, _skip, _triple, _around, _to_first, _every_pair, _link_shared, _link_table, _link_net, _link_potts,
    _link_cell, _scalar, _other("output"), _other("latent"), _forbid("y[0] = y[-1]"), _forbid("[t in T-2] y[t] = y[t+2]"),
)  # fmt: skip


@st.composite
def graphs(draw: Draw) -> Case:
    """Skip edges, run-time edges, several variables, latents."""
    draft, size = _start(draw, 3)
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T]")
    draft.variables["y"] = (("T",), 2)
    for maker in draw(st.lists(st.sampled_from(GRAPH_TERMS), min_size=1, max_size=4, unique=True)):  # type: ignore[attr-defined]
        maker(draft, size, 2)
    _ragged(draw, draft, "T", size)
    if "E" in draft.sizes:
        _ragged(draw, draft, "E", 3)
    return _finish(draw, draft)


@st.composite
def grids(draw: Draw) -> Case:
    """Variables over two dims, with a sequence along one of them."""
    draft, size = _start(draw, 3)
    width = draw(st.integers(0, 2))
    assert isinstance(width, int)
    fixed = draw(st.booleans()) and width > 1
    draft.declare(f"dim W = {width}" if fixed else "dim W")
    draft.sizes["W"] = width
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("output y : Tag[T, W]")
    draft.variables["y"] = (("T", "W"), 2)
    terms: list[Callable[[], None]] = [
        lambda: draft.factor("i in T, j in W", "y[i, j]", f"{draft.real('T, W, Tag', size, width, 2)}[i, j]"),
        lambda: draft.factor("j in W, i in T", "y[i, j]", f"{draft.real('T, Tag, W', size, 2, width)}[i, j]"),
        lambda: draft.factor("i in T-1, j in W", "y[i, j], y[i+1, j]", f"potts({draft.param('')})"),
        lambda: draft.factor("i in T, j in W-1", "b: y[i, j+1], a: y[i, j]", draft.param("a: Tag, b: Tag")),
        lambda: draft.factor("i in T-1, j in W-1", "a: y[i+1, j], b: y[i, j+1]", f"{draft.real('T-1, a: Tag, b: Tag', max(0, size - 1), 2, 2)}[i]"),
        lambda: draft.factor("j in W", "y[-1, j]", f"{draft.real('W, Tag', width, 2)}[j]"),
        lambda: draft.factor("", "a: y[0, -1], b: y[-1, 0]", draft.param("a: Tag, b: Tag")),
        lambda: draft.terms.append("forbid [i in T-1, j in W] y[i, j] = A and y[i+1, j] = A"),
        lambda: draft.terms.append("forbid [i in T] y[i, 0] = B"),
        lambda: _row(draft, size),
    ]  # fmt: skip
    for number in draw(st.lists(st.integers(0, len(terms) - 1), min_size=1, max_size=4, unique=True)):  # type: ignore[attr-defined]
        terms[number]()
    _ragged(draw, draft, "T", size)
    if not fixed:
        _ragged(draw, draft, "W", width)
    return _finish(draw, draft)


def _row(draft: Draft, size: int) -> None:
    """A sequence variable beside the grid: along its dim, indices count its cells."""
    draft.declare("output z : Tag[T]")
    draft.variables["z"] = (("T",), 2)
    draft.factor("i in T, j in W", "a: y[i, j], b: z[i]", draft.param("a: Tag, b: Tag"))
    draft.factor("i in T-1", "a: z[i], b: z[i+1]", f"{draft.real('T-1, a: Tag, b: Tag', max(0, size - 1), 2, 2)}[i]")


@st.composite
def nested(draw: Draw) -> Case:
    """A dim with one size for each position of another, for variables and for inputs."""
    draft, size = _start(draw, 2)
    width = draw(st.integers(0, 2))
    assert isinstance(width, int)
    draft.declare("dim M[T]")
    draft.sizes["M"] = width
    draft.declare(f"labels Tag = {TAGS[2]}")
    draft.declare("labels Char = {k, l}")
    over = draw(st.sampled_from(["T, M", "T"]))
    draft.declare(f"output y : Tag[{over}]")
    draft.variables["y"] = (("T", "M") if over == "T, M" else ("T",), 2)
    u = lambda: draft.real("T, M, Tag", size, width, 2)  # noqa: E731
    inner: list[Callable[[], None]] = [
        lambda: draft.factor("t in T, m in M", "y[t, m]", f"{u()}[t, m]"),
        lambda: draft.factor("t in T, m in M-1", "y[t, m]", f"{draft.real('T, M-1, Tag', size, max(0, width - 1), 2)}[t, m]"),
        lambda: draft.factor("t in T, m in M-1", "from: y[t, m], to: y[t, m+1]", draft.param("from: Tag, to: Tag")),
        lambda: draft.factor("t in T, m in M-1", "y[t, m], y[t, m+1]", f"potts({draft.real('T, M', size, width)}[t, m+1])"),
        lambda: draft.terms.append("forbid [t in T, m in M-1] y[t, m] = y[t, m+1]"),
        lambda: _outer(draft),
    ]  # fmt: skip
    outer: list[Callable[[], None]] = [
        lambda: _characters(
            draft, size, width, "t in T", "y[t]", "[t]", draft.net("pooled(out: Tag, hidden: 3, embed: 2)")
        ),
        lambda: draft.factor("t in T", "y[t]", f"{draft.real('T, Tag', size, 2)}[t]"),
    ]
    terms = inner if over == "T, M" else outer
    for number in draw(st.lists(st.integers(0, len(terms) - 1), min_size=1, max_size=3, unique=True)):  # type: ignore[attr-defined]
        terms[number]()
    _ragged(draw, draft, "T", size)
    used = any("[T, M" in line for line in draft.declarations if not line.startswith("dim"))
    if used and draw(st.booleans()):
        draft.lengths["M"] = draft.below(width + 1, draft.batch, size)
    return _finish(draw, draft)


def _outer(draft: Draft) -> None:
    draft.declare("output z : Tag[T]")
    draft.variables["z"] = (("T",), 2)
    draft.factor("t in T, m in M", "a: y[t, m], b: z[t]", draft.param("a: Tag, b: Tag"))


def _characters(draft: Draft, size: int, width: int, binders: str, scope: str, at: str, net: str) -> None:
    name = draft.name("c")
    draft.declare(f"input {name} : Char[T, M]")
    draft.inputs[name] = draft.below(2, draft.batch, size, width)
    draft.factor(binders, scope, f"{net}({name}{at})")

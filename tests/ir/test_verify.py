"""Breaking a sound graph in each way that verification knows, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from energyml.ir.graph import (
    BlackBox,
    CellRef,
    Edges,
    Forbidden,
    Graph,
    Linear,
    Quadratic,
    Range,
    SchemeRule,
    Stepwise,
    Table,
    Term,
)
from energyml.ir.verify import IRError, verify
from energyml.model.declared import Condition, Dim, LabelSet, Let, Readout
from energyml.model.expression import (
    Affine,
    Apply,
    At,
    Combine,
    Constant,
    Expression,
    Potential,
    Reference,
    Relaxed,
    scalar,
)
from energyml.model.types import REAL, TensorType, dim_axis, labels_axis
from tests.ir.models import SPECS, graph

NUMBER = TensorType(REAL)
TAGS = TensorType(REAL, (labels_axis("Tag"),))


@pytest.mark.parametrize("name", SPECS)
def test_what_is_built_is_sound(name: str) -> None:
    verify(graph(name))


def changed(made: Graph, name: str, change: Callable[[Term], Term]) -> Graph:
    """The graph with one of its terms replaced."""
    return replace(made, terms=tuple(change(term) if term.name == name else term for term in made.terms))


def problems(made: Graph) -> list[str]:
    with pytest.raises(IRError) as caught:
        verify(made)
    return list(caught.value.problems)


def term_problems(spec: str, name: str, **changes: Any) -> list[str]:
    found = problems(changed(graph(spec), name, lambda term: replace(term, **changes)))
    assert all(problem.startswith(f"term `{name}`: ") for problem in found)
    return [problem.removeprefix(f"term `{name}`: ") for problem in found]


def test_all_problems_are_in_one_message() -> None:
    made = changed(graph("ocr"), "y.pair", lambda term: replace(term, gain=""))
    made = changed(made, "y.start", lambda term: replace(term, scope=()))
    with pytest.raises(IRError, match=r"not sound \(3 problems\)") as caught:
        verify(made)
    assert "term `y.pair`: it has no gain" in str(caught.value)
    assert "term `y.start`: its scope is empty" in str(caught.value)


def test_names_are_unique() -> None:
    made = changed(graph("ocr"), "y.end", lambda term: replace(term, name="y.start"))
    assert problems(made) == ["term `y.start`: 2 terms have this name"]


# --------------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("spec", "changes", "expected"),
    [
        ("ising", {"label_sets": {"Spin": LabelSet("Spin", ())}}, "label set `Spin`: it has no labels"),
        ("masked", {"nets": {}}, "label set `Residue`: unknown network `mlm`"),
        ("mixture", {"dims": {"M": Dim("M", "nested", None, "T")}}, "dim `M`: unknown dim `T`"),
        ("mixture", {"dims": {"K": Dim("K", "fixed")}}, "dim `K`: a fixed dim needs a size of at least 1"),
        ("ocr", {"dims": {"S": Dim("T", "observed")}}, "`S` is entered under the name `T`"),
        ("ocr", {"dims": {}}, "output `y`: unknown dim `T`"),
        ("ocr", {"label_sets": {}}, "param `W`: unknown label set `Letter`"),
        ("ocr", {"label_sets": {}}, "net `cnn`: unknown label set `Letter`"),
        ("tree", {"dims": {}}, "input `link`: unknown dim `E`"),
        ("python", {"label_sets": {}}, "net `f`: unknown label set `Tag`"),
    ],
)
def test_declarations(spec: str, changes: dict[str, Any], expected: str) -> None:
    assert expected in problems(replace(graph(spec), **changes))


def test_readouts() -> None:
    made = graph("field")
    lost = {**made.variables, "y": replace(made.variables["y"], readout=Readout("r", "Seg"))}
    assert problems(replace(made, variables=lost)) == ["output `y`: unknown field `r`"]
    wrong = {**made.variables, "y": replace(made.variables["y"], readout=Readout("s", "Other"))}
    assert problems(replace(made, variables=wrong)) == ["output `y`: `s` has no axis over `Other`"]


def test_lets_use_earlier_lets() -> None:
    made = graph("sequence")
    h = made.lets["h"]
    loop = {"h": Let("h", Reference(h.value.type, "let", "h"))}
    assert problems(replace(made, lets=loop)) == ["let `h`: the let `h` is used before it is defined"]
    index = {"h": Let("h", At(TensorType(REAL, h.value.type.axes[1:]), h.value, (Affine("s"),)))}
    assert "let `h`: `enc(word)[s]`: the index `s` is not bound" in problems(replace(made, lets=index))


# ----------------------------------------------------------------------------------------------------- names and scopes


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("variables", "term `unary`: unknown variable `y`"),
        ("inputs", "term `unary`: unknown input `word`"),
        ("nets", "term `unary`: unknown network `lstm`"),
        ("params", "term `pair`: unknown param `W`"),
        ("dims", "term `pair`: unknown dim `T` in `t in T-1`"),
    ],
)
def test_references_to_nothing(kind: str, expected: str) -> None:
    assert expected in problems(replace(graph("skip"), **{kind: {}}))


def test_a_let_that_is_not_there() -> None:
    assert "term `y.sequence`: unknown let `h`" in problems(replace(graph("mixture"), lets={}))


def cell(*indices: Affine, role: str | None = None, variable: str = "y") -> CellRef:
    return CellRef(variable, indices, role)


T0, T1 = Affine("t"), Affine("t", 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"domain": ()}, "`from: y[t]`: the index `t` is not bound"),
        ({"domain": (Range("t", "T", 0),)}, "`to: y[t+1]`: `t+1` leaves `T`"),
        ({"domain": (Range("t", "T", -1),)}, "`t` runs past `T`"),
        ({"domain": (Range("t", "S", 1),)}, "unknown dim `S` in `t in S-1`"),
        ({"domain": (Range("t", "T", 1), Range("t", "T", 1))}, "the index `t` is bound twice"),
        ({"domain": (Range("t", "T", 1), Range("s", "T"))}, "the index `s` does not occur in the scope"),
        ({"scope": (cell(role="from"), cell(T1, role="to"))}, "`from: y` has indices: 0, but `y` has index axes: 1"),
        ({"scope": (cell(T0, T0, role="from"), cell(T1, role="to"))},
         "`from: y[t, t]` has indices: 2, but `y` has index axes: 1"),
        ({"scope": (cell(T0, role="from"), cell(T0, role="to"))}, "`y[t]` occurs 2 times in the scope"),
        ({"scope": (cell(Affine("t", -1), role="from"), cell(T0, role="to"))}, "`from: y[t-1]`: `t-1` leaves `T`"),
        ({"scope": (cell(T0, role="from"), cell(T1, role="to", variable="x"))}, "unknown variable `x`"),
        ({"scope": (cell(T0, role="from"),)},
         "the order (0, 1) is no matching of the cells (1) and the label axes (2)"),
        ({"scope": (cell(T0), cell(T1))}, "`y[t]` needs a role, as 2 cells of the scope are over `Tag`"),
        ({"scope": (cell(T0, role="to"), cell(T1, role="from"))},
         "`to: y[t]` reads the axis `from: Tag`, which has another role"),
    ],
)  # fmt: skip
def test_scopes(changes: dict[str, Any], expected: str) -> None:
    assert expected in term_problems("skip", "pair", **changes)


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (0, 1, 2), (1, 2), ()])
def test_orders(order: tuple[int, ...]) -> None:
    body = graph("skip").term("pair").body
    found = term_problems("skip", "pair", body=replace(body, order=order))
    assert any("order" in problem or "another role" in problem for problem in found)


def test_orders_over_other_labels() -> None:
    body = graph("mixture").term("emit").body
    assert isinstance(body, Table)
    assert body.order == (1, 0)
    found = term_problems("mixture", "emit", body=replace(body, order=(0, 1)))
    assert found[0] == "`z[t]` has labels `State`, but it reads the axis `Tag`"


def test_nested_dims_need_their_outer_index() -> None:
    found = term_problems("mixture", "mood_prior", domain=(Range("m", "M"),))
    assert "an index over `T` must come before `m in M`" in found


def test_offsets_on_shorter_axes() -> None:
    made = graph("ocr")
    term = made.term("y.pair")
    short = replace(
        made.inputs["image"], name="g", type=TensorType(REAL, (dim_axis("T", -1), *term.expressions()[0].type.axes))
    )
    made = replace(made, inputs={**made.inputs, "g": short})

    def at(offset: int) -> Graph:
        value = At(term.expressions()[0].type, Reference(short.type, "input", "g"), (Affine("t", offset),))  # type: ignore[arg-type]
        return changed(made, "y.pair", lambda one: replace(one, body=Table(value, (0, 1))))

    verify(at(0))
    assert problems(at(1)) == ["term `y.pair`: `g[t+1]`: `t+1` leaves `T-1`"]


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        (Edges("e", ("i", "j"), "lonk", "E", ("T", "T")), "unknown input `lonk` in `e = (i, j) in lonk`"),
        (Edges("e", ("i", "j"), "x", "E", ("T", "T")), "`x` is `real[T, 4]`, no list of edges"),
        (
            Edges("e", ("i", "j"), "link", "E", ("T", "E")),
            "`link` is `edge(T, T)[E]`, but it is bound as `edge(T, E)[E]`",
        ),
        (
            Edges("e", ("i", "j"), "link", "T", ("T", "T")),
            "`link` is `edge(T, T)[E]`, but it is bound as `edge(T, T)[T]`",
        ),
        (Edges("e", ("i",), "link", "E", ("T", "T")), "`e = (i) in link` has ends: 1, dims: 2"),
        (Edges("e", ("e", "j"), "link", "E", ("T", "T")), "the index `e` is bound twice"),
    ],
)
def test_edges(binding: Edges, expected: str) -> None:
    assert expected in term_problems("tree", "link_score", domain=(binding,))


def test_the_end_of_an_edge_has_no_neighbours() -> None:
    found = term_problems(
        "tree", "link_score", scope=(cell(Affine("i"), role="head"), cell(Affine("j", 1), role="tail"))
    )
    assert found == ["`tail: y[j+1]`: `j+1` leaves `T`"]


# ---------------------------------------------------------------------------------------------------------- expressions

WORD = Reference(TensorType("Word", (dim_axis("T"),)), "input", "word")
LSTM = Apply(TensorType(REAL, (dim_axis("T"), labels_axis("Tag"))), "lstm", (WORD,))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (At(TAGS, LSTM, (T0, T0)), "`lstm(word)[t, t]` has indices: 2, but `lstm(word)` has index axes: 1"),
        (At(TAGS, LSTM, ()), "`lstm(word)[]` has indices: 0, but `lstm(word)` has index axes: 1"),
        (At(LSTM.type, LSTM, (T0,)), "`lstm(word)[t]` is `real[Tag]`, but typed `real[T, Tag]`"),
        (At(TAGS, LSTM, (Affine("s"),)), "`lstm(word)[s]`: the index `s` is not bound"),
        (At(TAGS, Combine(LSTM.type, (LSTM, LSTM), ("+",)), (T0,)),
         "`lstm(word) + lstm(word)[t]`: subscripts stand on names and calls"),
        (LSTM, "`lstm(word)` is `real[T, Tag]`, but a table has label axes only"),
        (At(TAGS, replace(LSTM, type=TensorType(REAL, (dim_axis("T"), labels_axis("Word")))), (T0,)),
         "`lstm(word)` is `real[T, Tag]`, but typed `real[T, Word]`"),
        (At(TAGS, replace(LSTM, arguments=()), (T0,)), "`lstm` needs at least one argument"),
        (At(TAGS, replace(LSTM, arguments=(replace(WORD, type=TensorType("Tag", (dim_axis("T"),))),)), (T0,)),
         "`word` is declared `Word[T]`, but referred to as `Tag[T]`"),
        (Combine(TAGS, (At(TAGS, LSTM, (T0,)), scalar(1)), ("+",)),
         "`lstm(word)[t] + 1`: `+` cannot join `real[Tag]` and `real`"),
        (Combine(TAGS, (At(TAGS, LSTM, (T0,)), scalar(1)), ("%",)), "unknown operator `%`"),
        (Combine(TAGS, (At(TAGS, LSTM, (T0,)),), ("+",)), "the operands (1) and the operators (1) do not alternate"),
        (Combine(NUMBER, (scalar(2), At(TAGS, LSTM, (T0,))), ("*",)),
         "`2 * lstm(word)[t]` is `real[Tag]`, but typed `real`"),
        (Combine(TAGS, (scalar(float("nan")), At(TAGS, LSTM, (T0,))), ("*",)),
         "the constant nan must be a finite number without axes"),
        (Constant(TAGS, 1.0), "the constant 1.0 must be a finite number without axes"),
        (Relaxed(LSTM.type, "y", True), "`soft(y)` reads a variable that is not in the scope"),
        (Combine(NUMBER, (Potential(NUMBER, "potts", (scalar(1),)), scalar(1)), ("*",)),
         "`potts(1)` stands for a whole table or coupling and cannot be part of an expression"),
        (Reference(TAGS, "param", "Q"), "unknown param `Q`"),
    ],
)  # fmt: skip
def test_expressions(value: Expression, expected: str) -> None:
    assert expected in term_problems("skip", "unary", body=Table(value, (0,)))


@pytest.mark.parametrize(
    ("value", "order", "expected"),
    [
        (Potential(NUMBER, "potts", (scalar(1),)), (1, 0), "the order of a potential is (0, 1), found (1, 0)"),
        (Potential(NUMBER, "pots", (scalar(1),)), (0, 1), "unknown potential `pots`"),
        (Potential(NUMBER, "dense", (scalar(1),)), (0, 1), "`dense` couples a field; it is no table"),
        (Potential(NUMBER, "potts", ()), (0, 1), "`potts()` needs one weight"),
        (Potential(TensorType(REAL, (labels_axis("Spin"),)), "potts", (scalar(1),)), (0, 1),
         "`potts(1)` has the type of its weight, `real`, but it is typed `real[Spin]`"),
    ],
)  # fmt: skip
def test_potentials(value: Potential, order: tuple[int, ...], expected: str) -> None:
    assert expected in term_problems("ising", "down", body=Table(value, order))


def test_couplings_along_edges() -> None:
    made = graph("sparse").term("s.pair").expressions()[0]
    link, strength = made.parts
    assert isinstance(made, Potential)

    def found(*arguments: Expression) -> list[str]:
        return body_problems("sparse", "s.pair", couplings=(replace(made, arguments=arguments),))

    assert found(strength) == ["`sparse(strength)` needs a list of edges and a weight"]
    assert found(strength, strength) == ["`strength` is no list of edges"]
    assert found(replace(link, type=NUMBER), strength) == ["`link` is declared `edge(N, N)[E]`, but typed `real`"]
    assert body_problems("sparse", "s.unary", value=link)[0].startswith("`link` is declared `edge(N, N)[E]`")


def test_potentials_need_two_cells() -> None:
    scope = (cell(Affine("i"), Affine("j")),)
    assert "`potts` needs a scope of two cells over one label set" in term_problems("ising", "down", scope=scope)


# --------------------------------------------------------------------------------------------------------------- bodies


def body_problems(spec: str, name: str, **changes: Any) -> list[str]:
    return term_problems(spec, name, body=replace(graph(spec).term(name).body, **changes))


@pytest.mark.parametrize(
    ("spec", "name", "changes", "expected"),
    [
        ("sequence", "out.sequence", {"net": "enc"}, "`enc` is a function network, expected a step network"),
        ("sequence", "out.sequence", {"net": "nope"}, "unknown network `nope`"),
        ("sequence", "out.sequence", {"end": "</t>"}, "the end `</t>` is not a label of `Target`"),
        ("sequence", "out.sequence", {"end": None}, "a sequence of free length needs an end label"),
        ("sequence", "out.sequence", {"variable": "x"}, "unknown variable `x`"),
        ("sequence", "out.sequence", {"given": (scalar(1), Reference(NUMBER, "param", "Q"))}, "unknown param `Q`"),
        ("masked", "y.masked", {"net": "nope"}, "unknown network `nope`"),
        ("field", "s.unary", {"value": scalar(1)}, "`1` is `real`, but `s` is `real[Seg, H, W]`"),
        ("field", "s.unary", {"field": "y"}, "`y` is an output, expected a field"),
        ("field", "s.pair", {"couplings": (scalar(1),)}, "`1` is no coupling"),
        ("field", "s.pair", {"couplings": (Potential(NUMBER, "pots", (scalar(1),)),)}, "unknown potential `pots`"),
        ("field", "s.pair", {"ridge": Relaxed(NUMBER, "y", True)},
         "`soft(y)` reads a variable that is not in the scope"),
        ("bioes", "y.bioes.next", {"part": "first"}, "a `first` rule is over `y[0]` of one sequence"),
        ("bioes", "y.bioes.last", {"part": "next"}, "a `next` rule is over `y[t], y[t+1]` of one sequence"),
        ("bioes", "y.bioes.last", {"scheme": "biou"}, "unknown scheme `biou`"),
        ("python", "rule", {"relaxable": True}, "it is relaxable if and only if it reads nothing but `soft(...)`"),
        ("python", "rule", {"value": scalar(1)}, "`y` is in the scope, but the score does not read it"),
        ("skip", "forbid.1", {"conditions": ()}, "it has no conditions"),
        ("skip", "forbid.2", {"conditions": (Condition(cell(Affine(None, 0)), "=", "X"),)},
         "`X` is not a label of `Tag`"),
        ("skip", "forbid.2", {"conditions": (Condition(cell(Affine(None, 1)), "=", "O"),)},
         "`y[1]` is compared but not in the scope"),
        ("skip", "forbid.2", {"conditions": (Condition(cell(Affine(None, 0)), "="),)},
         "a condition compares with a label or with another cell"),
    ],
)  # fmt: skip
def test_bodies(spec: str, name: str, changes: dict[str, Any], expected: str) -> None:
    assert expected in body_problems(spec, name, **changes)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("sequence", "out.sequence"),
        ("field", "s.unary"),
        ("field", "s.pair"),
        ("masked", "y.masked"),
        ("python", "rule"),
    ],
)
def test_terms_over_whole_variables(spec: str, name: str) -> None:
    variable = graph(spec).term(name).variables[0]
    indexed = (CellRef(variable, (Affine(None, 0),)),)
    assert term_problems(spec, name, scope=indexed) == [f"its scope must be the whole of `{variable}`"]
    dim = next(iter(graph(spec).dims))
    kind = graph(spec).term(name).kind
    assert term_problems(spec, name, domain=(Range("t", dim),)) == [
        f"a {kind} term is added once, but it has an index set"
    ]


def test_function_networks_are_applied_and_others_are_not() -> None:
    made = graph("sequence")
    decoder = Apply(made.lets["h"].value.type, "decoder", made.lets["h"].value.parts)
    found = body_problems("sequence", "out.sequence", given=(decoder,))
    assert found == ["`decoder` is a step network, expected a function network"]


def test_declared_networks() -> None:
    f = Apply(NUMBER, "f", (scalar(1),))
    found = body_problems("mixture", "tail", value=f)
    assert any(problem.startswith("`f` takes") and "real[T, Tag]" in problem for problem in found)


def test_every_body_was_broken() -> None:
    broken = {Table, Forbidden, SchemeRule, Linear, Quadratic, Stepwise, BlackBox}
    assert broken <= {type(term.body) for name in SPECS for term in graph(name).terms}

"""Typing rules: offsets, roles, nested dims, edges, arithmetic, networks."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyml.model.declared import Chain, Factor, Net, NetSignature
from energyml.model.expression import Affine, At, Combine
from energyml.model.types import REAL, Axis, EdgeType, Extent, TensorType, dim_axis, labels_axis, number_axis
from energyml.model.typing import BadArguments, joined, result_type
from tests.model.models import checked, errors, model_of


def factor(text: str) -> Factor:
    """The last term of the declarations with one factor."""
    term = model_of(text).terms[-1]
    assert isinstance(term, Factor)
    return term


# ------------------------------------------------------------------------------------------------------------- offsets


@given(a=st.integers(0, 4), b=st.integers(0, 4), k=st.integers(-2, 5))
def test_the_offset_rule(a: int, b: int, k: int) -> None:
    """For `i in D-a`, `x[i+k]` on extent `D-b` is legal exactly when 0 <= k <= a-b."""

    def less(size: int) -> str:
        return f"T-{size}" if size else "T"

    index = f"t{k:+d}" if k else "t"
    text = f"""
labels Tag = {{O, B}}
dim T
input x : real[{less(b)}, Tag]
output y : Tag[T]
factor table [t in {less(a)}] (y[t]) = x[{index}]
"""
    assert checked(text)[1] == ([] if 0 <= k <= a - b else ["E0209"])


@given(a=st.integers(0, 4), k=st.integers(-2, 5))
def test_the_offset_rule_for_cells(a: int, k: int) -> None:
    index = f"t{k:+d}" if k else "t"
    assert errors(f"factor one [t in T-{a}] (y[{index}]) = u") == ([] if 0 <= k <= a else ["E0209"])


@pytest.mark.parametrize(
    ("index", "fits"), [("0", True), ("2", True), ("3", False), ("-1", True), ("-3", True), ("-4", False)]
)
def test_constant_positions_of_a_fixed_dim(index: str, fits: bool) -> None:
    assert errors("factor one (mood, y[0]) = Z", f"factor two (y[0]) = P[{index}]") == ([] if fits else ["E0209"])


def test_constant_positions_of_an_observed_dim_are_known_at_run_time() -> None:
    assert errors("factor one (y[17]) = u", "factor two (y[-9]) = u") == []


def test_indices_consume_axes_in_order() -> None:
    term = factor("factor pair [t in T-1] (from: y[t], to: y[t+1]) = pairs(gap)[t]")
    assert isinstance(term.value, At) and term.value.indices == (Affine("t"),)
    assert term.value.type == TensorType(REAL, (labels_axis("Tag", "from"), labels_axis("Tag", "to")))
    assert errors("factor one [i in H, j in W] (g[j, i]) = v") == ["E0212"]


def test_a_table_may_depend_on_an_index_that_the_cells_do_not() -> None:
    assert errors("factor one [t in T] (mood) = v") == ["E0305"]
    assert errors("net n = linear(out: State)", "factor one [t in T] (mood) = n(x)[t]") == []
    assert errors("forbid [t in T] mood = p") == ["E0305"]


# --------------------------------------------------------------------------------------------------------------- roles


def test_cells_meet_axes_by_role() -> None:
    assert factor("factor pair [t in T-1] (from: y[t], to: y[t+1]) = W2").order == (0, 1)
    assert factor("factor pair [t in T-1] (to: y[t+1], from: y[t]) = W2").order == (1, 0)
    assert factor("factor pair [t in T-1] (from: y[t], to: y[t+1]) = R").order == (1, 0)


def test_cells_meet_axes_by_a_label_set_that_occurs_once() -> None:
    assert factor("factor both [t in T] (z[t], y[t]) = Z").order == (1, 0)
    assert factor("factor both [t in T] (y[t], mood) = Z").order == (0, 1)


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        ("(y[t], y[t+1])", "E0214"),
        ("(from: y[t], y[t+1])", "E0214"),
        ("(from: y[t], from: y[t+1])", "E0215"),
        ("(form: y[t], to: y[t+1])", "E0215"),
        ("(from: y[t])", "E0213"),
        ("(from: y[t], to: z[t])", "E0213"),
        ("(from: y[t], to: y[t+1], y[0])", "E0213"),
    ],
)
def test_roles_that_do_not_fit(scope: str, code: str) -> None:
    assert errors(f"factor pair [t in T-1] {scope} = W2") == [code]


def test_equal_axes_need_roles_everywhere() -> None:
    assert errors("param A : real[Tag, Tag]") == ["E0202"]
    assert errors("input A : real[T, T]") == ["E0202"]
    assert errors("net n = mlp(out: [Tag, Tag])") == ["E0202"]
    assert errors("net n : (real[T, T]) -> real = python('a:B')") == ["E0202"]
    assert errors("output q : Tag[a: T, b: T]", "factor all [i in T, j in T] (q[i, j]) = u") == []
    assert errors("input A : real[T, T-1]") == []  # different extents
    assert errors("input A : real[3, 3]") == []  # features


def test_a_chain_reads_its_table_by_roles() -> None:
    chain = model_of("chain y { pair: R }").terms[-1]
    assert isinstance(chain, Chain)
    assert errors("param A : real[row: Tag, column: Tag]", "chain y { pair: A }") == ["E0325"]
    assert errors("chain y { pair: pairs(gap) }") == []
    assert errors("chain y { pair: pairs(x) }") == ["E0325"]


# ---------------------------------------------------------------------------------------------------------------- dims


def test_an_axis_over_a_nested_dim_follows_its_outer_dim() -> None:
    assert errors("input a : real[T, M, 3]", "input b : real[T, 3, M]", "input e : real[T-1, M-1]") == []
    assert errors("input a : real[M]") == ["E0205"]
    assert errors("input a : real[M, T]") == ["E0205"]
    assert errors("input a : real[S, M]") == ["E0205"]


def test_an_index_over_a_nested_dim_counts_at_one_position() -> None:
    assert errors("factor each [t in T, k in M] (c[t, k]) = v") == []
    assert errors("factor pair [t in T, k in M-1] (a: c[t, k], b: c[t, k+1]) = V") == []
    assert errors("factor each [k in M, t in T] (c[t, k]) = v") == ["E0205"]
    assert errors("factor each [t in T, s in T, k in M] (c[t, k]) = v") == ["E0205"]
    assert errors("factor across [t in T-1, k in M] (a: c[t, k], b: c[t+1, k]) = V") == ["E0209"]
    assert errors("factor first [t in T] (c[t, 0]) = v") == ["E0209"]


@pytest.mark.parametrize("outer", ["T free <= 4", "T[T]", "S, T[S]"])
def test_what_dims_cannot_be_nested_in(outer: str) -> None:
    codes = checked(f"labels Tag = {{O, end}}\ndim {outer}\ndim N[T]\noutput y : Tag[S]\n")[1]
    assert codes[0] in ("E0110", "E0204")


def test_extents_are_never_longer_than_their_dim_or_empty() -> None:
    assert errors("input a : real[T+1]") == ["E0205"]
    assert errors("input a : real[K-2]") == []
    assert errors("input a : real[K-3]") == ["E0205"]
    assert errors("factor far [k in K-3] (y[0]) = P[k]") == ["E0205"]
    assert errors("input a : real[Tag-1]") == ["E0205"]


def test_parameters_and_results_have_fixed_sizes() -> None:
    assert errors("param A : real[T, Tag]") == ["E0205"]
    assert errors("param A : real[K, Tag]") == []
    assert errors("net n = mlp(out: [T, Tag])") == ["E0205"]
    assert errors("net n = mlp(out: [K, Tag])") == []


# --------------------------------------------------------------------------------------------------------------- edges


def test_edges() -> None:
    model = model_of("factor arc [e = (i, j) in link] (from: y[i], to: y[j]) = pairs(dist)[e]")
    assert model.inputs["link"].type == EdgeType(("T", "T"), "E")
    assert errors("factor arc [e = (i, j) in link] (from: y[i], to: y[j+1]) = W2") == ["E0209"]
    assert errors("factor arc [e = (i, j) in link] (from: y[i], to: y[e]) = W2") == ["E0212"]
    assert errors("factor arc [e = (i, j) in link] (y[i]) = cells[j]") == ["E0209"]
    assert errors("factor arc [e = (i, j, k) in link] (y[i]) = u") == ["E0304"]
    assert errors("factor arc [e in link] (y[e]) = u") == ["E0203"]
    assert errors("factor arc [e = (i, j) in dist] (y[i]) = u") == ["E0203"]
    assert errors("let a = f(link)") == ["E0219"]


# ---------------------------------------------------------------------------------------------------------- arithmetic

TYPES = st.lists(
    st.sampled_from([dim_axis("T"), labels_axis("Tag"), labels_axis("State"), number_axis(3)]), max_size=3
).map(lambda axes: TensorType(REAL, tuple(axes)))


@given(TYPES, TYPES)
def test_sums_join_equal_axes_only(left: TensorType, right: TensorType) -> None:
    assert joined(left, "+", right) == (left if left == right else None)
    assert joined(left, "-", right) == joined(left, "+", right)


@given(TYPES, TYPES)
def test_products_scale(left: TensorType, right: TensorType) -> None:
    expected = left if not right.axes else right if not left.axes else None
    assert joined(left, "*", right) == expected
    assert joined(left, "/", right) == (left if not right.axes else None)


def test_roles_agree_in_a_sum() -> None:
    named = TensorType(REAL, (labels_axis("Tag", "from"), labels_axis("Tag", "to")))
    swapped = TensorType(REAL, tuple(reversed(named.axes)))
    assert joined(named, "+", named.without_roles()) == named
    assert joined(named.without_roles(), "+", named) == named
    assert joined(named, "+", swapped) is None
    assert errors("factor pair [t in T-1] (from: y[t], to: y[t+1]) = W2 + R") == ["E0220"]


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ("2 * u + u / 3 - -u", []),
        ("w * u", []),
        ("u * u", ["E0220"]),
        ("u / u", ["E0220"]),
        ("1 / u", ["E0220"]),
        ("u + 1", ["E0220"]),
        ("u + v", ["E0220"]),
        ("u * (1 / 0)", ["E0226"]),
        ("u * 10^400", ["E0226"]),
        ("u^2", ["E0226"]),
        ("word[t]", ["E0225"]),
        ("u + word[t]", ["E0225"]),
        ("u + 'a'", ["E0226"]),
        ("1..2", ["E0226"]),
        ("{a: 1}", ["E0226"]),
        ("T", ["E0219"]),
        ("-potts(w)", ["E0227"]),
        ("(f(x)[t])", []),
    ],
)
def test_values(value: str, codes: list[str]) -> None:
    assert errors(f"factor one [t in T] (y[t]) = {value}") == codes


def test_numbers_are_computed_before_tensors() -> None:
    value = factor("factor one [t in T] (y[t]) = (2 + 2^3) / 4 * u").value
    assert isinstance(value, Combine) and str(value) == "10 / 4 * u"


# ------------------------------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize(
    ("call", "made"),
    [
        ("f(x)", "real[T, Tag]"),
        ("f(word)", "real[T, Tag]"),
        ("f(x, word, enc(x))", "real[T, Tag]"),
        ("f(other)", "real[S, Tag]"),
        ("enc(x)", "real[T, 12]"),
        ("pairs(gap)", "real[T-1, from: Tag, to: Tag]"),
        ("top(x)", "real"),
        ("f(picture)", "E0217"),
        ("f(x, other)", "E0217"),
        ("enc(char)", "E0217"),
        ("enc(u)", "E0217"),
        ("f()", "E0218"),
        ("f(link)", "E0219"),
        ("d(x)", "E0219"),
        ("m(x)", "E0219"),
        ("f(y)", "E0219"),
        ("f(x, hidden: 3)", "E0402"),
        ("f(soft(y))", "E0315"),
        ("f(potts(w))", "E0227"),
        ("mlp(x)", "E0102"),
        ("g(x)", "E0103"),
        ("nothing(x)", "E0102"),
    ],
)
def test_calls(call: str, made: str) -> None:
    if made.startswith("E"):
        assert errors(f"let a = {call}") == [made]
    else:
        assert str(model_of(f"let a = {call}").lets["a"].value.type) == made


@pytest.mark.parametrize(
    ("net", "call", "made"),
    [
        ("lenet5(out: Tag)", "n(image)", "real[T, Tag]"),
        ("lenet5(out: Tag)", "n(x)", "E0217"),
        ("unet(out: State)", "n(picture)", "real[State, H, W]"),
        ("unet(out: [5, State], norm: instance)", "n(picture)", "real[5, State, H, W]"),
        ("unet(out: State)", "n(image)", "E0217"),
        ("embedding(out: 7)", "n(char)", "real[T, M, 7]"),
        ("embedding(out: 7)", "n(x)", "E0217"),
        ("cnn1d(out: Tag)", "n(word)", "real[T, Tag]"),
        ("chars_words(out: Tag)", "n(char, word)", "real[T, Tag]"),
        ("chars_words(hidden: 10)", "n(char, word)", "real[T, 20]"),
        ("chars_words(hidden: 10, body: linear)", "n(char, word)", "real[T, 10]"),
        ("chars_words(out: Tag)", "n(word, char)", "E0217"),
        ("chars_words(out: Tag)", "n(char)", "E0218"),
        ("chars_words(out: Tag)", "n(char, x)", "E0217"),
        ("pooled(out: 3)", "n(x)", "real[3]"),
        ("mlp(out: 3)", "n(u)", "real[3]"),
    ],
)
def test_the_catalogue(net: str, call: str, made: str) -> None:
    statements = (f"net n = {net}", f"let a = {call}")
    if made.startswith("E"):
        assert errors(*statements) == [made]
    else:
        assert str(model_of(*statements).lets["a"].value.type) == made


def test_python_networks_are_never_imported() -> None:
    model = model_of(
        "net p : (real[T, 4]) -> real[T, Tag] = python('nonexistent.module:Net', hidden: 100, deep: true, name: 'a')",
        "net s : step(Tag) = python('nonexistent.module:Step')",
        "net q : conditionals(Tag) = python('nonexistent.module:Masked')",
        "chain y { unary: p(x), pair: W2 }",
        "sequence y { step: s }",
        "masked y { conditionals: q }",
    )
    assert "nonexistent" not in sys.modules
    assert dict(model.nets["p"].selection.options) == {
        "target": "nonexistent.module:Net",
        "hidden": 100,
        "deep": True,
        "name": "a",
    }
    assert [model.nets[name].role for name in "psq"] == ["function", "step", "masked"]


def test_python_networks_need_a_type_and_a_target() -> None:
    assert errors("net p = python('a.b:C')") == ["E0221"]
    for target in ("a.b.C", "a/b.py:C", "a.b:", ":C", "a.b:C()", ""):
        assert errors(f"net p : (real[T, 4]) -> real = python('{target}')") == ["E0411"]


def test_a_declared_type_is_checked() -> None:
    declared = "net p : ({}) -> {} = blstm(out: Tag)"
    assert errors(declared.format("real[T, 4]", "real[T, Tag]")) == []
    assert errors(declared.format("real[T, 4]", "real[T, State]")) == ["E0222"]
    assert errors(declared.format("real[H, W]", "real[T, Tag]")) == ["E0222"]
    assert errors("net p : step(Tag) = blstm(out: Tag)") == ["E0222"]
    assert errors("net p : real[T] = blstm(out: Tag)") == ["E0229"]


def test_result_types_raise_what_is_wrong() -> None:
    net = model_of("net p : (real[T, 4], Word[T]) -> real = python('a:B')").nets["p"]
    x, word = TensorType(REAL, (dim_axis("T"), number_axis(4))), TensorType("Word", (dim_axis("T"),))
    assert result_type(net, (x, word)) == TensorType(REAL)
    with pytest.raises(BadArguments, match="takes 2 arguments, found 1"):
        result_type(net, (x,))
    with pytest.raises(BadArguments, match=r"takes `Word\[T\]`, found `real\[T, 4\]`") as problem:
        result_type(net, (x, x))
    assert problem.value.position == 1
    step = Net("s", net.selection, "step")
    with pytest.raises(BadArguments, match="step network"):
        result_type(step, (x,))


# --------------------------------------------------------------------------------------------------------------- types


def test_types_are_written_as_in_the_language() -> None:
    signature = NetSignature(
        (TensorType("Word", (dim_axis("T", -1),)),), TensorType(REAL, (labels_axis("Tag", "a b"),))
    )
    assert str(signature) == "(Word[T-1]) -> real['a b': Tag]"
    assert str(TensorType(REAL)) == "real"
    assert str(EdgeType(("A", "B"), "E")) == "edge(A, B)[E]"
    assert str(Axis(Extent("number", "", 3), "size")) == "size: 3"

"""The builder: every example built without text equals its file, and misuse is said at the call."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import energyml as em
from energyml.driver import Compiled, compile_source, read_source
from energyml.ir.text import print_graph
from energyml.syntax.formatter import format_text
from tests.built_examples import BUILT

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def made(name: str) -> em.Builder:
    b = em.Builder()
    BUILT[name](b)
    return b


def choices(compiled: Compiled) -> list[str]:
    chosen = compiled.model.choices
    return [str(one) for one in (chosen.infer, chosen.decode, *chosen.train, chosen.data)]


def test_every_example_is_built() -> None:
    assert BUILT.keys() == {file.stem for file in EXAMPLES.glob("*.energy")}


@pytest.mark.parametrize("name", BUILT)
def test_a_built_example_equals_its_file(name: str) -> None:
    built, read = made(name).check(), compile_source(read_source(EXAMPLES / f"{name}.energy"))
    assert print_graph(built.graph) == print_graph(read.graph)
    assert choices(built) == choices(read)


@pytest.mark.parametrize("name", BUILT)
def test_the_text_is_laid_out_by_the_formatter(name: str) -> None:
    text = made(name).text()
    assert format_text(text) == text


# --- what the examples do not say ------------------------------------------------------------------------------------


def small() -> tuple[em.Builder, dict[str, Any]]:
    """A builder with one part of each kind."""
    b = em.Builder()
    Tag = b.labels("Tag", ["O", "B-NP", "I-NP"])
    T = b.dim("T")
    parts = {
        "Tag": Tag,
        "T": T,
        "x": b.input("x", em.real[T, Tag]),
        "y": b.output("y", Tag[T]),
        "f": b.net("f", "linear", out=Tag),
        "W": b.param("W", em.real["from":Tag, "to":Tag]),
        "t": b.index("t"),
    }
    return b, parts


def last_line(b: em.Builder) -> str:
    return b.text().splitlines()[-1]


def test_python_networks() -> None:
    b = em.Builder()
    Word, Tag = b.labels("Word", source="data"), b.labels("Tag", ["O", "B"])
    T = b.dim("T")
    kind = em.signature([Word[T]], em.real[T, Tag])
    b.net("f", "python", "pkg.mod:Class", type=kind, hidden=100, mode="fast", deep=True, rate=1.0)
    assert b.text().endswith("""\
net f : (Word[T]) -> real[T, Tag] = python(
  'pkg.mod:Class',
  hidden: 100,
  mode: 'fast',
  deep: true,
  rate: 1.0
)
""")
    b.net("s", "python", "pkg.mod:Step", type=em.step(Tag))
    assert last_line(b) == "net s : step(Tag) = python('pkg.mod:Step')"
    b.net("m", "python", "pkg.mod:Masked", type=em.conditionals(Tag))
    assert last_line(b) == "net m : conditionals(Tag) = python('pkg.mod:Masked')"
    b.output("y", Tag[T])
    assert {net.role for net in b.check().graph.nets.values()} == {"function", "step", "masked"}


def test_arithmetic_and_lets() -> None:
    b, p = small()
    x, W, f, t = p["x"], p["W"], p["f"], p["t"]
    b.let("h", f(x) + x - 2 * x / 3)
    assert last_line(b) == "let h = f(x) + x - 2 * x / 3"
    b.let("k", x - (x + x) - -x)
    assert last_line(b) == "let k = x - (x + x) - -x"
    b.let("n", -(W + W) * -0.5 + 1 * W)
    assert last_line(b) == "let n = -(W + W) * -0.5 + 1 * W"
    assert repr(f(x)[t + 1]) == "f(x)[t+1]"


def test_numbers_of_numpy() -> None:
    b, p = small()
    b.let("h", np.float64(0.5) * p["W"] / np.float32(2))
    assert last_line(b) == "let h = 0.5 * W / 2.0"
    b.dim("K", size=np.int64(3))
    assert last_line(b) == "dim K = 3"
    assert repr(p["y"][p["t"] + np.int64(1)]) == "y[t+1]"


def test_constraints() -> None:
    b, p = small()
    y, t, T = p["y"], p["t"], p["T"]
    b.forbid([t.over(T - 1)], y[t] != "O", y[t + 1].like("I-*"), y[t].unlike("*-NP"), y[t] == y[t + 1])
    assert last_line(b) == ("forbid [t in T-1] y[t] != 'O' and y[t+1] ~ 'I-*' and y[t] !~ '*-NP' and y[t] = y[t+1]")
    b.forbid([], "O" == y[-1])  # noqa: SIM300
    assert last_line(b) == "forbid y[-1] = 'O'"


def test_variables_without_axes_are_cells() -> None:
    b = em.Builder()
    Tag = b.labels("Tag", ["a", "b"])
    y, z = b.output("y", Tag), b.latent("z", Tag)
    W = b.param("W", em.real["left":Tag, "right":Tag])
    b.factor("both", [], [("left", y), ("right", z)], W)
    b.forbid([], y == "a", z != y)
    assert b.check().graph.variables.keys() == {"y", "z"}
    assert b.text().endswith("factor both (left: y, right: z) = W\nforbid y = 'a' and z != y\n")


def test_strings_are_words_or_texts_as_the_card_says() -> None:
    b, p = small()
    b.net("mlm", "transformers", "bert")
    assert last_line(b) == "net mlm = transformers('bert')"
    b.net("g", "mlp", out=p["Tag"], activation="tanh")
    assert last_line(b) == "net g = mlp(out: Tag, activation: tanh)"
    b.infer("infnet", "blstm")
    b.train("ssvm", cost="hamming", infer=em.choose("infnet", em.choose("cnn", width=5)))
    b.data("conll", "train", columns="y")
    assert b.text().splitlines()[-3:] == [
        "infer infnet(blstm)",
        "train ssvm { cost: hamming, infer: infnet(cnn(width: 5)) }",
        "data conll('train', columns: 'y')",
    ]


def test_labels_are_listed_or_a_range() -> None:
    b = em.Builder()
    b.labels("Digit", map(str, range(10)))
    b.labels("Odd", ["data", "it's", "$", "plain"])
    assert b.text() == "labels Digit = '0'..'9'\nlabels Odd = {'data', \"it's\", '$', plain}\n"


def test_couplings_and_families() -> None:
    b = em.Builder()
    T, E = b.dim("T"), b.dim("E")
    u = b.input("u", em.real[T])
    link = b.edges("link", T, T, over=E)
    s = b.field("s", em.real[T])
    b.gaussian(s, unary=u, pair=em.potential("sparse", link, 0.5) + em.potential("smooth", 2), bounded=True)
    assert last_line(b) == "gaussian s { unary: u, pair: sparse(link, 0.5) + smooth(2), bounded: true }"
    Tag = b.labels("Tag", ["a", "b"])
    y = b.output("y", Tag[T])
    a, W = b.param("a", em.real[Tag]), b.param("W", em.real["from":Tag, "to":Tag])
    b.chain(y, pair=W, start=a, end=a)
    assert last_line(b) == "chain y { pair: W, start: a, end: a }"


def test_it_shows_its_text() -> None:
    b, _ = small()
    assert repr(b) == b.text().rstrip()
    assert b._repr_html_().startswith("<pre><code>labels Tag = {O, &#x27;B-NP&#x27;")


def test_diagnostics_show_the_text() -> None:
    b, p = small()
    b.chain(p["y"], unary=p["W"], pair=p["W"])
    with pytest.raises(em.SpecError) as caught:
        b.check()
    assert "<builder>:7:18" in str(caught.value)
    assert "7 | chain y { unary: W, pair: W }" in str(caught.value)


def test_compiling_gives_the_model_of_the_text() -> None:
    import torch

    b = made("ocr")
    built, read = b.compile(seed=3), em.compile(b.text(), seed=3)
    assert built.state_dict().keys() == read.state_dict().keys()
    assert all(torch.equal(value, read.state_dict()[name]) for name, value in built.state_dict().items())


def test_checking_loads_no_torch() -> None:
    program = """
import sys
import energyml as em
b = em.Builder()
Tag, T = b.labels("Tag", "ab"), b.dim("T")
t, y = b.index("t"), b.output("y", Tag[T])
b.factor("unary", [t.over(T)], [y[t]], b.param("u", em.real[Tag]))
b.infer("exact")
b.check()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- misuse ----------------------------------------------------------------------------------------------------------

Misuse = Callable[..., object]

MISUSE: list[tuple[Misuse, type[Exception], str]] = [
    # names
    (lambda b, **p: b.dim("y"), em.EnergyError, "`y` is declared already: `output y : Tag[T]`"),
    (lambda b, **p: b.dim("data"), em.EnergyError, "'data' cannot be a name: it is a word of the language"),
    (lambda b, **p: b.param("real", em.real), em.EnergyError, "`real` cannot be a name"),
    (lambda b, **p: b.dim("a b"), em.EnergyError, "'a b' cannot be a name: a name is letters, digits and _"),
    (lambda b, **p: b.dim(3), TypeError, "a declaration: expected a name, found 3 (int)"),
    (lambda b, **p: b.index("t+1"), em.EnergyError, "'t+1' cannot be a name"),
    # label sets and dims
    (lambda b, **p: b.labels("A"), TypeError, "labels `A`: give either the labels or their `source`"),
    (lambda b, **p: b.labels("A", "ab", min=2), TypeError, "options such as `min` belong to a `source`"),
    (lambda b, **p: b.labels("A", source=p["y"]), TypeError, "expected 'data' or a network, found the variable `y`"),
    (lambda b, **p: b.labels("A", source="file"), TypeError, "expected 'data' or a network, found 'file' (str)"),
    (lambda b, **p: b.labels("A", [1, 2]), TypeError, "a label of labels `A`: expected a string, found 1 (int)"),
    (lambda b, **p: b.labels("A", p["Tag"]), TypeError, "expected the labels, as strings, found the label set `Tag`"),
    (lambda b, **p: b.labels("A", ["a\nb"]), em.EnergyError, "cannot be written: it has a line break"),
    (lambda b, **p: b.dim("K", size=0), em.EnergyError, "dim `K`: a size is at least 1, found 0"),
    (lambda b, **p: b.dim("K", size=2.5), TypeError, "dim `K`: expected a whole number, found 2.5 (float)"),
    (lambda b, **p: b.dim("K", size=2, at_most=3), TypeError, "at most one of `size`, `at_most` and `within`"),
    (lambda b, **p: b.dim("K", within="T"), TypeError, "dim `K`: expected a dim, found 'T' (str)"),
    # types
    (lambda b, **p: b.input("a", p["T"]), TypeError, "expected a type such as `em.real[T, 3]`, found the dim `T`"),
    (lambda b, **p: em.real["T"], TypeError, "expected a dim, a label set or a whole number, found 'T' (str)"),
    (lambda b, **p: em.real[0], em.EnergyError, "an axis of `real`: a size is at least 1, found 0"),
    (lambda b, **p: em.real[p["T"] : p["T"]], TypeError, "the role of an axis of `real`: expected a string"),
    (lambda b, **p: em.real[p["T"]][p["T"]], TypeError, "the type `real[T]` has its axes already"),
    (lambda b, **p: p["T"] - 1.5, TypeError, "expected a whole number, found 1.5 (float)"),
    (lambda b, **p: b.edges("e", p["T"], 3, over=p["T"]), TypeError, "edges `e`: expected a dim, found 3 (int)"),
    (lambda b, **p: b.output("z", p["Tag"], argmax=p["y"]), TypeError, "expected a field and a label set"),
    (lambda b, **p: em.signature(p["Tag"], em.real), TypeError, "expected a list of types, found the label set `Tag`"),
    (lambda b, **p: em.step(p["y"]), TypeError, "`em.step`: expected a label set, found the variable `y`"),
    # networks, parameters and tensors
    (lambda b, **p: b.net("g", p["f"]), TypeError, "the network of `g`: expected a name, found the network `f`"),
    (lambda b, **p: b.net("g", "linear", type=p["Tag"]), TypeError, "the type of net `g`: expected"),
    (lambda b, **p: b.net("g", "linear", out=None), TypeError, "`out` of `linear`: expected a number, a string"),
    (lambda b, **p: b.param("V", em.real, initial=p["W"]), TypeError, "expected a number or `em.choose(...)`"),
    (lambda b, **p: b.let("h", p["f"]), TypeError, "found the network `f`; call it"),
    (lambda b, **p: p["f"](p["y"]), TypeError, "an argument of `f`: expected a tensor or a number"),
    (lambda b, **p: p["W"] + "1", TypeError, "`+`: expected a tensor or a number, found '1' (str)"),
    (lambda b, **p: p["W"] * float("nan"), em.EnergyError, "nan is no number of the language"),
    (lambda b, **p: (p["x"] + p["x"])[p["t"]], TypeError, "give `x + x` a name with `b.let`"),
    (lambda b, **p: p["x"]["t"], TypeError, "an index of `x`: expected an index such as `t + 1`"),
    (lambda b, **p: bool(p["W"]), TypeError, "the tensor `W` has no truth value"),
    (lambda b, **p: list(p["x"]), TypeError, "not iterable"),
    # terms
    (lambda b, **p: b.factor("g", p["t"], [p["y"]], p["W"]), TypeError, "expected a list of index sets"),
    (lambda b, **p: b.factor("g", [p["t"]], [p["y"]], p["W"]), TypeError, "expected an index set such as `t.over(T)`"),
    (lambda b, **p: b.factor("g", [], p["y"], p["W"]), TypeError, "expected a list of cells, found the variable `y`"),
    (lambda b, **p: b.factor("g", [], [], p["W"]), TypeError, "factor `g`: its scope has no cell"),
    (lambda b, **p: b.factor("g", [], [p["x"]], p["W"]), TypeError, "expected a cell such as `y[t]`"),
    (lambda b, **p: b.factor("g", [], [(1, p["y"])], p["W"]), TypeError, "a role of factor `g`: expected a string"),
    (lambda b, **p: (p["t"] + 1).over(p["T"]), TypeError, "expected a plain index such as `b.index('t')`"),
    (lambda b, **p: p["t"].over(p["Tag"]), TypeError, "expected an extent such as `T - 1`, found the label set `Tag`"),
    (lambda b, **p: b.chain(p["x"], pair=p["W"]), TypeError, "a chain: expected a variable, found the tensor `x`"),
    (lambda b, **p: b.chain(p["y"], piar=p["W"]), TypeError, "piar"),
    (lambda b, **p: b.sequence(p["y"], step="f"), TypeError, "`step` of a sequence: expected a network, found 'f'"),
    (lambda b, **p: b.score("s", p["y"], p["W"]), TypeError, "expected a list of variables, found the variable `y`"),
    (lambda b, **p: em.soft(p["y"][p["t"]]), TypeError, "`em.soft`: expected a variable, found the cell `y[t]`"),
    (lambda b, **p: b.forbid(p["y"] == "O"), TypeError, "expected a list of index sets, found the condition `y = 'O'`"),
    (lambda b, **p: b.forbid([], p["x"] == "O"), TypeError, "expected a condition such as `y[t] == 'O'`, found False"),
    (lambda b, **p: b.forbid([]), TypeError, "forbid: it has no condition"),
    (lambda b, **p: p["y"][0] == 3, TypeError, "`y[0] =`: expected a label or another cell, found 3 (int)"),
    (lambda b, **p: p["y"][0].like(3), TypeError, "expected a string, found 3 (int)"),
    (lambda b, **p: bool(p["y"][0] == p["y"][0]), TypeError, "the condition `y[0] = y[0]` has no truth value"),
    (lambda b, **p: p["y"][0] == "O" and p["y"][1] == "O", TypeError, "the condition `y[0] = 'O'` has no truth value"),
    (lambda b, **p: b.scheme(p["y"], 3), TypeError, "the name of a scheme: expected a name, found 3 (int)"),
    # choices
    (lambda b, **p: (b.infer("exact"), b.infer("bp")), em.EnergyError, "`infer` is chosen already: `infer exact`"),
    (lambda b, **p: b.infer(em.choose("exact")), TypeError, "`infer`: expected a name, found the choice `exact()`"),
    (lambda b, **p: b.train("nll", epochs=object()), TypeError, "`epochs` of `nll`: expected a number"),
    (lambda b, **p: em.spread("1", 2), TypeError, "`em.spread`: expected two numbers, found '1' (str)"),
]  # fmt: skip


@pytest.mark.parametrize(("misuse", "kind", "message"), MISUSE, ids=[message for _, _, message in MISUSE])
def test_misuse_is_said_at_the_call(misuse: Misuse, kind: type[Exception], message: str) -> None:
    b, parts = small()
    before = b.text()
    with pytest.raises(kind) as caught:
        misuse(b, **parts)
    assert message in str(caught.value)
    assert b.text().removesuffix("infer exact\n") == before


def test_terms_have_names_of_their_own() -> None:
    b, p = small()
    y, t, T = p["y"], p["t"], p["T"]
    b.factor("y", [t.over(T)], [y[t]], p["x"][t])
    with pytest.raises(em.EnergyError, match="a term `y` exists already"):
        b.score("y", [y], p["f"](em.soft(y)))


FOREIGN: list[Misuse] = [
    lambda b, p, q: b.input("a", em.real[q["T"]]),
    lambda b, p, q: em.real[p["T"], q["Tag"]],
    lambda b, p, q: b.net("g", "linear", out=q["Tag"]),
    lambda b, p, q: b.net("g", "linear", out=em.axes["from" : q["Tag"]]),
    lambda b, p, q: p["f"](q["x"]),
    lambda b, p, q: p["W"] + q["W"],
    lambda b, p, q: p["y"][q["t"]],
    lambda b, p, q: p["t"].over(q["T"]),
    lambda b, p, q: p["y"][0] == q["y"][0],
    lambda b, p, q: b.factor("g", [q["t"].over(q["T"])], [p["y"][0]], p["W"]),
    lambda b, p, q: b.factor("g", [], [("from", q["y"][0])], p["W"]),
    lambda b, p, q: b.chain(p["y"], pair=q["W"]),
    lambda b, p, q: b.score("s", [p["y"]], q["f"](em.soft(q["y"]))),
    lambda b, p, q: b.forbid([], q["y"][0] == "O"),
    lambda b, p, q: b.train("nll", infer=em.choose("infnet", q["f"])),
]


@pytest.mark.parametrize("misuse", FOREIGN)
def test_parts_of_another_builder_are_refused(misuse: Misuse) -> None:
    (b, parts), (_, others) = small(), small()
    before = b.text()
    with pytest.raises(em.EnergyError, match="belongs to another builder"):
        misuse(b, parts, others)
    assert b.text() == before


def test_a_potential_takes_the_options_of_its_card() -> None:
    b = em.Builder()
    H, W = b.dim("H"), b.dim("W")
    u = b.input("u", em.real[H, W])
    s = b.field("s", em.real[H, W])
    b.gaussian(s, unary=u, pair=em.potential("smooth", 0.5, diagonals=True))
    assert "pair: smooth(0.5, diagonals: true)" in b.text()


def test_several_tensors_are_given_by_name() -> None:
    b = em.Builder()
    Tag, T, S = b.labels("Tag", ["O", "B"]), b.dim("T"), b.dim("S")
    x, z = b.input("x", em.real[S, 3]), b.input("z", Tag[T])
    y, m = b.output("y", Tag[T]), b.net("m", "masked_blstm", hidden=3)
    b.masked(y, conditionals=m, given={"words": x, "tags": z}, energy="local")
    assert "masked y { conditionals: m, energy: local, given: { words: x, tags: z } }" in b.text()
    with pytest.raises(em.EnergyError, match="'two words' cannot be a name"):
        b.masked(y, conditionals=m, given={"two words": x})
    with pytest.raises(TypeError, match="a tensor or a number"):
        b.masked(y, conditionals=m, given={"words": "x"})

"""Tree to text: one layout, the same tree, every comment."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings

from energyml.diagnostics import NOWHERE, Report, Source, SpecError
from energyml.syntax import formatter
from energyml.syntax import tree as t
from energyml.syntax.formatter import (
    format_choice,
    format_spec,
    format_statement,
    format_text,
    format_type,
    format_value,
)
from energyml.syntax.layout import WIDTH
from energyml.syntax.parser import parse_choices
from tests.fuzz.test_fuzz_syntax import check_formatted
from tests.strategies import TOUR, example_specs, spec_texts, value_texts
from tests.syntax.test_parser import read, value

few = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

FORMATTED_TOUR = """\
# A tour of the language: every statement, every kind of value.
labels Letter = 'a'..'z'
labels Seg = {background, horse}  # two labels
labels Tag = {O, 'B-NP', 'I-NP', '$', "it's"}
labels Word from data(min: 2, unknown: '<unk>')
labels Residue from mlm

dim T
dim H, W
dim K = 32
dim L free <= 60, M[T]
input image : real[T, 1, 16, 8]
input link : edge(T, T)[E]
output y : Tag[T]
latent z : State[T]
field s : real[Seg, H, W]
output seg : Seg[H, W] = argmax s over Seg
net cnn = lenet5(out: Letter)
net f : (Word[T], Tag[T-1]) -> real[T, Tag] = python('pkg.mod:Class', hidden: 100)
net mlm : role[T] = given()
param W : real[from: Tag, to: Tag] = 0.5
let h = enc(word)[t, 0] + 2 * (a - -b) / c^-2

factor unary [t in T] (y[t]) = cnn(image)[t]
factor pair [t in T-1] (from: y[t], to: y[t+1]) = W
factor link [e = (i, j) in link] (y[i], y[j]) = v(dist)[e]
factor down [i in H-1, j in W] (y[i, j], y[i+1, j]) = potts(w)
factor whole (y, z[0], z[-1]) = u
chain y { unary: cnn(image), pair: W, start: a, end: b }
gaussian s { unary: unet(rgb), pair: potts(embed(rgb)), ridge: 1.0 }
sequence y { step: decoder, given: encoder(word), normalize: local }
masked y { conditionals: mlm, energy: raw }
score tail (y, z) = f(soft(y))
forbid [t in T-1] y[t] = O and y[t+1] ~ 'I-*'
forbid y[0] != y[-1] and y[1] !~ 'B-*'
scheme y bioes

infer mean_field(steps: 10)
decode n_best(5)
train teacher_forcing { epochs: 5 } then direct_loss {
  infer: relaxed_beam(width: 3, alpha: 1 -> 5)
}
train marginal_ce {
  # which scale
  balance: online(scale: y.unary, against: y.pair, grid: 2^-8..2^8)
  optimizer: adam(lr: 1e-3)  # the usual one
  stop: plateau(accuracy, patience: 7)
  data: { shape: [T, from: K], 'odd key': 'value' }
}
data letters('letter.data', fold: 0)
include 'other.energy'
"""


def test_the_tour() -> None:
    assert format_text(TOUR) == FORMATTED_TOUR


@pytest.mark.parametrize("text", example_specs())
def test_examples(text: str) -> None:
    check_formatted(text, format_text(text))


LONG = "a_name_of_thirty_characters_xx"

# text, and its layout
CASES = [
    # blank lines and line ends
    ("", ""),
    ("\n\n", ""),
    ("\n\n\ndim T\n\n\n\ndim S\ndim R\n\n", "dim T\n\ndim S\ndim R\n"),
    ("dim T dim S\r\n\r\n\r\ndim R # r  \r\n", "dim T\ndim S\n\ndim R  # r\n"),
    ("\ufeffdim T", "dim T\n"),
    ("\ufeff# first\n\n\n\n# second\n\n\ndim T", "# first\n\n# second\n\ndim T\n"),
    ("dim T\n\n\n# last\n\n\n", "dim T\n\n# last\n"),
    ("  dim T\n\tdim S", "dim T\ndim S\n"),
    # words and values
    ("let x=a+b*c-d/2^ - 8", "let x = a + b * c - d / 2^-8\n"),
    ("let x = -a - -b", "let x = -a - -b\n"),
    ("let x = 2 ^ -8 .. 2^8", "let x = 2^-8..2^8\n"),
    ("let x = a+1..b", "let x = a + 1 .. b\n"),
    ("let x = 1->5", "let x = 1 -> 5\n"),
    ("let x = y [ t + 1 , 0, - 1 ]", "let x = y[t+1, 0, -1]\n"),
    ("input x : real [ T - 1 , from : K + 0 ]", "input x : real[T-1, from: K]\n"),
    ("let x = f ( a , 'k' : \"v\" , {} , )", "let x = f(a, k: 'v', {})\n"),
    ("let x = { 'a b' : \"it's\", labels: 'say \"so\"' }", "let x = { 'a b': \"it's\", labels: 'say \"so\"' }\n"),
    ("labels A = { a , 'b' , \"B-NP\" , }", "labels A = {a, 'b', 'B-NP'}\n"),
    ("labels A = {}", "labels A = {}\n"),
    ("infer exact()", "infer exact\n"),
    # blocks
    ("chain y {a:1,b:2}", "chain y { a: 1, b: 2 }\n"),
    ("chain y {a:1\nb:2}", "chain y {\n  a: 1\n  b: 2\n}\n"),
    ("chain y {\n}", "chain y {}\n"),
    ("chain y {\n\n  a: 1\n\n\n  b: { c: 2 }\n\n}", "chain y {\n  a: 1\n\n  b: { c: 2 }\n}\n"),
    ("chain y { a: in, b: 1 }", "chain y { a: in, b: 1 }\n"),
    ("chain y {\n a: in, b: y.in, in: 1\n c: then\n and: 3 }",
     "chain y {\n  a: in,\n  b: y.in,\n  in: 1\n  c: then\n  and: 3\n}\n"),
    (f"chain y {{ a: {LONG}, b: {LONG}, c: {LONG} }}", f"chain y {{\n  a: {LONG}\n  b: {LONG}\n  c: {LONG}\n}}\n"),
    # long lines
    (f"let x = f({LONG}, {LONG}, k: {LONG})", f"let x = f(\n  {LONG},\n  {LONG},\n  k: {LONG}\n)\n"),
    (f"let x = f(g({LONG}, {LONG}), {LONG})", f"let x = f(\n  g({LONG}, {LONG}),\n  {LONG}\n)\n"),
    (f"let x = f({LONG},\n  {LONG})", f"let x = f({LONG}, {LONG})\n"),
    (f"let x = {LONG} + {LONG} - {LONG} * 2", f"let x = {LONG}\n  + {LONG}\n  - {LONG} * 2\n"),
    (f"labels A = {{{LONG}, {LONG}, {LONG}, b, {LONG}}}",
     f"labels A = {{\n  {LONG}, {LONG}, {LONG}, b,\n  {LONG}\n}}\n"),
    (f"dim {LONG}, {LONG}, {LONG}, {LONG}", f"dim {LONG}, {LONG}, {LONG},\n  {LONG}\n"),
    (f"forbid {LONG} = {LONG} and {LONG} = {LONG}", f"forbid {LONG} = {LONG}\n  and {LONG} = {LONG}\n"),
    (f"factor f [t in T] (y[t]) = {LONG}({LONG}, {LONG})",
     f"factor f [t in T] (y[t]) = {LONG}(\n  {LONG},\n  {LONG}\n)\n"),
    (f"train {LONG} {{ a: 1 }} then {LONG} {{ a: 1, b: {LONG} }}",
     f"train {LONG} {{ a: 1 }} then {LONG} {{\n  a: 1\n  b: {LONG}\n}}\n"),
    (f"param p : real[a: {LONG}, b: {LONG}, c: {LONG}]",
     f"param p : real[\n  a: {LONG},\n  b: {LONG},\n  c: {LONG}\n]\n"),
    # comments
    ("# a\n  # b\ndim T # c\n# d\n\n# e", "# a\n# b\ndim T  # c\n# d\n\n# e\n"),
    ("chain y { # a\n # b\n u: 1 # c\n # d\n }", "chain y {  # a\n  # b\n  u: 1  # c\n  # d\n}\n"),
    ("chain y { u: 1, # a\n p: 2 } # b", "chain y {\n  u: 1  # a\n  p: 2\n}  # b\n"),
    ("chain y { # a\n}", "chain y {  # a\n}\n"),
    ("chain y {\n# a\n}", "chain y {\n  # a\n}\n"),
    ("chain y { u: # a\n 1 }", "chain y {\n  # a\n  u: 1\n}\n"),
    ("chain y # a\n { u: 1 }", "# a\nchain y { u: 1 }\n"),
    ("# a\n\nlet x = a # b\n + # c\n # d\n b # e", "# a\n\n# b\n# c\n# d\nlet x = a + b  # e\n"),
    ("let x = f(a, # a\n b # b\n)", "let x = f(\n  a,  # a\n  b  # b\n)\n"),
    ("let x = f( # a\n)", "let x = f(  # a\n)\n"),
    ("let x = f(a # a\n , # b\n b)", "let x = f(\n  a,  # a\n  # b\n  b\n)\n"),
    ("let x = y[t, # a\n s]", "# a\nlet x = y[t, s]\n"),
    ("let x = f((a # a\n), b)", "let x = f(\n  # a\n  (a),\n  b\n)\n"),
    ("infer exact( # a\n)", "# a\ninfer exact\n"),
    ("input x : edge(T, # a\n T)", "# a\ninput x : edge(T, T)\n"),
    ("labels A = {\n  # vowels\n  a, e, i\n  # others\n  b, c }",
     "labels A = {\n  # vowels\n  a, e, i,\n  # others\n  b, c\n}\n"),
    ("labels A = {O # outside\n  'B', 'I' # inside\n}", "labels A = {\n  O,  # outside\n  'B',\n  'I'  # inside\n}\n"),
    ("factor f [ # a\n t in T] (y[t], # b\n z) = u",
     "factor f [  # a\n  t in T\n] (\n  y[t],  # b\n  z\n) = u\n"),
    ("factor f # a\n (y) = u", "# a\nfactor f (y) = u\n"),
    ("dim A, # a\n B # b", "# a\ndim A, B  # b\n"),
    ("train a # a\n then b { # b\n c: 1 } # c", "# a\ntrain a then b {  # b\n  c: 1\n}  # c\n"),
    ("let x = '# no'  #  'yes", "let x = '# no'  #  'yes\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "layout"), CASES)
def test_layout(text: str, layout: str) -> None:
    formatted = format_text(text)
    assert formatted == layout
    check_formatted(text, formatted)
    assert all(len(line) <= WIDTH for line in formatted.split("\n"))


@pytest.mark.parametrize("filler", range(60, 100))
def test_a_line_of_the_full_width_is_kept(filler: int) -> None:
    text = f"let x = f({'a' * filler}, b)"
    assert (format_text(text) == f"{text}\n") == (len(text) <= WIDTH)
    block = f"chain y {{ a: {'a' * filler} }}"
    assert (format_text(block) == f"{block}\n") == (len(block) <= WIDTH)


def test_syntax_errors_are_raised_together() -> None:
    with pytest.raises(SpecError) as caught:
        format_text("let x == 3\ndim T\nlet y = (", "bad.energy")
    assert [found.code for found in caught.value.diagnostics] == ["E0015", "E0004"]
    assert "bad.energy:1:7" in str(caught.value)


@few
@given(spec_texts())
def test_specs_of_the_grammar(text: str) -> None:
    check_formatted(text, format_text(text))


# ----------------------------------------------------------------------------------------- trees that never were text


def built(node: object) -> object:
    """A tree as a builder makes it: no spans, no comments."""
    if isinstance(node, tuple):
        return tuple(built(part) for part in node)
    if not isinstance(node, t.Node):
        return node
    parts = {part.name: built(getattr(node, part.name)) for part in fields(node)}
    return replace(node, **parts | {"span": NOWHERE} | ({"comments": ()} if isinstance(node, t.Spec) else {}))


def ungrouped(node: object) -> object:
    """A tree without parentheses."""
    if isinstance(node, tuple):
        return tuple(ungrouped(part) for part in node)
    if isinstance(node, t.Group):
        return ungrouped(node.inner)
    if not isinstance(node, t.Node):
        return node
    return replace(node, **{part.name: ungrouped(getattr(node, part.name)) for part in fields(node)})


def test_the_tour_without_its_text() -> None:
    formatted = format_spec(built(read(TOUR)[0]))
    assert t.same(read(formatted)[0], read(TOUR)[0])
    assert "\n\n" not in formatted and "#" not in formatted
    assert format_text(formatted) == formatted


@few
@given(spec_texts())
def test_trees_without_text(text: str) -> None:
    spec, _ = read(text)
    formatted = format_spec(built(spec))
    assert t.same(read(formatted)[0], spec)
    assert format_text(formatted) == formatted
    joined = "".join(f"{format_statement(statement)}\n" for statement in spec.statements)
    assert t.same(read(joined)[0], spec)


@few
@given(spec_texts())
def test_comments_survive_without_their_text(text: str) -> None:
    spec, _ = read(text)
    formatted = format_spec(spec)
    after, _ = read(formatted)
    assert t.same(after, spec)
    assert sorted(c.text for c in after.comments) == sorted(c.text for c in spec.comments)


@few
@given(value_texts())
def test_values(text: str) -> None:
    found = value(text)
    line = format_value(found)
    assert "\n" not in line
    assert t.same(value(line), found)


@few
@given(value_texts())
def test_parentheses_are_added_where_the_tree_has_none(text: str) -> None:
    bare = ungrouped(value(text))
    assert t.same(ungrouped(value(format_value(bare))), bare)


def test_numbers_with_a_sign_stay_numbers() -> None:
    minus = t.Number(NOWHERE, "-3", -3)
    x = t.Name(NOWHERE, "x")
    assert format_value(t.Chained(NOWHERE, (x, minus), ("-",))) == "x - -3"
    assert format_value(t.Power(NOWHERE, minus, 2)) == "(-3)^2"
    assert format_value(t.Signed(NOWHERE, "-", minus)) == "-(-3)"


def test_types_and_choices_are_one_line() -> None:
    net = read(f"net f : (Word[T, a: {LONG}], B) -> real[T-1, {LONG}, {LONG}] = g()")[0].statements[0]
    assert format_type(net.type) == f"(Word[T, a: {LONG}], B) -> real[T-1, {LONG}, {LONG}]"
    source = Source("choice", f"direct_loss(1) {{\n a: {LONG}\n b: {LONG}, c: {LONG} }}")
    (choice,) = parse_choices(source, Report(source))
    assert format_choice(choice) == f"direct_loss(1) {{ a: {LONG}, b: {LONG}, c: {LONG} }}"


def test_labels_of_a_builder_are_quoted_where_they_must_be() -> None:
    labels = tuple(t.Ident(NOWHERE, text) for text in ("a", "B-NP", "data", "in", "1"))
    decl = t.LabelsDecl(NOWHERE, t.Ident(NOWHERE, "A"), t.LabelList(NOWHERE, labels))
    assert format_statement(decl) == "labels A = {a, 'B-NP', 'data', in, '1'}"


def test_strings() -> None:
    assert format_value(t.String(NOWHERE, "a")) == "'a'"
    assert format_value(t.String(NOWHERE, "it's")) == '"it\'s"'
    for text in ('it\'s "so"', "a\nb"):
        with pytest.raises(ValueError, match="cannot be written"):
            format_value(t.String(NOWHERE, text))


def test_the_level_of_a_sum_is_found_once(monkeypatch) -> None:
    asked: list[int] = []
    level = formatter._level

    def counted(value: t.Value) -> int:
        asked.append(len(value.operands) if isinstance(value, t.Chained) else 1)
        return level(value)

    monkeypatch.setattr(formatter, "_level", counted)
    text = f"let a = {' + '.join(['w'] * 2000)}\n"
    assert format_text(text).replace("\n ", "").split() == text.split()
    assert sum(asked) < 10 * 2000

"""Printing and reading graphs: an exact round trip, and errors at the lines of the text."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest

from energyml.diagnostics import SpecError
from energyml.ir.graph import Graph, Table
from energyml.ir.text import parse_graph, print_graph
from energyml.model.declared import LabelSet
from energyml.model.expression import Combine, scalar
from energyml.model.types import REAL, TensorType
from tests.ir.models import SPECS, compiled, graph


def assert_round_trip(made: Graph) -> None:
    text = print_graph(made)
    read = parse_graph(text)
    assert read == made
    assert print_graph(read) == text


@pytest.mark.parametrize("name", SPECS)
def test_round_trip(name: str) -> None:
    assert_round_trip(graph(name))


def test_the_printed_text() -> None:
    assert print_graph(graph("skip")) == (
        "graph 1\n"
        "labels Tag = {O, 'B-NP', 'I-NP', '$', \"it's\"}\n"
        "labels Word from data(min: 2, unknown: '<unk>')\n"
        "dim T\n"
        "input word : Word[T]\n"
        "output y : Tag[T]\n"
        "net lstm = blstm(out: Tag, dropout: 0.25)\n"
        "param W : real[from: Tag, to: Tag]\n"
        "param V : real[from: Tag, to: Tag]\n"
        "term unary : table [t in T] (y[t]) = lstm(word)[t]\n"
        "term pair : table [t in T-1] (from: y[t], to: y[t+1]) = W\n"
        "term skip : table [t in T-2] (from: y[t+2], to: y[t]) = V\n"
        "term forbid.1 : forbid [t in T-1] y[t] = 'O' and y[t+1] ~ 'I-*'\n"
        "term forbid.2 : forbid y[0] = 'I-NP'\n"
        "term forbid.3 : forbid [t in T-1] y[t] != y[t+1] and y[t] = '$'\n"
    )


def test_every_kind_of_term_is_printed() -> None:
    lines = "".join(print_graph(graph(name)) for name in SPECS).splitlines()
    assert "term y.bioes.next : scheme y bioes next" in lines
    assert "term s.unary : linear s = unet1(rgb)" in lines
    pair = "pair: potts(embed(rgb)) + smooth(w), ridge: 0.001, bounded: false"
    assert f"term s.pair : quadratic s {{ {pair} }}" in lines
    options = "step: decoder, given: h, normalize: global, end: '</s>'"
    assert f"term out.sequence : stepwise out {{ {options} }}" in lines
    assert "term y.masked : masked y { conditionals: mlm, energy: local }" in lines
    assert "term tail : black_box (y) = f(soft(y)) * 1e-07" in lines
    assert "term link_score : table [e = (i, j) in link] (head: y[i], tail: y[j]) = v(dist)[e]" in lines


def test_subscripts_of_a_chain_stand_on_names_and_calls() -> None:
    made = compiled(
        "labels Tag = {O, B}\ndim T, K = 2\ninput x : real[K, T, Tag]\noutput y : Tag[T]\n"
        "param W : real[from: Tag, to: Tag]\nchain y { unary: (x[1] + 0.5 * x[0]) / 3 - x[0], pair: 2 * W }"
    )
    assert str(made.term("y.unary").expressions()[0]) == "((x[1, t] + (0.5 * x[0, t])) / 3) - x[0, t]"
    assert_round_trip(made)


def test_several_given_tensors_are_named_parts() -> None:
    made = compiled(
        "labels Tag = {O, B}\ndim S, T\ninput x : real[S, 3]\ninput z : Tag[T]\noutput y : Tag[T]\n"
        "net m = masked_blstm(hidden: 3)\nmasked y { conditionals: m, given: { words: 2 * x, tags: z } }"
    )
    assert "given: { part1: 2 * x, part2: z }" in print_graph(made)
    assert_round_trip(made)


@pytest.mark.parametrize("gain", ["shared", "y.pair", "forbid.1"])
def test_a_gain_of_another_name(gain: str) -> None:
    made = graph("mixture")
    made = replace(made, terms=tuple(replace(term, gain=gain) for term in made.terms))
    assert f" gain {gain}\n" in print_graph(made)
    assert_round_trip(made)


def test_renamed_terms() -> None:
    for name in SPECS:
        made = graph(name)
        terms = tuple(replace(term, name=f"n{place}.x", gain=f"n{place}.x") for place, term in enumerate(made.terms))
        assert_round_trip(replace(made, terms=terms))


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-300, 1e300, -2.5, 123456789.25, 5.0, 1e15, 2.0**60, -0.0, 7e-7])
def test_numbers_keep_every_digit(number: float) -> None:
    made = graph("ising")
    term = made.term("right")
    potential = term.expressions()[0]
    weight = Combine(TensorType(REAL), (scalar(number), *potential.parts[0].parts[1:]), ("*",))
    value = replace(potential, arguments=(weight,))  # type: ignore[call-arg]
    body = Table(value, (0, 1))
    terms = tuple(replace(one, body=body) if one.name == "right" else one for one in made.terms)
    assert_round_trip(replace(made, terms=terms))


@pytest.mark.parametrize(
    "labels",
    [
        tuple(string.ascii_lowercase),
        tuple(string.digits),
        ("a", "b"),
        ("a", "c", "d"),
        ("data", "labels", "score", "from", "in"),
        ("'", '"', "#", "[", "{a}", "a b", "", "ä"),
        tuple(chr(point) for point in range(ord("\t"), ord("z") + 1)),
        tuple("&'("),
        ("1", "2.5", "true"),
    ],
)
def test_any_labels(labels: tuple[str, ...]) -> None:
    made = graph("ising")
    assert_round_trip(replace(made, label_sets={"Spin": LabelSet("Spin", labels)}))


def test_roles_that_are_no_words() -> None:
    made = compiled(
        "labels Tag = {O, B}\ndim T\noutput y : Tag[T]\nparam W : real['the first': Tag, data: Tag]\n"
        "factor pair [t in T-1] ('the first': y[t], data: y[t+1]) = W"
    )
    assert_round_trip(made)


def test_indices_of_all_forms() -> None:
    made = compiled(
        "labels Tag = {O, B}\ndim T, E\ndim M[T]\ninput e3 : edge(T, T, T)[E]\noutput y : Tag[T]\n"
        "latent z : Tag[T, M]\nparam u : real[Tag]\nparam W : real[a: Tag, b: Tag, c: Tag]\n"
        "factor one [t in T, m in M] (z[t, m]) = u\nfactor last (y[-2]) = u\n"
        "factor three [e = (i, j, k) in e3] (b: y[i], a: y[j], c: y[k]) = W"
    )
    assert made.term("three").body == Table(made.term("three").expressions()[0], (1, 0, 2))
    assert_round_trip(made)


def test_spaces_comments_and_order_are_free() -> None:
    text = print_graph(graph("skip"))
    first, *rest = text.splitlines()
    loose = "\n# a comment\n".join([f"  {first}  # version", "", *(f"  {line}   # gain 'x" for line in rest)])
    assert parse_graph(loose) == graph("skip")
    declared = [line for line in rest if not line.startswith("term")]
    terms = [line for line in rest if line.startswith("term")]
    assert parse_graph("\n".join([first, *terms, *declared])) == graph("skip")
    assert parse_graph(text.replace("\n", "\r\n")) == graph("skip")


HEAD = (
    "graph 1\nlabels Tag = {O, B}\ndim T\noutput y : Tag[T]\nparam u : real[Tag]\nparam W : real[from: Tag, to: Tag]\n"
)


@pytest.mark.parametrize(
    ("line", "code", "place", "words"),
    [
        ("term a : tabel (y[0]) = u", "E0602", "7:10", "did you mean `table`?"),
        ("term a table (y[0]) = u", "E0602", "7:1", "this is no term"),
        ("term a : scheme y bio", "E0602", "7:16", "scheme VARIABLE SCHEME first|next|last"),
        ("term a : linear = u", "E0602", "7:16", "linear FIELD = VALUE"),
        ("term a : linear y = u", "E0309", "7:17", "`linear` scores a field"),
        ("term a : quadratic y { ridge: 1 }", "E0309", "7:20", "`quadratic` scores a field"),
        ("term a : table [t in T] (from: y[t], to: y[t+1]) = W", "E0209", "7:44", "bind `t in T-1`"),
        ("term a : table (y[0]) = v", "E0102", "7:25", "`v`"),
        ("term a : table (y[0]) = u)", "E0005", "7:26", "closes nothing"),
        ("term a : forbid y[0] = 'X'", "E0313", "7:24", "not a label of `Tag`"),
        ("term a : stepwise y { step: u }", "E0103", "7:29", "a network is expected"),
        ("term a : stepwise y { stop: u }", "E0307", "7:23", "did you mean `step`?"),
        ("term a : table (y[0]) = u dim Z", "E0602", "7:27", "its line to itself"),
        ("term a : table (y[0]) = u\nterm a : table (y[1]) = u", "E0101", "8:6", "already declared"),
        ("chain y { pair: W }", "E0603", "7:1", "`chain` is not part"),
        ("infer exact", "E0603", "7:1", "`infer` is not part"),
        ("labels Tag = {A}", "E0101", "7:8", "already declared"),
    ],
)
def test_errors_point_into_the_text(line: str, code: str, place: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_graph(f"{HEAD}{line}\n", "my.ir")
    message = str(caught.value)
    assert [problem.code for problem in caught.value.diagnostics] == [code]
    assert f"my.ir:{place}\n" in message
    assert words in message


@pytest.mark.parametrize("text", ["", "# nothing\n", "graph 2\n", "labels A = {a}\n", "graph\n", "graph 1 2\n"])
def test_the_first_line(text: str) -> None:
    with pytest.raises(SpecError, match=r"starts with `graph 1`"):
        parse_graph(text)


def test_all_mistakes_are_reported() -> None:
    with pytest.raises(SpecError) as caught:
        parse_graph(HEAD + "term a : tabel\nterm b : table (y[0]) = v\nchain y { pair: W }\n")
    assert [problem.code for problem in caught.value.diagnostics] == ["E0602", "E0102", "E0603"]

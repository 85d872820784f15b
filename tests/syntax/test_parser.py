"""The tree of a text: spans, limits, odd characters, and the work that parsing takes."""

from collections.abc import Iterator
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from lark import Lark, TextSlice

from energyml.diagnostics import Report, Source, render_all
from energyml.syntax import parser as parsing
from energyml.syntax import tree as t
from energyml.syntax.parser import DEEPEST_NESTING, parse, parse_choices, parse_value
from tests.strategies import TOUR, spec_texts, value_texts

few = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

VALUES = (
    t.Name, t.Number, t.String, t.Call, t.Subscript, t.Chained, t.Signed, t.Power, t.Group, t.Range, t.Schedule,
    t.Block, t.Axes,
)  # fmt: skip


def read(text: str) -> tuple[t.Spec, Source]:
    source = Source("test.energy", text)
    report = Report(source)
    spec = parse(source, report)
    assert not report.found, render_all(source, report.ordered())
    return spec, source


def codes(text: str) -> list[str]:
    source = Source("test.energy", text)
    report = Report(source)
    parse(source, report)
    return [diagnostic.code for diagnostic in report.ordered()]


def value(text: str) -> t.Value:
    source = Source("value", text)
    report = Report(source)
    found = parse_value(source, report)
    assert found is not None, render_all(source, report.ordered())
    return found


def nodes(node: object, parent: t.Node | None = None) -> Iterator[tuple[t.Node, t.Node | None]]:
    """Every node below a node, with the one above it."""
    if isinstance(node, tuple):
        for part in node:
            yield from nodes(part, parent)
    elif isinstance(node, t.Node):
        yield node, parent
        for part in fields(node):
            yield from nodes(getattr(node, part.name), node)


# ------------------------------------------------------------------------------------------------------------ spans


def check_span(node: t.Node, text: str) -> None:
    """The text of a span says the same as its node."""
    match node:
        case t.Ident():
            assert text == node.text or text[1:-1] == node.text
        case t.Comment():
            assert text.rstrip() == node.text
        case t.Option():
            assert t.same(value(f"f({text})").arguments, (node,))
        case t.Choice():
            source = Source("choice", text)
            assert t.same(parse_choices(source, Report(source)), (node,))
        case t.Type():
            assert t.same(read(f"input x : {text}")[0].statements[0].type, node)
        case t.Signature():
            assert t.same(read(f"net f : {text} = g()")[0].statements[0].type, node)
        case t.RangeBinder() | t.EdgeBinder():
            assert t.same(read(f"factor f [{text}] (y) = u")[0].statements[0].binders, (node,))
        case t.ScopeItem():
            assert t.same(read(f"factor f ({text}) = u")[0].statements[0].scope, (node,))
        case t.Condition():
            assert t.same(read(f"forbid {text}")[0].statements[0].conditions, (node,))
        case t.Index():
            assert t.same(value(f"x[{text}]").indices, (node,))
        case t.Axis():
            assert t.same(value(f"[{text}]").axes, (node,))
        case t.Cell():
            assert text.startswith(node.variable.text)
        case _ if isinstance(node, VALUES):
            assert t.same(value(text), node)
        case _ if isinstance(node, t.Statement):
            assert t.same(read(text)[0].statements, (node,))
        case _:
            assert text and text == text.strip()


def check_spans(text: str) -> None:
    spec, source = read(text)
    for node, parent in nodes(spec):
        if parent is None:
            continue
        assert parent.span.start <= node.span.start < node.span.end <= parent.span.end
        check_span(node, source.excerpt(node.span))
    ends = [0, *(statement.span.end for statement in spec.statements)]
    assert all(end <= statement.span.start for end, statement in zip(ends, spec.statements, strict=False))


def test_spans_of_the_tour() -> None:
    check_spans(TOUR)


@few
@given(spec_texts())
def test_spans_of_specs_of_the_grammar(text: str) -> None:
    check_spans(text)


@few
@given(value_texts())
def test_values_outside_files(text: str) -> None:
    assert t.same(value(text), read(f"let x = {text}")[0].statements[0].value)


def test_choices_outside_files() -> None:
    source = Source("--infer", "exact, mean_field(steps: 20), infnet(blstm) { epochs: 3 }")
    report = Report(source)
    found = parse_choices(source, report)
    assert not report.found
    assert [choice.name.text for choice in found] == ["exact", "mean_field", "infnet"]


def test_the_tour_has_every_statement() -> None:
    spec, _ = read(TOUR)
    assert {type(statement) for statement in spec.statements} == set(t.Statement.__args__)
    assert {type(node) for node, _ in nodes(spec)} >= set(VALUES)


# --------------------------------------------------------------------------------------------------- all mistakes


def test_a_mistake_hides_no_other() -> None:
    text = "labels A = {a b}\noutput y Tag[T]\ndim T\nfoo\nlet x = (3\nlet z = 4\nfactor f (y[2*t]) = u\n"
    assert codes(text) == ["E0001", "E0013", "E0008", "E0004", "E0021"]


def test_what_could_be_read_is_returned_with_the_names_of_the_rest() -> None:
    source = Source("test.energy", "dim T\noutptu y : Tag[T]\nlabels Tag = {a b}\ndim H ,, W\nlet h == 3\ndim K\n")
    report = Report(source)
    spec = parse(source, report)
    assert len(report.found) == 4
    assert [item.name.text for statement in spec.statements for item in statement.items] == ["T", "K"]
    assert spec.broken == ("y", "Tag", "H", "W", "h")


def test_two_misspelt_statements_in_a_row() -> None:
    assert codes("dim T\noutptu y : Tag[T]\nfactr f (y) = u\ndim K\n") == ["E0008", "E0008"]


def test_a_statement_cut_inside_its_brackets_is_one_mistake() -> None:
    assert codes("train nll {\n  infer exact\n  epochs: 3\n}\ndim T\n") == ["E0022"]
    assert codes("train nll {\n  infer = exact\n  epochs: 3\n}\n") == ["E0012"]
    assert codes("train nll {\n  infer exact\n  data letters\n}\n") == ["E0022"]
    assert codes("labels A = {\n  a\n  data\n}\n") == ["E0025"]
    assert codes("train nll {\n  epochs: 3\n\ninfer exact\n") == ["E0004"]
    assert codes("train nll {\n  infer\n  : exact\n}\n") == []


# --------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_deep_nesting_is_refused(brackets: str) -> None:
    opener, closer = brackets
    for depth in (DEEPEST_NESTING + 1, 1000, 100_000):
        assert codes(f"let x = {opener * depth}{closer * depth}") == ["E0006"]
        assert codes(f"let x = {opener * depth}") == ["E0006"]


def test_nesting_up_to_the_limit_is_read() -> None:
    for opener, inner, closer in (("(", "a", ")"), ("f(", "a", ")"), ("{ a: ", "b", " }"), ("f({ a: ", "b", " })")):
        depth = DEEPEST_NESTING // sum(character in "({" for character in opener)
        read(f"let x = {opener * depth}{inner}{closer * depth}")
    assert codes("let x = " + ")" * 1000 + "(" * 1000) == ["E0005"]


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    read(f"labels A = {{'{'(' * 100}'}}  # {'[' * 100}")


@pytest.mark.parametrize("number", ["9" * 41, "9" * 10_000, "1e999", "1" * 30 + "e" + "9" * 30, "0." + "1" * 100])
def test_huge_numbers_are_refused(number: str) -> None:
    assert codes(f"let x = {number}") == ["E0007"]
    assert codes(f"let x = 2^{number}") == ["E0007"]
    assert codes(f"dim T = {number}") == ["E0007"]


@pytest.mark.parametrize("number", ["1.5", "1e3", "1000001"])
def test_extents_and_indices_are_whole(number: str) -> None:
    assert codes(f"input x : real[{number}]") == ["E0009"]
    assert codes(f"input x : real[T-{number}]") == ["E0009"]
    assert codes(f"let a = x[t+{number}]") == ["E0009"]
    assert codes(f"factor f [t in T-{number}] (y[t]) = u") == ["E0009"]


def test_a_file_can_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "LARGEST_FILE", 5)
    assert codes("dim T") == []
    assert codes("dim TT") == ["E0010"]


# ----------------------------------------------------------------------------------------------------- characters


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_mean_nothing(newline: str, mark: str) -> None:
    spec, _ = read(mark + TOUR.replace("\n", newline))
    assert t.same(spec, read(TOUR)[0])
    assert [comment.text for comment in spec.comments] == [comment.text for comment in read(TOUR)[0].comments]


def test_a_byte_order_mark_takes_no_column() -> None:
    source = Source("test.energy", "\ufeffoutptu y : Tag[T]")
    report = Report(source)
    parse(source, report)
    assert "--> test.energy:1:1" in render_all(source, report.ordered())
    assert codes("dim T\n\ufeffdim K") == ["E0002"]


@pytest.mark.parametrize(
    "character", ["\x00", "\x0b", "\x85", "\u00a0", "\u2028", "\u0456", "\u0661", "\ud800", "\uff11"]
)
@pytest.mark.parametrize("text", ["{}", "{}\ndim T", "dim T{}", "dim T\n{}dim K", "let x = a {} b"])
def test_foreign_characters_are_named(character: str, text: str) -> None:
    source = Source("test.energy", text.format(character))
    report = Report(source)
    parse(source, report)
    (found,) = report.found
    assert found.code == "E0002"
    assert source.excerpt(found.span) == character
    assert f"U+{ord(character):04X}" in found.message


def test_foreign_characters_are_welcome_in_strings_and_comments() -> None:
    read("labels A = {'\u0456', '\x00', '\u2028'}  # \u00a0 \x00 \ud800\n")


@pytest.mark.parametrize("text", ["", "\n", "\ufeff", " \t\f\r\n", "# only a comment", "\r\n# one\r\n\r\n# two"])
def test_nothing_is_a_spec(text: str) -> None:
    spec, _ = read(text)
    assert spec.statements == ()


# ----------------------------------------------------------------------------------------------------------- work


class Counting:
    """A parser that counts what it is asked to read."""

    def __init__(self, lark: Lark) -> None:
        self.lark = lark
        self.calls = 0
        self.characters = 0

    def parse(self, text: str | TextSlice, start: str) -> object:
        self.count(text)
        return self.lark.parse(text, start=start)

    def parse_interactive(self, text: str | TextSlice, start: str) -> object:
        self.count(text)
        return self.lark.parse_interactive(text, start=start)

    def count(self, text: str | TextSlice) -> None:
        assert isinstance(text, str) or isinstance(text.text, parsing.Unlined), "Lark would count the lines before"
        self.calls += 1
        self.characters += len(text) if isinstance(text, str) else text.end - text.start


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting(parsing.parser())
    monkeypatch.setattr(parsing, "parser", lambda: counting)
    return counting


LINES = 10_000
LINEAR = {
    "good": ("let x{} = f(a, {{ b: 2 }})[t+1]  # remark\n", 1),
    "on three lines": ("train nll {{\n  epochs: {}\n}}\n", 1),
    "each with a mistake": ("let x{} == 3\n", 2),
    "each left open": ("let x{} = f(a\n", 2),
    "misspelt": ("lett x{} = f(a)\n", 4),
    "no statements": ("what is{} this\n", 4),
    "open and closed": ("  infer }}x{} {{\n", 4),
    "reserved words in brackets": ("train nll {{\n  infer exact\n  x: {}\n}}\n", 5),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_parsing_takes_work_linear_in_the_lines(kind: str, work: Counting) -> None:
    line, times = LINEAR[kind]
    statements = LINES // line.count("\n")
    text = "".join(line.format(number) for number in range(statements))
    source = Source("long.energy", text)
    report = Report(source)
    spec = parse(source, report)
    assert bool(report.found) == (times > 1)
    examples = 20_000
    assert work.characters <= times * len(text) + examples
    if times == 1:
        assert work.calls == len(spec.statements) == statements

"""Any text gives a tree or diagnostics, and formatting keeps what can be parsed.  ENERGYML_FUZZ sets how many cases."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyml.diagnostics import Report, Source, SpecError, render_all, render_json
from energyml.syntax import tree
from energyml.syntax.formatter import format_text
from energyml.syntax.parser import parse, parse_choices, parse_value
from tests.strategies import any_text, mutations, spec_texts

CASES = os.environ.get("ENERGYML_FUZZ")
fuzz = settings(
    max_examples=int(CASES or 300),
    derandomize=CASES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TEXTS = {"any text": any_text(), "damaged specs": mutations(), "damaged grammar": spec_texts(3).flatmap(mutations)}


def read(text: str) -> tuple[tree.Spec, Report]:
    source = Source("fuzz.energy", text)
    report = Report(source)
    return parse(source, report), report


@pytest.mark.parametrize("kind", TEXTS)
@fuzz
@given(data=st.data())
def test_any_text_gives_a_tree_or_diagnostics(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS[kind])
    spec, report = read(text)
    assert isinstance(spec, tree.Spec)
    tree.dump(spec)
    source = report.source
    for diagnostic in report.ordered():
        assert diagnostic.message and "{" not in diagnostic.code
        assert diagnostic.span is None or 0 <= diagnostic.span.start <= diagnostic.span.end <= len(source.text)
    assert render_all(source, report.ordered())
    assert render_json(source, report.ordered())


@fuzz
@given(text=any_text())
def test_choices_and_values_give_a_tree_or_diagnostics(text: str) -> None:
    for parse_start in (parse_choices, parse_value):
        source = Source("--infer", text)
        report = Report(source)
        found = parse_start(source, report)
        assert bool(found) != bool(report.errors)


@pytest.mark.parametrize("kind", TEXTS)
@fuzz
@given(data=st.data())
def test_formatting_keeps_what_can_be_parsed(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS[kind])
    try:
        formatted = format_text(text, "fuzz.energy")
    except SpecError as error:
        assert error.diagnostics
        return
    check_formatted(text, formatted)


@fuzz
@given(text=spec_texts())
def test_specs_of_the_grammar_parse_and_format(text: str) -> None:
    _, report = read(text)
    assert not report.found, render_all(report.source, report.ordered())
    check_formatted(text, format_text(text, "fuzz.energy"))


def check_formatted(text: str, formatted: str) -> None:
    """Idempotent, the same tree, every comment, no blanks at line ends, one newline at the end."""
    before, _ = read(text)
    after, report = read(formatted)
    assert not report.found, f"{formatted}\n{render_all(report.source, report.ordered())}"
    assert tree.same(before, after), formatted
    assert format_text(formatted) == formatted
    assert sorted(c.text for c in before.comments) == sorted(c.text for c in after.comments)
    assert formatted == "" or (formatted.endswith("\n") and not formatted.endswith("\n\n"))
    assert not formatted.startswith("\n") and "\n\n\n" not in formatted
    assert all(line == line.rstrip(" \t") for line in formatted.split("\n"))

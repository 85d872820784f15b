"""The prepared tables belong to the grammar as it is, and give the parser that the grammar gives."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from lark.exceptions import UnexpectedInput

from energyml import grammar
from energyml.syntax.separators import Separators
from tests.strategies import TOUR, mutations, spec_texts

few = settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
BUILT = grammar.build_parser(Separators())
LOADED = grammar.load_parser(Separators())


def outcome(parser, text: str) -> object:
    """The tree, or where and on what it fails."""
    try:
        return parser.parse(text, start="statements")
    except UnexpectedInput as problem:
        return problem.pos_in_stream, str(getattr(problem, "token", "")), frozenset(getattr(problem, "accepts", ()))


def test_the_tables_are_fresh() -> None:
    tables = json.loads(grammar.TABLES.read_text(encoding="utf-8"))
    assert tables["fingerprint"] == grammar.fingerprint(), "the grammar changed: write the tables again (make docs)"


def test_the_loaded_parser_comes_from_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the parser was built anew")

    monkeypatch.setattr(grammar, "build_parser", refuse)
    assert grammar.load_parser(Separators()).options.start == grammar.STARTS


def test_the_tour_parses_alike() -> None:
    assert outcome(LOADED, TOUR) == outcome(BUILT, TOUR)


@few
@given(spec_texts())
def test_specs_parse_alike(text: str) -> None:
    assert outcome(LOADED, text) == outcome(BUILT, text)


@few
@given(mutations())
def test_damaged_specs_fail_alike(text: str) -> None:
    assert outcome(LOADED, text) == outcome(BUILT, text)


def test_written_tables_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "TABLES", tmp_path / "tables.json")
    grammar.write_tables(Separators())
    assert outcome(grammar.load_parser(Separators()), TOUR) == outcome(BUILT, TOUR)


@pytest.mark.parametrize("content", [None, "", "{", '{"fingerprint": "of another grammar"}'])
def test_missing_and_stale_tables_are_not_used(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "TABLES", tmp_path / "tables.json")
    if content is not None:
        grammar.TABLES.write_text(content)
    assert outcome(grammar.load_parser(Separators()), TOUR) == outcome(BUILT, TOUR)

"""Specs with the exact text that is expected about them: the graph of a good one, the diagnostics of a bad one.

`ENERGYML_UPDATE_GOLDEN=1` rewrites the expected texts; read what changed as a user would.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from energyml.diagnostics import Source
from energyml.driver import analyse
from energyml.errors import CATALOGUE
from energyml.ir.text import parse_graph, print_graph
from energyml.syntax.formatter import format_text
from tests.golden.driver import described, diagnostics

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").glob("*.energy"))
BAD = sorted((HERE / "bad").glob("*.energy"))
EXAMPLES = sorted((HERE.parent.parent / "examples").glob("*.energy"))
# a file too large, what happens when a model runs, the text of a graph, files of other formats, and data
NEVER_FROM_A_FILE = ("E0010", "E05", "E06", "E07", "E08")


def read(spec: Path) -> str:
    """The text as it stands, line breaks included."""
    return spec.read_bytes().decode("utf-8")


def compare(spec: Path, say: Callable[[str, str], str]) -> None:
    """Compare what is said about a spec with the text beside it."""
    said = say(read(spec), spec.name)
    expected = spec.with_suffix(".expected")
    if os.environ.get("ENERGYML_UPDATE_GOLDEN"):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", GOOD, ids=lambda spec: spec.stem)
def test_good(spec: Path) -> None:
    compare(spec, described)


@pytest.mark.parametrize("spec", BAD, ids=lambda spec: spec.stem)
def test_bad(spec: Path) -> None:
    compare(spec, diagnostics)


@pytest.mark.parametrize("spec", [*GOOD, *EXAMPLES], ids=lambda spec: spec.stem)
def test_graphs_are_read_back(spec: Path) -> None:
    compiled, _ = analyse(Source(spec.name, read(spec)))
    assert compiled is not None
    assert parse_graph(print_graph(compiled.graph)) == compiled.graph


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda spec: spec.stem)
def test_examples_are_clean(spec: Path) -> None:
    text = read(spec)
    assert diagnostics(text, spec.name) == f"{spec.name}: no errors\n"
    assert format_text(text, spec.name) == text


@pytest.mark.parametrize("spec", GOOD, ids=lambda spec: spec.stem)
def test_formatting_changes_nothing(spec: Path) -> None:
    text = read(spec)
    formatted = format_text(text, spec.name)
    assert format_text(formatted, spec.name) == formatted
    before, after = (analyse(Source(spec.name, one))[0] for one in (text, formatted))
    assert before is not None and after is not None and before.graph == after.graph


def test_good_specs_have_at_most_warnings() -> None:
    for spec in GOOD:
        said = diagnostics(read(spec), spec.name)
        assert "error[" not in said, said
        assert spec.stem.startswith("warning_") == ("warning[" in said), said


def test_there_are_enough() -> None:
    assert len(GOOD) >= 60 and len(BAD) >= 150


def test_every_code_has_a_bad_spec() -> None:
    said = "".join(diagnostics(read(spec), spec.name) for spec in BAD)
    missing = [code for code in CATALOGUE if f"[{code}]" not in said and not code.startswith(NEVER_FROM_A_FILE)]
    assert not missing


def test_no_expectation_without_a_spec() -> None:
    for expected in HERE.glob("*/*.expected"):
        assert expected.with_suffix(".energy").exists(), expected.name


def test_every_bad_spec_is_bad() -> None:
    for spec in BAD:
        said = diagnostics(read(spec), spec.name)
        assert "error[" in said or spec.stem.endswith("_warning"), said

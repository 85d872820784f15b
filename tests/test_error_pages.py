"""The catalogue of errors: every page's examples show what they promise, and every code is one that is reported."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from energyml.diagnostics import EnergyError
from energyml.driver import check_text
from energyml.errors import CATALOGUE, Kind, choices, data, files, graphs, names, running, scores, syntax, types
from energyml.ir.text import parse_graph

ROOT = Path(__file__).resolve().parent.parent
MODULES = (syntax, names, types, scores, choices, running, graphs, files, data)
KINDS = [kind for module in MODULES for kind in module.KINDS]
PYTHON = "import energyml as em"
WITHOUT_EXAMPLES = ("E0010",)  # a file of millions of characters
CODE = re.compile(r"\b[EW]0\d\d\d\b")


def said(kind: Kind, example: str) -> set[str]:
    """The codes that an example of a kind brings about: a script is run, a graph is read, a spec is checked."""
    if example.startswith(PYTHON):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(example, "<page>", "exec"), {})
        except EnergyError as problem:
            return set(CODE.findall(str(problem))) or worded_like(str(problem))
        return set()
    if kind in graphs.KINDS:
        try:
            parse_graph(example)
        except EnergyError as problem:
            return set(CODE.findall(str(problem)))
        return set()
    return {diagnostic.code for diagnostic in check_text(example).found}


def worded_like(message: str) -> set[str]:
    """The kinds whose wording a message has; some errors at run time point at no place, and show no code."""
    forms = {kind.code: re.sub(r"\\\{\w+\\\}", ".+", re.escape(kind.message)) for kind in running.KINDS}
    return {code for code, form in forms.items() if form != ".+" and re.search(form, message)}


def examples(kinds: list[Kind]) -> list[Kind]:
    return [kind for kind in kinds if kind.bad and kind.good]


@pytest.mark.parametrize("kind", examples(KINDS), ids=lambda kind: kind.code)
def test_the_bad_example_shows_its_error_and_no_other(kind: Kind) -> None:
    assert said(kind, kind.bad) == {kind.code}


@pytest.mark.parametrize("kind", examples(KINDS), ids=lambda kind: kind.code)
def test_the_good_example_is_clean(kind: Kind) -> None:
    assert said(kind, kind.good) == set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_pages_are_complete(kind: Kind) -> None:
    assert kind.title and kind.message
    sentences = [one for one in re.split(r"(?<=[.:])\s", kind.why.replace("...", "")) if one]
    assert 1 <= len(sentences) <= 6, kind.why
    assert kind.why.endswith(".")
    if kind.code not in WITHOUT_EXAMPLES:
        assert kind.bad and kind.good


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(codes) == len(set(codes)) == len(CATALOGUE)


def test_codes_stand_in_the_file_of_their_group() -> None:
    groups = dict(zip(("00", "01", "02", "03", "04", "05", "06", "07", "08"), MODULES, strict=True))
    for kind in KINDS:
        assert kind in groups[kind.code[1:3]].KINDS
        assert kind.severity == ("warning" if kind.code.startswith("W") else "error")


def test_every_code_is_reported_somewhere_and_known() -> None:
    used: set[str] = set()
    for folder in ("energyml", "backends", "grammar"):
        for file in (ROOT / folder).rglob("*.py"):
            if "errors" not in file.parts and not file.is_symlink():
                used.update(CODE.findall(file.read_text(encoding="utf-8")))
    assert used == set(CATALOGUE)

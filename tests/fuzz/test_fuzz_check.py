"""Any text at all is checked to a result or to diagnostics; what is sound makes a sound graph.

`ENERGYML_FUZZ` sets how many cases each test tries.
"""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyml.diagnostics import EnergyError, Source, render_all, render_json
from energyml.driver import Compiled, analyse, read_choices
from energyml.errors import CATALOGUE
from energyml.ir.ground import Instance, ground
from energyml.ir.text import parse_graph, print_graph
from energyml.plan.structure import recognise
from tests.strategies import Draw, any_text, example_specs, mutations, spec_texts

CASES = os.environ.get("ENERGYML_FUZZ")
fuzz = settings(
    max_examples=int(CASES or 300),
    derandomize=CASES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SPECS = (
    *example_specs(),
    *(file.read_text(encoding="utf-8") for file in sorted(GOLDEN.glob("*/*.energy"))),
)
WORD = re.compile(r"'[^'\n]*'|[A-Za-z_]\w*(?:\.\w+)*|\d+(?:\.\d+)?")


@st.composite
def renamed(draw: Draw) -> str:
    """A spec in which a few words are replaced by other words of the same spec, so that most of it still parses."""
    text = draw(st.sampled_from(SPECS))
    for _ in range(draw(st.integers(1, 3))):
        words = list(WORD.finditer(text))
        if not words:
            return text
        old, new = draw(st.sampled_from(words)), draw(st.sampled_from(words)).group()
        text = text[: old.start()] + new + text[old.end() :]
    return text


@st.composite
def crossed(draw: Draw) -> str:
    """A spec with lines of another one among its own, or without some of its own."""
    lines = draw(st.sampled_from(SPECS)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        others = draw(st.sampled_from(SPECS)).splitlines(keepends=True)
        at = draw(st.integers(0, len(lines)))
        kept = at + draw(st.integers(0, 2))
        lines[at:kept] = [draw(st.sampled_from(others))] if others and draw(st.booleans()) else []
    return "".join(lines)


TEXTS = {
    "any text": any_text(),
    "damaged specs": st.sampled_from(SPECS).flatmap(mutations),
    "renamed specs": renamed(),
    "crossed specs": crossed(),
    "the grammar": spec_texts(),
}


def check_sound(compiled: Compiled) -> None:
    """A graph that can be printed and read back, and grounded on a small example or refused with a reason."""
    graph = compiled.graph
    assert parse_graph(print_graph(graph)) == graph
    sizes = {name: 3 for name, dim in graph.dims.items() if dim.kind in ("observed", "free")}
    nested = {name: [2] * 4 for name, dim in graph.dims.items() if dim.kind == "nested"}
    rows = {name: [(0,) * len(given.type.ends)] for name, given in graph.inputs.items() if hasattr(given.type, "ends")}
    if all(dim.size is None or dim.size <= 4 for dim in graph.dims.values()):
        instance = Instance(sizes, nested, rows)
        ground(graph, instance)
        assert recognise(graph, instance).describe() is not None


@pytest.mark.parametrize("kind", TEXTS)
@fuzz
@given(data=st.data())
def test_any_text_is_checked(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS[kind])
    compiled, report = analyse(Source("fuzz.energy", text))
    assert (compiled is None) == bool(report.errors)
    for diagnostic in report.ordered():
        assert diagnostic.code in CATALOGUE and diagnostic.message
        for span in (diagnostic.span, *(note.span for note in diagnostic.notes)):
            assert span is None or 0 <= span.start <= span.end <= len(report.source.text)
    assert render_all(report.source, report.ordered())
    assert render_json(report.source, report.ordered())
    if compiled is not None:
        check_sound(compiled)


@pytest.mark.parametrize("kind", ["backend", "objective", "decoder", "reader"])
@fuzz
@given(text=any_text())
def test_any_choice_is_read_or_refused(kind: str, text: str) -> None:
    try:
        assert read_choices(kind, text)  # type: ignore[arg-type]
    except EnergyError as problem:
        assert str(problem)

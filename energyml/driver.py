"""The driver: one road from text to a plan.

    text -> syntax tree -> checked model -> factor-graph IR -> structure and plan

All of it is torch-free; `energyml.loading` goes on from here to a torch module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from energyml.cards.card import CardKind, Selection
from energyml.cards.registry import built_in
from energyml.diagnostics import Diagnostic, EnergyError, Report, Source, SpecError
from energyml.ir.build import build
from energyml.ir.graph import Graph
from energyml.ir.verify import verify
from energyml.model.check import check, check_choice
from energyml.model.declared import CheckedModel
from energyml.plan.planner import check_choices
from energyml.plan.structure import Structure, recognise
from energyml.syntax import tree
from energyml.syntax.parser import parse, parse_choices


@dataclass(frozen=True)
class Compiled:
    """Every stop of the road up to the plan."""

    source: Source
    spec: tree.Spec
    model: CheckedModel
    graph: Graph
    structure: Structure
    warnings: tuple[Diagnostic, ...] = ()


class SpecFileError(EnergyError):
    """A spec, a checkpoint or another file that cannot be read or written."""


def read_source(path: str | Path) -> Source:
    """Read a spec file; what can go wrong with the file itself is one line."""
    place = Path(path)
    try:
        raw = place.read_bytes()
    except OSError as problem:
        raise SpecFileError(f"{place}: {(problem.strerror or str(problem)).lower()}") from problem
    return source_from(str(path), raw)


def source_from(name: str, raw: bytes) -> Source:
    """The text of a spec from its bytes: UTF-8, with or without a byte-order mark, any line ends."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise SpecFileError(f"{name}: not UTF-8 text (byte {problem.start})") from problem
    return Source(name, text.replace("\r\n", "\n"))


def analyse(source: Source) -> tuple[Compiled | None, Report]:
    """Go as far down the road as the text allows; never raises on bad text."""
    report = Report(source)
    spec = parse(source, report)
    model = check(spec, report)
    if report.errors:
        return None, report
    graph = build(model)
    verify(graph)
    structure = recognise(graph)
    check_choices(model.choices, structure, report)
    if report.errors:
        return None, report
    return Compiled(source, spec, model, graph, structure, tuple(report.ordered())), report


def check_text(text: str, name: str = "<text>") -> Report:
    """All diagnostics of a spec text."""
    return analyse(Source(name, text))[1]


def compile_source(source: Source) -> Compiled:
    """The whole torch-free road, or `SpecError` with every diagnostic."""
    compiled, report = analyse(source)
    if compiled is None:
        raise SpecError(source, report.ordered())
    return compiled


def read_choices(kind: CardKind, text: str, model: CheckedModel | None = None) -> list[Selection]:
    """Choices as written on the command line or in Python: `exact, mean_field(steps: 20)`."""
    names = _names_alone(kind, text)
    if names is not None:
        return list(names)
    source = Source(f"<{kind}>", text)
    report = Report(source)
    made = check_choice(kind, parse_choices(source, report), report, model)
    report.raise_errors()
    return made


@lru_cache(maxsize=256)
def _names_alone(kind: CardKind, text: str) -> tuple[Selection, ...] | None:
    """Choices that are names of built-in cards and no more, alike for all models; `None` where there is more."""
    source = Source(f"<{kind}>", text)
    report = Report(source)
    choices = parse_choices(source, report)
    found = [built_in(kind).get(choice.name.text) for choice in choices]
    made = tuple(Selection(card) for card in found if card and not any(option.required for option in card.options))
    plain = not report.errors and not any(choice.arguments or choice.block for choice in choices)
    return made if made and plain and len(made) == len(choices) else None


def read_choice(kind: CardKind, text: str, model: CheckedModel | None = None) -> Selection:
    """Exactly one choice."""
    made = _names_alone(kind, text) or read_choices(kind, text, model)
    if len(made) != 1:
        raise EnergyError(f"expected one {kind}, found {len(made)} in `{text}`")
    return made[0]

"""The road from a text to what is printed about it: diagnostics for a spec with mistakes, structure and graph for a sound one."""

from energyml.diagnostics import Report, Source, render_all
from energyml.ir.build import build
from energyml.ir.graph import Graph
from energyml.ir.text import print_graph
from energyml.model.check import check
from energyml.model.declared import CheckedModel
from energyml.plan.planner import check_choices
from energyml.plan.structure import Structure, recognise
from energyml.syntax.parser import parse


def check_report(text: str, name: str) -> tuple[Report, CheckedModel]:
    """Everything that checking a text finds, and the model that is left of it."""
    source = Source(name, text)
    report = Report(source)
    model = check(parse(source, report), report)
    if not report.errors:
        check_choices(model.choices, recognise(build(model)), report)
    return report, model


def diagnostics(text: str, name: str) -> str:
    """All diagnostics, drawn."""
    report, _ = check_report(text, name)
    return render_all(report.source, report.ordered()) + "\n"


def described(text: str, name: str) -> str:
    """The structure of a sound spec, line by line, and the text of its graph; after its warnings, where it has any."""
    report, model = check_report(text, name)
    if report.errors:
        return render_all(report.source, report.ordered()) + "\n"
    graph: Graph = build(model)
    structure: Structure = recognise(graph)
    warnings = [render_all(report.source, report.ordered()) + "\n"] if report.found else []
    lines = "".join(f"{line}\n" for line in structure.describe())
    return "\n".join([*warnings, lines, print_graph(graph)])

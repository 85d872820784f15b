"""What is printed about a spec: diagnostics, and for a sound one its structure and its graph."""

from energyml.diagnostics import Source, render_all
from energyml.driver import analyse
from energyml.ir.text import print_graph


def diagnostics(text: str, name: str) -> str:
    """All diagnostics, drawn."""
    _, report = analyse(Source(name, text))
    return render_all(report.source, report.ordered()) + "\n"


def described(text: str, name: str) -> str:
    """The diagnostics, if there are any, then the structure line by line, and the text of the graph."""
    compiled, report = analyse(Source(name, text))
    parts = [render_all(report.source, report.ordered()) + "\n"] if report.found else []
    if compiled is not None:
        parts.append("".join(f"{line}\n" for line in compiled.structure.describe()))
        parts.append(print_graph(compiled.graph))
    return "\n".join(parts)

"""Speed against accuracy: Figure 2 of Tu & Gimpel 2019."""

from __future__ import annotations

from pathlib import Path

from energyml.comparison.result import Comparison, best_metric, by_name
from energyml.diagnostics import EnergyError
from energyml.pictures import drawing, save


def draw(comparison: Comparison, path: Path) -> None:
    """The time of one pass over the data (log scale) against the first metric, or the search error without one.

    One backend under different options is one line, each point with its options.
    """
    pyplot = drawing()
    rows = [row for row in comparison.rows if row.reason is None and row.seconds]
    if not rows:
        raise EnergyError("there is nothing to draw: no backend of the comparison gave answers")
    metric = best_metric(rows)
    figure, axis = pyplot.subplots(figsize=(6.4, 4.0))
    for name, own in by_name(rows).items():
        points = []
        for row in own:
            value = row.metrics.get(metric) if metric is not None else row.search_error
            if value is not None and row.seconds is not None:
                points.append((row.seconds, 100 * value if metric is not None else value, row.backend))
        points.sort()
        axis.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", label=name)
        for x, y, written in points:
            text = written if len(own) == 1 else written.partition("(")[2].removesuffix(")") or name
            axis.annotate(text, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=7)
    axis.set_xscale("log")
    label = "search error" if metric is None else f"{metric} (%)"
    title = f"{comparison.name}, {comparison.split}"
    axis.set(xlabel=f"seconds for {comparison.examples} examples", ylabel=label, title=title)
    axis.margins(x=0.2, y=0.15)
    if len(by_name(rows)) > 1:
        axis.legend(fontsize=7)
    axis.grid(True, which="both", alpha=0.2)
    figure.tight_layout()
    save(figure, path, dpi=120)


__all__ = ["draw"]

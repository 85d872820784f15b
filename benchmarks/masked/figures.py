"""Line plots as SVG, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Line = tuple[Sequence[float], Sequence[float]]


def draw(
    path: Path,
    lines: Mapping[str, Line],
    *,
    across: str,
    up: str,
    levels: Mapping[str, float] | None = None,
    burn_in: int | None = None,
    log: bool = False,
) -> str:
    """Draw lines by name; returns the line of a page that shows them.

    Args:
        path: of the SVG file.
        lines: what stands across and what goes up, by name.
        across: the title of the first axis.
        up: that of the second.
        levels: horizontal lines by name.
        burn_in: a vertical line behind so many sweeps.
        log: whether the first axis is logarithmic.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "energyml", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    for name, (x, y) in lines.items():
        axes.plot(x, y, marker=".", label=name)
    for name, level in (levels or {}).items():
        axes.axhline(level, color="black", linewidth=0.5, label=name)
    if burn_in is not None:
        axes.axvline(burn_in + 0.5, color="grey", linewidth=0.5, linestyle=":")
    if log:
        axes.set_xscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return f"\n![{up} by {across}]({path.name})\n"

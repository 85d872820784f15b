"""Pictures with matplotlib, an optional extra: no window, and the same file for the same picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from energyml.diagnostics import EnergyError

# Formats that would name the time at which they were written.
UNDATED = {".svg": {"metadata": {"Date": None}}, ".pdf": {"metadata": {"CreationDate": None}}}


def drawing() -> Any:
    """`matplotlib.pyplot`, which then draws to files alone."""
    try:
        import matplotlib
    except ImportError as problem:
        raise EnergyError("plots need matplotlib: `pip install 'energyml[plots]'`") from problem
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "energyml"  # names inside a file do not change from one run to the next
    from matplotlib import pyplot

    return pyplot


def check_ending(out: Path) -> None:
    """Refuse a name that does not say which format it is for, before anything is drawn."""
    drawing()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if out.suffix.lower().removeprefix(".") not in known:
        ending = f"`{out.suffix}` is no format of pictures" if out.suffix else "the name has no ending"
        raise EnergyError(f"{out}: {ending}; it must end in .svg, .png or .pdf (or in another that matplotlib writes)")


def save(figure: Any, out: Path, dpi: int = 110) -> None:
    """Write a figure, in the format of its file's ending, and close it."""
    try:
        figure.savefig(out, dpi=dpi, **UNDATED.get(out.suffix.lower(), {}))
    except (OSError, ValueError) as problem:
        raise EnergyError(f"{out}: {problem}") from problem
    finally:
        drawing().close(figure)


__all__ = ["check_ending", "drawing", "save"]

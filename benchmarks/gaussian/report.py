"""Tables of the stored results, written into `docs/performance.md` between their markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.exact.bars import Bar
from benchmarks.exact.report import FIRST_LOOK, mark, short, table
from benchmarks.gaussian import results
from benchmarks.gaussian.bars import ALONE, judgements, place

START, END = "<!-- measured: gaussian -->", "<!-- end measured: gaussian -->"
PEERS = ("scipy", "linear_operator", "dense Cholesky", ALONE)

Row = dict[str, Any]


def bar_table() -> str:
    """Every bar with its worst cell, and beside it, for single examples, the worst cell of the solver alone."""
    rows = []
    for bar, alone in judgements():
        value, where, kept = _worst(bar)
        beside = ""
        if alone is not None:
            least, place_of_least, count = _worst(alone)
            beside = f"{least} at {place_of_least}: {count}"
        rows.append([bar.name, value, where, kept, beside, f"`{bar.command}`"])
    return table(("bar", "worst", "where", "kept", "solver alone, equal work, batch 1", "command"), rows)


def _worst(bar: Bar) -> tuple[str, str, str]:
    """The worst figure, where it is, and whether the bar is kept."""
    worst = bar.worst
    if worst is None:
        return "not measured", "", mark(False)
    value = "none" if worst.value is None else short(worst.value)
    note = f" ({worst.note})" if worst.note else ""
    return value, f"{worst.where}{note}", f"{mark(bar.kept == len(bar.readings))}, {bar.kept} of {len(bar.readings)}"


def speed_table(name: str) -> str:
    """Milliseconds of ours, and how many times longer each contestant takes, with quartiles."""
    lines = []
    for row in results.load(name)["rows"]:
        known = row["peers"].values()
        mine = next((one[3] for one in known), None)
        taken = row["iterations"].get("scipy")
        cells = [_cell(row, peer) for peer in PEERS]
        way = row["notes"].get("scipy", "")
        lines.append([place(row), _method(row), "" if mine is None else short(mine), *cells,
                      "" if not taken else str(max(taken)), way])  # fmt: skip
    head = ("field", "method", "ms", *PEERS, "scipy's iterations", "its fastest way")
    return table(head, lines) if lines else "Not measured."


def _method(row: Row) -> str:
    """What the planner took, or was asked for; only conjugate gradients count iterations."""
    if "energyml" in row["iterations"]:
        return "cg"
    return "Woodbury" if "spectrum" in row else "transforms"


def _cell(row: Row, peer: str) -> str:
    found = row["peers"].get(peer)
    if found is None:
        return "" if "written out" in row["refused"].get(peer, "") else row["refused"].get(peer, "")
    low, middle, high, *_, pairs = found
    return short(middle) if pairs == 1 else f"{short(middle)} ({short(low)} to {short(high)})"


def limit_table() -> str:
    """Milliseconds that low-rank fields take at least, and by what; those that they take; a third of scipy's."""
    lines = []
    for row in results.load("limit")["rows"]:
        side, rank, batch = row["size"]
        figures = [*row["parts"], row["floor"], row["ours"], row["third"]]
        within = "yes" if row["floor"] < row["third"] else "no"
        lines.append([f"{side}², {rank} dims, batch {batch}", *map(short, figures), within])
    head = ("field", "multiply-adds", "reading", "writing", "floor", "ours", "scipy / 3", "bar within reach")
    return table(head, lines) if lines else "Not measured."


def memory_table() -> str:
    """Fields beyond inputs and gradients."""
    lines = [
        [f"{row['side']}², {row['what']}", row["name"], f"{short(row['megabytes'])} MB", f"{short(row['field'])} MB",
         short(row["buffers"])] if "buffers" in row else [row["what"], row["name"], row["refused"], "", ""]
        for row in results.load("memory")["rows"]
    ]  # fmt: skip
    head = ("case", "name", "peak above the inputs", "one field", "fields beyond inputs and gradients")
    return table(head, lines) if lines else "Not measured."


def made() -> str:
    """All sections."""
    machine = results.load("lowrank")["machine"]
    versions = ", ".join(f"{name} {one}" for name, one in machine.get("versions", {}).items())
    return "\n\n".join(
        [
            f"`benchmarks.gaussian.run` (see above), {machine.get('date')}, {machine.get('processor')}, one thread, "
            f"Python {machine.get('python')}, {machine.get('clock')} time, {versions}.",
            *(() if machine.get("clock") == "wall" else (FIRST_LOOK,)),
            "### Bars of fields\n\nOurs is the compiled spec, from inputs to gradients; peers do bare solves on a "
            "matrix that is bounded already. `solver alone` judges our solver on that matrix, gradients included.\n\n"
            + bar_table(),
            "### Low-rank fields\n\nTwo labels, float32. `ms` is a compiled spec from inputs to gradients; the other "
            "columns say how many times longer each takes (medians of alternating pairs, with quartiles). Peers get "
            "the bounded matrix and do bare solves: scipy makes no gradient of the embeddings.\n\n"
            + speed_table("lowrank"),
            "With two threads on both sides:\n\n" + speed_table("lowrank-2"),
            "What low-rank fields take at least, forward + backward, in milliseconds: multiply-adds at the processor's "
            "peak, reading the embeddings twice, writing their gradient once. The bar of three times scipy "
            "is within reach where the floor is below a third of its time.\n\n" + limit_table(),
            "### Grids\n\nWeights between 0 and 2 for each edge, or constant; float32, residual 1e-6.\n\n"
            + speed_table("grids"),
            "### Memory of fields\n\nThe peak of a fresh process over forward and backward.\n\n" + memory_table(),
            "### Condition\n\nTo a relative residual of 1e-6, in float64.\n\n"
            "![Iterations and time against the condition number](performance-condition.svg)",
        ]
    )


def write(path: Path) -> None:
    """Put the tables between their markers."""
    before, rest = path.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    path.write_text(f"{before}{START}\n{made()}\n{END}{after}", encoding="utf-8")

"""Tables of the stored results, written into `docs/performance.md` between their own markers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exact import results
from benchmarks.exact.bars import (
    AGAINST_ALL,
    AGAINST_AUTOGRAD,
    MEMORY,
    Bar,
    Row,
    Wanted,
    all_bars,
    anything,
    autograd,
    nearest,
)
from benchmarks.exact.sizes import DIRECT, LOG_PARTITION, NLL, SIZES, TASKS, UNTUNED, Size

TORCH = {"pytorch-crf": 4.0, "Pyro": 1.0}
FIRST_LOOK = (
    "**A first look on a busy machine, in processor time: not the figures to judge by.** Commands were run at "
    "different times, and what was not measured says so."
)
MARKERS = ("<!-- measured: exact -->", "<!-- end measured: exact -->")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mark(met: bool) -> str:
    """Whether a bar is kept, in a word that is seen."""
    return "yes" if met else "**NO**"


def named(size: Sequence[int]) -> str:
    """A size; untuned ones have a star."""
    star = "*" if tuple(size) in UNTUNED else ""
    return f"({', '.join(map(str, size))}){star}"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def bar_table(bars: Sequence[Bar]) -> str:
    """Every bar with its worst cell."""
    rows = []
    for bar in bars:
        worst = bar.worst
        if worst is None:
            rows.append([bar.name, "not measured", "", mark(False), f"`{bar.command}`"])
            continue
        value = "none" if worst.value is None else short(worst.value)
        note = f" ({worst.note})" if worst.note else ""
        kept = f"{mark(bar.kept == len(bar.readings))}, {bar.verdict}"
        rows.append([bar.name, value, f"{worst.where}{note}", kept, f"`{bar.command}`"])
    return table(("bar", "worst", "where", "kept", "command"), rows)


def chain_tables() -> str:
    """For each task, the nearest peer of any kind and the nearest PyTorch peer at each size."""
    stored = results.load("chains")
    if not stored["rows"]:
        return "Not measured."
    cells = {(tuple(row["size"]), row["ragged"], row["task"], row["threads"]): row for row in stored["rows"]}
    columns = [(ragged, threads) for threads in (1, 2) for ragged in (False, True)]
    head = ["size", *(f"{'ragged' if ragged else 'full'}, {threads} thr." for ragged, threads in columns)]
    parts = []
    choices: tuple[tuple[str, dict[str, float], Wanted], ...] = (
        ("any peer", AGAINST_ALL, anything),
        ("PyTorch autograd peers", AGAINST_AUTOGRAD, autograd),
    )
    for task in (*TASKS, DIRECT):
        for words, bars, wanted in choices:

            def cell(row: Row | None, bar: float, wanted: Wanted = wanted) -> str:
                found = row and nearest(row, stored["kinds"], wanted)
                if not found:
                    return ""
                name, (low, middle, high, *_) = found
                text = f"{short(middle)} ({short(low)} to {short(high)}) {name}"
                return text if middle >= bar else f"**{text}**"

            rows = [[named(size), *(cell(cells.get((size, *at[:1], task, at[1])), bars[task]) for at in columns)]
                    for size in SIZES]  # fmt: skip
            parts.append(f"`{task}` against {words}, bar {bars[task]:g}:\n\n{table(head, rows)}")
    return "\n\n".join([*parts, own_times(cells), partial_peers(stored)])


def own_times(cells: dict[Any, Row]) -> str:
    """Microseconds of the call on bare scores, and of a compiled spec."""

    def cell(size: Size, ragged: bool, task: str) -> str:
        row = cells.get((size, ragged, task, 1))
        spec = row and row.get("spec")
        return "" if row is None else f"{short(row['ours'])} / {short(spec[4]) if spec else '?'}"

    words = "Microseconds, one thread: `em.functional` on bare scores / the same through a compiled spec"
    return f"{words}:\n\n{grid(cell)}"


def partial_peers(stored: dict[str, Any]) -> str:
    """Peers that do less than the task, who did not run and why."""
    kinds = stored["kinds"]
    lines = []
    for name in (name for name, (_, whole) in kinds.items() if not whole):
        ratios = [row["peers"][name][1] for row in stored["rows"] if name in row["peers"]]
        if ratios:
            lines.append(
                f"- {name} (its scores are set before the clock starts, so it is not held against a bar): "
                f"{short(min(ratios))} to {short(max(ratios))} times our time for the whole task."
            )
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in stored["rows"]:
        for name, reason in row["refused"].items():
            if "the same as" not in reason and not reason.startswith("as "):
                sizes = reasons.setdefault((name, reason), [])
                place = f"{named(row['size'])} {row['task']}"
                if place not in sizes:
                    sizes.append(place)
    for (name, reason), places in reasons.items():
        where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        lines.append(f"- {name} did not run at {where}: {reason}.")
    lines += [f"- {name} could not be imported: {reason}." for name, reason in stored.get("missing", {}).items()]
    return "\n".join(lines)


def grid(cell: Callable[[Size, bool, str], str], tasks: Sequence[str] = TASKS) -> str:
    """A table with a row for each size, and columns for each task, full and ragged."""
    shapes = (("full", False), ("ragged", True))
    head = ["size", *(f"{task}, {name}" for task in tasks for name, _ in shapes)]
    rows = [[named(size), *(cell(size, ragged, task) for task in tasks for _, ragged in shapes)] for size in SIZES]
    return table(head, rows)


def torch_table() -> str:
    """The torch path alone."""
    cells = {
        (tuple(row["size"]), row["ragged"], row["task"], row["threads"]): row for row in results.load("torch")["rows"]
    }
    parts = []
    for threads in (1, 2):

        def cell(size: Size, ragged: bool, task: str, threads: int = threads) -> str:
            row = cells.get((size, ragged, task, threads), {"peers": {}, "refused": {}})
            found = [_rated(row["peers"][name][1], bar, name) for name, bar in TORCH.items() if name in row["peers"]]
            return ", ".join(found) or "; ".join(row["refused"].values())

        if any(key[3] == threads for key in cells):
            words = "one thread" if threads == 1 else f"{threads} threads"
            parts.append(
                f"Times faster than pytorch-crf, {words}; at (1, 2000, 23) than Pyro's scan too:\n\n{grid(cell)}"
            )
    return "\n\n".join(parts) or "Not measured."


def _rated(value: float, bar: float, name: str) -> str:
    text = short(value) if name == "pytorch-crf" else f"{short(value)} {name}"
    return text if value >= bar else f"**{text}**"


def accuracy_table() -> str:
    """Errors and the cost of the safe path at each magnitude; the worst over sizes and shapes."""
    grouped: dict[tuple[str, float], list[Row]] = {}
    for row in results.load("accuracy")["rows"]:
        grouped.setdefault((row["task"], row["scale"]), []).append(row)

    def worst(rows: list[Row], name: str) -> str:
        found = [row["errors"][name] for row in rows if name in row["errors"]]
        numbers = [one for one in found if isinstance(one, float)]
        if any(one != one for one in numbers):
            return "NaN"
        return f"{max(numbers):.1e}" if numbers else "refused"

    names = ("energyml", "dynamax", "pytorch-crf", "torch-struct")
    lines = [
        [task, f"x{scale:g}", *(worst(rows, name) for name in names), short(max(row["slower"][1] for row in rows))]
        for (task, scale), rows in grouped.items()
    ]
    return table(("task", "scores", *names, "ours, times slower than x1"), lines)


def limit_table() -> str:
    """Distance from the machine's limit."""
    cells = {(tuple(row["size"]), row["ragged"], row["task"]): row for row in results.load("limit")["rows"]}

    def cell(size: Size, ragged: bool, task: str) -> str:
        row = cells.get((size, ragged, task))
        if row is None:
            return ""
        spec = f" / {short(row['spec'] / row['limit'])}" if "spec" in row else ""
        text = f"{short(row['times'])}{spec} of {short(row['limit'])} µs"
        kept = 1 <= row["times"] <= (2.5 if size[2] >= 100 else 6.0)
        return text if kept else f"**{text}**"

    return grid(cell, (LOG_PARTITION, NLL, DIRECT))


def memory_table() -> str:
    """Megabytes above the inputs."""
    rows: dict[str, list[str]] = {}
    for row in results.load("memory")["rows"]:
        text = f"{short(row['megabytes'])} MB" if "megabytes" in row else row["refused"]
        rows.setdefault(row["name"], []).append(text)
    head = ["", *(f"({', '.join(map(str, size))}), bar {bar:g} MB" for size, bar in MEMORY.items())]
    return table(head, ([name, *cells] for name, cells in rows.items()))


def threads_table() -> str:
    """What a second thread brings."""
    cells = {(tuple(row["size"]), row["ragged"], row["task"]): row for row in results.load("threads")["rows"]}

    def cell(size: Size, ragged: bool, task: str) -> str:
        row = cells.get((size, ragged, task))
        return short(row["gain"][1]) if row else ""

    return grid(cell) if cells else "Not measured."


def trees_table() -> str:
    """Trees against chains."""
    rows = []
    for row in results.load("trees")["rows"]:
        if "slower" in row:
            low, middle, high = row["slower"]
            times = f"{short(middle)} ({short(low)} to {short(high)})"
            rows.append([row["name"], row["task"], f"{short(row['chains'])} µs", f"{short(row['trees'])} µs", times,
                         mark(middle <= 3)])  # fmt: skip
        else:
            rows.append([row["name"], row["task"], "", "", row["refused"], mark(False)])
    return table(("structure", "task", "as a chain", "as a tree", "times slower", "kept"), rows)


def uai_table() -> str:
    """The competition's models."""
    rows = []
    for row in results.load("uai")["rows"]:
        peer = row.get("pgmpy") or {}
        theirs = f"{short(peer['ms'])} ms" if "ms" in peer else peer.get("refused", "")
        if "later" not in row:
            rows.append([row["model"], row["task"], f"{row['operations']:.2g}", f"{short(row['implied'])} ms",
                         row.get("refused", ""), "", "", theirs, "", mark(False)])  # fmt: skip
            continue
        over = row["later"] / row["implied"]
        faster = [peer["ms"] / row[field] for field in ("later", "first")] if "ms" in peer else []
        kept = over <= 10 and all(one >= 20 for one in faster[:1])
        rows.append([row["model"], row["task"], f"{row['operations']:.2g}", f"{short(row['implied'])} ms",
                     *(f"{short(row[field])} ms" for field in ("later", "first")), short(over), theirs,
                     " / ".join(map(short, faster)), mark(kept)])  # fmt: skip
    head = (
        "model",
        "task",
        "operations",
        "implied",
        "ours",
        "first call",
        "times implied",
        "pgmpy",
        "times faster",
        "kept",
    )
    return table(head, rows)


def made() -> str:
    """All sections."""
    stored = results.load("chains")
    machine = stored["machine"]
    busy = sorted({row["task"] for row in stored["rows"] if row.get("clock") == "cpu"})
    versions = ", ".join(f"{name} {one}" for name, one in machine.get("versions", {}).items())
    return "\n\n".join(
        [
            f"`make bench-exact`, {machine.get('date')}, {machine.get('processor')}, {machine.get('cores')} cores, "
            f"Python {machine.get('python')}, {versions}. Wall time"
            + (f"; of chains, {', '.join(busy)} in processor time on a busy machine." if busy else "."),
            "### Bars\n\n" + bar_table(all_bars()),
            "### Chains\n\nTimes faster than the nearest peer: medians of alternating pairs with quartiles; **bold** "
            "below the bar; sizes with * were not tuned on, but for the torch path.\n\n" + chain_tables(),
            "### The torch path alone\n\n" + torch_table(),
            "### Magnitudes\n\nLargest errors in float32 against float64, over all sizes, full and ragged.\n\n"
            + accuracy_table(),
            "### Distance from the machine's limit\n\nTimes longer than the limit: `em.functional` on bare scores / "
            "through a compiled spec.\n\n" + limit_table(),
            "### Memory\n\nPeak above the inputs of likelihood and gradients, in a fresh process.\n\n" + memory_table(),
            "### Growth\n\n![Time against length and batch](performance-growth.svg)",
            "### Threads\n\nHow many times faster two threads are than one.\n\n" + threads_table(),
            "### Trees\n\n64 random trees of 100 nodes and 20 labels against chains of the same size.\n\n"
            + trees_table(),
            "### UAI models\n\n`ours` knows its plan; `first call` makes it. Times faster than pgmpy: plan known / "
            "planning included.\n\n" + uai_table(),
        ]
    )


def write(path: Path) -> None:
    """Put the tables between their markers."""
    text = path.read_text(encoding="utf-8")
    start, end = text.index(MARKERS[0]) + len(MARKERS[0]), text.index(MARKERS[1])
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as partial:
        partial.write(f"{text[:start]}\n{made()}\n{text[end:]}")
    Path(partial.name).chmod(path.stat().st_mode)
    Path(partial.name).replace(path)

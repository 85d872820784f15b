"""The bars of Gaussian fields, read from the stored results."""

from __future__ import annotations

from typing import Any

from benchmarks.exact.bars import Bar, Reading
from benchmarks.gaussian import results
from benchmarks.gaussian.ours import BACKWARD, FORWARD

Row = dict[str, Any]
ALONE = "energyml, solver alone"
AS_SCIPY, FASTER_THAN_OPERATOR, FASTER_OF_MANY, GRID, BUFFERS = 1.3, 3.0, 3.0, 3.0, 12.0


def place(row: Row) -> str:
    """A cell in words."""
    side, other, batch = row["size"]
    what = f"{other} dims" if "spectrum" in row else f"{other} label{'s' * (other > 1)}"
    weights = ", constant" if row.get("constant") else ""
    more = f", {row['spectrum']}" if "spectrum" in row else f", ridge {row['ridge']:g}{weights}"
    return f"{side}², {what}, batch {batch}{more}, {row['task']}"


def _ratio(row: Row, peer: str, alone: bool) -> tuple[float | None, str]:
    """Peer over ours, and a note; `alone`: over our solver on the matrix that the peer is given.

    Peer and solver alone were each paired with the whole, so theirs is the ratio of two medians.
    """
    found = row["peers"].get(peer)
    if alone and found is not None:
        solver = row["peers"].get(ALONE)
        return (None, "not measured") if solver is None else (found[1] / solver[1], "")
    if found is None:
        return None, row["refused"].get(peer, "not measured")
    taken = row["iterations"].get(peer)
    return found[1], f"{found[3]:.3g} against {found[4]:.3g} ms" + (f", {max(taken)} iterations" if taken else "")


def _readings(rows: list[Row], peer: str, bar: float, least: bool = True, alone: bool = False) -> tuple[Reading, ...]:
    made = []
    for row in rows:
        value, note = _ratio(row, peer, alone)
        if value is not None and not least:
            value = 1 / value
        made.append(Reading(place(row), value, bar, least, note))
    return tuple(made)


def all_bars() -> list[Bar]:
    """Every bar; one without results has no readings."""
    return [bar for bar, _ in judgements()]


def judgements() -> list[tuple[Bar, Bar | None]]:
    """Every bar, and for solves of one example the same of the solver alone: equal work, on the matrix of the peers."""
    rows, two = (
        [row for row in results.load(name)["rows"] if row["spectrum"] == "decaying" and row["task"] == BACKWARD]
        for name in ("lowrank", "lowrank-2")
    )
    single, many = ([row for row in rows if (row["size"][2] > 1) == big] for big in (False, True))
    grids = [row for row in results.load("grids")["rows"] if row["task"] == FORWARD]
    memory = [row for row in results.load("memory")["rows"] if row["name"] == "energyml"]
    buffers = tuple(
        Reading(f"{row['side']}², {row['what']}", row.get("buffers"), BUFFERS, False, row.get("refused", ""))
        for row in memory
    )
    varying, constant = ([row for row in grids if row["constant"] == even] for even in (False, True))

    def of(name: str, rows: list[Row], bar: float, least: bool = True) -> tuple[Bar, Bar | None]:
        command = "lowrank" if "low rank" in name else "grids"
        one_example = [row for row in rows if row["size"][2] == 1]
        alone = Bar(f"{name}, solver alone", command, _readings(one_example, "scipy", bar, least, alone=True))
        return Bar(name, command, _readings(rows, "scipy", bar, least)), alone if one_example else None

    operator = Bar("low rank, forward + backward: at least 3 times faster than linear_operator's CG", "lowrank",
                   _readings(rows, "linear_operator", FASTER_THAN_OPERATOR))  # fmt: skip
    return [
        of("low rank, forward + backward, batch 1: at most 1.3 times scipy's two bare solves", single, AS_SCIPY, False),
        (operator, None),
        of("low rank, forward + backward, batch 16: at least 3 times faster than scipy", many, FASTER_OF_MANY),
        of("low rank, the same with two threads on both sides", two, FASTER_OF_MANY),
        of("grids, one solve by cg: at least 3 times faster than scipy's CG", varying, GRID),
        of("constant grids, one solve by `exact`: at least 3 times faster than scipy's CG", constant, GRID),
        (Bar("memory of forward + backward: at most 12 fields beyond inputs and gradients", "memory", buffers), None),
    ]

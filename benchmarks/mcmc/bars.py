"""The bars of samplers, read from the stored results."""

from __future__ import annotations

from typing import Any

from benchmarks.exact.bars import Bar, Reading
from benchmarks.mcmc import results

Row = dict[str, Any]
FASTER, MILLIONS, BATCHED, MANY = 3.0, 120.0, 3.0, 64
OWN = "energyml"
TITLES = {"ising": "Ising 64 x 64", "chain": "chain of 50 cells, 400 labels"}


def is_peer(row: Row) -> bool:
    """Whether a row is another library's, with figures."""
    return not row["name"].startswith(OWN) and "ratio" in row


def place(row: Row) -> str:
    """A cell in words."""
    return f"{TITLES[row['case']]}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"


def _cells(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted({(row["case"], row["threads"]) for row in rows if row["name"] == OWN}, reverse=True)


def _nearest(rows: list[Row], case: str, threads: int, ratios: dict[int, float]) -> Reading:
    """The smallest of the ratios by row number."""
    where = place({"case": case, "threads": threads})
    if not ratios:
        return Reading(where, None, FASTER, True, "no peer ran")
    number = min(ratios, key=lambda one: ratios[one])
    return Reading(where, ratios[number], FASTER, True, rows[number]["name"])


def all_bars() -> list[Bar]:
    """Every bar; one without results has no readings."""
    rows = results.load("speed")["rows"]
    updates, effective = [], []
    for case, threads in _cells(rows):
        here = {
            n: row for n, row in enumerate(rows) if (row["case"], row["threads"]) == (case, threads) and is_peer(row)
        }
        updates.append(_nearest(rows, case, threads, {n: row["ratio"][1] for n, row in here.items()}))
        worth = {
            n: min(one[1] for one in row["effective ratio"].values())
            for n, row in here.items()
            if row["effective ratio"]
        }
        effective.append(_nearest(rows, case, threads, worth))
    absolute = tuple(
        Reading(place(row), row["updates"] / 1e6, MILLIONS, True, f"{row['chains']} chains")
        for row in rows
        if row["name"] == OWN and row["case"] == "ising"
    )
    proposals = tuple(
        Reading(
            f"{row['net']}, {row['chains']} chains", row["ratio"][1], BATCHED, True, f"{row['proposals']:.3g} a second"
        )
        for row in results.load("proposals")["rows"]
        if row["chains"] >= MANY
    )
    return [
        Bar("site updates: at least 3 times the best peer", "speed", tuple(updates)),
        Bar("effective draws: at least 3 times the best peer", "speed", tuple(effective)),
        Bar("site updates of the Ising grid: at least 120 million a second", "speed", absolute),
        Bar("masked proposals, many chains: at least 3 times a loop over one", "proposals", proposals),
    ]


__all__ = ["OWN", "TITLES", "all_bars", "is_peer", "place"]

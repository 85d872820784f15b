"""Tables of the stored results, written into `docs/performance.md` between their markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.exact.report import FIRST_LOOK, bar_table, short, table
from benchmarks.mcmc import results
from benchmarks.mcmc.bars import TITLES, all_bars

START, END = "<!-- measured: mcmc -->", "<!-- end measured: mcmc -->"

Row = dict[str, Any]


def rate(value: float) -> str:
    """Three digits and a power of ten."""
    return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def _spread(found: list[float]) -> str:
    low, middle, high = found
    return f"{short(middle)} ({short(low)} to {short(high)})"


def speed_table(case: str) -> str:
    """A line for each contestant and number of threads."""
    lines = []
    for row in results.load("speed")["rows"]:
        if row["case"] != case:
            continue
        threads = str(row["threads"])
        if "refused" in row:
            lines.append([row["name"], threads, "", "", "", "", "", row["refused"]])
            continue
        other = row.get("effective ratio")
        whole = other is None or bool(other)
        effective = " / ".join(rate(one) for one in row["effective"].values()) if whole else ""
        if effective and (row["rhat"] or 1) > 1.05:  # too few sweeps to count effective draws in
            effective += f" (not mixed in {row['sweeps']} sweeps: R-hat {short(row['rhat'])})"
        ratios = "" if not other else " / ".join(short(one[1]) for one in other.values())
        lines.append(
            [row["name"], threads, str(row["chains"]), rate(row["updates"]), rate(row["kept updates"]), effective,
             _spread(row["ratio"]) if "ratio" in row else "", ratios]
        )  # fmt: skip
    head = (
        "sampler", "threads", "chains", "updates/s", "updates/s, every sweep kept",
        "effective draws/s: score / mean label", "ours over it, updates", "ours over it, effective draws",
    )  # fmt: skip
    return table(head, lines) if lines else "Not measured."


def proposal_table() -> str:
    """A line for each network and number of chains."""
    lines = [
        [row["net"], str(row["chains"]), short(row["proposals"]), short(row["loop"]), _spread(row["ratio"])]
        for row in results.load("proposals")["rows"]
    ]
    head = ("network", "chains", "proposals/s", "loop over one chain, proposals/s", "ours over it")
    return table(head, lines) if lines else "Not measured."


def made() -> str:
    """All sections."""
    stored = results.load("speed")
    machine = stored["machine"]
    versions = ", ".join(f"{name} {one}" for name, one in machine.get("versions", {}).items())
    settings = results.load("proposals").get("settings", {})
    return "\n\n".join(
        [
            f"`benchmarks.mcmc.run` (see above), {machine.get('date')}, {machine.get('processor')}, Python "
            f"{machine.get('python')}, {machine.get('clock')} time, {versions}.",
            *(() if machine.get("clock") == "wall" else (FIRST_LOOK,)),
            "### Bars of samplers\n\n" + bar_table(all_bars()),
            f"### {TITLES['ising']}\n\nCoupling 0.6 (the critical one is 0.88), a random outer field, float32.\n\n"
            + speed_table("ising"),
            f"### {TITLES['chain'].capitalize()}\n\nNormal scores, float32. Whole chains are independent draws.\n\n"
            + speed_table("chain"),
            f"### Masked Metropolis-Hastings\n\n{settings.get('length')} cells of {settings.get('labels')} labels, raw "
            "energy, one cell at a time.\n\n" + proposal_table(),
        ]
    )


def write(path: Path) -> None:
    """Put the tables between their markers."""
    before, rest = path.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    path.write_text(f"{before}{START}\n{made()}\n{END}{after}", encoding="utf-8")

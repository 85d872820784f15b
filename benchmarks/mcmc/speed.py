"""Site updates and effective draws per second, ours and each peer in turns.

A contestant first shows that it samples the same thing: its mean score over all chains must be ours.  It runs with the
number of chains at which it is fastest.  What counts as a draw is a sweep after which the score and the mean label of
every chain are kept; bare sweeps keep nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import arviz
import numpy as np
import torch

from benchmarks.exact.timing import CLOCK, Ratio
from benchmarks.mcmc import results
from benchmarks.mcmc.cases import Case, Chain, Ising
from benchmarks.mcmc.contestants import Contestant, Prepared, Refused, peers
from benchmarks.mcmc.contestants.ours import ours
from benchmarks.mcmc.results import figure

# Sweeps that effective draws are counted in, and sweeps before them that chains at random labels need.
LONG, BURN_IN = 400, 100
# Seconds that a contestant may take for them; slower ones run fewer sweeps, and their figure is marked.
PATIENCE = 60.0


def seconds(call: Any, count: int) -> float:
    """Time of a call with a number of sweeps."""
    start = CLOCK()
    call(count)
    return CLOCK() - start


def fastest(one: Contestant, case: Case) -> Prepared:
    """With the number of chains at which bare sweeps update the most sites in a second."""
    best: tuple[float, Prepared] | None = None
    for chains in one.chains[case.name]:
        made = one.prepare(case, chains)
        count = one.sweeps[case.name]
        seconds(made.sweep, count)
        rate = chains / min(seconds(made.sweep, count) for _ in range(2))
        if best is None or rate > best[0]:
            best = rate, made
    assert best is not None
    return best[1]


def alternating(mine: tuple[Any, int], theirs: tuple[Any, int], budget: float) -> Ratio:
    """Pairs of calls in turns, as `timing.pairs`; each call is a number of sweeps that is given."""
    first, second = [], []
    start = time.perf_counter()
    seconds(*mine)
    seconds(*theirs)
    while len(first) < 5 or (len(first) < 40 and time.perf_counter() - start < budget):
        if len(first) % 2:
            second.append(seconds(*theirs))
            first.append(seconds(*mine))
        else:
            first.append(seconds(*mine))
            second.append(seconds(*theirs))
        if len(first) == 3 and time.perf_counter() - start > 4 * budget:
            break
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Ratio(low, middle, high, statistics.median(first), statistics.median(second), len(first))


def worth(made: Prepared, count: int) -> dict[str, Any]:
    """Effective draws of the score and of the mean label for each draw, and the mean score with its error.

    Args:
        made: the sampler.
        count: sweeps of one call.
    """
    made.draw(count)  # what is compiled is compiled now
    start = CLOCK()
    made.draw(count)
    calls = max(20 // count, min(LONG // count, int(PATIENCE / max(CLOCK() - start, 1e-9))))
    for _ in range(max(1, calls * BURN_IN // LONG)):
        made.sweep(count)
    found = np.concatenate([made.draw(count) for _ in range(max(1, calls))], 1)
    chains, sweeps = found.shape[:2]
    kinds = ("score", "mean label")
    ess = {kind: float(arviz.ess(found[:, :, place])) for place, kind in enumerate(kinds)}
    rhat = max(float(arviz.rhat(found[:, :, place])) for place in range(2)) if chains > 1 else None
    mean = float(found[:, :, 0].mean())
    error = float(found[:, :, 0].std() / np.sqrt(max(1.0, ess["score"])))
    return {
        "sweeps": sweeps, "rhat": None if rhat is None else figure(rhat), "mean": mean, "error": error,
        "worth": {kind: figure(one / (chains * sweeps)) for kind, one in ess.items()},
    }  # fmt: skip


def agrees(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a contestant whose mean score is not ours."""
    distance = abs(mine["mean"] - theirs["mean"])
    allowed = 5 * float(np.hypot(mine["error"], theirs["error"])) + 1e-3 * abs(mine["mean"])
    if distance > allowed:
        raise Refused(f"its mean score {theirs['mean']:.5g} is not ours, {mine['mean']:.5g}")


def row(
    case: Case, name: str, made: Prepared, own: dict[str, Any], per_sweep: dict[str, float], more: dict[str, Any]
) -> dict[str, Any]:
    """Rates from seconds for each sweep of all chains."""
    return {
        "case": case.name, "name": name, "chains": made.chains, "cells": made.cells, "sweeps": own["sweeps"],
        "rhat": own["rhat"], "updates": figure(made.chains * made.cells / per_sweep["bare"]),
        "kept updates": figure(made.chains * made.cells / per_sweep["kept"]), "worth": own["worth"],
        "effective": {kind: figure(made.chains * one / per_sweep["kept"]) for kind, one in own["worth"].items()},
        **more,
    }  # fmt: skip


def measure(case: Case, threads: int, budget: float, only: tuple[str, ...], store: Any) -> None:
    """All contestants of a case, each stored when it is done."""
    found, missing = peers(only)
    first, *others = (one for one in ours() if case.name in one.chains)
    mine = fastest(first, case)
    count = first.sweeps[case.name]
    known = worth(mine, count)
    rows: list[dict[str, Any]] = []
    every: list[Contestant] = [*(() if only else others), *found]
    for one in every:
        try:
            made = fastest(one, case)
            own = worth(made, one.sweeps[case.name])
            if made.cells == mine.cells:
                agrees(known, own)
            theirs = one.sweeps[case.name]
            bare = alternating((mine.sweep, count), (made.sweep, theirs), budget)
            kept = alternating((mine.draw, count), (made.draw, theirs), budget)
        except Refused as reason:
            rows.append({"case": case.name, "name": one.name, "threads": threads, "refused": str(reason)})
            print(f"{one.name}: {reason}", flush=True)
            store(rows)
            continue
        if not any(entry["name"] == first.name for entry in rows):
            own_times = {"bare": bare.ours / count, "kept": kept.ours / count}
            rows.append(row(case, first.name, mine, known, own_times, {"threads": threads}))
        share = made.chains * made.cells * theirs / (mine.chains * mine.cells * count)
        gain = {
            kind: known["worth"][kind] * mine.chains * count / (own["worth"][kind] * made.chains * theirs)
            for kind in own["worth"]
            if made.cells == mine.cells  # effective draws of another model say nothing
        }
        rows.append(
            row(
                case, one.name, made, own, {"bare": bare.peer / theirs, "kept": kept.peer / theirs},
                {
                    "threads": threads,
                    "ratio": [figure(part / share) for part in (bare.low, bare.middle, bare.high)],
                    "kept ratio": [figure(part / share) for part in (kept.low, kept.middle, kept.high)],
                    "effective ratio": {
                        kind: [figure(part * one) for part in (kept.low, kept.middle, kept.high)]
                        for kind, one in gain.items()
                    },
                    "pairs": min(bare.pairs, kept.pairs),
                },
            )
        )  # fmt: skip
        print(rows[-1], flush=True)
        store(rows)
    rows += [{"case": case.name, "name": name, "threads": threads, "refused": why} for name, why in missing.items()]
    store(rows)


def stored(rows: list[dict[str, Any]], quick: bool) -> None:
    """Write what is there so far."""
    name = "speed-quick" if quick else "speed"
    results.store(name, rows, ("case", "name", "threads"), settings={"sweeps": LONG, "burn_in": BURN_IN})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are stored apart")
    parser.add_argument("--case", choices=("ising", "chain"), action="append")
    parser.add_argument("--peer", action="append", default=[], help="only these peers, and none of ours but the first")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each pair of contestants")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    cases: list[Case] = [Ising(16), Chain(40, 10)] if options.quick else [Ising(), Chain()]
    for case in cases:
        if options.case and case.name not in options.case:
            continue
        budget = 0.2 if options.quick else options.budget
        measure(case, threads, budget, tuple(options.peer), lambda rows: stored(rows, options.quick))


if __name__ == "__main__":
    main()

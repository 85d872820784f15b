"""Chains against every peer: each size, full and ragged, each task; one process for all contestants.

Called by `run.py`, once for each number of threads.
"""

from __future__ import annotations

import argparse
import gc
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.exact import results
from benchmarks.exact.contestants import Contestant, Prepared, Refused, check, peers
from benchmarks.exact.contestants.ours import Compiled, Ours
from benchmarks.exact.sizes import DIRECT, NLL, QUICK, SIZES, TASKS, Case, Size, make_case
from benchmarks.exact.timing import Ratio, pairs

KEY = ("size", "ragged", "task", "threads")


def cell(ours: Contestant, contestants: Sequence[Contestant], case: Case, task: str, budget: float) -> dict[str, Any]:
    """One task on one case: our time, and the ratio of each peer with its quartiles."""
    mine = ours.prepare(case, task)
    answer = mine.read(mine.run())
    asked = NLL if task == DIRECT else task
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for peer in contestants:
        try:
            theirs = peer.prepare(case, asked)
            check(case, asked, answer, theirs.read(theirs.run()), peer.name)
            found[peer.name] = row(pairs(mine.run, theirs.run, budget))
        except Refused as reason:
            refused[peer.name] = str(reason)
        except Exception as error:  # a peer's own failure is a result
            refused[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    took = [one[3] for one in found.values()]
    return {
        "size": list(case.size), "ragged": case.ragged, "task": task, "threads": torch.get_num_threads(),
        "clock": results.clock(),
        "ours": results.figure(sorted(took)[len(took) // 2]) if took else None, "peers": found, "refused": refused,
    }  # fmt: skip


def row(ratio: Ratio) -> list[float]:
    """Quartiles of the ratio, microseconds of ours and of the peer."""
    return [results.figure(one) for one in (ratio.low, ratio.middle, ratio.high, 1e6 * ratio.ours, 1e6 * ratio.peer)]


def through_a_spec(case: Case, task: str, mine: Prepared, budget: float) -> list[float] | None:
    """The same through a compiled spec, against the call on bare scores; a spec's loss is always on the tape."""
    if task == DIRECT:
        return None
    try:
        theirs = Compiled().prepare(case, task)
        return row(pairs(mine.run, theirs.run, budget))
    except Exception:
        return None


def size_of(text: str) -> Size:
    """Batch, length and labels, given as `32,20,26`."""
    try:
        batch, length, labels = (int(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected BATCH,LENGTH,LABELS as in 32,20,26, found {text!r}") from None
    if min(batch, length, labels) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, found {text!r}")
    return batch, length, labels


def chosen_sizes(quick: bool, only: Sequence[Size]) -> tuple[Size, ...]:
    """Those given, or all sizes, or the quick ones."""
    return tuple(only) or (QUICK if quick else SIZES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds for each pair of contestants")
    parser.add_argument("--size", type=size_of, action="append", default=[], help="only BATCH,LENGTH,LABELS")
    parser.add_argument("--task", choices=(*TASKS, DIRECT), action="append", default=[])
    parser.add_argument("--peer", action="append", default=[])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    contestants, missing = peers(tuple(options.peer))
    for module, reason in missing.items():
        print(f"{module} is left out: {reason}")
    if unknown := set(options.peer) - {one.name for one in contestants}:
        parser.error(f"no peer that runs here is called {', '.join(sorted(unknown))}")
    budget = 0.03 if options.quick else options.budget
    ours = Ours()
    rows = []
    for size in chosen_sizes(options.quick, options.size):
        for ragged in (False, True):
            case = make_case(size, ragged)
            for task in options.task or (*TASKS, DIRECT):
                made = cell(ours, contestants, case, task, budget)
                made["spec"] = through_a_spec(case, task, ours.prepare(case, task), budget)
                rows.append(made)
                _say(made, contestants)
                gc.collect()
        kinds = {one.name: [one.kind, one.whole] for one in contestants}
        if not options.peer:
            results.store("chains-quick" if options.quick else "chains", rows, KEY, kinds=kinds, missing=missing)


def _say(made: dict[str, Any], contestants: Sequence[Contestant]) -> None:
    rated = {one.name: made["peers"][one.name][1] for one in contestants if one.name in made["peers"] and one.whole}
    shape = "ragged" if made["ragged"] else "full"
    best = min(rated, key=lambda name: rated[name], default=None)
    against = f"{best} {rated[best]:.2f}" if best else "no peer"
    print(
        f"{tuple(made['size'])} {shape} {made['task']} x{made['threads']}: {made['ours']} us, nearest {against}",
        flush=True,
    )


if __name__ == "__main__":
    main()

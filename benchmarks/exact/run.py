"""Runs the benchmarks of exact inference: `python -m benchmarks.exact.run SUBCOMMAND`, in the peers' environment.

Each subcommand runs in a fresh process with a fixed number of threads, stores its figures under `results/` and prints
the bars that it measures.  The exit code is 1 when one of them is not kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.exact.timing import in_threads

# subcommand -> module and the thread counts that it is run with
COMMANDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "chains": ("chains", (1, 2)),
    "torch": ("torch_engine", (1, 2)),
    "accuracy": ("accuracy", (1,)),
    "limit": ("limit", (1,)),
    "memory": ("memory", (1,)),
    "growth": ("growth", (1,)),
    "threads": ("threads", (2,)),
    "trees": ("trees", (1,)),
    "uai": ("uai", (1,)),
}
DOCS = Path(__file__).parents[2] / "docs" / "performance.md"


def verdicts(command: str | None, cells: int = 0) -> bool:
    """Print the bars of a subcommand, or all, and some of the cells that miss them; whether all are kept."""
    from benchmarks.exact.bars import all_bars
    from benchmarks.exact.report import short

    kept = True
    for bar in all_bars():
        if command is not None and bar.command != command:
            continue
        worst = bar.worst
        whole = bool(bar.readings) and bar.kept == len(bar.readings)
        kept = kept and whole
        value = "no figure" if worst is None or worst.value is None else short(worst.value)
        place = "" if worst is None else f", worst {value} at {worst.where} {worst.note}"
        print(f"{'kept' if whole else 'NOT KEPT'}: {bar.name} ({bar.verdict}{place})")
        missed = sorted((one for one in bar.readings if not one.met), key=lambda one: one.share)
        for one in missed[:cells]:
            beyond = " (out of reach)" if one.out_of_reach else ""
            print(f"    {'none' if one.value is None else short(one.value)} at {one.where} {one.note}{beyond}")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "all", "bars", "report"])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are stored apart")
    parser.add_argument("--threads", type=int, action="append", help="only this many threads")
    parser.add_argument("--cells", type=int, default=0, help="with `bars`: how many cells that miss a bar are listed")
    options, more = parser.parse_known_args()
    if options.command == "report":
        from benchmarks.exact.report import write

        write(DOCS)
        return 0
    if options.command == "bars":
        return 0 if verdicts(None, options.cells) else 1
    chosen = list(COMMANDS) if options.command == "all" else [options.command]
    for command in chosen:
        module, counts = COMMANDS[command]
        for threads in counts:
            if not options.threads or threads in options.threads or len(counts) == 1:
                in_threads(threads, f"benchmarks.exact.{module}", [*(["--quick"] if options.quick else []), *more])
    if options.quick:
        return 0
    kept = [verdicts(command) for command in chosen]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())

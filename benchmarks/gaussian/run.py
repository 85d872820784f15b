"""Runs the benchmarks of Gaussian fields: `python -m benchmarks.gaussian.run SUBCOMMAND`, in the peers' environment.

Each subcommand runs in a fresh process with one thread (`lowrank` then again with two on both sides, or with as many as
`--threads` says), stores its figures under `results/` and prints the bars that it measures.  The exit code is 1 when
one of them is not kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.exact.report import short
from benchmarks.exact.timing import in_threads

COMMANDS = ("lowrank", "grids", "memory", "condition", "limit")
DOCS = Path(__file__).parents[2] / "docs" / "performance.md"


def judged(commands: tuple[str, ...], every: bool) -> bool:
    """Print the bars of some subcommands with their worst cells, or with every cell; whether all are kept."""
    from benchmarks.gaussian.bars import all_bars

    bars = [bar for bar in all_bars() if bar.command in commands]
    for bar in bars:
        readings = sorted(bar.readings, key=lambda one: one.share)
        print(f"{bar.name}: {bar.kept} of {len(readings)} kept")
        for one in readings if every else readings[:1]:
            value = "no figure" if one.value is None else short(one.value)
            print(f"    {'kept' if one.met else 'MISSED'} {value} at {one.where} ({one.note})")
    return all(bar.readings and bar.kept == len(bar.readings) for bar in bars)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "all", "bars", "report"])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are stored apart")
    parser.add_argument("--cells", action="store_true", help="with `bars`: every cell, not the worst alone")
    parser.add_argument("--threads", type=int, help="with `lowrank`: threads of both sides; one, then two")
    options, more = parser.parse_known_args()
    if options.command == "report":
        from benchmarks.gaussian.report import write

        write(DOCS)
        return 0
    chosen = COMMANDS if options.command in ("all", "bars") else (options.command,)
    if options.command != "bars":
        for command in chosen:
            arguments = [*(["--quick"] if options.quick else []), *more]
            if command != "lowrank":
                in_threads(1, f"benchmarks.gaussian.{command}", arguments)
                continue
            for threads in (options.threads,) if options.threads else (1, 2):
                in_threads(threads, "benchmarks.gaussian.lowrank", [*arguments, "--threads", str(threads)])
    return 0 if options.quick or judged(chosen, options.cells) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs the benchmarks of samplers: `python -m benchmarks.mcmc.run SUBCOMMAND`, in the peers' environment.

Each subcommand runs in a fresh process with a fixed number of threads, stores its figures under `results/` and prints
the bars that it measures.  The exit code is 1 when one of them is not kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.exact.timing import in_threads

# subcommand -> the thread counts that it is run with
COMMANDS: dict[str, tuple[int, ...]] = {"speed": (1, 2), "proposals": (1,)}
DOCS = Path(__file__).parents[2] / "docs" / "performance.md"


def judged(commands: tuple[str, ...]) -> bool:
    """Print the bars of some subcommands with every cell; whether all are kept."""
    from benchmarks.mcmc.bars import all_bars

    bars = [bar for bar in all_bars() if bar.command in commands]
    for bar in bars:
        print(f"{bar.name}: {bar.kept} of {len(bar.readings)} kept")
        for one in sorted(bar.readings, key=lambda one: one.share):
            value = "no figure" if one.value is None else f"{one.value:.3g}"
            print(f"    {'kept' if one.met else 'MISSED'} {value} at {one.where} ({one.note})")
    return all(bar.readings and bar.kept == len(bar.readings) for bar in bars)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "all", "bars", "report"])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures are stored apart")
    parser.add_argument("--threads", type=int, action="append", help="only this many threads")
    options, more = parser.parse_known_args()
    if options.command == "report":
        from benchmarks.mcmc.report import write

        write(DOCS)
        return 0
    chosen = tuple(COMMANDS) if options.command in ("all", "bars") else (options.command,)
    for command in chosen if options.command != "bars" else ():
        for threads in COMMANDS[command]:
            if not options.threads or threads in options.threads or len(COMMANDS[command]) == 1:
                in_threads(threads, f"benchmarks.mcmc.{command}", [*(["--quick"] if options.quick else []), *more])
    return 0 if options.quick or judged(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

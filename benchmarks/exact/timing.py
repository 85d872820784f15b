"""Alternating pairs in one process, and the process that they run in."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Call = Callable[[], object]

# Wall time; `cpu` counts the processor time of this process instead, for a look with one thread on a busy machine.
CLOCK = time.process_time if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter


@dataclass(frozen=True)
class Ratio:
    """How many times longer a peer takes than ours.

    Attributes:
        low: first quartile of the ratios of pairs.
        middle: their median.
        high: their third quartile.
        ours: median seconds of ours in these pairs.
        peer: median seconds of the peer in these pairs.
        pairs: how many pairs were run.
    """

    low: float
    middle: float
    high: float
    ours: float
    peer: float
    pairs: int


def seconds(call: Call, times: int = 1) -> float:
    """Mean time of a call over some calls in a row."""
    start = CLOCK()
    for _ in range(times):
        call()
    return (CLOCK() - start) / times


def repeats(call: Call, target: float) -> int:
    """How many calls in a row fill the target time; the call is warm afterwards."""
    call()
    once = min(seconds(call) for _ in range(3))
    return max(1, min(200, round(target / max(once, 1e-7))))


def pairs(ours: Call, peer: Call, budget: float, most: int = 60) -> Ratio:
    """Alternate ours and a peer, each repeated to about a millisecond, until the budget of seconds is spent.

    Both have run before, so that warm-up and just-in-time compilation are excluded.  The order within a pair changes
    from pair to pair.  Each turn begins with a call that is not timed: memory that the other one has freed is given
    back to the system in the next call that asks for some, whoever makes it.  A peer whose single call overruns the
    budget is not run again.
    """
    slow = seconds(peer)
    if slow > budget:
        mine = statistics.median(seconds(ours) for _ in range(5))
        return Ratio(slow / mine, slow / mine, slow / mine, mine, slow, 1)
    mine_times, peer_times = repeats(ours, 1e-3), repeats(peer, 1e-3)
    mine, theirs = [], []
    start = time.perf_counter()
    while len(mine) < 5 or (len(mine) < most and time.perf_counter() - start < budget):
        turns = [(ours, mine_times, mine), (peer, peer_times, theirs)]
        for call, times, found in turns if len(mine) % 2 else reversed(turns):
            call()
            found.append(seconds(call, times))
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Ratio(low, middle, high, statistics.median(mine), statistics.median(theirs), len(mine))


def median_seconds(call: Call, budget: float, most: int = 60) -> float:
    """Median time of a call, warm."""
    times = repeats(call, 1e-3)
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or (len(samples) < most and time.perf_counter() - start < budget):
        samples.append(seconds(call, times))
    return statistics.median(samples)


def fastest_seconds(call: Call, budget: float, most: int = 200) -> float:
    """Least time of a call: what the machine can do when nothing disturbs it, for limits that others are held to."""
    times = repeats(call, 1e-3)
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or (len(samples) < most and time.perf_counter() - start < budget):
        samples.append(seconds(call, times))
    return min(samples)


def in_threads(threads: int, module: str, arguments: Sequence[str] = ()) -> None:
    """Run a benchmark module in a fresh process that every contestant sees as having this many cores.

    Thread counts by environment reach torch and OpenMP; the affinity reaches XLA as well.  With one thread XLA is told
    not to make a pool, so that it works in the calling thread, which is its fastest way there.
    """
    count = str(threads)
    settings = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), count)
    if threads == 1:
        settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    cores = sorted(os.sched_getaffinity(0))[:threads]
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env={**os.environ, **settings}, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if done.returncode:
        sys.exit(done.returncode)  # it has said why


def in_child(module: str, arguments: Sequence[str], patience: float) -> dict[str, float | str]:
    """The figures that a module prints as JSON on its last line, run in a process of its own with a time limit.

    Its failure is a result: `refused` says why.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return {"refused": f"not done in {patience:g} s"}
    if done.returncode:
        return {"refused": f"failed: {(done.stderr.strip().splitlines() or ['killed'])[-1][:160]}"}
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found

"""One thread against two, alternating in one process: a second thread must pay, or stay away."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch

from benchmarks.exact import results
from benchmarks.exact.contestants.ours import Ours
from benchmarks.exact.sizes import QUICK, SIZES, TASKS, make_case
from benchmarks.exact.timing import pairs


def with_threads(count: int, call: Callable[[], object]) -> Callable[[], object]:
    """The call under a number of threads; setting it costs far less than any call."""

    def run() -> object:
        torch.set_num_threads(count)
        return call()

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = []
    for size in QUICK if options.quick else SIZES:
        for ragged in (False, True):
            case = make_case(size, ragged)
            for task in TASKS:
                call = Ours().prepare(case, task).run
                call()
                ratio = pairs(with_threads(2, call), with_threads(1, call), 0.05 if options.quick else 0.3)
                gain = [results.figure(one) for one in (ratio.low, ratio.middle, ratio.high)]
                rows.append(
                    {"size": list(size), "ragged": ragged, "task": task, "gain": gain,
                     "one": results.figure(1e6 * ratio.peer), "two": results.figure(1e6 * ratio.ours)}
                )  # fmt: skip
                shape = "ragged" if ragged else "full"
                print(f"{size} {shape} {task}: two threads are {ratio.middle:.2f} times as fast as one", flush=True)
    results.store(
        "threads-quick" if options.quick else "threads", rows, ("size", "ragged", "task"), cores=os.cpu_count()
    )


if __name__ == "__main__":
    main()

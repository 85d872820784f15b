"""Distance from the machine's limit, one thread.

The limit of a task is its multiply-adds at the measured speed of matrix products, plus its exponentials at their
measured speed, both the fastest that were seen: B (T-1) C² multiply-adds for the log-partition, three times as many for
likelihood and gradients, and B T C exponentials of unaries and C² of transitions for both.

Kernels of our own may be faster than the products and exponentials that it is measured by.  No program that does these
multiply-adds is faster than `peak`: as many of them in registers, and nothing else.

Likelihood and gradients are measured through autograd's tape and without it.  `tape` is what the least tape takes on
the same scores, a sum and its gradient: where a bar allows less, no likelihood through a tape can keep it.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import energyml as em
from benchmarks.exact import results
from benchmarks.exact.contestants.ours import Compiled, Ours
from benchmarks.exact.sizes import DIRECT, LOG_PARTITION, NLL, QUICK, SIZES, Case, make_case
from benchmarks.exact.timing import fastest_seconds, median_seconds

PASSES = {LOG_PARTITION: 1, NLL: 3, DIRECT: 3}


def product_speed() -> float:
    """Multiply-adds a second of float32 matrix products: the best of torch and numpy, over sizes."""
    best = 0.0
    for size in (256, 320, 400, 512, 640, 768, 1024):
        left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
        calls = (
            functools.partial(torch.mm, left, right, out=out),
            functools.partial(np.matmul, left.numpy(), right.numpy(), out=out.numpy()),
        )
        best = max(best, *(size**3 / fastest_seconds(call, 0.3) for call in calls))
    return best


def exp_speed() -> float:
    """Exponentials a second in float32: the best of torch and numpy, over sizes that stay in the caches."""
    best = 0.0
    for count in (8192, 32768, 131072):
        given, out = torch.randn(count), torch.empty(count)
        calls = functools.partial(torch.exp, given, out=out), functools.partial(np.exp, given.numpy(), out=out.numpy())
        best = max(best, *(count / fastest_seconds(call, 0.1) for call in calls))
    return best


def peak_speed() -> float:
    """Multiply-adds a second in registers; needs a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        source = Path(__file__).with_name("peak.cpp")
        subprocess.run(["g++", "-O2", "-march=native", str(source), "-o", str(program)], check=True)
        return float(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)


def multiply_adds(case: Case, task: str) -> int:
    """Those of the task; ragged chains have fewer steps."""
    return PASSES[task] * int((case.ends - 1).sum()) * case.size[2] ** 2


def limit(case: Case, task: str, products: float, exps: float) -> float:
    """Seconds of the multiply-adds and exponentials of a task."""
    labels = case.size[2]
    return multiply_adds(case, task) / products + (int(case.ends.sum()) * labels + labels**2) / exps


def least_tape(case: Case) -> Callable[[], object]:
    """The sum of the unaries, and its gradient through autograd's tape."""
    scores = case.unary.clone().requires_grad_()

    def run() -> None:
        scores.grad = None
        scores.sum().backward()

    return run


def call(case: Case, task: str) -> Callable[[], object]:
    """What is timed."""
    if task == DIRECT:
        return functools.partial(em.functional.chain_nll_and_grad, case.unary, case.trans, case.gold, case.lengths)
    return Ours().prepare(case, task).run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # once, and the fastest: a limit that follows the load of the machine would be no limit
    products, exps = product_speed(), exp_speed()
    peak = max(products, peak_speed())
    print(
        f"{products / 1e9:.1f} G multiply-adds a second ({peak / 1e9:.1f} in registers), "
        f"{exps / 1e9:.2f} G exponentials a second"
    )
    rows = []
    for size in QUICK if options.quick else SIZES:
        for ragged in (False, True):
            case = make_case(size, ragged)
            for task in PASSES:
                least = limit(case, task, products, exps)
                public = median_seconds(call(case, task), 0.3)
                row = {
                    "size": list(size), "ragged": ragged, "task": task, "limit": results.figure(1e6 * least),
                    "ours": results.figure(1e6 * public), "times": results.figure(public / least),
                    "peak": results.figure(1e6 * multiply_adds(case, task) / peak),
                    "gigaproducts": results.figure(products / 1e9), "gigaexps": results.figure(exps / 1e9),
                    "gigapeak": results.figure(peak / 1e9),
                }  # fmt: skip
                if task == NLL:
                    row["tape"] = results.figure(1e6 * fastest_seconds(least_tape(case), 0.1))
                if task != DIRECT:  # a spec has no other way than the tape
                    row["spec"] = results.figure(1e6 * median_seconds(Compiled().prepare(case, task).run, 0.3))
                rows.append(row)
                print(row, flush=True)
    results.store("limit-quick" if options.quick else "limit", rows, ("size", "ragged", "task"))


if __name__ == "__main__":
    main()

"""Distance from the machine's limit, one thread.

The limit of a task is its multiply-adds at the measured speed of matrix products, plus its exponentials at their
measured speed, both the fastest that were seen: B (T-1) C² multiply-adds for the log-partition, three times as many for
likelihood and gradients, and B T C exponentials of unaries and C² of transitions for both.

Likelihood and gradients are measured through autograd's tape and without it: a tape on which nothing is done takes
longer than six times the limit of small batches.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import numpy as np
import torch

import energyml as em
from benchmarks.exact import results
from benchmarks.exact.contestants.ours import Compiled, Ours
from benchmarks.exact.sizes import DIRECT, LOG_PARTITION, NLL, QUICK, SIZES, Case, make_case
from benchmarks.exact.timing import fastest_seconds, median_seconds

PASSES = {LOG_PARTITION: 1, NLL: 3, DIRECT: 3}


def product_speed() -> float:
    """Multiply-adds a second of float32 matrix products: the best over sizes."""
    best = 0.0
    for size in (256, 320, 400, 512, 640, 768, 1024):
        left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
        took = fastest_seconds(functools.partial(torch.mm, left, right, out=out), 0.5)
        best = max(best, size**3 / took)
    return best


def exp_speed() -> float:
    """Exponentials a second in float32: the best of torch and numpy, over sizes that stay in the caches."""
    best = 0.0
    for count in (8192, 32768, 131072):
        given, out = torch.randn(count), torch.empty(count)
        calls = functools.partial(torch.exp, given, out=out), functools.partial(np.exp, given.numpy(), out=out.numpy())
        best = max(best, *(count / fastest_seconds(call, 0.1) for call in calls))
    return best


def limit(case: Case, task: str, products: float, exps: float) -> float:
    """Seconds below which the task cannot be done this way; ragged chains have fewer cells."""
    labels = case.size[2]
    cells, steps = int(case.ends.sum()), int((case.ends - 1).sum())
    return PASSES[task] * steps * labels**2 / products + (cells * labels + labels**2) / exps


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
    print(f"{products / 1e9:.1f} G multiply-adds a second, {exps / 1e9:.2f} G exponentials a second")
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
                    "gigaproducts": results.figure(products / 1e9), "gigaexps": results.figure(exps / 1e9),
                }  # fmt: skip
                if task != DIRECT:  # a spec has no other way than the tape
                    row["spec"] = results.figure(1e6 * median_seconds(Compiled().prepare(case, task).run, 0.3))
                rows.append(row)
                print(row, flush=True)
    results.store("limit-quick" if options.quick else "limit", rows, ("size", "ragged", "task"))


if __name__ == "__main__":
    main()

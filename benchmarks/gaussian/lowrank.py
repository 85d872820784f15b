"""Low-rank couplings of two labels: forward, and forward + backward with the gradient of the embeddings."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.gaussian import peers
from benchmarks.gaussian.cases import low_rank
from benchmarks.gaussian.cells import Contestant, measure, shown
from benchmarks.gaussian.ours import TASKS, bare, direct, through_spec
from benchmarks.gaussian.results import store

SIDES, RANKS, BATCHES = (64, 128, 256), (16, 64), (1, 16)
FLAT = ((128, 16, 1), (128, 64, 1))
QUICK = ((32, 16, 1), (32, 16, 4))
PEERS: dict[str, Contestant] = {
    "scipy": peers.scipy_low_rank,
    "linear_operator": peers.operator_low_rank,
    "dense Cholesky": peers.dense,
    "energyml, solver alone": lambda case, task: bare(case, task, direct()),
}


def named(threads: int) -> str:
    """The stored result of so many threads."""
    return "lowrank" if threads == 1 else f"lowrank-{threads}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each pair of contestants")
    parser.add_argument("--size", help="only SIDE,RANK,BATCH")
    parser.add_argument("--threads", type=int, default=1, help="of both sides; batches alone when more than one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    whole = [(side, rank, batch) for side in SIDES for rank in RANKS for batch in BATCHES]
    wanted = [(size, False) for size in whole] + [(size, True) for size in FLAT]
    if options.quick:
        wanted, options.budget = [(size, False) for size in QUICK], 0.1
    if options.threads > 1:
        wanted = [(size, flat) for size, flat in wanted if size[2] > 1]
    name = "lowrank-quick" if options.quick else named(options.threads)
    rows: list[dict[str, Any]] = []
    if options.size:
        sizes = sorted({",".join(map(str, size)) for size, _ in wanted})
        wanted = [(size, flat) for size, flat in wanted if options.size == ",".join(map(str, size))]
        if not wanted:
            parser.error(f"no size is {options.size}; there are {' '.join(sizes)}")
    for (side, rank, batch), flat in wanted:
        case = low_rank(side, rank, batch, flat)
        for task in TASKS:
            found = measure(case, task, through_spec(case, task, "exact"), PEERS, options.budget)
            spectrum = "flat" if flat else "decaying"
            rows.append({"size": [side, rank, batch], "spectrum": spectrum, "task": task, **found})
            print(shown(f"{side}^2 x {rank}, batch {batch}, {spectrum}, {task}", found), flush=True)
            store(name, rows, ("size", "spectrum", "task"))


if __name__ == "__main__":
    main()

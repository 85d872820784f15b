"""Grids: one solve by conjugate gradients where weights vary, by cosine transforms where they are constant."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.gaussian import peers
from benchmarks.gaussian.cases import grid
from benchmarks.gaussian.cells import Contestant, measure, shown
from benchmarks.gaussian.ours import BACKWARD, FORWARD, TASKS, bare, direct, iterative, through_spec
from benchmarks.gaussian.results import store

SIDES = (64, 128, 256, 512, 1024)
LARGEST_OF_MANY = 256  # the side of the largest grid that is solved for 16 examples
PEERS: dict[str, Contestant] = {
    "scipy": peers.scipy_grid,
    "linear_operator": peers.operator_grid,
    "dense Cholesky": peers.dense,
}

Cell = tuple[int, int, int, float, bool, str]  # side, channels, batch, ridge, constant, task


def cells(quick: bool) -> list[Cell]:
    """What is measured; hard systems and constant weights by single solves only."""
    if quick:
        return [(32, 1, 1, 1.0, False, FORWARD), (32, 2, 4, 1.0, False, BACKWARD), (32, 1, 1, 1.0, True, FORWARD)]
    made: list[Cell] = []
    for side in SIDES:
        for batch in (1, 16) if side <= LARGEST_OF_MANY else (1,):
            made += [(side, channels, batch, 1.0, False, task) for channels in (1, 2) for task in TASKS]
        made += [(side, channels, 1, 0.01, False, FORWARD) for channels in (1, 2)]
        made += [(side, 2, 1, ridge, True, FORWARD) for ridge in (1.0, 0.01)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each pair of contestants")
    parser.add_argument("--side", type=int, action="append", help="only grids of this side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    wanted = [one for one in cells(options.quick) if not options.side or one[0] in options.side]
    if not wanted:
        parser.error(
            f"no grid has side {options.side[0]}; there are {sorted({one[0] for one in cells(options.quick)})}"
        )
    for side, channels, batch, ridge, constant, task in wanted:
        case = grid(side, channels, batch, ridge, constant)
        backend, policy = ("exact", direct()) if constant else ("cg", iterative())
        contestants = {**PEERS, "energyml, solver alone": lambda case, task, policy=policy: bare(case, task, policy)}
        budget = 0.1 if options.quick else options.budget
        found = measure(case, task, through_spec(case, task, backend), contestants, budget, 1 + 16 / ridge)
        rows.append(
            {"size": [side, channels, batch], "ridge": ridge, "constant": constant, "task": task, "method": backend,
             **found}
        )  # fmt: skip
        weights = "constant" if constant else "varying"
        print(shown(f"{side}^2 x {channels}, batch {batch}, ridge {ridge:g}, {weights}, {task}", found), flush=True)
        store("grids-quick" if options.quick else "grids", rows, ("size", "ridge", "constant", "task"))


if __name__ == "__main__":
    main()

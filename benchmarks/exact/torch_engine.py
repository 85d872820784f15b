"""The torch path alone: against pytorch-crf in every cell, and against Pyro's parallel scan on one long chain."""

from __future__ import annotations

import argparse
import os
import warnings

import torch

from benchmarks.exact import results
from benchmarks.exact.chains import KEY, cell, chosen_sizes, size_of
from benchmarks.exact.contestants import peers
from benchmarks.exact.contestants.ours import Ours
from benchmarks.exact.sizes import TASKS, make_case

LONG = (1, 2000, 23)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--size", type=size_of, action="append", default=[], help="only BATCH,LENGTH,LABELS")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    ours, rows = Ours("torch"), []
    for size in chosen_sizes(options.quick, options.size):
        wanted = ("pytorch-crf", "Pyro") if size == LONG else ("pytorch-crf",)
        contestants, _ = peers(wanted)
        for ragged in (False, True):
            case = make_case(size, ragged)
            for task in TASKS:
                made = cell(ours, contestants, case, task, 0.05 if options.quick else options.budget)
                rows.append(made)
                rated = ", ".join(f"{name} {one[1]:.2f}" for name, one in made["peers"].items())
                shape = "ragged" if ragged else "full"
                print(f"{size} {shape} {task} x{made['threads']}: {made['ours']} us; {rated}", flush=True)
    results.store("torch-quick" if options.quick else "torch", rows, KEY)


if __name__ == "__main__":
    main()

"""Scores times 1 to 1e6 in float32: how far answers are from float64, and what the safe path costs."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact import results
from benchmarks.exact.contestants import Contestant, Refused, peers
from benchmarks.exact.contestants.jax_peers import DynamaxRelative
from benchmarks.exact.contestants.ours import Ours
from benchmarks.exact.contestants.torch_crfs import PytorchCrf
from benchmarks.exact.sizes import LOG_PARTITION, MARGINALS, NLL, Case, make_case
from benchmarks.exact.timing import pairs

SCALES = (1.0, 30.0, 100.0, 1e4, 1e6)
SIZES = ((32, 50, 23), (16, 50, 100), (64, 128, 10), (1, 2000, 23))
PEERS = ("pytorch-crf", "torch-struct")
TASKS = (LOG_PARTITION, MARGINALS, NLL)


def truth(case: Case, task: str) -> tuple[Tensor, ...]:
    """The answer in float64 by an independent library, in log space."""
    prepared = PytorchCrf().prepare(case.double(), task)
    return prepared.read(prepared.run())


def error(task: str, exact: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> float:
    """The largest error: of marginals and gradients as it is, of log-partitions and losses relative to their size.

    Gradients by the transitions are sums over many cells, and are taken relative to the largest of them.
    """
    worst = 0.0
    for index, (right, mine) in enumerate(zip(exact, found, strict=True)):
        off = (mine.double() - right).abs().max()
        if task == LOG_PARTITION or (task == NLL and index != 1):
            off = off / right.abs().max().clamp(min=1)
        worst = max(worst, off.item()) if not off.isnan() else float("nan")
        if off.isnan():
            return float("nan")
    return worst


def one(contestant: Contestant, case: Case, task: str, exact: tuple[Tensor, ...]) -> float | str:
    """The error of a contestant, or why it has none."""
    try:
        prepared = contestant.prepare(case, task)
        return results.figure(error(task, exact, prepared.read(prepared.run())))
    except Refused as reason:
        return str(reason)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}".splitlines()[0][:120]


def slowdown(case: Case, plain: Case, task: str, budget: float) -> list[float]:
    """How many times longer ours takes than on scores times 1, quartiles."""
    usual, large = Ours().prepare(plain, task).run, Ours().prepare(case, task).run
    large()
    ratio = pairs(usual, large, budget)
    return [results.figure(value) for value in (ratio.low, ratio.middle, ratio.high)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    contestants: list[Contestant] = [DynamaxRelative(), *peers(PEERS)[0]]
    rows: list[dict[str, Any]] = []
    for size in SIZES[:1] if options.quick else SIZES:
        for ragged in (False, True):
            for scale in SCALES:
                case, plain = make_case(size, ragged, scale), make_case(size, ragged)
                for task in TASKS:
                    exact = truth(case, task)
                    errors = {peer.name: one(peer, case, task, exact) for peer in (Ours(), *contestants)}
                    slower = slowdown(case, plain, task, 0.05 if options.quick else 0.3)
                    rows.append(
                        {"size": list(size), "ragged": ragged, "scale": scale, "task": task, "errors": errors,
                         "slower": slower}
                    )  # fmt: skip
                    shape = "ragged" if ragged else "full"
                    print(f"{size} {shape} x{scale:g} {task}: {errors}, {slower[1]:.2f} times slower", flush=True)
    results.store("accuracy-quick" if options.quick else "accuracy", rows, ("size", "ragged", "scale", "task"))


if __name__ == "__main__":
    main()

"""What low-rank fields of 16 examples must take at least, beside what they take and a third of scipy's time.

One thread.  The floor of forward + backward is the sum of three parts, each at the fastest speed that was seen:

- multiply-adds, at the processor's peak (in registers, and nothing else): for each number of the embeddings K / 2 for
  their products with each other, 2 M for products with the M fields there and back, 2 M for solution and adjoint, 2 M
  for their outer products, and for the gradient of the bound, (A Aᵀ / norm)⁷ A, twice its numerical rank or once K;
  small systems (four products and two factors of K x K for each example) in double precision, at half of that speed;
- reading the embeddings once for the answer and once for the gradient, at the speed of reading as much memory;
- writing their gradient, to memory that an earlier one has left.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import torch
from torch import Tensor

from benchmarks.exact.limit import peak_speed
from benchmarks.exact.timing import fastest_seconds, pairs
from benchmarks.gaussian import peers
from benchmarks.gaussian.cases import Case, low_rank
from benchmarks.gaussian.lowrank import RANKS, SIDES
from benchmarks.gaussian.ours import BACKWARD, through_spec
from benchmarks.gaussian.results import figure, store

BATCH = 16
PART = 4 * 2.0**-23  # of the trace: what is left out of a matrix that is made of few rows


def rows_of_bound(embeddings: Tensor) -> float:
    """The mean over examples of the fewest rows that make (A Aᵀ)⁷ up to rounding, for vectors [B, K, N]."""
    wide = embeddings.double()
    values = torch.linalg.eigvalsh(wide @ wide.transpose(1, 2))
    shares = (values / values[:, -1:]).clamp(min=0) ** 7  # rising
    left_out = shares.cumsum(1) <= PART * shares.sum(1, keepdim=True)
    return float((~left_out).sum(1).float().mean())


def multiply_adds(case: Case) -> float:
    """Those of forward + backward; of double precision counted twice."""
    examples, channels, positions = case.form.sizes
    embeddings = case.inputs["e"].flatten(2)
    rank = embeddings.shape[1]
    of_bound = min(2 * rows_of_bound(embeddings), rank)
    each = rank / 2 + 6 * channels + of_bound
    small = 4 * rank**3 / 2 + 2 * rank**3 / 6
    return examples * (rank * positions * each + 2 * small)


def reading(size: int) -> float:
    """Seconds of reading so many bytes."""
    given = torch.randn(size // 4)
    return fastest_seconds(functools.partial(torch.dot, given, given), 0.3)


def writing(size: int) -> float:
    """Seconds of writing so many bytes to memory that was written before."""
    kept = np.empty(size // 4, dtype=np.float32)
    return fastest_seconds(functools.partial(kept.fill, 1), 0.3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each pair of contestants")
    parser.add_argument("--size", help="only SIDE,RANK")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [(32, 16)] if options.quick else [(side, rank) for rank in RANKS for side in SIDES]
    if options.size:
        named = {f"{side},{rank}": (side, rank) for side, rank in sizes}
        if options.size not in named:
            parser.error(f"no size is {options.size}; there are {' '.join(named)}")
        sizes = [named[options.size]]
    peak = peak_speed()
    print(f"{peak / 1e9:.1f} G multiply-adds a second")
    rows = []
    for side, rank in sizes:
        case = low_rank(side, rank, BATCH)
        size = 4 * case.inputs["e"].numel()
        parts = [multiply_adds(case) / peak, 2 * reading(size), writing(size)]
        ours, peer = through_spec(case, BACKWARD, "exact"), peers.scipy_low_rank(case, BACKWARD)
        found = pairs(ours.run, peer.run, 0.1 if options.quick else options.budget)
        times = {"floor": sum(parts), "ours": found.ours, "third": found.peer / 3}
        rows.append(
            {"size": [side, rank, BATCH], "parts": [figure(1e3 * part) for part in parts],
             **{name: figure(1e3 * one) for name, one in times.items()}}
        )  # fmt: skip
        shown = ", ".join(f"{name} {1e3 * one:.2f} ms" for name, one in times.items())
        print(f"{side}^2 x {rank}: {shown}; parts {rows[-1]['parts']}", flush=True)
    store("limit-quick" if options.quick else "limit", rows, ("size",))


if __name__ == "__main__":
    main()

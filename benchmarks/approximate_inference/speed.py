"""Gradient ascent on relaxed labels: a batch at once against a straightforward loop over examples.

    python -m benchmarks.approximate_inference.speed [--examples 1000] [--batch 500] [--repeats 3]

The model is the chain of Tu & Gimpel 2019 with the sizes of Twitter POS (25 labels, sentences of 5 to 30 words).  Both
sides make the same 50 steps of momentum from the cells' own scores and round by the likeliest label; their answers are
compared.  The loop is what one would write in a notebook: one sentence at a time, autograd, `torch.optim.SGD`.  The bar
is 20 times the examples per second.  Nothing here runs in the tests.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import energyml as em

LABELS, SHORTEST, LONGEST = 25, 5, 30
STEPS, RATE, MOMENTUM = 50, 1.0, 0.9
USING = f"relaxed(steps: {STEPS}, lr: {RATE:g}, momentum: {MOMENTUM}, start: unary, round: argmax, tol: 0)"
SPEC = f"""\
labels Tag = {{{", ".join(f"L{number}" for number in range(LABELS))}}}
dim T
input u : real[T, Tag]
output y : Tag[T]
param W : real[from: Tag, to: Tag] = normal(1)
chain y {{ unary: u, pair: W }}
"""


def one_by_one(u: Tensor, lengths: list[int], pair: Tensor) -> list[Tensor]:
    """The labels of each sentence: eq. 1 of the paper, a sentence at a time."""
    found = []
    for scores, length in zip(u, lengths, strict=True):
        own = scores[:length]
        logits = own.clone().requires_grad_()
        optimizer = torch.optim.SGD([logits], lr=RATE, momentum=MOMENTUM)
        for _ in range(STEPS):
            optimizer.zero_grad()
            p = logits.softmax(-1)
            energy = -(p * own).sum() - ((p[:-1] @ pair) * p[1:]).sum()
            energy.backward()
            optimizer.step()
        found.append(logits.detach().argmax(-1))
    return found


def in_batches(model: em.EnergyModel, u: Tensor, lengths: Tensor, size: int, using: str) -> list[Tensor]:
    """The same by the backend."""
    found: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(u), size):
            here = lengths[first : first + size]
            longest = int(here.max())
            answer = model.infer(u=u[first : first + size, :longest], lengths=here, using=using).map()
            found += [labels[:length] for labels, length in zip(answer["y"], here.tolist(), strict=True)]
    return found


def rate(run: Callable[[], object], count: int, repeats: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Examples per second of a clock: the median of some runs, and the spread between the fastest and the slowest."""
    taken = []
    for _ in range(repeats):
        began = clock()
        run()
        taken.append(count / (clock() - began))
    return statistics.median(taken), max(taken) - min(taken)


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="measure CPU time, for a machine that others use too")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu else time.perf_counter
    torch.manual_seed(0)
    model = em.compile(SPEC, seed=0)
    u = torch.randn(given.examples, LONGEST, LABELS)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (given.examples,)).sort().values
    some = slice(0, given.examples, max(1, given.examples // 50))
    pair = model.get_parameter("W").detach()

    def loop() -> list[Tensor]:
        return one_by_one(u[some], lengths[some].tolist(), pair)

    wanted = loop()  # warm-up
    peer, spread = rate(loop, len(lengths[some]), given.repeats, clock)
    print(f"one by one: {peer:.0f} examples/s (spread {spread:.0f})")
    for using in (USING, USING.replace("argmax", "coordinate")):
        for size in given.batch:
            found = in_batches(model, u, lengths, size, using)  # warm-up
            run = partial(in_batches, model, u, lengths, size, using)
            own, spread = rate(run, given.examples, given.repeats, clock)
            line = f"batches of {size}, {using.partition('round: ')[2].partition(',')[0]}: {own:.0f} examples/s "
            line += f"(spread {spread:.0f}), {own / peer:.1f} times"
            if using == USING:
                same = [torch.equal(a, b) for a, b in zip(found[some], wanted, strict=True)]
                line += f"; {sum(same)} of {len(same)} answers equal"
            print(line)


if __name__ == "__main__":
    main()

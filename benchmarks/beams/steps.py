"""The time of a training step through a relaxed beam, beside a teacher-forcing step of the same model.

    python -m benchmarks.beams.steps [--budget SECONDS] [--labels 300] ...

The tagger of the study with random weights on random words: forward and backward pass, no optimiser.  The two alternate
in one process with one thread; ratios are of pairs.  `BENCH_CLOCK=cpu` counts processor time, for a busy machine.  The
paper says "roughly k" for a beam of width k; the bar is 1.5 k.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

import energyml as em
from benchmarks.beams.study import RESULTS
from benchmarks.exact.timing import CLOCK, pairs

SPEC = """
labels Word from data
labels Tag from data
dim T
input word : Word[T]
output y : Tag[T]
net encoder = lstm(hidden: {hidden}, embed: 100)
net decoder = lstm_decoder(hidden: {hidden}, embed: 64, attention: aligned)
sequence y {{ step: decoder, given: encoder(word), normalize: local }}
infer beam
"""


def measured(options: argparse.Namespace, objective: str, width: int) -> dict[str, object]:
    """The ratio of an objective's step to a teacher-forcing step."""
    names = {"Word": [f"w{n}" for n in range(2000)], "Tag": [f"t{n}" for n in range(options.labels)]}
    model = em.compile(SPEC.format(**vars(options)), labels=names, seed=0)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, options.length)
    word = torch.randint(2000, shape, generator=generator)
    gold = torch.randint(options.labels, shape, generator=generator)

    def step(chosen: str, using: str) -> Callable[[], None]:
        def call() -> None:
            model.zero_grad()
            model.loss(objective=chosen, using=using, word=word, y=gold).backward()

        return call

    forced, searched = step("teacher_forcing", "beam"), step(objective, f"relaxed_beam(width: {width}, alpha: 1)")
    found = pairs(forced, searched, options.budget)
    return {
        "objective": objective, "width": width, "batch": options.batch, "length": options.length,
        "labels": options.labels, "hidden": options.hidden, "teacher_forcing_ms": round(1e3 * found.ours, 2),
        "searched_ms": round(1e3 * found.peer, 2), "ratio": round(found.middle, 2), "low": round(found.low, 2),
        "high": round(found.high, 2), "pairs": found.pairs, "bar": 1.5 * width,
        "clock": "cpu" if CLOCK is time.process_time else "wall", "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"batch": 16, "length": 15, "labels": 300, "hidden": 128}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--widths", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of timing for each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(options, one, width) for one in ("direct_loss", "beam_hinge") for width in options.widths]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()

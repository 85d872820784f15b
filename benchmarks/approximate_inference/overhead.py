"""How much of its time `energyml compare` spends outside of inference: at most 5% are allowed.

Run with `python -m benchmarks.approximate_inference.overhead [--examples N]`.  A BLSTM-CRF with random weights tags
sentences of random words; the time of loading model, data and libraries is shown apart.  The fastest backend alone is
shown too, without a limit: there is nothing to compare, and the energy of the gold labels is a large part of the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import energyml as em

ALLOWED = 0.05
BACKENDS = "exact, mean_field(steps: 10), bp, dual"
SPEC = """\
labels Tag = {TAGS}
labels Word from data(unknown: '<unk>')
dim T
input word : Word[T]
output y : Tag[T]
net f = blstm(out: Tag, hidden: 100, embed: 100)
param W : real[from: Tag, to: Tag] = normal(0.5)
chain y { unary: f(word), pair: W }
infer exact
data jsonl('train.jsonl', test: 'test.jsonl')
"""


def write_task(folder: Path, examples: int, tags: int) -> Path:
    generator = np.random.default_rng(0)
    for name, count in (("train.jsonl", 100), ("test.jsonl", examples)):
        with (folder / name).open("w", encoding="utf-8") as stream:
            for _ in range(count):
                length = int(generator.integers(5, 30))
                words = [f"w{number}" for number in generator.integers(1000, size=length)]
                labels = [f"t{number}" for number in generator.integers(tags, size=length)]
                stream.write(json.dumps({"word": words, "y": labels}) + "\n")
    path = folder / "tagger.energy"
    path.write_text(SPEC.replace("TAGS", ", ".join(f"t{number}" for number in range(tags))), encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--tags", type=int, default=25)
    parser.add_argument("--infer", default=BACKENDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = write_task(Path(folder), arguments.examples, arguments.tags)
        em.compare(path, "exact", limit=10)  # libraries that are imported when they are first used
        for infer in ("exact", arguments.infer):
            made = em.compare(path, infer)
            print(f"{made.text()}\n\n{infer}: {100 * made.overhead:.2f}% outside of inference\n")
    if made.overhead > ALLOWED:
        print(f"more than the {100 * ALLOWED:g}% that are allowed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

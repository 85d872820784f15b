"""A small task with words: tags that depend on the word and on their neighbours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SPEC = """\
labels Tag = {A, B, C}
labels Word from data(unknown: '<unk>')
dim T
input word : Word[T]
output y : Tag[T]
net f = linear(out: Tag, embed: 4)
param W : real[from: Tag, to: Tag] = normal(4.0)
chain y { unary: f(word), pair: W }
infer exact
train nll { epochs: 2, batch: 8, optimizer: adam(lr: 1e-1) }
data jsonl('train.jsonl', test: 'test.jsonl')
"""


def write_task(folder: Path, spec: str = SPEC, test: int = 15) -> Path:
    """The spec and its data in a folder; the path of the spec."""
    generator = np.random.default_rng(0)
    for name, size in (("train.jsonl", 40), ("test.jsonl", test)):
        lines = []
        for _ in range(size):
            length = int(generator.integers(1, 7))
            tags = generator.integers(3, size=length)
            words = [f"w{3 * int(generator.integers(2)) + int(tag)}" for tag in tags]
            lines.append(json.dumps({"word": words, "y": ["ABC"[tag] for tag in tags]}))
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path = folder / "task.energy"
    path.write_text(spec, encoding="utf-8")
    return path

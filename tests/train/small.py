"""A small task for tests of training: labels that depend on noisy features and on their neighbours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

SPEC = """
labels Tag = {A, B, C}
dim T
input x : real[T, 4]
output y : Tag[T]
net f = mlp(out: Tag, hidden: 8, dropout: 0.3)
param W : real[from: Tag, to: Tag] = normal(0.1)
chain y { unary: f(x), pair: W }
infer exact
train marginal_ce { STAGE }
data jsonl('train.jsonl', validation: 0.25, test: 'test.jsonl')
"""
STAGE = "epochs: 3, batch: 8, optimizer: adam(lr: 1e-2)"


def write_task(folder: Path, stage: str = STAGE, count: int = 64, seed: int = 0) -> Path:
    """The spec and its data in a folder; the path of the spec."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(3, 4))
    for name, size in (("train.jsonl", count), ("test.jsonl", 16)):
        lines = []
        for _ in range(size):
            length = int(generator.integers(1, 9))
            tags = [int(generator.integers(3))]
            for _ in range(length - 1):
                tags.append(int(generator.choice(3, p=np.roll([0.1, 0.8, 0.1], tags[-1]))))
            x = centres[tags] + generator.normal(size=(length, 4))
            lines.append(json.dumps({"x": x.round(4).tolist(), "y": ["ABC"[t] for t in tags]}))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = folder / "task.energy"
    spec.write_text(SPEC.replace("STAGE", stage), encoding="utf-8")
    return spec

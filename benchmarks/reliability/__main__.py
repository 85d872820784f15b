"""Kill runs with SIGKILL at random moments, resume them, and compare with runs that nobody touched.

Run with `python -m benchmarks.reliability [--kills 20] [--seed 0]`.  Runs of three procedures share the kills.  A kill
falls anywhere: while Python starts, between batches, while a checkpoint is written.  After each one the checkpoint has
to be whole and no epoch that was written may be gone; in the end weights and log have to be those of the untouched run,
bit for bit.  The exit code is 1 when one of them is not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energyml.train.checkpoint import CheckpointError, read_checkpoint

STAGE = "epochs: 60, batch: 8, optimizer: adam(lr: 1e-2)"
PROCEDURES = {
    "joint": STAGE,
    "staged": f"{STAGE}, procedure: staged(), stop: plateau(accuracy, patience: 20, reduce: 8)",
    "online": f"{STAGE}, balance: online(subset: 40, grid: 2^-2..2^2)",
}
SPEC = """\
labels Tag = {A, B, C}
dim T
input x : real[T, 4]
output y : Tag[T]
net f = mlp(out: Tag, hidden: 32, dropout: 0.3)
param W : real[from: Tag, to: Tag] = normal(0.1)
chain y { unary: f(x), pair: W }
infer exact
train marginal_ce { STAGE }
data jsonl('train.jsonl', validation: 0.25)
"""
FILES = ("last.safetensors", "best.safetensors")


@dataclass
class Tally:
    """What happened to the runs of one procedure.

    Attributes:
        kills: processes that were killed while they ran.
        writing: kills that left a file half written beside its place.
        early: kills before the first checkpoint.
        advanced: kills of processes that had written epochs of their own.
        finished: runs that came to their end, each compared with the untouched one.
        faults: what was not as it has to be.
    """

    kills: int = 0
    writing: int = 0
    early: int = 0
    advanced: int = 0
    finished: int = 0
    faults: list[str] = field(default_factory=list)


def write_data(folder: Path) -> None:
    """Noisy numbers, and labels that like to follow each other."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(3, 4))
    lines = []
    for _ in range(160):
        tags = [int(generator.integers(3))]
        for _ in range(int(generator.integers(1, 9))):
            tags.append(int(generator.choice(3, p=np.roll([0.1, 0.8, 0.1], tags[-1]))))
        x = centres[tags] + generator.normal(size=(len(tags), 4))
        lines.append(json.dumps({"x": x.round(4).tolist(), "y": ["ABC"[tag] for tag in tags]}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def start(spec: Path, out: Path) -> subprocess.Popen[bytes]:
    """A process that trains, or goes on."""
    command = [sys.executable, "-m", "energyml.cli", "train", str(spec), "--out", str(out), "--resume", "--quiet",
               "--threads", "1"]  # fmt: skip
    return subprocess.Popen(command)


def lived(out: Path) -> list[dict[str, Any]]:
    """The epochs that a run's checkpoint has, without their times."""
    history = read_checkpoint(out / FILES[0]).state["history"]
    return [{key: value for key, value in one.items() if "seconds" not in key} for one in history]


def differences(out: Path, whole: Path) -> list[str]:
    """What differs between two finished runs."""
    found = [] if lived(out) == lived(whole) else ["the logs differ"]
    for file in FILES:
        mine, other = read_checkpoint(out / file).tensors, read_checkpoint(whole / file).tensors
        if mine.keys() != other.keys():
            found.append(f"{file}: other tensors")
            continue
        found += [f"{file}: `{name}` differs" for name in mine if not torch.equal(mine[name], other[name])]
    return found


def outlives(process: subprocess.Popen[bytes], out: Path, epochs: int, delay: float) -> bool:
    """Wait until a run has so many epochs, and for a delay; whether the process still runs then."""
    log = out / "log.jsonl"
    while epochs and not (log.exists() and len(log.read_bytes().splitlines()) >= epochs):
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        return True
    return False


def look(out: Path, before: int, began: float, tally: Tally) -> int:
    """After a kill: how many epochs there are; notes what is broken or lost.

    Args:
        out: the run.
        before: how many epochs there were after the kill before.
        began: when the killed process was started; half written files that are older are of another.
        tally: gets the notes.
    """
    tally.writing += any(one.stat().st_mtime >= began for one in out.glob(".*.partial"))
    if not (out / FILES[0]).exists():
        tally.early += 1
        return 0
    try:
        epochs = len(lived(out))
    except CheckpointError as problem:
        tally.faults.append(str(problem))
        return before
    tally.advanced += epochs > before
    if epochs < before:
        tally.faults.append(f"{before - epochs} written epochs are gone")
    return epochs


def trial(folder: Path, name: str, kills: int, chance: random.Random) -> Tally:
    """Kill runs of one procedure until there were enough kills, then let the last one come to its end."""
    spec = folder / f"{name}.energy"
    spec.write_text(SPEC.replace("STAGE", PROCEDURES[name]), encoding="utf-8")
    whole = folder / f"{name}-whole"
    first = time.monotonic()
    if start(spec, whole).wait() != 0:
        raise SystemExit(f"{name}: the untouched run failed")
    taken = time.monotonic() - first
    trained = float(read_checkpoint(whole / FILES[0]).state["elapsed"])
    tally, number, epochs = Tally(), 0, 0
    while True:
        out = folder / f"{name}-{number}"
        began, process = time.time(), start(spec, out)
        if tally.kills < kills:
            # while Python starts, or some moment after so many more epochs; a run should last for all its kills
            more = chance.randrange(2 * len(lived(whole)) // kills) if chance.random() < 0.75 else 0
            delay = chance.uniform(0, taken - trained if more == 0 else 4 * trained / len(lived(whole)))
            if outlives(process, out, epochs + more, delay):
                process.kill()
                process.wait()
                tally.kills += 1
                epochs = look(out, epochs, began, tally)
                continue
        if process.wait() != 0:
            tally.faults.append(f"a run ended with code {process.returncode}")
            return tally
        tally.finished += 1
        tally.faults += differences(out, whole)
        if tally.kills >= kills:
            return tally
        number, epochs = number + 1, 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="over all procedures")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    shares = [options.kills // 3 + (place < options.kills % 3) for place in range(3)]
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name))
        for procedure, kills in zip(PROCEDURES, shares, strict=True):
            tally = trial(Path(name), procedure, kills, chance)
            faults += len(tally.faults)
            fell = f"{tally.advanced} after new epochs, {tally.early} before any, {tally.writing} while writing"
            told = f"{tally.finished} finished runs, {len(tally.faults)} faults"
            print(f"{procedure}: {tally.kills} kills ({fell}), {told}", flush=True)
            for fault in tally.faults:
                print(f"  {fault}")
    print(f"{date.today()}: {'identical after every kill' if not faults else f'{faults} faults'}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

"""Memory of forward + backward beyond the inputs and their gradients: the peak of a fresh process."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.exact.memory import status
from benchmarks.gaussian.results import figure, store

SIDE, CHANNELS, RANK = 1024, 2, 16
CASES = ("low rank", "grid", "constant grid")
NAMES = ("energyml", "linear_operator")


def child(what: str, name: str, side: int) -> dict[str, float]:
    """Measure one contestant in this process: a small case first loads what is loaded lazily."""
    import torch

    from benchmarks.gaussian import cases, peers
    from benchmarks.gaussian.ours import BACKWARD, Prepared, through_spec

    torch.set_num_threads(1)

    def prepared(size: int) -> Prepared:
        if what == "low rank":
            case = cases.low_rank(size, RANK, 1)
            if name == "linear_operator":
                return peers.operator_low_rank(case, BACKWARD)
            return through_spec(case, BACKWARD, "exact")
        case = cases.grid(size, CHANNELS, 1, 1.0, constant=what == "constant grid")
        if name == "linear_operator":
            return peers.operator_grid(case, BACKWARD)
        return through_spec(case, BACKWARD, "exact" if what == "constant grid" else "cg")

    prepared(16).run()
    task = prepared(side)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    held = task.run()
    peak = status("VmHWM")
    assert held is not None
    field = 4 * CHANNELS * side**2
    gradients = {"low rank": 4 * side**2 * (CHANNELS + RANK), "grid": 2 * field, "constant grid": field}[what]
    buffers = (peak - before - gradients) / field
    return {"megabytes": figure((peak - before) / 1e6), "field": figure(field / 1e6), "buffers": figure(buffers)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        what, name, side = options.child
        print(json.dumps(child(what, name, int(side))))
        return
    side = 256 if options.quick else SIDE
    rows: list[dict[str, Any]] = []
    for what in CASES:
        for name in NAMES:
            command = [sys.executable, "-m", "benchmarks.gaussian.memory", "--child", what, name, str(side)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                found = {"refused": (done.stderr.strip().splitlines() or ["killed"])[-1][:160]}
            else:
                found = json.loads(done.stdout.splitlines()[-1])
            rows.append({"what": what, "side": side, "name": name, **found})
            print(rows[-1], flush=True)
    store("memory-quick" if options.quick else "memory", rows, ("what", "side", "name"))


if __name__ == "__main__":
    main()

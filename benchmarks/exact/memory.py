"""Memory of likelihood and gradients above the inputs: the peak of a fresh process for each contestant."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import warnings
from pathlib import Path

from benchmarks.exact import results
from benchmarks.exact.timing import in_child

SIZES = ((16, 500, 200), (1, 20000, 50))
QUICK = ((4, 100, 50),)
MOST = 16 * 2**30  # bytes that a contestant may ask for
PATIENCE = 300  # seconds

OURS = ("energyml", "energyml (torch)")
PEERS = (
    "pytorch-crf", "TorchCRF", "torch-struct", "Pyro", "pomegranate", "hmmlearn scaling", "dynamax", "synjax",
)  # fmt: skip


def status(field: str) -> int:
    """Bytes of a field of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def child(name: str, size: tuple[int, int, int]) -> dict[str, float | str]:
    """Measure one contestant in this process.

    A small case first loads what the library loads lazily.  Then the peak is reset, so that what was used before the
    call cannot hide what the call needs, and memory that the allocator kept is given back.
    """
    import torch

    from benchmarks.exact.contestants import Refused, peers, torch_scans
    from benchmarks.exact.contestants.ours import Ours
    from benchmarks.exact.sizes import NLL, make_case

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    torch_scans.MOST_BYTES = MOST
    if name in OURS:
        contestant = Ours("auto" if name == "energyml" else "torch")
    else:
        (contestant,) = peers((name,))[0]
    tiny = contestant.prepare(make_case((2, 5, size[2]), False), NLL)
    tiny.run()
    del tiny
    case = make_case(size, False)
    try:
        prepared = contestant.prepare(case, NLL)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        held = prepared.run()
        peak = status("VmHWM")
        assert held is not None
        return {"megabytes": results.figure((peak - before) / 1e6)}
    except Refused as reason:
        return {"refused": str(reason)}
    except (RuntimeError, MemoryError) as error:
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:160]}


def measured(name: str, size: tuple[int, int, int]) -> dict[str, float | str]:
    """Measure one contestant in its own process."""
    return in_child("benchmarks.exact.memory", ("--child", name, ",".join(map(str, size))), PATIENCE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--peer", action="append", default=[])
    options = parser.parse_args()
    if options.child:
        name, text = options.child
        batch, length, labels = map(int, text.split(","))
        print(json.dumps(child(name, (batch, length, labels))))
        return
    rows = []
    for size in QUICK if options.quick else SIZES:
        for name in options.peer or (*OURS, *PEERS):
            found = measured(name, size)
            rows.append({"size": list(size), "name": name, **found})
            print(f"{size} {name}: {found}", flush=True)
    results.store("memory-quick" if options.quick else "memory", rows, ("size", "name"))


if __name__ == "__main__":
    main()

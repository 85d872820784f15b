"""The largest memory that a computation takes, beyond what was taken before it.

On an accelerator these are the bytes of tensors (`torch.cuda.max_memory_allocated`).  On Linux it is the resident
memory of the process: the kernel's high-water mark is reset, and memory that was freed before is handed back first, so
that it is not used again unseen.  Elsewhere only a new high-water mark of the whole process can be seen.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEGABYTE = 2.0**20


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], float | None]]:
    """A function that, after the block, tells the largest growth inside of it in MB; `None` where nobody can tell."""
    read = _start(device)
    found: list[float | None] = []
    yield lambda: found[0]
    found.append(None if read is None else max(0.0, read()) / MEGABYTE)


def what_is_measured(device: torch.device) -> str:
    """How the memory of a computation was measured, for people."""
    if device.type == "cuda":
        return "largest memory of tensors on the device, beyond what lay there before"
    if _can_reset():
        return "largest growth of the process's resident memory during one pass over the data"
    return "growth of the process's largest resident memory; 0 where an earlier backend took more"


def _start(device: torch.device) -> Callable[[], float] | None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        return lambda: float(torch.cuda.max_memory_allocated(device) - before)
    gc.collect(1)  # not the oldest objects: walking all of torch's takes half a second
    if _can_reset():
        _give_back()
        _RESET.write_text("5", encoding="ascii")
        start = _kilobytes("VmRSS")
        return lambda: 1024.0 * (_kilobytes("VmHWM") - start)
    try:
        import resource
    except ImportError:  # not on this platform
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return lambda: float(unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - highest))


def _can_reset() -> bool:
    try:
        _RESET.write_text("5", encoding="ascii")
        return _kilobytes("VmHWM") > 0
    except OSError:
        return False


def _give_back() -> None:
    """Return freed memory to the system, where the C library knows how."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def _kilobytes(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


__all__ = ["peak_memory", "what_is_measured"]

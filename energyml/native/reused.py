"""Memory of large tensors that is used again.

The C library gives large pieces of memory back to the system when they are freed (those beyond 32 MB always, smaller
ones often), and gets them back as fresh pages, which are cleared first.  That takes about as long as writing a gradient
to them: a training loop that frees its gradients would pay for it in every step.
"""

from __future__ import annotations

import mmap
import weakref

import torch
from torch import Tensor

# Bytes from which memory is kept here.
LARGE = 4 << 20
_MAPS = hasattr(mmap, "MAP_ANONYMOUS")
# The piece that was freed last: one at most, which the system may take back when it is short of memory.
_free: list[mmap.mmap] = []


def empty_like(like: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and type on the CPU, its numbers undefined; freed memory comes back."""
    size = like.numel() * like.element_size()
    if size < LARGE or not _MAPS:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    piece = _piece(size)
    view = memoryview(piece)  # the tensor holds this alone, so that its end is that of the tensor's memory
    weakref.finalize(view, _give_back, piece).atexit = False
    return torch.frombuffer(view, dtype=like.dtype, count=like.numel()).view(like.shape)


def _piece(size: int) -> mmap.mmap:
    """The free piece where it has the size, else a new one; a free piece of another size is let go."""
    try:
        found = _free.pop()
    except IndexError:  # another thread may have been faster
        found = None
    if found is not None and len(found) == size:
        return found
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(piece: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_FREE"):
        piece.madvise(mmap.MADV_FREE)
    _free[:] = [piece]


__all__ = ["LARGE", "empty_like"]

"""Native CPU kernels over plain pointers; every kernel has a torch twin, which serves where they are not built."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def _built(name: str) -> ModuleType | None:
    try:
        return import_module(f"energyml.backends.native.{name}")
    except ImportError:
        return None


kernels = _built("_kernels")  # chains
graphs = _built("_graphs")  # elimination and trees
fields = _built("_fields")  # Gaussian fields on grids
sweeps = _built("_sweeps")  # Gibbs sampling
beams = _built("_beams")  # beam search

available = kernels is not None

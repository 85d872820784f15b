"""Native CPU kernels over plain pointers; every kernel has a torch twin, which serves where they are not built.

`ENERGYML_NATIVE=0` in the environment sets built ones aside, so that the twins serve everywhere; `v3` and `plain` leave
chains fewer instructions than the machine has.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

set_aside = os.environ.get("ENERGYML_NATIVE") == "0"


def _built(name: str) -> ModuleType | None:
    if set_aside:
        return None
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

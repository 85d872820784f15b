"""Native code for the CPU, over plain pointers; every part has a torch twin, which serves where it is not built.

Each part is compiled once for each instruction set into a module of its own, and the best one that the processor has
is loaded.  `ENERGYML_NATIVE` in the environment asks for less: `v3` and `plain` for an older instruction set, `0` for
none of the modules, so that the twins serve everywhere.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from energyml.diagnostics import EnergyError

PARTS = ("chains", "trees", "elimination", "fields", "gibbs", "beams")
SETS = ("v4", "v3", "plain")

asked = os.environ.get("ENERGYML_NATIVE", "")
if asked not in ("", "0", *SETS):
    raise EnergyError(f"ENERGYML_NATIVE takes `v4`, `v3`, `plain` or `0`, found `{asked}`")
set_aside = asked == "0"


def _imported(name: str) -> ModuleType | None:
    try:
        return import_module(f"energyml.native.{name}")
    except ImportError:
        return None


baseline = None if set_aside else _imported("_baseline")


def _usable() -> tuple[str, ...]:
    """The instruction sets that the processor has and the environment allows, best first."""
    if baseline is None:
        return ()
    found: tuple[str, ...] = baseline.instruction_sets()
    least = SETS.index(asked) if asked in SETS else 0
    return tuple(one for one in found if SETS.index(one) >= least)


# part -> the instruction set of the module that was loaded
loaded: dict[str, str] = {}


def _built(part: str) -> ModuleType | None:
    for one in _usable():
        module = _imported(f"_{part}_{one}")
        if module is not None:
            loaded[part] = one
            return module
    return None


chains = _built("chains")
trees = _built("trees")
elimination = _built("elimination")
fields = _built("fields")  # Gaussian fields on grids
gibbs = _built("gibbs")
beams = _built("beams")

available = chains is not None

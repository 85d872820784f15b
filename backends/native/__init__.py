"""Native CPU kernels over plain pointers; every kernel has a torch twin, which serves where they are not built."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

kernels: ModuleType | None
try:
    kernels = import_module("energyml.backends.native._kernels")
except ImportError:
    kernels = None

available = kernels is not None

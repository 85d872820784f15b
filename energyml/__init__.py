"""energyml: a small language and a PyTorch library for energy-based structured prediction.

Names are imported when they are first used, so that checking a spec never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Builder": "energyml.building",
    "EnergyError": "energyml.diagnostics",
    "SpecError": "energyml.diagnostics",
    "Certificate": "energyml.certificates",
    "Comparison": "energyml.comparison",
    "EnergyModel": "energyml.energy_model",
    "Posterior": "energyml.posterior",
    "Assignment": "energyml.result",
    "Query": "energyml.queries",
    "Result": "energyml.result",
    "check_text": "energyml.driver",
    "compare": "energyml.comparison",
    "compile": "energyml.loading",
    "load": "energyml.loading",
    "axes": "energyml.building",
    "choose": "energyml.building",
    "conditionals": "energyml.building",
    "hard": "energyml.building",
    "potential": "energyml.building",
    "potts": "energyml.building",
    "real": "energyml.building",
    "schedule": "energyml.building",
    "signature": "energyml.building",
    "soft": "energyml.building",
    "spread": "energyml.building",
    "step": "energyml.building",
}

_MODULES = {"interop": "energyml.interop", "functional": "energyml.backends.exact.functional"}

__all__ = [*_PUBLIC, *_MODULES, "__version__"]

if TYPE_CHECKING:
    from types import ModuleType

    from energyml import interop as interop
    from energyml.building import Builder as Builder
    from energyml.building import axes as axes
    from energyml.building import choose as choose
    from energyml.building import conditionals as conditionals
    from energyml.building import hard as hard
    from energyml.building import potential as potential
    from energyml.building import potts as potts
    from energyml.building import real as real
    from energyml.building import schedule as schedule
    from energyml.building import signature as signature
    from energyml.building import soft as soft
    from energyml.building import spread as spread
    from energyml.building import step as step
    from energyml.certificates import Certificate as Certificate
    from energyml.comparison import Comparison as Comparison
    from energyml.comparison import compare as compare
    from energyml.diagnostics import EnergyError as EnergyError
    from energyml.diagnostics import SpecError as SpecError
    from energyml.driver import check_text as check_text
    from energyml.energy_model import EnergyModel as EnergyModel
    from energyml.loading import compile as compile
    from energyml.loading import load as load
    from energyml.posterior import Posterior as Posterior
    from energyml.queries import Query as Query
    from energyml.result import Assignment as Assignment
    from energyml.result import Result as Result

    functional: ModuleType


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PUBLIC and name not in _MODULES:
        raise AttributeError(f"module 'energyml' has no attribute '{name}'")
    value = import_module(_MODULES[name]) if name in _MODULES else getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""energyml: a small language and a PyTorch library for energy-based structured prediction.

Names are imported when they are first used, so that checking a spec never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Builder": "energyml.builder",
    "EnergyError": "energyml.diagnostics",
    "SpecError": "energyml.diagnostics",
    "EnergyModel": "energyml.energy_model",
    "Posterior": "energyml.posterior",
    "Assignment": "energyml.result",
    "Query": "energyml.queries",
    "Result": "energyml.result",
    "check_text": "energyml.driver",
    "compile": "energyml.driver",
    "load": "energyml.driver",
}

__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from energyml.builder import Builder
    from energyml.driver import check_text, compile, load
    from energyml.diagnostics import EnergyError, SpecError
    from energyml.energy_model import EnergyModel
    from energyml.posterior import Posterior
    from energyml.queries import Query
    from energyml.result import Assignment, Result


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'energyml' has no attribute '{name}'")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

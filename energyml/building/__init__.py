"""Models without spec text: Python objects that become the statements of a spec."""

from energyml.building.builder import Builder
from energyml.building.settings import choose, schedule, spread
from energyml.building.tensors import hard, potential, potts, soft
from energyml.building.types import axes, conditionals, real, signature, step

__all__ = [
    "Builder", "axes", "choose", "conditionals", "hard", "potential", "potts", "real", "schedule", "signature", "soft",
    "spread", "step",
]  # fmt: skip

"""The same energy under several backends, side by side: how good, how far from the best, how fast, how large."""

from energyml.comparison.result import Comparison, Row
from energyml.comparison.run import compare

__all__ = ["Comparison", "Row", "compare"]

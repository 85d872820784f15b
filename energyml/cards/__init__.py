"""Torch-free descriptions of everything that a spec can name."""

from energyml.cards.card import Card, CardKind, Selection
from energyml.cards.options import Option
from energyml.cards.registry import every, find, implementation

__all__ = ["Card", "CardKind", "Option", "Selection", "every", "find", "implementation"]

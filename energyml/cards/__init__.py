"""Torch-free descriptions of everything that a spec can name."""

from energyml.cards.card import Card, CardKind, Selection
from energyml.cards.options import Option
from energyml.cards.registry import broken, every, find, implementation

__all__ = ["Card", "CardKind", "Option", "Selection", "broken", "every", "find", "implementation"]

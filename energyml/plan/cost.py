"""Costs as formulas in the model's own dims: a text for people and a function for numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Sizes = Mapping[str, float]


@dataclass(frozen=True)
class Formula:
    """A product of named sizes, or anything else that can be written down and evaluated.

    Attributes:
        text: how it is written: `B * T * |Letter|^2`.
        evaluate: its value for given sizes; may raise `KeyError` for a size that is not known.
    """

    text: str
    evaluate: Callable[[Sizes], float]

    def value(self, sizes: Sizes) -> float | None:
        """The number, `inf` when it overflows, or `None` when a size is unknown."""
        try:
            return self.evaluate(sizes)
        except KeyError:
            return None
        except OverflowError:
            return math.inf

    def __str__(self) -> str:
        return self.text


def product(coefficient: float, powers: Mapping[str, float]) -> Formula:
    """`coefficient * symbol^power * ...`."""
    parts = [] if coefficient == 1 else [f"{coefficient:g}"]
    parts += [symbol if power == 1 else f"{symbol}^{power:g}" for symbol, power in powers.items()]

    def evaluate(sizes: Sizes) -> float:
        total = float(coefficient)
        for symbol, power in powers.items():
            total *= float(sizes[symbol]) ** power
        return total

    return Formula(" * ".join(parts) or "1", evaluate)


def power(base: str, exponent: str, factor: float = 1.0) -> Formula:
    """`base ^ exponent`, as in `|Letter|^T`."""
    text = f"{base}^{exponent}" if factor == 1 else f"{factor:g} * {base}^{exponent}"
    return Formula(text, lambda sizes: factor * float(sizes[base]) ** float(sizes[exponent]))


@dataclass(frozen=True)
class Cost:
    """Operations and bytes of one answer for a batch."""

    operations: Formula
    memory: Formula

    def describe(self, sizes: Sizes) -> str:
        """The formulas, with numbers where all sizes are known."""
        return f"{_with_number(self.operations, sizes, 'operations')}; {_with_number(self.memory, sizes, 'bytes')}"


def _with_number(formula: Formula, sizes: Sizes, unit: str) -> str:
    number = formula.value(sizes)
    return f"{formula} {unit}" + ("" if number is None else f" = {human(number)}")


def human(number: float) -> str:
    """A number with three digits: `1.23e+06` as `1.23 M`."""
    if not math.isfinite(number):
        return "more than 1e308"
    for limit, suffix in ((1e15, None), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number:.3g}" if suffix is None else f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}"

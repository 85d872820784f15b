"""Random factor graphs, their files, and the truth about them by enumeration in plain NumPy."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


@dataclass
class Factors:
    """Variables with numbers of values, and factors: a scope and a table [*values of the scope]."""

    cards: list[int]
    factors: list[tuple[tuple[int, ...], np.ndarray]]

    def weights(self) -> np.ndarray:
        """[*cards]: the weight of every joint value."""
        total = np.ones(self.cards)
        for values in itertools.product(*map(range, self.cards)):
            for scope, table in self.factors:
                total[values] *= table[tuple(values[one] for one in scope)]
        return total

    def uai(self, header: str = "MARKOV") -> str:
        """The file in which the last variable runs fastest."""
        lines = [header, str(len(self.cards)), " ".join(map(str, self.cards)), str(len(self.factors))]
        lines += [" ".join(map(str, (len(scope), *scope))) for scope, _ in self.factors]
        for _, table in self.factors:
            lines += ["", str(table.size), " ".join(f"{value!r}" for value in table.ravel().tolist())]
        return "\n".join(lines) + "\n"

    def fg(self) -> str:
        """The libDAI file, in which the first variable runs fastest and zeros are left out."""
        lines = ["# a comment", str(len(self.factors))]
        for scope, table in self.factors:
            flat = table.ravel(order="F").tolist()
            listed = [f"{index} {value!r}" for index, value in enumerate(flat) if value]
            lines += ["", str(len(scope)), " ".join(map(str, scope)), " ".join(str(self.cards[one]) for one in scope)]
            lines += [f"{len(listed)}  # entries", *listed]
        return "\n".join(lines) + "\n"


def log(weights: np.ndarray | float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(weights)


@st.composite
def factor_graphs(draw: st.DrawFn, mentioned: bool = False) -> Factors:
    """Up to five variables of one to four values; factors over none to all of them, with zeros.

    With `mentioned`, each variable stands in some factor.
    """
    cards = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    places = range(len(cards))
    scopes = draw(st.lists(st.lists(st.sampled_from(places), unique=True, max_size=4), max_size=6))
    if mentioned:
        scopes += [[place] for place in places]
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    factors = []
    for scope in scopes:
        shape = [cards[place] for place in scope]
        table = random.gamma(1.0, size=shape) * (random.random(shape) > draw(st.sampled_from([0.0, 0.2])))
        factors.append((tuple(scope), np.asarray(table)))
    return Factors(cards, factors)


def log_sum(weights: np.ndarray) -> float:
    total = float(weights.sum())
    return math.log(total) if total else -math.inf

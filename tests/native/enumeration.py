"""Chains by enumeration of all answers, their scores added up without any rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

# Answers this far below the best one are no part of a sum in double precision, and do not count for tolerances.
RELEVANT = 50.0


@dataclass(frozen=True)
class Enumerated:
    """One chain.

    Attributes:
        log_z: log Z.
        cells: [T, C] marginals.
        steps: [T-1, C, C] marginals of neighbours.
        size: the magnitudes of the scores of an answer, added up; the largest among the likely answers.
        best: the score of the best answer.
        score: of any answer.
    """

    log_z: float
    cells: Tensor
    steps: Tensor
    size: float
    best: Fraction
    score: dict[tuple[int, ...], Fraction]


def enumerated(unary: Tensor, pair: Tensor) -> Enumerated | None:
    """The answers of a chain with unaries [T, C] and pairs [T-1, C, C]; `None` where none is possible."""
    size, labels = unary.shape
    cells, steps = _rational(unary.tolist()), _rational(pair.tolist())
    score, magnitude = {}, {}
    for answer in itertools.product(range(labels), repeat=size):
        terms = [cells[t][one] for t, one in enumerate(answer)]
        terms += [steps[t][one][other] for t, (one, other) in enumerate(itertools.pairwise(answer))]
        if None not in terms:
            score[answer], magnitude[answer] = sum(terms, Fraction()), float(sum(map(abs, terms)))
    if not score:
        return None
    best = max(score.values())
    weight = {answer: math.exp(max(-1e4, float(max(one - best, Fraction(-10000))))) for answer, one in score.items()}
    total = math.fsum(weight.values())
    found = torch.zeros(size, labels, dtype=torch.float64), torch.zeros(pair.shape, dtype=torch.float64)
    for answer, one in weight.items():
        for t, label in enumerate(answer):
            found[0][t, label] += one / total
        for t, both in enumerate(itertools.pairwise(answer)):
            found[1][(t, *both)] += one / total
    likely = max(magnitude[answer] for answer, one in weight.items() if one >= math.exp(-RELEVANT))
    return Enumerated(float(best) + math.log(total), *found, likely, best, score)


def _rational(numbers: Sequence[object] | float) -> object:
    if isinstance(numbers, float):
        return None if numbers == -math.inf else Fraction(numbers)
    return [_rational(one) for one in numbers]

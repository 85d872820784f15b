"""Negative log-likelihood: -log p(y | x) = log Z - score (Shevchenko & Osokin 2019, eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from energyml.cards.card import Selection
from energyml.posterior import Posterior


def nll(posterior: Posterior, answer: Mapping[str, Tensor], selection: Selection) -> Tensor:
    """[B]: the negative log-likelihood of full or partial labels; -1 and missing variables are summed out.

    Non-negative wherever log Z is exact.  Asks `log_partition`.
    """
    return -posterior.log_prob(**answer)

"""Queries, qualities and views: the words in which backends, objectives and the planner speak to each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class View(Enum):
    """How a term lets itself be looked at; a backend needs one view from every term."""

    SCORE = "the score of a full answer"
    TABLE = "a table over the labels of its scope"
    MULTILINEAR = "a score that is linear in each cell's probabilities"
    SOFT = "a score of relaxed labels"
    STEP = "scores of the next label after a prefix"
    CONDITIONAL = "the conditional of one cell given all others"
    PROPOSE = "proposals for one cell"
    QUADRATIC = "a quadratic form over a field"
    GRAD = "the gradient of the score in relaxed labels or field values"


class Quality(Enum):
    """What an answer promises about the true value."""

    EXACT = "exact"
    LOWER = "lower bound"
    UPPER = "upper bound"
    ESTIMATE = "estimate"
    READOUT = "read-out"


QUERIES: dict[str, str] = {
    "log_partition": "log Z: the log of the sum of exp(score) over all answers",
    "marginals": "the probability of each label at each cell",
    "factor_marginals": "the probability of each joint label of each factor",
    "max_marginals": "the best score with each cell fixed to each label",
    "map": "the best answer and its score",
    "map_bound": "an upper bound of the best answer's score",
    "n_best": "the k best answers and their scores",
    "sample": "draws from p(y | x)",
    "entropy": "the entropy of p(y | x)",
    "log_prob": "the log-probability of a full or partial answer",
    "max_with_cost": "the best of score plus a decomposable cost",
    "log_prob_with_cost": "the log-probability of an answer where a decomposable cost is added to all scores",
    "expectation": "the expectation of a sum of functions of cells and factors",
    "cross_entropy": "the cross-entropy of a second model of the same cells, relative to this one",
    "kl": "the divergence of a second model of the same cells from this one",
    "conditionals": "the distribution of each cell given all others",
    "mode": "the best value of a field",
    "variance": "the marginal variances of a field",
    "soft_decode": "relaxed labels that gradients flow through",
}

# What can be asked about a distribution over labels.
LABEL_QUERIES = (
    "log_partition", "marginals", "factor_marginals", "max_marginals", "map", "n_best", "sample", "entropy", "log_prob",
    "max_with_cost", "log_prob_with_cost", "expectation", "cross_entropy", "kl",
)  # fmt: skip

# Queries about fields that exact methods answer: `mode` to the tolerance of a solve where no direct method is cheaper.
FIELD_ANSWERS = {
    "mode": Quality.EXACT, "map": Quality.READOUT, "marginals": Quality.READOUT, "variance": Quality.EXACT,
    "log_partition": Quality.EXACT, "entropy": Quality.EXACT, "log_prob": Quality.EXACT, "sample": Quality.EXACT,
    "conditionals": Quality.EXACT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """A question to a posterior, as a value.

    Attributes:
        kind: a key of `QUERIES`.
        target: the variable or term it is about; all of them when `None`.
        count: how many answers (`n_best`, `sample`).
        generator: the random generator (`sample`).
        answer: a full or partial answer (`log_prob`, `log_prob_with_cost`), labels by variable with -1 for "any".
        cost: a cost for each label of each cell, by variable (`max_with_cost`, `log_prob_with_cost`).
        values: a function of each cell or factor, by variable or term (`expectation`).
        other: the posterior of a second model (`cross_entropy`, `kl`).
        wide: whether the answer may come in a wider type than the scores', as it was computed: for those who go on
            adding and subtracting.  `log_partition` is computed in double precision for them, where a backend can.
    """

    kind: str
    target: str | None = None
    count: int = 1
    generator: Any = None
    answer: Any = None
    cost: Any = None
    values: Any = None
    other: Any = None
    wide: bool = False

    def __post_init__(self) -> None:
        """Refuse a kind that no backend could know."""
        if self.kind not in QUERIES:
            raise ValueError(f"unknown query `{self.kind}`; known: {', '.join(QUERIES)}")

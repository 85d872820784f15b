"""The cards of mean field, belief propagation, tree-reweighted belief propagation and dual decomposition."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Real, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

_ORDERS = ("sequential", "coloured", "parallel")
_DAMPING = Option("damping", Real(0, 1), 0.0, "share of the old value that is kept")
_GRADIENTS = Option(
    "gradients", Word(("unrolled", "implicit")), "unrolled", "through all sweeps, or of the fixed point's equation"
)
_PASSING = Option(
    "schedule",
    Word(_ORDERS),
    "sequential",
    "cell after cell and back, class after class, or all at once",
)
_TOL = Option("tol", Real(0), 1e-6, "change that ends the sweeps; 0 makes all of them")


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("it serves labels, and the model has a field", "`exact` and `cg` serve fields")
    if structure.free:
        return Refusal("the length is part of the answer", "a beam searches over lengths")
    return None


CARDS = (
    BackendCard(
        "backend",
        "mean_field",
        "a product of independent cells, updated in turn; bounds log Z from below",
        (
            Option("steps", Whole(), 10, "sweeps"),
            Option("schedule", Word(_ORDERS), "sequential", "cell after cell, class after class, or all at once"),
            _DAMPING,
            Option("tol", Real(0), 0.0, "change that ends the sweeps; 0 makes all of them"),
            Option("start", Word(("unary", "uniform")), "unary", "the softmax of each cell's own scores, or all alike"),
            _GRADIENTS,
        ),
        1,
        "energyml.backends.variational.mean_field:MeanField",
        "Shevchenko & Osokin 2019, eq. 6",
        view=View.MULTILINEAR,
        answers={
            "log_partition": Quality.LOWER,
            "marginals": Quality.ESTIMATE,
            "factor_marginals": Quality.ESTIMATE,
            "map": Quality.LOWER,
            "sample": Quality.ESTIMATE,
            "entropy": Quality.ESTIMATE,
            "log_prob": Quality.ESTIMATE,
            "expectation": Quality.ESTIMATE,
        },
        refuses=_refuses,
        preference=60,
    ),
    BackendCard(
        "backend",
        "bp",
        "belief propagation: exact on trees, an estimate on loopy graphs",
        (
            Option("steps", Whole(), 50, "most sweeps"),
            _PASSING,
            _DAMPING,
            _TOL,
            _GRADIENTS,
        ),
        1,
        "energyml.backends.variational.bp:BeliefPropagation",
        "Pearl 1988; Yedidia et al. 2005",
        view=View.TABLE,
        answers={
            "log_partition": Quality.ESTIMATE,
            "marginals": Quality.ESTIMATE,
            "factor_marginals": Quality.ESTIMATE,
            "max_marginals": Quality.ESTIMATE,
            "map": Quality.LOWER,
            "entropy": Quality.ESTIMATE,
            "log_prob": Quality.ESTIMATE,
            "expectation": Quality.ESTIMATE,
        },
        refuses=_refuses,
        preference=55,
    ),
    BackendCard(
        "backend",
        "trw",
        "tree-reweighted belief propagation; bounds log Z from above",
        (
            Option("steps", Whole(), 50, "most sweeps"),
            _PASSING,
            _DAMPING,
            _TOL,
            _GRADIENTS,
        ),
        1,
        "energyml.backends.variational.trw:TreeReweighted",
        "Wainwright et al. 2005; Globerson & Jaakkola 2007",
        view=View.TABLE,
        answers={
            "log_partition": Quality.UPPER,
            "marginals": Quality.ESTIMATE,
            "factor_marginals": Quality.ESTIMATE,
            "map": Quality.LOWER,
            "log_prob": Quality.ESTIMATE,
            "expectation": Quality.ESTIMATE,
        },
        refuses=_refuses,
        preference=57,
    ),
    BackendCard(
        "backend",
        "dual",
        "dual decomposition: an answer, and a bound from above on the score of the best one",
        (
            Option("steps", Whole(), 100, "most sweeps, each through all cells and back"),
            Option("schedule", Word(_ORDERS[:2]), "sequential", "cell after cell, or class after class"),
            Option("tol", Real(0), 1e-6, "relative gap, or relative progress of the bound, that ends the sweeps"),
        ),
        1,
        "energyml.backends.variational.dual:Dual",
        "Kolmogorov 2006, 2015; Globerson & Jaakkola 2007; Sontag et al. 2011",
        view=View.TABLE,
        answers={"map": Quality.LOWER, "map_bound": Quality.UPPER},
        refuses=_refuses,
        preference=59,
    ),
)

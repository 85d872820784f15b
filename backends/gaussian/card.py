"""The card of `cg`, and what is answered about fields."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Real, Whole, Word
from energyml.plan.backend_card import BackendCard
from energyml.plan.cost import Cost, product
from energyml.plan.fields import conjugate_gradients, direct
from energyml.plan.structure import USUAL, Structure
from energyml.queries import FIELD_ANSWERS, Quality, View

_ESTIMATED = dict.fromkeys(("variance", "log_partition", "entropy", "log_prob"), Quality.ESTIMATE)


def _cost(structure: Structure) -> Cost | None:
    made = [conjugate_gradients(facts) for facts in structure.fields]
    if any(one.operations is None for one in made):
        return None
    operations = sum(one.operations or 0.0 for one in made)
    return Cost(product(operations, {"B": 1}), product(sum(one.memory or 0.0 for one in made), {"B": 1}))


def _method(structure: Structure, selection: Selection) -> str:
    parts = []
    for facts in structure.fields:
        line = f"{facts.name}: conjugate gradients to a relative residual of {selection['tol']:g}, as asked"
        other = direct(facts, USUAL)
        if other is not None:
            line += f"; `exact` would take {other.describe()}"
        parts.append(line)
    return "; ".join(parts)


CARDS = (
    BackendCard(
        "backend",
        "cg",
        "conjugate gradients for Gaussian fields",
        (
            Option("tol", Real(0, open_low=True), 1e-6, "relative residual"),
            Option("gradient_tol", Real(0, open_low=True), None, "that of gradients; `tol` when left out"),
            Option("iterations", Whole(), 1000, "most iterations"),
            Option(
                "preconditioner",
                Word(("auto", "none", "jacobi", "lowrank", "transform")),
                "auto",
                "`lowrank` where there are vectors, else `jacobi`",
            ),
            Option("probes", Whole(2), 16, "random fields behind estimates"),
            Option("seed", Whole(0), 0, "seed of these"),
            Option("engine", Word(("auto", "torch")), "auto", "whether compiled stencils may serve grids"),
        ),
        0,
        "energyml.backends.gaussian.backend:ConjugateGradients",
        source="Shevchenko & Osokin 2019, eq. 12 and 15; Ubaru, Chen & Saad 2017 (determinants)",
        view=View.QUADRATIC,
        field_answers=FIELD_ANSWERS | _ESTIMATED,
        cost=_cost,
        method=_method,
        preference=15,
    ),
)

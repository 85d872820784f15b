"""The card of the solver for Gaussian fields."""

from __future__ import annotations

from energyml.cards.options import Option, Real, Whole, Word
from energyml.plan.backend_card import BackendCard
from energyml.plan.cost import Cost, Formula
from energyml.plan.structure import Structure
from energyml.queries import Quality, View


def _cost(structure: Structure) -> Cost:
    work = Formula("B * iterations * cells", lambda sizes: sizes["B"] * sizes["iterations"] * sizes["cells"])
    return Cost(work, Formula("48 * B * cells", lambda sizes: 48 * sizes["B"] * sizes["cells"]))


CARDS = (
    BackendCard(
        "backend",
        "cg",
        "conjugate gradients for a Gaussian field",
        (
            Option("tol", Real(0, open_low=True), 1e-6, "relative residual"),
            Option("iterations", Whole(), 200, "most iterations"),
            Option("preconditioner", Word(("none", "jacobi", "lowrank")), "jacobi", "preconditioner"),
        ),
        0,
        source="Shevchenko & Osokin 2019, eq. 12 and 15",
        view=View.QUADRATIC,
        answers={"mode": Quality.EXACT, "marginals": Quality.READOUT, "map": Quality.READOUT, "sample": Quality.EXACT,
                 "log_partition": Quality.ESTIMATE, "variance": Quality.ESTIMATE},
        cost=_cost,
        preference=15,
    ),
)  # fmt: skip

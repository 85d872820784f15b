"""The card of integer linear programming."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Real, Whole
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("it serves labels, and the model has a field", "`exact` and `cg` serve fields")
    if structure.free:
        return Refusal("the length is part of the answer", "a beam searches over lengths")
    if structure.latent:
        names = ", ".join(f"`{name}`" for name in structure.latent)
        return Refusal(f"it cannot sum out {names}", "`exact` sums out latents, `dual` bounds the sum")
    return None


CARDS = (
    BackendCard(
        "backend",
        "ilp",
        "the best answer of a small loopy graph by integer linear programming",
        (
            Option("seconds", Real(0, open_low=True), 60.0, "time limit of one example; a bound is told when it ends"),
            Option("limit", Whole(), 1_000_000, "most indicators of joint labels that one example may have"),
        ),
        0,
        "energyml.backends.ilp.backend:IntegerProgramming",
        "Wainwright & Jordan 2008, section 8; Huangfu & Hall 2018 (HiGHS)",
        view=View.TABLE,
        answers={"map": Quality.EXACT, "map_bound": Quality.UPPER},
        refuses=_refuses,
        preference=58,
    ),
)

"""The card of gradient ascent on relaxed labels."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import AnyOf, CardOf, Option, Real, Scheduled, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.structure import Structure
from energyml.queries import Quality, View

SEARCH = "search"
STARTS = ("random", "unary")
# What a starting point is made of, the first that a backend answers.
STARTING_QUERIES = ("soft_decode", "marginals", "map")


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        return Refusal("it serves labels, and the model has a field", "`exact` and `cg` serve fields")
    if structure.free:
        return Refusal("the length is part of the answer", "a beam searches over lengths")
    if selection["optimizer"] == "adam" and selection["momentum"] == 1:
        return Refusal("`adam` with momentum 1 never moves", "take a smaller `momentum`")
    start = selection["start"]
    return _refused_start(structure, start) if isinstance(start, Selection) else None


def _refused_start(structure: Structure, start: Selection) -> Refusal | None:
    """Why a backend cannot give the starting point."""
    from energyml.plan.planner import AUTO, judge

    if start.name == AUTO:
        return Refusal("it cannot start from `auto`", "name the backend to start from")
    verdict = judge(start, structure)
    if verdict.refusal is not None:
        return Refusal(f"it starts from `{start.name}`, which cannot serve: {verdict.refusal}")
    if not any(query in verdict.answers for query in STARTING_QUERIES):
        return Refusal(f"it starts from `{start.name}`, which answers none of {', '.join(STARTING_QUERIES)}")
    return None


def _method(structure: Structure, selection: Selection) -> str | None:
    return f"{selection['steps']} steps of {selection['optimizer']} on the logits of all cells"


CARDS = (
    BackendCard(
        "backend",
        "relaxed",
        "gradient ascent on relaxed labels, then rounding",
        (
            Option("steps", Whole(), 50, "most gradient steps"),
            Option(
                "lr", AnyOf((Real(0, open_low=True), Word((SEARCH,)))), 1.0, "step size, or one sought for each example"
            ),
            Option("momentum", Real(0, 1), 0.9, "share of the last step that is made again"),
            Option("optimizer", Word(("sgd", "adam", "exponentiated")), "sgd", "how logits move"),
            Option("restarts", Whole(), 1, "starting points, of which the best is kept"),
            Option("start", AnyOf((Word(STARTS), CardOf("backend"))), "random", "N(0, 1), own scores, or an answer"),
            Option("entropy", Scheduled(Real(0)), 0.0, "weight of the entropy, constant or along the steps"),
            Option("tol", Real(0), 1e-6, "change of the relaxed labels that ends an example; 0 makes all steps"),
            Option("round", Word(("coordinate", "argmax")), "coordinate", "cell by cell, or each cell's likeliest"),
            Option("penalty", Real(0), 10.0, "what the probability of forbidden labels costs"),
            Option(
                "gradients",
                Word(("unrolled", "implicit")),
                "unrolled",
                "through all steps, or of the optimum's equation",
            ),
            Option("seed", Whole(0), 0, "seed of random starts"),
        ),
        0,
        "energyml.backends.relaxed.backend:RelaxedAscent",
        "Tu & Gimpel 2019, section 3",
        view=View.SOFT,
        answers={"map": Quality.LOWER, "soft_decode": Quality.ESTIMATE},
        refuses=_refuses,
        method=_method,
        preference=70,
    ),
)

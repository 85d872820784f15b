"""The card of `exact`: a promise about the answer, not about the method."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Whole, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.cost import Cost, product
from energyml.plan.elimination import Program, TooWide, human_bytes
from energyml.plan.fields import choose
from energyml.plan.structure import USUAL, Shape, Structure
from energyml.queries import FIELD_ANSWERS, LABEL_QUERIES, Quality, View

MEGABYTES = 2048


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    if structure.has_field:
        engine = selection["engine"]
        return Refusal(f"engine `{engine}` serves chains", "leave out `engine`") if engine == "torch_struct" else None
    if structure.free:
        return Refusal(
            "the length is part of the answer", "a beam searches over lengths; `enumerate` is exact for small examples"
        )
    if selection["engine"] == "torch_struct" and not structure.is_sequence:
        return Refusal("torch-struct serves first-order chains", "leave out `engine`")
    if structure.is_sequence or structure.ground is None or structure.ground.label_counts is None:
        return None  # a chain, or a graph whose sizes are known only when it is met
    made = structure.ground.program(float(selection["memory"]) * (1 << 20))
    if isinstance(made, TooWide):
        return Refusal(str(made), f"raise `memory` to {made.megabytes} or more" if made.megabytes is not None else "")
    return None


def _cost(structure: Structure) -> Cost | None:
    if structure.has_field:
        chosen = [choose(facts, USUAL, "determinant") or choose(facts, USUAL) for facts in structure.fields]
        operations = [one.operations for one in chosen if one is not None and one.operations is not None]
        if len(operations) != len(chosen):
            return None
        memory = sum(one.memory or 0.0 for one in chosen if one is not None)
        return Cost(product(sum(operations), {"B": 1}), product(memory, {"B": 1}))
    if structure.is_sequence or structure.shape is Shape.CHAIN:
        dim, labels, order = structure.dim or "T", f"|{structure.cells[0][2]}|", max(1, structure.order)
        return Cost(product(1, {"B": 1, dim: 1, labels: order + 1}), product(8, {"B": 1, dim: 1, labels: order}))
    if structure.ground is None or structure.ground.label_counts is None:
        return None
    made = structure.ground.program()
    if not isinstance(made, Program):
        return None
    return Cost(product(made.operations, {"B": 1}), product(made.memory, {}))


def _method(structure: Structure, selection: Selection) -> str:
    if structure.has_field:
        return _field_methods(structure, float(selection["memory"]) * (1 << 20))
    engine = selection["engine"]
    by = "native kernels on the CPU, torch elsewhere" if engine == "auto" else f"engine `{engine}`"
    if structure.is_sequence:
        return f"forward-backward along the chain; {by}"
    made = None
    if structure.ground is not None and structure.ground.label_counts is not None:
        made = structure.ground.program(float(selection["memory"]) * (1 << 20))
    if not isinstance(made, Program):
        return f"elimination, planned when the graph is known; {by}"
    slices = f", in {made.rounds:g} slices" if made.slices else ""
    return (
        f"elimination in {made.method} order: width {made.width}, "
        f"{human_bytes(made.memory)} for one example{slices}; {by}"
    )


def _field_methods(structure: Structure, budget: float) -> str:
    parts = []
    for facts in structure.fields:
        best, other = choose(facts, budget), choose(facts, budget, "determinant")
        line = f"{facts.name}: {best.describe()}" if best is not None else facts.name
        if other is None:
            line += "; no exact determinants and variances within `memory`"
        elif best is not None and other.method != best.method:
            line += f"; determinants and variances by {other.describe()}"
        parts.append(line)
    return "; ".join(parts)


CARDS = (
    BackendCard(
        "backend",
        "exact",
        "exact answers wherever the structure allows them",
        (
            Option("engine", Word(("auto", "native", "torch", "torch_struct")), "auto", "the chain engine"),
            Option("memory", Whole(), MEGABYTES, "megabytes that eliminating one example may take"),
        ),
        0,
        "energyml.backends.exact.backend:Exact",
        "Lafferty et al. 2001; Dechter 1999 (bucket elimination); Rush 2020 (torch-struct)",
        view=View.TABLE,
        answers=dict.fromkeys(LABEL_QUERIES, Quality.EXACT),
        field_answers=FIELD_ANSWERS,
        field_implementation="energyml.backends.gaussian.backend:DirectMethods",
        refuses=_refuses,
        cost=_cost,
        method=_method,
        preference=10,
    ),
)

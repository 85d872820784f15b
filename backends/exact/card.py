"""The card of `exact`: a promise about the answer, not about the method."""

from __future__ import annotations

from energyml.cards.card import Selection
from energyml.cards.options import Option, Word
from energyml.plan.backend_card import BackendCard, Refusal
from energyml.plan.cost import Cost, product
from energyml.plan.structure import Shape, Structure
from energyml.queries import LABEL_QUERIES, Quality, View


def _refuses(structure: Structure, selection: Selection) -> Refusal | None:
    small = "`enumerate` is exact too, for small examples"
    if structure.latent:
        return Refusal("it does not sum out latent variables yet", small)
    if structure.free:
        return Refusal("the length is part of the answer", "a beam searches over lengths; " + small)
    if structure.shape is Shape.INDEPENDENT and structure.dim is not None and len(structure.cells) == 1:
        return None
    if structure.shape is Shape.CHAIN and structure.order == 1:
        return None
    if structure.shape is Shape.CHAIN:
        return Refusal(f"the chain has order {structure.order}, and this version serves order 1", small)
    return Refusal(f"the tables make a {structure.shape.value}, and this version serves first-order chains", small)


def _cost(structure: Structure) -> Cost:
    dim = structure.dim or "T"
    labels = f"|{structure.cells[0][2]}|"
    return Cost(product(1, {"B": 1, dim: 1, labels: 2}), product(8, {"B": 1, dim: 1, labels: 1}))


CARDS = (
    BackendCard(
        "backend",
        "exact",
        "exact answers wherever the structure allows them",
        (Option("engine", Word(("auto", "native", "torch", "torch_struct")), "auto", "the chain engine"),),
        0,
        "energyml.backends.exact.chain:ExactChain",
        "Lafferty et al. 2001; Rush 2020 (torch-struct)",
        view=View.TABLE,
        answers=dict.fromkeys(LABEL_QUERIES, Quality.EXACT),
        refuses=_refuses,
        cost=_cost,
        preference=10,
    ),
)

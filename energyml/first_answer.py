"""The first backend that answers, where the choice is `auto`."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeVar

from energyml.cards.card import Selection
from energyml.diagnostics import QueryRefused, join_names
from energyml.energy_model import EnergyModel
from energyml.plan.planner import AUTO, candidates, plan
from energyml.plan.structure import Structure
from energyml.queries import Quality

T = TypeVar("T")


def first_that_answers(
    model: EnergyModel, using: str | Selection | None, queries: Sequence[str], ask: Callable[[Selection | None], T]
) -> tuple[T, str | None]:
    """The answer of a backend; where the choice is `auto`, the first one that does not refuse.

    Args:
        model: whose backends they are.
        using: the choice, as in `EnergyModel.infer`.
        queries: what will be asked; `auto` considers the backends that answer all of it.
        ask: asks a backend; `QueryRefused` makes `auto` go on.

    Returns:
        The answer, and for `auto` a line about the choice with its reasons.
    """
    chosen = model.selected(using)
    if chosen is not None and chosen.name != AUTO:
        return ask(chosen), None
    structure = model.plan(AUTO).structure
    refusals: dict[str, str] = {}
    for verdict in candidates(structure, queries):
        name = verdict.selection.name
        try:
            found = ask(verdict.selection)
        except QueryRefused as refusal:
            refusals[name] = str(refusal)
            continue
        if not refusals and all(verdict.answers[query] is Quality.EXACT for query in queries):
            return found, None
        reasons = "; ".join(refusals.values()) or plan(structure, None, queries).why.removeprefix(f"{AUTO}: ")
        return found, f"{AUTO} chose `{name}`: {reasons}"
    raise QueryRefused("; ".join((*refusals.values(), _who_else(structure, queries, refusals))))


def _who_else(structure: Structure, queries: Sequence[str], refused: Container[str]) -> str:
    """Which backends answer each of some queries, where none answers all of them."""
    able = {query: [one.selection.name for one in candidates(structure, (query,))] for query in queries}
    left = {query: [name for name in names if name not in refused] for query, names in able.items()}
    known = [f"`{query}`: {join_names(names[:3]) or 'no backend'}" for query, names in left.items()]
    several = "ask one query at a time; " if len(queries) > 1 else ""
    return f"{several}backends that answer {', '.join(known)}"


__all__ = ["first_that_answers"]

"""Stages of training: what a spec's `train` line asks for, as plain data for the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from energyml.cards import registry
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.ir.expressions import parts_of
from energyml.ir.graph import Graph, Term
from energyml.model.expression import Apply, Reference
from energyml.objectives.cards import ObjectiveCard
from energyml.queries import View


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes:
        objective: what is minimised, with the options of the stage.
        title: what people call it.
        only: the networks and parameters that move; all when empty.
        without: terms that are left out of the score.
    """

    objective: Selection
    title: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __getitem__(self, option: str) -> Any:
        """An option of the stage."""
        return self.objective[option]

    @property
    def players(self) -> tuple[str | None, ...]:
        """Whose parameters move in turns on each batch; `None` stands for all at once."""
        return cast("ObjectiveCard", self.objective.card).players or (None,)

    def moves(self, parameter: str) -> bool:
        """Whether the parameter of that name moves."""
        owner, named = owner_of(parameter), parameter.partition(".")[0] in self.only
        if self.players == (None,):
            return named or not self.only
        return owner in self.players and (named or not self.only or owner == "infer")


def owner_of(parameter: str) -> str:
    """The player that a parameter belongs to: `infer` where a backend owns it, else `model`."""
    return "infer" if parameter.startswith("infer.") else "model"


def plan_stages(chosen: Sequence[Selection], graph: Graph) -> list[Stage]:
    """The stages in the order they run; a `staged` procedure becomes three.

    The paper's three stages (Shevchenko & Osokin 2019, section 3): the network of the scaled terms alone, by the
    cross-entropy of each cell; the other parameters with that network fixed, where they have any of their own;
    everything together.
    """
    if not chosen:
        raise EnergyError("the spec has no `train` line; add one, or pass `--train`, for example `--train nll`")
    stages: list[Stage] = []
    for number, objective in enumerate(chosen, start=1):
        procedure: Selection | None = objective["procedure"]
        only, without = objective["only"], objective["without"]
        plain = Stage(objective, f"{number}. {objective.name}", tuple(only or ()), tuple(without or ()))
        if procedure is None or procedure.name == "joint":
            stages.append(plain)
            continue
        scale, against = groups(procedure, graph)
        own = parameters_of(scale, graph)
        others = tuple(name for name in parameters_of(against, graph) if name not in own)
        first = registry.find("objective", "marginal_ce")
        assert first is not None
        shared = {key: value for key, value in objective.options.items() if key in _PASSED_ON}
        alone = Stage(Selection(first, shared), f"{number}a. marginal_ce of {' + '.join(scale)} alone", own, against)
        rest = replace(plain, title=f"{number}b. {objective.name}, only {' + '.join(others)}", only=others)
        # a group without parameters of its own has nothing to move
        stages += [stage for stage in (alone, rest) if stage.only]
        stages.append(replace(plain, title=f"{number}c. {objective.name}, everything"))
    return stages


_PASSED_ON = ("epochs", "batch", "optimizer", "stop", "clip", "seed", "infer")


def groups(selection: Selection, graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two groups of terms that a procedure or a balance tells apart.

    What is scaled are by default the terms over single cells (the linear part of a field); the rest is the others.
    """
    soft = [term for term in graph.terms if not term.is_hard]
    scale, against = selection["scale"], selection["against"]
    first = tuple(scale) if scale is not None else tuple(term.name for term in soft if _is_unary(term))
    second = tuple(against) if against is not None else tuple(term.name for term in soft if term.name not in first)
    if scale is None and against is not None:
        first = tuple(name for name in first if name not in second)
    if not first or not second:
        raise EnergyError(
            f"`{selection.name}` weighs two groups of terms against each other, and there is only one; "
            f"name them: `{selection.name}(scale: ..., against: ...)`"
        )
    both = set(first) & set(second)
    if both:
        raise EnergyError(f"`{selection.name}` has `{sorted(both)[0]}` on both sides")
    return first, second


def _is_unary(term: Term) -> bool:
    if View.TABLE in term.views:
        return len(set(map(str, term.scope))) == 1
    return term.kind == "linear"


def parameters_of(terms: Sequence[str], graph: Graph) -> tuple[str, ...]:
    """The networks and parameters behind some terms, in the order of the spec."""
    found: set[str] = set()
    chosen = [graph.term(name) for name in terms]
    for value in parts_of((value for term in chosen for value in term.expressions()), graph):
        if isinstance(value, Apply):
            found.add(value.net)
        if isinstance(value, Reference) and value.kind == "param":
            found.add(value.name)
    found.update(net for term in chosen if (net := getattr(term.body, "net", None)) is not None)
    declared: Mapping[str, object] = {**graph.nets, **graph.params}
    return tuple(name for name in declared if name in found)


__all__ = ["Stage", "groups", "owner_of", "parameters_of", "plan_stages"]

"""What the words of a call choose: backends and objectives, read and made when they are first named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast

import torch
from torch import Tensor

from energyml import cards
from energyml.backend import Backend, make_backend
from energyml.bind.batch import Batch
from energyml.bind.terms import BoundTerm
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, read_choice
from energyml.execution import CompileConstants, compile_constant
from energyml.ir.graph import Graph
from energyml.plan.backend_card import BackendCard
from energyml.plan.planner import AUTO, Plan, Verdict, candidates, plan
from energyml.plan.structure import Structure
from energyml.posterior import Posterior

Loss: TypeAlias = Callable[[Posterior, Mapping[str, Tensor], Selection], Tensor]

_NOT_HERE = "this version has no implementation of it; `energyml explain` lists the backends that serve"


class BackendRefused(EnergyError):
    """A backend that cannot serve a model, with the reason and the nearest alternative."""


class Choices:
    """The backends and objectives of one bound model; `None` stands for the spec's own choice.

    Args:
        compiled: the spec.
        graph: its graph with label sets bound.
        terms: the terms of the graph.
        structure: what the planner found about it.
    """

    def __init__(self, compiled: Compiled, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        self._model = compiled.model
        self._graph, self._terms, self._structure = graph, terms, structure
        self._ready: dict[str, tuple[Backend, Verdict]] = {}
        self._constants = CompileConstants()

    def afresh(self) -> Choices:
        """The same spec's choices, with nothing made yet."""
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(self.__dict__, _ready={}, _constants=CompileConstants())
        return made

    def plan(self, using: str | Selection | None, queries: Sequence[str]) -> Plan:
        """The backend that would answer, and why."""
        return plan(self._structure, self.selection(using), queries)

    def selection(self, using: str | Selection | None) -> Selection | None:
        """The backend that is named with its options, by the caller or in the spec; `None` where none is."""
        if using is None:
            return self._model.choices.infer
        if isinstance(using, Selection):
            return using
        return read_choice("backend", using, self._model)

    def backend(self, using: str | Selection | None, functional: bool = True) -> tuple[Backend, Verdict]:
        """A backend that is prepared for the model, and what the planner says about it; refused with the reason.

        Compiled code has its own; where the caller knows that the mode is not functional, nothing is being compiled.
        """
        key = using if isinstance(using, str) else str(using)
        if functional and torch.compiler.is_compiling():
            found: tuple[Backend, Verdict] = getattr(self._constants, self._constant("backend", key))
            return found
        return self._ready.get(key) or self._prepared(key, using)

    def fitting(self, using: str | Selection | None, batch: Batch) -> tuple[Backend, Verdict]:
        """As `backend`; `auto` passes over its first choice where that refuses examples of this size."""
        found = self.backend(using, functional=False)
        selection = found[1].selection
        card = cast("BackendCard", selection.card)
        if not card.refuses_by_size or not self._is_free(using):
            return found
        structure = replace(self._structure, sizes={**self._structure.sizes, **batch.sizes()})
        others = candidates(structure, ()) if card.refuses(structure, selection) is not None else []
        return self.backend(others[0].selection, functional=False) if others else found

    def _is_free(self, using: str | Selection | None) -> bool:
        selection = self.selection(using)
        return selection is None or selection.name == AUTO

    def _prepared(self, key: str, using: str | Selection | None) -> tuple[Backend, Verdict]:
        """The backend that serves; planned, made and kept when it is asked for the first time."""
        if key in self._ready:
            return self._ready[key]
        made = self.plan(using, ())
        refusal = made.verdict.refusal
        if refusal is not None:
            raise BackendRefused(f"`{made.verdict.selection.name}` cannot serve this model: {refusal}")
        if not made.verdict.implemented:
            raise BackendRefused(f"`{made.verdict.selection.name}` cannot serve this model: {_NOT_HERE}")
        backend = make_backend(made.verdict.selection, self._structure)
        backend.prepare(self._graph, self._terms, self._structure)
        ready = self._ready[key] = (backend, made.verdict)
        return ready

    def objective(self, objective: str | Selection | None) -> Selection:
        """An objective with its options."""
        if isinstance(objective, Selection):
            return objective
        if objective is None:
            stages = self._model.choices.train
            if not stages:
                raise EnergyError(
                    "the spec has no `train` line, so `loss` needs `objective=`, for example objective='nll'"
                )
            return stages[0]
        if torch.compiler.is_compiling():
            found: Selection = getattr(self._constants, self._constant("objective", objective))
            return found
        return self._read_objective(objective)

    def _read_objective(self, objective: str) -> Selection:
        return read_choice("objective", objective, self._model)

    def loss(self, objective: Selection) -> Loss:
        """The function behind an objective."""
        found: Loss
        if torch.compiler.is_compiling():
            found = getattr(self._constants, self._constant("loss", objective.name))
        else:
            found = cards.implementation(objective.card)
        return found

    @compile_constant
    def _constant(self, kind: str, text: str) -> str:
        """The name of a backend, an objective or the function behind one, found while code is compiled."""
        make: Callable[[], object]
        if kind == "backend":
            make = partial(self._prepared, text, None if text == "None" else text)
        elif kind == "objective":
            make = partial(self._read_objective, text)
        else:
            card = cards.find("objective", text)
            assert card is not None
            make = partial(cards.implementation, card)
        return self._constants.keep((kind, text), make)

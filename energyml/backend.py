"""The protocol of backends.

A backend is made from its options, *prepared* once for a model (what depends on the structure) and *opened* for each batch (what
depends on the tensors).  The session that `open` returns answers queries.  Backends of other packages register a `BackendCard`
under the entry point group `energyml.backends`; its implementation is a subclass of `Backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from energyml.bind.tensors import Environment
from energyml.bind.terms import BoundTerm
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import Result


@dataclass(frozen=True)
class Evidence:
    """What is known about the answer.

    Attributes:
        allowed: by variable: [B, *dims, labels] which labels each cell may take; a variable that is missing is free.
    """

    allowed: Mapping[str, Tensor] = field(default_factory=dict)

    def both(self, other: Evidence) -> Evidence:
        """What two pieces of evidence allow together."""
        merged = dict(self.allowed)
        for name, allowed in other.allowed.items():
            merged[name] = merged[name] & allowed if name in merged else allowed
        return Evidence(merged)

    @staticmethod
    def from_labels(labels: Mapping[str, Tensor], counts: Mapping[str, int]) -> Evidence:
        """Clamp cells to labels; -1 leaves a cell free."""
        allowed = {}
        for name, given in labels.items():
            steps = torch.arange(counts[name], device=given.device)
            allowed[name] = (given.unsqueeze(-1) == steps) | (given < 0).unsqueeze(-1)
        return Evidence(allowed)


@dataclass
class Problem:
    """One batch of inference problems: the terms, their tensors, and what is known about the answer."""

    graph: Graph
    terms: Sequence[BoundTerm]
    env: Environment
    evidence: Evidence

    def label_count(self, variable: str) -> int:
        """How many labels a variable's cells may take."""
        labels = self.graph.label_sets[self.graph.variables[variable].type.element].labels
        assert labels is not None
        return len(labels)

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """The label names of each discrete variable."""
        return {v.name: self.graph.label_sets[v.type.element].labels or () for v in self.graph.discrete}

    def score(self, answer: Mapping[str, Tensor], copies: int = 1) -> Tensor:
        """[B * copies]: the total score of full answers."""
        total: Tensor | None = None
        for term in self.terms:
            one = term.score(self.env, answer, copies)
            total = one if total is None else total + one
        if total is None:
            batch = self.env.batch
            return torch.zeros(batch.size * copies, device=batch.device, dtype=batch.dtype)
        return total


class Session(ABC):
    """A backend at work on one batch."""

    @abstractmethod
    def ask(self, query: Query) -> Result:
        """Answer a query that the backend's card lists."""


class Backend(ABC):
    """A way to answer queries."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    @abstractmethod
    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Do what depends on the structure alone; called once for each model."""

    @abstractmethod
    def open(self, problem: Problem) -> Session:
        """Start on a batch; cheap, the work is done when a query asks for it."""


class QueryRefused(EnergyError):
    """A query that a backend does not answer for a model, with the reason."""

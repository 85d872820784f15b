"""The protocol of backends.

A backend is made from its options, *prepared* once for a model (what depends on the structure) and *opened* for each
batch (what depends on the tensors).  The session that `open` returns answers queries.  Backends of other packages
register a `BackendCard` under the entry point group `energyml.backends`; its implementation is a subclass of `Backend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn

from energyml import cards
from energyml.bind.bound import BoundTerm
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import QueryRefused
from energyml.ir.graph import Graph
from energyml.plan.backend_card import BackendCard
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import Result


class Session(ABC):
    """A backend at work on one batch.

    Attributes:
        ground: what the batch and its evidence alone decide, whatever the parameters are: it serves `Backend.reopen`;
            `None` where that is nothing worth keeping.
    """

    ground: object = None

    @abstractmethod
    def ask(self, query: Query) -> Result:
        """Answer a query that the backend's card lists."""

    def impossible(self) -> Tensor | None:
        """[B]: the examples that are known to have no answer of positive weight; `None` where nothing is known."""
        return None

    def drawn(self) -> dict[tuple[str, bool], Any]:
        """What it has drawn at random and answers with from then on, which a copy of a posterior keeps too."""
        return {}

    def keep_drawn(self, drawn: Mapping[tuple[str, bool], Any]) -> None:
        """Answer with what another session of the same batch has drawn."""
        assert not drawn, "sessions that draw nothing take nothing"


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

    def reopen(self, problem: Problem, ground: object) -> Session:
        """Start on the batch and evidence of an earlier session, whose `ground` is known, under other parameters."""
        return self.open(problem)

    def own(self, model: nn.Module, owned: nn.ModuleDict) -> nn.Module | None:
        """The parameters of its own that it answers with, made when they are not there; most backends own none.

        Its card says so (`needs_fitting`).  They are kept with the model, as `infer.NAME` in `state_dict`: a NAME is a
        choice of the backend in the spec's words, from which they can be made again, without a dot.

        Args:
            model: the bound model, whose weights they may start from.
            owned: what backends own, by name; a new module is added to it.
        """
        return None

    def report(self, model: Any, dataset: Any) -> tuple[GoldReport | None, list[str]]:
        """How it treats the gold answers of a data set, and notes for people; most backends have nothing to tell.

        Args:
            model: the bound model, an `EnergyModel`.
            dataset: the examples, a `Dataset`; the report is `None` where there are none to look at.
        """
        raise QueryRefused(f"`{self.selection.name}` has no report on gold answers; `beam` has one")


def make_backend(selection: Selection, structure: Structure) -> Backend:
    """The backend of a selection that serves models of a structure; it is found by name and not prepared yet."""
    card = cast("BackendCard", selection.card).for_model(structure)
    return cast("Backend", cards.implementation(card)(selection))


class GoldReport(Protocol):
    """What a backend has to tell about gold answers; its text is for people."""

    def plain(self) -> dict[str, Any]:
        """As data."""
        ...

"""Views of bound terms: the typed protocols by which other packages read them, whatever their classes are.

Backends, objectives and converters take the terms with a view from the functions here, or from the methods of `Problem`
of the same names.  The classes of terms stay inside `energyml.bind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.bound import BoundTerm, Labels, Softened
from energyml.bind.fields import FieldLayout, LinearTerm, QuadraticTerm
from energyml.bind.places import Frame
from energyml.bind.quadratic import QuadraticForm
from energyml.bind.tables import TableTerm
from energyml.bind.tensors import Environment
from energyml.bind.whole import MaskedTerm, StepwiseTerm
from energyml.ir.graph import Affine, Graph, MaskedEnergy, Stepwise, Term
from energyml.model.types import Extent


class TermView(Protocol):
    """The part of `BoundTerm` that all views share."""

    term: Term
    graph: Graph

    def valid(self, batch: Batch) -> Tensor | None:
        """[B or 1, *domain]: which elements of its index set exist in a batch; `None` when all do."""
        ...

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """[B * copies]: the score of full answers; see `BoundTerm.score`."""
        ...

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """The score of relaxed answers as a function; see `BoundTerm.softened`."""
        ...

    def scaled(self, env: Environment, value: Tensor) -> Tensor:
        """A value times the gain of the term, where balance has set one."""
        ...


class TableView(TermView, Protocol):
    """TABLE: scores of the joint labels of a scope, for each element of an index set.

    Attributes:
        rank: how many axes the index set has.
        constants: the constant indices of the scope and of the table, with the extents of their axes.
        gathered: the indices that run-time edges bind.
        covers: whether it has one element for each cell of its only variable, in the same order.
        ends: which end of an edge each cell stands at, where elements are edges; `None` elsewhere.
    """

    rank: int
    constants: tuple[tuple[Affine, Extent], ...]
    gathered: set[str]
    covers: bool
    ends: tuple[int, ...] | None

    def table(self, env: Environment) -> Tensor:
        """[B or 1, *domain (size 1 where shared), *labels of the scope in order]."""
        ...

    def frame(self, batch: Batch) -> Frame:
        """The dims as this term counts them."""
        ...

    def cells(self, batch: Batch, number: int) -> tuple[Tensor, ...]:
        """The positions of the n-th cell of the scope, one tensor [B or 1, *domain] for each of its dims."""
        ...

    def at_cells(self, batch: Batch, number: int, values: Tensor) -> Tensor:
        """Values [B, *dims, ...] of the n-th cell's variable, for each element: [B, *domain, ...]."""
        ...

    def domain_sizes(self, batch: Batch) -> tuple[int, ...]:
        """The padded sizes of the index set."""
        ...

    def entries(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """[B or 1, *domain, copies]: the entry of each element's table that full answers pick."""
        ...

    def joint(self, batch: Batch, answer: Labels, copies: int = 1) -> Tensor:
        """[B or 1, *domain, copies]: the number of the joint label of each element's cells."""
        ...


class LinearView(TermView, Protocol):
    """QUADRATIC: the linear part of a field."""

    field: str

    def linear(self, env: Environment) -> Tensor:
        """[B, M, N]: the linear part at the cells of the field."""
        ...


class QuadraticView(TermView, Protocol):
    """QUADRATIC: the precision matrix of a field.

    Attributes:
        field: the field.
        layout: where its cells stand.
        bounded: whether the matrix is positive definite whatever the weights are.
    """

    field: str
    layout: FieldLayout
    bounded: bool

    def form(self, env: Environment) -> QuadraticForm:
        """The precision matrix."""
        ...

    def axis_sizes(self, batch: Batch) -> tuple[int, ...]:
        """The sizes of the axes of the field."""
        ...


class StepwiseView(TermView, Protocol):
    """STEP: a step network over a sequence."""

    body: Stepwise

    def step_scores(self, env: Environment, labels: Tensor, copies: int = 1) -> Tensor:
        """[B * copies, T, labels]: at each position the scores after the labels before it."""
        ...


class MaskedView(TermView, Protocol):
    """PROPOSE: masked conditionals over a sequence."""

    body: MaskedEnergy

    def masked_scores(self, env: Environment, labels: Tensor, copies: int = 1) -> Tensor:
        """[B * copies, T, labels]: scores of each label, the position itself being masked."""
        ...

    def hidden_scores(self, env: Environment, labels: Tensor, hidden: Tensor, copies: int = 1) -> Tensor:
        """[B * copies, T, labels]: scores of positions that are hidden together."""
        ...


def tables(terms: Sequence[BoundTerm]) -> list[TableView]:
    """The terms that have a table over the labels of their scope, in their order."""
    return [term for term in terms if isinstance(term, TableTerm)]


def linear(terms: Sequence[BoundTerm]) -> Mapping[str, LinearView]:
    """The linear part of each field."""
    return {term.field: term for term in terms if isinstance(term, LinearTerm)}


def quadratic(terms: Sequence[BoundTerm]) -> Mapping[str, QuadraticView]:
    """The precision matrix of each field."""
    return {term.field: term for term in terms if isinstance(term, QuadraticTerm)}


def stepwise(terms: Sequence[BoundTerm]) -> list[StepwiseView]:
    """The step networks over sequences, in their order."""
    return [term for term in terms if isinstance(term, StepwiseTerm)]


def masked(terms: Sequence[BoundTerm]) -> list[MaskedView]:
    """The masked conditionals over sequences, in their order."""
    return [term for term in terms if isinstance(term, MaskedTerm)]


__all__ = [
    "LinearView",
    "MaskedView",
    "QuadraticView",
    "StepwiseView",
    "TableView",
    "TermView",
    "linear",
    "masked",
    "quadratic",
    "stepwise",
    "tables",
]

"""The factor-graph IR: lifted, immutable, torch-free.

A `Graph` holds declarations and *terms*.  A term is a body (what it computes) over a scope (which cells it touches)
for each element of an index set.  Terms are lifted: one object stands for all of its grounded factors.  Backends never
ask what kind of body a term has; they ask for a *view* (`energyml.queries.View`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

from energyml.diagnostics import NOWHERE, Span
from energyml.model.declared import (
    Binding,
    CellRef,
    Condition,
    Dim,
    Edges,
    Input,
    LabelSet,
    Let,
    Net,
    Param,
    Range,
    Variable,
)
from energyml.model.expression import Affine, Expression
from energyml.queries import View

_TABLE_VIEWS = frozenset(
    {View.SCORE, View.TABLE, View.MULTILINEAR, View.SOFT, View.GRAD, View.STEP, View.CONDITIONAL, View.PROPOSE}
)


@dataclass(frozen=True)
class Table:
    """A tensor over the labels of the scope; `order[i]` is the label axis that cell i of the scope reads."""

    kind: ClassVar[str] = "table"
    value: Expression
    order: tuple[int, ...]

    def views(self) -> frozenset[View]:
        """A table offers everything that a discrete term can."""
        return _TABLE_VIEWS


@dataclass(frozen=True)
class Forbidden:
    """A conjunction of conditions with probability zero: -inf where all hold, else 0."""

    kind: ClassVar[str] = "forbid"
    conditions: tuple[Condition, ...]

    def views(self) -> frozenset[View]:
        """As a table of 0 and -inf; there is no slope to follow, and relaxed labels pay for their forbidden mass."""
        return _TABLE_VIEWS - {View.GRAD}


SchemePart = Literal["first", "next", "last"]


@dataclass(frozen=True)
class SchemeRule:
    """One rule of a labelling scheme: which labels may stand first, last, or next to each other."""

    kind: ClassVar[str] = "scheme"
    scheme: str
    part: SchemePart

    def views(self) -> frozenset[View]:
        """As a table of 0 and -inf; there is no slope to follow, and relaxed labels pay for their forbidden mass."""
        return _TABLE_VIEWS - {View.GRAD}


@dataclass(frozen=True)
class Linear:
    """The linear part of a Gaussian score: uᵀs."""

    kind: ClassVar[str] = "linear"
    field: str
    value: Expression

    def views(self) -> frozenset[View]:
        """Part of a quadratic form."""
        return frozenset({View.SCORE, View.QUADRATIC, View.GRAD, View.CONDITIONAL})


@dataclass(frozen=True)
class Quadratic:
    """The quadratic part of a Gaussian score, kept symbolic: -1/2 sᵀ(W + ridge I)s with W a sum of couplings."""

    kind: ClassVar[str] = "quadratic"
    field: str
    couplings: tuple[Expression, ...]
    ridge: Expression
    bounded: bool

    def views(self) -> frozenset[View]:
        """Part of a quadratic form."""
        return frozenset({View.SCORE, View.QUADRATIC, View.GRAD, View.CONDITIONAL})


@dataclass(frozen=True)
class Stepwise:
    """A step network over a sequence, normalised at each step (`local`) or not at all (`global`)."""

    kind: ClassVar[str] = "stepwise"
    variable: str
    net: str
    given: tuple[Expression, ...]
    normalize: Literal["local", "global"]
    end: str | None

    def views(self) -> frozenset[View]:
        """Scores of the next label; relaxed labels enter as expected embeddings; conditionals cost |V| passes."""
        return frozenset({View.SCORE, View.STEP, View.SOFT, View.GRAD, View.PROPOSE, View.CONDITIONAL})


@dataclass(frozen=True)
class MaskedEnergy:
    """Masked conditionals summed over positions, as raw scores or as log-probabilities."""

    kind: ClassVar[str] = "masked"
    variable: str
    net: str
    given: tuple[Expression, ...]
    energy: Literal["raw", "local"]

    def views(self) -> frozenset[View]:
        """Scores of full answers; masked conditionals propose; true conditionals cost |V| passes."""
        return frozenset({View.SCORE, View.PROPOSE, View.CONDITIONAL})


@dataclass(frozen=True)
class BlackBox:
    """Any network over whole variables."""

    kind: ClassVar[str] = "black box"
    variables: tuple[str, ...]
    value: Expression
    relaxable: bool

    def views(self) -> frozenset[View]:
        """Scores of full answers; relaxed ones when it reads probabilities."""
        soft = {View.SOFT, View.GRAD} if self.relaxable else set()
        return frozenset({View.SCORE, View.CONDITIONAL, *soft})


Body: TypeAlias = Table | Forbidden | SchemeRule | Linear | Quadratic | Stepwise | MaskedEnergy | BlackBox


@dataclass(frozen=True)
class Term:
    """A named part of the score.

    Attributes:
        name: the spec's own name for it (`y.unary`).
        body: what it computes.
        domain: the index set; empty for a term that is added once.
        scope: the cells it touches, in the order of its table's axes; whole variables for sequences, masked and black
            boxes.
        gain: the name of the factor that balance multiplies it with.
        span: where the spec declares it.
    """

    name: str
    body: Body
    domain: tuple[Binding, ...] = ()
    scope: tuple[CellRef, ...] = ()
    gain: str = ""
    span: Span = attribute(default=NOWHERE, compare=False)

    @property
    def kind(self) -> str:
        """The family of its body."""
        return self.body.kind

    @property
    def views(self) -> frozenset[View]:
        """How it lets itself be looked at."""
        return self.body.views()

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it scores."""
        return tuple(dict.fromkeys(ref.variable for ref in self.scope))

    @property
    def is_hard(self) -> bool:
        """Whether it only forbids."""
        return self.kind in ("forbid", "scheme")

    def expressions(self) -> tuple[Expression, ...]:
        """The tensor expressions that it is computed from."""
        body = self.body
        match body:
            case Table() | Linear() | BlackBox():
                return (body.value,)
            case Quadratic():
                return (*body.couplings, body.ridge)
            case Stepwise() | MaskedEnergy():
                return body.given
        return ()


@dataclass(frozen=True)
class Graph:
    """A lifted factor graph."""

    label_sets: Mapping[str, LabelSet]
    dims: Mapping[str, Dim]
    inputs: Mapping[str, Input]
    variables: Mapping[str, Variable]
    nets: Mapping[str, Net]
    params: Mapping[str, Param]
    lets: Mapping[str, Let]
    terms: tuple[Term, ...]

    def term(self, name: str) -> Term:
        """The term of that name."""
        return next(term for term in self.terms if term.name == name)

    @cached_property
    def discrete(self) -> tuple[Variable, ...]:
        """The variables whose cells hold labels and that are not a read-out of a field."""
        return tuple(v for v in self.variables.values() if v.kind != "field" and v.readout is None)

    @cached_property
    def fields(self) -> tuple[Variable, ...]:
        """The continuous variables."""
        return tuple(v for v in self.variables.values() if v.kind == "field")


__all__ = [
    "Affine",
    "Binding",
    "BlackBox",
    "Body",
    "CellRef",
    "Condition",
    "Edges",
    "Forbidden",
    "Graph",
    "Linear",
    "MaskedEnergy",
    "Quadratic",
    "Range",
    "SchemePart",
    "SchemeRule",
    "Stepwise",
    "Table",
    "Term",
]

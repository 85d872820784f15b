"""The checked model: declarations with types, typed terms, and choices.  Immutable, torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from energyml.cards.card import Selection
from energyml.diagnostics import NOWHERE, Source, Span
from energyml.model.expression import Affine, Expression
from energyml.model.types import EdgeType, MaskedType, StepType, TensorType
from energyml.syntax import spelling
from energyml.syntax.tree import DimKind, VariableKind

# --------------------------------------------------------------------------------------------------------- declarations


@dataclass(frozen=True)
class LabelSet:
    """A finite, ordered set of labels; `labels` is None until binding when they come from data or a network."""

    name: str
    labels: tuple[str, ...] | None
    source: str = "given"
    options: Mapping[str, object] = attribute(default_factory=dict)
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Dim:
    """A size: observed, fixed, free (part of the answer, at most `size`) or nested (one at each place of `within`)."""

    name: str
    kind: DimKind
    size: int | None = None
    within: str | None = None
    span: Span = attribute(default=NOWHERE, compare=False)

    def positions(self, fewer: int = 0) -> str:
        """How many positions it has, less a few, in a message."""
        count = (self.size or 0) - fewer
        return f"{'at most ' if self.kind == 'free' else ''}{count} position{'s' if count != 1 else ''}"


@dataclass(frozen=True)
class Input:
    """What is observed."""

    name: str
    type: TensorType | EdgeType
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Readout:
    """The labels of an output as the argmax of a field over a label axis."""

    field: str
    over: str


@dataclass(frozen=True)
class Variable:
    """What is inferred (output), summed out (latent), or a continuous field.

    Attributes:
        name: its name in the spec.
        kind: which of the three.
        type: its labels or numbers, and its axes.
        readout: where its labels are read out of a field.
        span: its declaration.
        dims: the dims of its index axes.
    """

    name: str
    kind: VariableKind
    type: TensorType
    readout: Readout | None = None
    span: Span = attribute(default=NOWHERE, compare=False)
    dims: tuple[str, ...] = attribute(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the dims once: every call asks for them many times."""
        object.__setattr__(self, "dims", tuple(axis.extent.name for axis in self.type.index_axes))


@dataclass(frozen=True)
class NetSignature:
    """The declared type of a function network."""

    inputs: tuple[TensorType, ...]
    output: TensorType

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> {self.output}"


@dataclass(frozen=True)
class Net:
    """A network: its card with options, and its declared type if it has one."""

    name: str
    selection: Selection
    role: Literal["function", "step", "masked"]
    declared: NetSignature | StepType | MaskedType | None = None
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Param:
    """A plain parameter and how it starts."""

    name: str
    type: TensorType
    initial: Selection | None = None
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Let:
    """A named tensor."""

    name: str
    value: Expression
    span: Span = attribute(default=NOWHERE, compare=False)


# ---------------------------------------------------------------------------------------------------------------- terms


@dataclass(frozen=True, slots=True)
class Range:
    """`t in T-1`: the index runs over a dim less its last `shrink` positions."""

    index: str
    dim: str
    shrink: int = 0

    def __str__(self) -> str:
        return f"{self.index} in {self.dim}{f'-{self.shrink}' if self.shrink else ''}"


@dataclass(frozen=True, slots=True)
class Edges:
    """`e = (i, j) in link`: one index for the edge and one for each end, known at run time."""

    index: str
    ends: tuple[str, ...]
    source: str
    over: str
    dims: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.index} = ({', '.join(self.ends)}) in {self.source}"


Binding: TypeAlias = Range | Edges


@dataclass(frozen=True, slots=True)
class CellRef:
    """`from: y[t+1]`: a cell of a variable, with the role that it plays in a table."""

    variable: str
    indices: tuple[Affine, ...] = ()
    role: str | None = None

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.indices))}]" if self.indices else ""
        return f"{spelling.key(self.role) + ': ' if self.role else ''}{self.variable}{place}"


@dataclass(frozen=True)
class Factor:
    """A table over a scope for each element of an index set; `order` gives the table's label axis of each cell."""

    name: str
    domain: tuple[Binding, ...]
    scope: tuple[CellRef, ...]
    value: Expression
    order: tuple[int, ...]
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Chain:
    """Sugar for the factors of a linear chain."""

    variable: str
    unary: Expression | None
    pair: Expression
    start: Expression | None
    end: Expression | None
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Gaussian:
    """A quadratic score over a field: -1/2 sᵀ(W + ridge I)s + uᵀs."""

    field: str
    unary: Expression
    couplings: tuple[Expression, ...]
    ridge: Expression
    bounded: bool
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Sequence:
    """A stepwise score, normalised at each step or over the whole sequence."""

    variable: str
    step: str
    given: tuple[Expression, ...]
    normalize: Literal["local", "global"]
    end: str | None
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Masked:
    """A masked-LM energy: the sum of raw scores, or of log conditionals."""

    variable: str
    net: str
    energy: Literal["raw", "local"]
    given: tuple[Expression, ...]
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Score:
    """A black box over whole variables; `relaxable` when it reads only relaxed labels."""

    name: str
    variables: tuple[str, ...]
    value: Expression
    relaxable: bool
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Condition:
    """A test of one cell: against a label, a pattern of labels, or another cell of the same label set."""

    cell: CellRef
    operator: Literal["=", "!=", "~", "!~"]
    label: str | None = None
    other: CellRef | None = None

    @property
    def negated(self) -> bool:
        """Whether the test holds where the comparison does not."""
        return self.operator.startswith("!")

    def matches(self, label: str) -> bool:
        """Whether a label passes the test (only without another cell)."""
        assert self.label is not None
        same = fnmatchcase(label, self.label) if self.operator.endswith("~") else label == self.label
        return same != self.negated

    def __str__(self) -> str:
        operand = str(self.other) if self.other is not None else spelling.quoted(self.label or "")
        return f"{self.cell} {self.operator} {operand}"


@dataclass(frozen=True)
class Forbid:
    """A conjunction of conditions that no answer may satisfy."""

    name: str
    domain: tuple[Binding, ...]
    conditions: tuple[Condition, ...]
    span: Span = attribute(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Scheme:
    """A labelling scheme such as BIOES along a sequence."""

    variable: str
    scheme: str
    span: Span = attribute(default=NOWHERE, compare=False)


CheckedTerm: TypeAlias = Factor | Chain | Gaussian | Sequence | Masked | Score | Forbid | Scheme


@dataclass(frozen=True)
class Choices:
    """The file's own choices; each may be overridden from the command line or Python."""

    infer: Selection | None = None
    decode: Selection | None = None
    train: tuple[Selection, ...] = ()
    data: Selection | None = None
    spans: Mapping[str, Span] = attribute(default_factory=dict)


@dataclass(frozen=True)
class CheckedModel:
    """A spec that makes sense."""

    source: Source
    label_sets: Mapping[str, LabelSet]
    dims: Mapping[str, Dim]
    inputs: Mapping[str, Input]
    variables: Mapping[str, Variable]
    nets: Mapping[str, Net]
    params: Mapping[str, Param]
    lets: Mapping[str, Let]
    terms: tuple[CheckedTerm, ...]
    choices: Choices

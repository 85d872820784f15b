"""Typed tensor expressions: what a score is computed from.  Shared by the checked model and the IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from energyml.cards.options import show_free
from energyml.model.types import REAL, TensorType
from energyml.syntax import spelling


@dataclass(frozen=True, slots=True)
class Affine:
    """An index: a bound name plus a constant, or without a name a position from the start or, negative, the end."""

    index: str | None
    offset: int = 0

    def __str__(self) -> str:
        if self.index is None:
            return str(self.offset)
        return f"{self.index}{self.offset:+d}" if self.offset else self.index


@dataclass(frozen=True, slots=True)
class Expression:
    """Base: every expression knows its type."""

    type: TensorType

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The expressions that it is made of."""
        return ()


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A number."""

    value: float

    def __str__(self) -> str:
        return spelling.number(self.value)


ReferenceKind = Literal["input", "param", "let"]


@dataclass(frozen=True, slots=True)
class Reference(Expression):
    """An input, a parameter or a named tensor."""

    kind: ReferenceKind
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Relaxed(Expression):
    """`soft(y)`: probabilities [axes of y, labels]; `hard(y)`: labels [axes of y]."""

    variable: str
    soft: bool

    def __str__(self) -> str:
        return f"{'soft' if self.soft else 'hard'}({self.variable})"


@dataclass(frozen=True, slots=True)
class Apply(Expression):
    """A network applied to tensors."""

    net: str
    arguments: tuple[Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The arguments."""
        return self.arguments

    def __str__(self) -> str:
        return f"{self.net}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Potential(Expression):
    """A table or a coupling built from a weight, such as `potts(w)`, with the options that were given."""

    potential: str
    arguments: tuple[Expression, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The arguments."""
        return self.arguments

    def __str__(self) -> str:
        given = [*map(str, self.arguments), *(f"{key}: {show_free(value)}" for key, value in self.options)]
        return f"{self.potential}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class At(Expression):
    """A subscript: index axes are consumed in order."""

    base: Expression
    indices: tuple[Affine, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        """What is subscripted."""
        return (self.base,)

    def __str__(self) -> str:
        return f"{self.base}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, slots=True)
class Combine(Expression):
    """Operands of one type joined by `+`, `-`, or scaled by `*`, `/` with scalars."""

    operands: tuple[Expression, ...]
    operators: tuple[str, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The operands."""
        return self.operands

    def __str__(self) -> str:
        text = _grouped(self.operands[0], self.operators)
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            text += f" {operator} {_grouped(operand, self.operators)}"
        return text


def _grouped(operand: Expression, operators: tuple[str, ...]) -> str:
    loose = isinstance(operand, Combine)
    return f"({operand})" if loose and operators else str(operand)


def scalar(value: float) -> Constant:
    """A number as an expression."""
    return Constant(TensorType(REAL), value)

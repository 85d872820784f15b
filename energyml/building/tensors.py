"""Tensors, indices and cells as Python objects: `cnn(image)[t]`, `2 * W`, `y[t + 1] == "O"`.

Arithmetic, calls, subscripts and comparisons make larger nodes of the syntax tree; the checker says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NoReturn, TypeAlias

from energyml.building.parts import (
    Part,
    call,
    common_home,
    ident,
    is_number,
    name_of,
    number,
    required,
    shifted,
    string,
    whole,
    wrong,
)
from energyml.building.types import Extent
from energyml.diagnostics import NOWHERE
from energyml.syntax import tree as t
from energyml.syntax.formatter import format_statement, format_value


@dataclass(frozen=True, eq=False, repr=False)
class Expression(Part):
    """A tensor: an input, a parameter, a called network, a `let`, and what arithmetic makes of them."""

    kind = "tensor"
    node: t.Value

    def __add__(self, other: ExpressionLike) -> Expression:
        return _joined(self, "+", other)

    def __radd__(self, other: ExpressionLike) -> Expression:
        return _joined(other, "+", self)

    def __sub__(self, other: ExpressionLike) -> Expression:
        return _joined(self, "-", other)

    def __rsub__(self, other: ExpressionLike) -> Expression:
        return _joined(other, "-", self)

    def __mul__(self, other: ExpressionLike) -> Expression:
        return _joined(self, "*", other)

    def __rmul__(self, other: ExpressionLike) -> Expression:
        return _joined(other, "*", self)

    def __truediv__(self, other: ExpressionLike) -> Expression:
        return _joined(self, "/", other)

    def __rtruediv__(self, other: ExpressionLike) -> Expression:
        return _joined(other, "/", self)

    def __neg__(self) -> Expression:
        return Expression(self.home, t.Signed(NOWHERE, "-", self.node))

    def __getitem__(self, given: IndexLike | tuple[IndexLike, ...]) -> Expression:
        if not isinstance(self.node, t.Name | t.Call):
            raise TypeError(f"only a name or a call can be indexed: give `{self!r}` a name with `b.let`")
        return Expression(common_home(self, given), t.Subscript(NOWHERE, self.node, _indices(given, repr(self))))

    __iter__ = None
    __array_ufunc__ = None  # so that numpy's numbers leave arithmetic to us

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the tensor `{self!r}` has no truth value: it has no numbers before the model is compiled")

    def __repr__(self) -> str:
        return format_value(self.node)


ExpressionLike: TypeAlias = Expression | int | float


def _joined(left: ExpressionLike, operator: str, right: ExpressionLike) -> Expression:
    """Two operands; a sum of sums stays one flat sum, as it would be written."""
    first, last = expression_node(left, f"`{operator}`"), expression_node(right, f"`{operator}`")
    operands: tuple[t.Value, ...] = (first,)
    operators: tuple[str, ...] = ()
    if isinstance(first, t.Chained) and (first.operators[0] in "+-") == (operator in "+-"):
        operands, operators = first.operands, first.operators
    node = t.Chained(NOWHERE, (*operands, last), (*operators, operator))
    return Expression(common_home(left, right), node)


def expression_node(given: object, place: str) -> t.Value:
    """A tensor or a number as an argument."""
    if isinstance(given, Expression):
        return given.node
    if is_number(given):
        return number(given, place)
    hints = {Net: "; call it", Cell: "; a score reads a variable through a scope, or as `em.soft(y)`"}
    hint = next((hint for kind, hint in hints.items() if isinstance(given, kind)), "")
    raise TypeError(f"{wrong(place, 'a tensor or a number', given)}{hint}")


@dataclass(frozen=True, eq=False, repr=False)
class Net(Part):
    """A declared network; calling it gives a tensor."""

    kind = "network"
    name: t.Ident

    def __call__(self, *arguments: ExpressionLike) -> Expression:
        """The network applied to tensors."""
        place = f"an argument of `{self!r}`"
        node = call(self.name.text, [expression_node(argument, place) for argument in arguments])
        return Expression(common_home(self, *arguments), node)

    def __repr__(self) -> str:
        return self.name.text


def potential(name: str, /, *weights: ExpressionLike | Edges, **options: bool) -> Expression:
    """A table or coupling that is made from weights: `potts`, `lowrank`, `smooth`, `dense`, `sparse`.

    Options are those of its card, as in `em.potential("smooth", w, diagonals=True)`.
    """
    place = f"`{ident(name, 'the name of a potential').text}`"
    nodes = [
        name_of(weight.name) if isinstance(weight, Edges) else expression_node(weight, f"a weight of {place}")
        for weight in weights
    ]
    given = [
        t.Option(NOWHERE, ident(key, f"an option of {place}"), t.Name(NOWHERE, str(value).lower()))
        for key, value in options.items()
    ]
    return Expression(common_home(*weights), call(name, [*nodes, *given]))


def potts(weight: ExpressionLike) -> Expression:
    """The weight where two labels are equal; between the labels of a field, a coupling by embeddings."""
    return potential("potts", weight)


def soft(variable: Variable) -> Expression:
    """The labels of a variable as probabilities, inside `b.score`."""
    return _relaxed("soft", variable)


def hard(variable: Variable) -> Expression:
    """The labels of a variable as they are, inside `b.score`; such a score cannot be relaxed."""
    return _relaxed("hard", variable)


def _relaxed(word: str, variable: Variable) -> Expression:
    given = required(Variable, variable, f"`em.{word}`")
    return Expression(given.home, call(word, [name_of(given.node.variable)]))


# --- indices and cells ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Index(Part):
    """An index plus a constant: `t`, `t + 1`."""

    kind = "index"
    node: t.Index

    def __add__(self, offset: int) -> Index:
        return Index(self.home, t.Index(NOWHERE, self.node.name, self.node.offset + whole(offset, f"`{self!r}`")))

    def __sub__(self, offset: int) -> Index:
        return self + -whole(offset, f"`{self!r}`")

    def over(self, extent: Extent) -> Binder:
        """The index set `t in T-1`."""
        node = required(Extent, extent, f"`{self!r}.over`", "T - 1").node
        assert node.name is not None
        binder = t.RangeBinder(NOWHERE, plain_index(self, f"`{self!r}.over`"), node.name, node.offset)
        return Binder(common_home(self, extent), binder)

    def __repr__(self) -> str:
        return shifted(self.node.name, self.node.offset)


IndexLike: TypeAlias = Index | int


def plain_index(given: object, place: str) -> t.Ident:
    """An index without a constant, where one is bound."""
    if not isinstance(given, Index) or given.node.name is None or given.node.offset:
        raise wrong(place, "a plain index such as `b.index('t')`", given)
    return given.node.name


def _indices(given: object, place: str) -> tuple[t.Index, ...]:
    return tuple(_index(one, place) for one in (given if isinstance(given, tuple) else (given,)))


def _index(given: object, place: str) -> t.Index:
    if isinstance(given, Index):
        return given.node
    if isinstance(given, Integral) and not isinstance(given, bool):
        return t.Index(NOWHERE, None, int(given))
    raise wrong(f"an index of `{place}`", "an index such as `t + 1`, or a whole number", given)


@dataclass(frozen=True, eq=False, repr=False)
class Binder(Part):
    """An index set of a factor or a constraint: `t.over(T - 1)`, `link.edges(e, i, j)`."""

    kind = "index set"
    node: t.Binder

    def __repr__(self) -> str:
        if isinstance(self.node, t.EdgeBinder):
            ends = ", ".join(end.text for end in self.node.ends)
            return f"{self.node.index.text} = ({ends}) in {self.node.source.text}"
        return f"{self.node.index.text} in {shifted(self.node.dim, self.node.offset)}"


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Part):
    """A declared list of edges."""

    kind = "list of edges"
    name: t.Ident

    def edges(self, edge: Index, *ends: Index) -> Binder:
        """The index set `e = (i, j) in link`: an index that counts the edges, and one for each end."""
        place = f"`{self!r}.edges`"
        names = tuple(plain_index(end, place) for end in ends)
        node = t.EdgeBinder(NOWHERE, plain_index(edge, place), names, self.name)
        return Binder(common_home(self, edge, *ends), node)

    def __repr__(self) -> str:
        return self.name.text


@dataclass(frozen=True, eq=False, repr=False)
class Cell(Part):
    """One cell of a variable, `y[t + 1]`; comparisons make the conditions of `b.forbid`."""

    kind = "cell"
    node: t.Cell

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compared("!=", other)

    def like(self, pattern: str) -> Condition:
        """The label matches a pattern such as `I-*`."""
        return Condition(self.home, t.Condition(NOWHERE, self.node, "~", string(pattern, f"`{self!r}.like`")))

    def unlike(self, pattern: str) -> Condition:
        """The label does not match a pattern."""
        return Condition(self.home, t.Condition(NOWHERE, self.node, "!~", string(pattern, f"`{self!r}.unlike`")))

    def _compared(self, operator: str, other: object) -> Condition:
        if not isinstance(other, str | Cell):
            raise wrong(f"`{self!r} {operator}`", "a label or another cell", other)
        operand = other.node if isinstance(other, Cell) else string(other, f"`{self!r} {operator}`")
        return Condition(common_home(self, other), t.Condition(NOWHERE, self.node, operator, operand))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        name = name_of(self.node.variable)
        return format_value(t.Subscript(NOWHERE, name, self.node.indices) if self.node.indices else name)


@dataclass(frozen=True, eq=False, repr=False)
class Variable(Cell):
    """A declared output, latent or field; as a cell only if it has no axes."""

    kind = "variable"

    def __getitem__(self, given: IndexLike | tuple[IndexLike, ...]) -> Cell:
        node = t.Cell(NOWHERE, self.node.variable, _indices(given, repr(self)))
        return Cell(common_home(self, given), node)

    __iter__ = None


@dataclass(frozen=True, eq=False, repr=False)
class Condition(Part):
    """A comparison for `b.forbid`; it has no truth value."""

    kind = "condition"
    node: t.Condition

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the condition `{self!r}` has no truth value: it is an argument of `b.forbid`, which joins many by `and`"
        )

    def __repr__(self) -> str:
        return format_statement(t.ForbidStmt(NOWHERE, (), (self.node,))).removeprefix("forbid ")

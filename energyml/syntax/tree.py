"""The syntax tree: what the text says, before anybody asks whether it makes sense.

Every node is immutable and has a span.  Names follow the grammar's rules in `grammar/energyml.lark`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from energyml.diagnostics import Span


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Base of all nodes."""

    span: Span


# -------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True, eq=False)
class Ident(Node):
    """A plain word."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Name(Node):
    """A word, or words joined by dots: `W`, `y.unary`."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Number(Node):
    """A number as written; `value` is an int when it is written without point and exponent."""

    text: str
    value: int | float


@dataclass(frozen=True, slots=True, eq=False)
class String(Node):
    """A quoted text; `value` is without its quotes."""

    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Option(Node):
    """`key: value`."""

    key: Ident
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """`function(argument, ..., key: value, ...)`."""

    function: Name
    arguments: tuple[Value | Option, ...]

    @property
    def positional(self) -> tuple[Value, ...]:
        """The arguments without a key."""
        return tuple(a for a in self.arguments if not isinstance(a, Option))

    @property
    def options(self) -> tuple[Option, ...]:
        """The arguments with a key."""
        return tuple(a for a in self.arguments if isinstance(a, Option))


@dataclass(frozen=True, slots=True, eq=False)
class Index(Node):
    """An index: a bound name plus a constant (`t+1`), or a constant position (`0`, `-1`; then `name` is None)."""

    name: Ident | None
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Subscript(Node):
    """`base[index, ...]`."""

    base: Name | Call
    indices: tuple[Index, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chained(Node):
    """Operands joined by operators of one precedence: `a + b - c` or `a * b / c`."""

    operands: tuple[Value, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Signed(Node):
    """`-operand` or `+operand`."""

    operator: str
    operand: Value


@dataclass(frozen=True, slots=True, eq=False)
class Power(Node):
    """`base ^ exponent`, the exponent a number."""

    base: Value
    exponent: int | float


@dataclass(frozen=True, slots=True, eq=False)
class Group(Node):
    """`(inner)`."""

    inner: Value


@dataclass(frozen=True, slots=True, eq=False)
class Range(Node):
    """`low..high`."""

    low: Value
    high: Value


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Node):
    """`first -> last`."""

    first: Value
    last: Value


@dataclass(frozen=True, slots=True, eq=False)
class Block(Node):
    """`{ key: value, ... }`."""

    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Extent(Node):
    """The size of an axis: a number, or a name (label set or dim) plus a constant."""

    name: Ident | None
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Node):
    """`role: extent`."""

    role: Ident | None
    extent: Extent


@dataclass(frozen=True, slots=True, eq=False)
class Axes(Node):
    """`[axis, ...]` as a value."""

    axes: tuple[Axis, ...]


Value: TypeAlias = (
    Name | Number | String | Call | Subscript | Chained | Signed | Power | Group | Range | Schedule | Block | Axes
)


# --------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True, eq=False)
class Type(Node):
    """`element(parameter, ...)[axis, ...]`."""

    element: Ident
    parameters: tuple[Ident, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Signature(Node):
    """`(type, ...) -> type`."""

    inputs: tuple[Type, ...]
    output: Type


# ---------------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True, eq=False)
class LabelList(Node):
    """`{a, b, 'c'}`."""

    labels: tuple[Ident | String, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LabelRange(Node):
    """`'a'..'z'`."""

    first: String
    last: String


@dataclass(frozen=True, slots=True, eq=False)
class LabelSource(Node):
    """`data(min: 2)` or the name of a network."""

    name: Ident
    arguments: tuple[Value | Option, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LabelsDecl(Node):
    """`labels NAME = ...` or `labels NAME from ...`."""

    name: Ident
    members: LabelList | LabelRange | LabelSource


DimKind = Literal["observed", "fixed", "free", "nested"]


@dataclass(frozen=True, slots=True, eq=False)
class DimItem(Node):
    """One declared dim; `size` is its value (fixed) or bound (free), `within` the dim it is nested in."""

    name: Ident
    kind: DimKind
    size: Number | None
    within: Ident | None


@dataclass(frozen=True, slots=True, eq=False)
class DimDecl(Node):
    """`dim item, ...`."""

    items: tuple[DimItem, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InputDecl(Node):
    """`input NAME : type`."""

    name: Ident
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Readout(Node):
    """`argmax FIELD over LABELS`."""

    field: Ident
    over: Ident


VariableKind = Literal["output", "latent", "field"]


@dataclass(frozen=True, slots=True, eq=False)
class VariableDecl(Node):
    """`output|latent|field NAME : type [= readout]`."""

    kind: VariableKind
    name: Ident
    type: Type
    readout: Readout | None


@dataclass(frozen=True, slots=True, eq=False)
class NetDecl(Node):
    """`net NAME [: type] = call`."""

    name: Ident
    type: Signature | Type | None
    call: Call


@dataclass(frozen=True, slots=True, eq=False)
class ParamDecl(Node):
    """`param NAME : type [= initial]`."""

    name: Ident
    type: Type
    initial: Value | None


@dataclass(frozen=True, slots=True, eq=False)
class LetDecl(Node):
    """`let NAME = value`."""

    name: Ident
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class RangeBinder(Node):
    """`t in T-1`."""

    index: Ident
    dim: Ident
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBinder(Node):
    """`e = (i, j) in link`."""

    index: Ident
    ends: tuple[Ident, ...]
    source: Ident


Binder: TypeAlias = RangeBinder | EdgeBinder


@dataclass(frozen=True, slots=True, eq=False)
class Cell(Node):
    """`y[t+1]`, or a variable without axes."""

    variable: Ident
    indices: tuple[Index, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ScopeItem(Node):
    """`role: cell`."""

    role: Ident | None
    cell: Cell


@dataclass(frozen=True, slots=True, eq=False)
class FactorStmt(Node):
    """`factor NAME [binders] (scope) = value`."""

    name: Ident
    binders: tuple[Binder, ...]
    scope: tuple[ScopeItem, ...]
    value: Value


FamilyKind = Literal["chain", "gaussian", "sequence", "masked"]


@dataclass(frozen=True, slots=True, eq=False)
class FamilyStmt(Node):
    """`chain|gaussian|sequence|masked VARIABLE { options }`."""

    kind: FamilyKind
    variable: Ident
    block: Block


@dataclass(frozen=True, slots=True, eq=False)
class ScoreStmt(Node):
    """`score NAME (variables) = value`."""

    name: Ident
    variables: tuple[Ident, ...]
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class Condition(Node):
    """`cell = label`, `cell ~ 'pattern'`, `cell != other_cell`, ..."""

    cell: Cell
    operator: str
    operand: Cell | String


@dataclass(frozen=True, slots=True, eq=False)
class ForbidStmt(Node):
    """`forbid [binders] condition and ...`."""

    binders: tuple[Binder, ...]
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SchemeStmt(Node):
    """`scheme VARIABLE NAME`."""

    variable: Ident
    scheme: Ident


@dataclass(frozen=True, slots=True, eq=False)
class Choice(Node):
    """`name(arguments) { options }`."""

    name: Name
    arguments: tuple[Value | Option, ...]
    block: Block | None


ChoiceKind = Literal["infer", "decode", "train", "data"]


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceStmt(Node):
    """`infer|decode|train|data choice [then choice ...]`."""

    kind: ChoiceKind
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IncludeStmt(Node):
    """`include 'file'`: reserved."""

    path: String


Statement: TypeAlias = (
    LabelsDecl
    | DimDecl
    | InputDecl
    | VariableDecl
    | NetDecl
    | ParamDecl
    | LetDecl
    | FactorStmt
    | FamilyStmt
    | ScoreStmt
    | ForbidStmt
    | SchemeStmt
    | ChoiceStmt
    | IncludeStmt
)


@dataclass(frozen=True, slots=True, eq=False)
class Comment(Node):
    """A comment with its `#`, and whether it stands alone on its line."""

    text: str
    own_line: bool


@dataclass(frozen=True, slots=True, eq=False)
class Spec(Node):
    """A whole file: its statements, its comments in order, and names that damaged statements would have declared."""

    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...] = ()
    broken: tuple[str, ...] = ()


def same(left: object, right: object) -> bool:
    """Whether two trees are equal but for their spans and comments."""
    if isinstance(left, Node) and isinstance(right, Node):
        if type(left) is not type(right):
            return False
        names = [f.name for f in fields(left) if f.name not in ("span", "comments", "broken")]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


def dump(node: object, indent: int = 0) -> str:
    """The tree as indented text, one node a line (`energyml explain --stage tree`)."""
    pad = "  " * indent
    if not isinstance(node, Node):
        return f"{pad}{node!r}"
    plain: list[str] = []
    nested: list[tuple[str, Any]] = []
    for item in fields(node):
        value = getattr(node, item.name)
        if item.name in ("span", "comments", "broken"):
            continue
        if isinstance(value, Node) or (isinstance(value, tuple) and value and isinstance(value[0], Node)):
            nested.append((item.name, value))
        elif value not in (None, ()):
            plain.append(f"{item.name}={value!r}")
    lines = [f"{pad}{type(node).__name__}" + (f" {' '.join(plain)}" if plain else "")]
    for name, value in nested:
        children = value if isinstance(value, tuple) else (value,)
        if all(isinstance(child, Ident | Name) for child in children):
            lines[0] += f" {name}={','.join(child.text for child in children)}"
            continue
        lines.append(f"{pad}  .{name}")
        lines += [dump(child, indent + 2) for child in children]
    return "\n".join(lines)

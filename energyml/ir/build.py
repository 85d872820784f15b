"""Checked model -> IR: sugar is removed, every statement becomes terms."""

from __future__ import annotations

from collections.abc import Mapping

from energyml.ir.graph import (
    BlackBox,
    Forbidden,
    Graph,
    Linear,
    MaskedEnergy,
    Quadratic,
    SchemeRule,
    Stepwise,
    Table,
    Term,
)
from energyml.model.declared import (
    CellRef,
    Chain,
    CheckedModel,
    CheckedTerm,
    Factor,
    Forbid,
    Gaussian,
    Masked,
    Range,
    Scheme,
    Score,
    Sequence,
    Variable,
)
from energyml.model.expression import Affine, At, Combine, Expression
from energyml.model.types import TensorType


def build(model: CheckedModel) -> Graph:
    """Lower a checked model; linear in its statements."""
    terms: list[Term] = []
    for statement in dict.fromkeys(model.terms):  # a scheme that is repeated counts once
        terms += lower(statement, model.variables)
    return Graph(
        label_sets=model.label_sets,
        dims=model.dims,
        inputs=model.inputs,
        variables=model.variables,
        nets=model.nets,
        params=model.params,
        lets=model.lets,
        terms=tuple(terms),
    )


def lower(statement: CheckedTerm, variables: Mapping[str, Variable]) -> list[Term]:
    """The terms of one statement."""
    match statement:
        case Factor(name=name):
            body = Table(statement.value, statement.order)
            return [Term(name, body, statement.domain, statement.scope, name, statement.span)]
        case Chain():
            return _chain(statement, variables[statement.variable])
        case Gaussian():
            return _gaussian(statement)
        case Sequence(variable=variable):
            step = Stepwise(variable, statement.step, statement.given, statement.normalize, statement.end)
            return [_whole(f"{variable}.sequence", step, (variable,), statement)]
        case Masked(variable=variable):
            masked = MaskedEnergy(variable, statement.net, statement.given, statement.energy)
            return [_whole(f"{variable}.masked", masked, (variable,), statement)]
        case Score(name=name):
            box = BlackBox(statement.variables, statement.value, statement.relaxable)
            return [_whole(name, box, statement.variables, statement)]
        case Forbid():
            return [_forbid(statement)]
        case Scheme():
            return _scheme(statement, variables[statement.variable])
    raise AssertionError(f"no lowering for {type(statement).__name__}")


def _whole(
    name: str,
    body: Stepwise | MaskedEnergy | BlackBox,
    variables: tuple[str, ...],
    statement: Sequence | Masked | Score,
) -> Term:
    return Term(name, body, (), tuple(CellRef(v) for v in variables), name, statement.span)


def _forbid(statement: Forbid) -> Term:
    cells: dict[tuple[str, object], CellRef] = {}
    for condition in statement.conditions:
        for ref in (condition.cell, condition.other):
            if ref is not None:
                cells.setdefault((ref.variable, ref.indices), ref)
    body = Forbidden(statement.conditions)
    return Term(statement.name, body, statement.domain, tuple(cells.values()), statement.name, statement.span)


def index_name(dim: str, taken: tuple[str, ...] = ()) -> str:
    """A readable index over a dim: its first letter in lower case."""
    name = dim[0].lower()
    while name == dim or name in taken:
        name += "_"
    return name


def _chain(statement: Chain, variable: Variable) -> list[Term]:
    y, dim = variable.name, variable.dims[0]
    t = index_name(dim)
    here, following = CellRef(y, (Affine(t),)), CellRef(y, (Affine(t, 1),))
    terms: list[Term] = []
    if statement.unary is not None:
        body = Table(_at(statement.unary, t), (0,))
        terms.append(Term(f"{y}.unary", body, (Range(t, dim),), (here,), f"{y}.unary", statement.span))
    scope = (CellRef(y, here.indices, "from"), CellRef(y, following.indices, "to"))
    pair = Table(_at(statement.pair, t), _role_order(statement.pair))
    terms.append(Term(f"{y}.pair", pair, (Range(t, dim, 1),), scope, f"{y}.pair", statement.span))
    for part, place, value in (("start", 0, statement.start), ("end", -1, statement.end)):
        if value is not None:
            cell = CellRef(y, (Affine(None, place),))
            terms.append(Term(f"{y}.{part}", Table(value, (0,)), (), (cell,), f"{y}.{part}", statement.span))
    return terms


def _role_order(pair: Expression) -> tuple[int, ...]:
    roles = [axis.role for axis in pair.type.label_axes]
    return (roles.index("from"), roles.index("to"))


def _at(value: Expression, index: str) -> Expression:
    """Subscript an expression that has an index axis; one that has none is shared over positions.

    Subscripts stand on names and calls, as in the language: those of a sum go to its operands.
    """
    if not value.type.index_axes:
        return value
    axis = value.type.index_axes[0]
    remaining = list(value.type.axes)
    remaining.remove(axis)
    made = TensorType(value.type.element, tuple(remaining))
    match value:
        case Combine(operands=operands, operators=operators):
            return Combine(made, tuple(_at(operand, index) for operand in operands), operators)
        case At(base=base, indices=indices):
            return At(made, base, (*indices, Affine(index)))
    return At(made, value, (Affine(index),))


def _gaussian(statement: Gaussian) -> list[Term]:
    s = statement.field
    scope = (CellRef(s),)
    quadratic = Quadratic(s, statement.couplings, statement.ridge, statement.bounded)
    return [
        Term(f"{s}.unary", Linear(s, statement.unary), (), scope, f"{s}.unary", statement.span),
        Term(f"{s}.pair", quadratic, (), scope, f"{s}.pair", statement.span),
    ]


def _scheme(statement: Scheme, variable: Variable) -> list[Term]:
    y, dim = variable.name, variable.dims[0]
    t = index_name(dim)
    here, following = CellRef(y, (Affine(t),)), CellRef(y, (Affine(t, 1),))
    name, span = statement.scheme, statement.span

    def term(part: str, rule: SchemeRule, domain: tuple[Range, ...], scope: tuple[CellRef, ...]) -> Term:
        return Term(f"{y}.{name}.{part}", rule, domain, scope, f"{y}.{name}.{part}", span)

    return [
        term("first", SchemeRule(name, "first"), (), (CellRef(y, (Affine(None, 0),)),)),
        term("next", SchemeRule(name, "next"), (Range(t, dim, 1),), (here, following)),
        term("last", SchemeRule(name, "last"), (), (CellRef(y, (Affine(None, -1),)),)),
    ]

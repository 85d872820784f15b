"""Lark's parse tree -> the syntax tree of `energyml.syntax.tree`, one small function a grammar rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from lark import Token, Tree

from energyml import errors
from energyml.diagnostics import Span
from energyml.syntax import tree as t
from energyml.syntax.mistakes import Refusal

LONGEST_NUMBER = 40
LARGEST_WHOLE = 10**6


def convert(node: Any) -> Any:
    """Convert one Lark tree or token; recursion is bounded by the cap on nesting depth."""
    if node is None:
        return None
    if isinstance(node, Token):
        return _token(node)
    return _RULES[node.data](node, node.children)


def _span(node: Tree[Token] | Token) -> Span:
    if isinstance(node, Token):
        start = node.start_pos or 0
        return Span(start, node.end_pos if node.end_pos is not None else start)
    meta = node.meta
    return Span(0, 0) if meta.empty else Span(meta.start_pos, meta.end_pos)


def _token(token: Token) -> t.Ident | t.String | t.Number:
    if token.type == "STRING":
        return t.String(_span(token), token.value[1:-1])
    if token.type == "NUMBER":
        return _number(token)
    return t.Ident(_span(token), str(token))


def _number(token: Token) -> t.Number:
    text = str(token)
    if len(text) <= LONGEST_NUMBER:
        value: int | float = int(text) if text.isdigit() else float(text)
        if math.isfinite(value):
            return t.Number(_span(token), text, value)
    shown = text if len(text) <= 20 else text[:20] + "..."
    raise Refusal(errors.diagnostic("E0007", _span(token), number=shown))


def _whole(sign: Token | None, number: Token | None) -> int:
    """A signed whole number made of two optional tokens."""
    if number is None:
        return 0
    value = _number(number).value
    if not isinstance(value, int) or value > LARGEST_WHOLE:
        raise Refusal(errors.diagnostic("E0009", _span(number), found=str(number), limit=LARGEST_WHOLE))
    return -value if sign is not None and sign.value == "-" else value


def _all(nodes: list[Any]) -> tuple[Any, ...]:
    return tuple(convert(node) for node in nodes if node is not None)


def _items(node: Tree[Token] | None) -> tuple[Any, ...]:
    return () if node is None else _all(cast("list[Any]", node.children))


def _chained(node: Tree[Token], children: list[Any]) -> t.Value:
    return t.Chained(_span(node), _all(children[0::2]), tuple(str(operator) for operator in children[1::2]))


def _dim(kind: t.DimKind) -> Callable[[Tree[Token], list[Any]], t.DimItem]:
    def build(node: Tree[Token], children: list[Any]) -> t.DimItem:
        name = convert(children[0])
        last = convert(children[-1])
        size = last if isinstance(last, t.Number) else None
        within = last if kind == "nested" else None
        return t.DimItem(_span(node), name, kind, size, within)

    return build


def _variable_decl(node: Tree[Token], children: list[Any]) -> t.VariableDecl:
    kind, name, type_, readout = children
    return t.VariableDecl(
        _span(node), cast("t.VariableKind", str(kind)), convert(name), convert(type_), convert(readout)
    )


def _type(node: Tree[Token], children: list[Any]) -> t.Type:
    element, parameters, axes = children
    return t.Type(_span(node), convert(element), _items(parameters), _items(axes))


def _factor(node: Tree[Token], children: list[Any]) -> t.FactorStmt:
    name, binders, *scope, value = children
    return t.FactorStmt(_span(node), convert(name), _items(binders), _all(scope), convert(value))


def _name(node: Tree[Token], children: list[Any]) -> t.Name:
    return t.Name(_span(node), ".".join(str(child) for child in children))


def _power(node: Tree[Token], children: list[Any]) -> t.Power:
    base, exponent = children
    sign, number = exponent.children
    value = _number(number).value
    return t.Power(_span(node), convert(base), -value if sign is not None and sign.value == "-" else value)


_RULES: dict[str, Callable[[Tree[Token], list[Any]], Any]] = {
    "labels_decl": lambda n, c: t.LabelsDecl(_span(n), convert(c[0]), convert(c[1])),
    "label_list": lambda n, c: t.LabelList(_span(n), _all(c)),
    "label_range": lambda n, c: t.LabelRange(_span(n), convert(c[0]), convert(c[1])),
    "source": lambda n, c: t.LabelSource(_span(n), convert(c[0].children[0]), _items(c[1])),
    "dim_decl": lambda n, c: t.DimDecl(_span(n), _all(c)),
    "dim_observed": _dim("observed"),
    "dim_fixed": _dim("fixed"),
    "dim_free": _dim("free"),
    "dim_nested": _dim("nested"),
    "input_decl": lambda n, c: t.InputDecl(_span(n), convert(c[0]), convert(c[1])),
    "variable_decl": _variable_decl,
    "readout": lambda n, c: t.Readout(_span(n), convert(c[0]), convert(c[1])),
    "net_decl": lambda n, c: t.NetDecl(_span(n), convert(c[0]), convert(c[1]), convert(c[2])),
    "signature": lambda n, c: t.Signature(_span(n), _all(c[:-1]), convert(c[-1])),
    "role_type": lambda n, c: convert(c[0]),
    "param_decl": lambda n, c: t.ParamDecl(_span(n), convert(c[0]), convert(c[1]), convert(c[2])),
    "let_decl": lambda n, c: t.LetDecl(_span(n), convert(c[0]), convert(c[1])),
    "type": _type,
    "axis": lambda n, c: t.Axis(_span(n), _key(c[0]), convert(c[1])),
    "extent_number": lambda n, c: t.Extent(_span(n), None, _whole(None, c[0])),
    "extent_name": lambda n, c: t.Extent(_span(n), convert(c[0]), _whole(c[1], c[2])),
    "factor_stmt": _factor,
    "range_binder": lambda n, c: t.RangeBinder(_span(n), convert(c[0]), convert(c[1]), _whole(c[2], c[3])),
    "edge_binder": lambda n, c: t.EdgeBinder(_span(n), convert(c[0]), _all(c[1:-1]), convert(c[-1])),
    "scope_item": lambda n, c: t.ScopeItem(_span(n), _key(c[0]), convert(c[1])),
    "cell": lambda n, c: t.Cell(_span(n), convert(c[0]), _all(c[1:])),
    "index_offset": lambda n, c: t.Index(_span(n), convert(c[0]), _whole(c[1], c[2])),
    "index_constant": lambda n, c: t.Index(_span(n), None, _whole(c[0], c[1])),
    "family_stmt": lambda n, c: t.FamilyStmt(_span(n), cast("t.FamilyKind", str(c[0])), convert(c[1]), convert(c[2])),
    "score_stmt": lambda n, c: t.ScoreStmt(_span(n), convert(c[0]), _all(c[1:-1]), convert(c[-1])),
    "forbid_stmt": lambda n, c: t.ForbidStmt(_span(n), _items(c[0]), _all(c[1:])),
    "condition": lambda n, c: t.Condition(_span(n), convert(c[0]), str(c[1]), convert(c[2])),
    "scheme_stmt": lambda n, c: t.SchemeStmt(_span(n), convert(c[0]), convert(c[1])),
    "choice_stmt": lambda n, c: t.ChoiceStmt(_span(n), cast("t.ChoiceKind", str(c[0])), _all(c[1:])),
    "choice": lambda n, c: t.Choice(_span(n), convert(c[0]), _items(c[1]), convert(c[2])),
    "include_stmt": lambda n, c: t.IncludeStmt(_span(n), convert(c[0])),
    "range": lambda n, c: t.Range(_span(n), convert(c[0]), convert(c[1])),
    "schedule": lambda n, c: t.Schedule(_span(n), convert(c[0]), convert(c[1])),
    "sum": _chained,
    "product": _chained,
    "negative": lambda n, c: t.Signed(_span(n), str(c[0]), convert(c[1])),
    "power": _power,
    "subscript": lambda n, c: t.Subscript(_span(n), convert(c[0]), _all(c[1:])),
    "group": lambda n, c: t.Group(_span(n), convert(c[0])),
    "axes_value": lambda n, c: t.Axes(_span(n), _items(c[0])),
    "call": lambda n, c: t.Call(_span(n), convert(c[0]), _items(c[1])),
    "block": lambda n, c: t.Block(_span(n), _all(c)),
    "option": lambda n, c: t.Option(_span(n), cast("t.Ident", _key(c[0])), convert(c[1])),
    "name": _name,
    "number": lambda n, c: _number(c[0]),
    "string": lambda n, c: convert(c[0]),
}


def _key(token: Token | None) -> t.Ident | None:
    """A key or role: quotes around it mean nothing."""
    if token is None:
        return None
    text = token.value[1:-1] if token.type == "STRING" else str(token)
    return t.Ident(_span(token), text)

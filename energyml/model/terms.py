"""Terms that name their own scope: factors, scores, and hard constraints."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal, cast

from energyml.diagnostics import Note, Span, join_names
from energyml.model.context import Context
from energyml.model.declared import CellRef, Condition, Factor, Forbid, Scheme, Score
from energyml.model.expression import At, Expression, Relaxed
from energyml.model.names import MOST_LISTED
from energyml.model.schemes import SCHEMES, misfit
from energyml.model.scopes import cell, domain, scope_order, scorable
from energyml.model.subscripts import Indices
from energyml.model.types import TensorType
from energyml.model.typing import Place, expression, origin
from energyml.syntax import spelling
from energyml.syntax import tree as t


def name_term(context: Context, name: str, span: Span) -> bool:
    """Enter a term's name; two terms of one name are reported."""
    known = context.term_names.get(name)
    if known is not None:
        remedy = "join the two, or write one of them as a `factor`" if "." in name else None
        context.complain("E0302", span, name=name, notes=[Note("the first one is here", known)], help=remedy)
        return False
    context.term_names[name] = span
    return True


# --------------------------------------------------------------------------------------------------- factors and scores


def factor(context: Context, node: t.FactorStmt) -> Factor | None:
    """Check `factor`."""
    named = name_term(context, node.name.text, node.name.span)
    bindings, indices = domain(context, node.binders)
    cells = [cell(context, item.cell, indices, item.role) for item in node.scope]
    value = expression(context, node.value, Place(indices, potentials=True))
    scope = tuple(one for one in cells if one is not None)
    if bindings is None or len(scope) < len(cells):
        return None
    if not _distinct(context, node, scope) or value is None or not named:
        return None
    if not _all_used(context, node.binders, scope, _indices_of(value)):
        return None
    order = scope_order(context, node, scope, value, indices)
    return None if order is None else Factor(node.name.text, bindings, scope, value, order, node.span)


def _distinct(context: Context, node: t.FactorStmt, scope: tuple[CellRef, ...]) -> bool:
    seen: dict[tuple[str, object], Span] = {}
    for item, ref in zip(node.scope, scope, strict=True):
        first = seen.setdefault((ref.variable, ref.indices), item.span)
        if first != item.span:
            excerpt = context.report.source.excerpt(item.cell.span)
            context.complain("E0301", item.span, cell=excerpt, notes=[Note("it is here first", first)])
            return False
    return True


def _indices_of(value: Expression) -> set[str | None]:
    """The indices that a table is subscripted with."""
    own = {affine.index for affine in value.indices} if isinstance(value, At) else set()
    return own.union(*(_indices_of(part) for part in value.parts))


def _all_used(
    context: Context, binders: Sequence[t.Binder], scope: tuple[CellRef, ...], in_table: set[str | None]
) -> bool:
    """Whether the cells or the table depend on every index."""
    used = in_table | {affine.index for ref in scope for affine in ref.indices}
    for binder in binders:
        names = [binder.index.text, *(end.text for end in getattr(binder, "ends", ()))]
        if not used.intersection(names):
            context.complain("E0305", binder.index.span, index=binder.index.text)
            return False
    return True


def score(context: Context, node: t.ScoreStmt) -> Score | None:
    """Check `score`."""
    named = name_term(context, node.name.text, node.name.span)
    sound = [_whole_variable(context, ident) for ident in node.variables]
    names = tuple(ident.text for ident in node.variables)
    value = expression(context, node.value, Place(relaxable=names))
    if value is None or not named or not all(sound) or not _listed_once(context, node):
        return None
    if value.type != TensorType("real"):
        context.complain("E0314", node.value.span, type=value.type, notes=origin(context, value))
        return None
    relaxed = _relaxations(value)
    for ident in node.variables:
        if not any(one.variable == ident.text for one in relaxed):
            remedy = f"read it as `soft({ident.text})` or `hard({ident.text})`"
            problem = "listed here, but the score does not read it"
            context.complain("E0324", ident.span, name=ident.text, problem=problem, help=remedy)
            return None
    return Score(node.name.text, names, value, all(one.soft for one in relaxed), node.span)


def _whole_variable(context: Context, ident: t.Ident) -> bool:
    if context.names.find(ident, "output", "latent") is None or ident.text not in context.variables:
        return False
    return scorable(context, ident.span, context.variables[ident.text])


def _listed_once(context: Context, node: t.ScoreStmt) -> bool:
    seen: dict[str, Span] = {}
    for ident in node.variables:
        first = seen.setdefault(ident.text, ident.span)
        if first != ident.span:
            context.complain("E0301", ident.span, cell=ident.text, notes=[Note("it is here first", first)])
            return False
    return True


def _relaxations(value: Expression) -> list[Relaxed]:
    found = [value] if isinstance(value, Relaxed) else []
    for part in value.parts:
        found += _relaxations(part)
    return found


# ---------------------------------------------------------------------------------------------------------- constraints


def forbid(context: Context, node: t.ForbidStmt, number: int) -> Forbid | None:
    """Check `forbid`."""
    bindings, indices = domain(context, node.binders)
    made = [_condition(context, item, indices) for item in node.conditions]
    conditions = tuple(one for one in made if one is not None)
    if bindings is None or len(conditions) < len(made):
        return None
    refs = tuple(ref for one in conditions for ref in (one.cell, one.other) if ref is not None)
    if not _all_used(context, node.binders, refs, set()):
        return None
    return Forbid(f"forbid.{number}", bindings, conditions, node.span)


def _condition(context: Context, node: t.Condition, indices: Indices) -> Condition | None:
    ref = cell(context, node.cell, indices)
    operand = node.operand
    if isinstance(operand, t.Cell) and (operand.indices or _is_variable(context, operand)):
        other = cell(context, operand, indices)
        return None if ref is None or other is None else _against_cell(context, node, ref, other)
    if ref is None:
        return None
    text = operand.value if isinstance(operand, t.String) else operand.variable.text
    made = Condition(ref, cast("Literal['=', '!=', '~', '!~']", node.operator), text)
    label_set = context.variables[ref.variable].type.element
    known = context.label_sets[label_set].labels if label_set in context.label_sets else None
    if known is None:
        return made
    if node.operator.endswith("~"):
        return made if _pattern_matches(context, operand.span, text, label_set, known) else None
    if text not in known:
        unknown_label(context, operand.span, text, label_set)
        return None
    return made


def _is_variable(context: Context, node: t.Cell) -> bool:
    entry = context.names.table.get(node.variable.text)
    return entry is not None and entry.kind in ("output", "latent", "field")


def _pattern_matches(context: Context, span: Span, pattern: str, label_set: str, known: tuple[str, ...]) -> bool:
    if any(fnmatchcase(label, pattern) for label in known):
        return True
    guess = context.names.guess(pattern, known)
    remedy = f"did you mean '{guess}'?" if guess else _listed(known)
    context.complain("E0317", span, pattern=pattern, labels=label_set, help=remedy, notes=_declared(context, label_set))
    return False


def _against_cell(context: Context, node: t.Condition, ref: CellRef, other: CellRef) -> Condition | None:
    mine, theirs = (context.variables[one.variable].type.element for one in (ref, other))
    if mine != theirs:
        context.complain("E0318", node.span, left=ref, right=other, left_labels=mine, right_labels=theirs)
        return None
    if node.operator.endswith("~"):
        context.complain(
            "E0325",
            node.operand.span,
            help="compare cells with `=` or `!=`",
            option=node.operator,
            family="forbid",
            expected="a pattern in quotes",
            found="a cell",
        )
        return None
    if (ref.variable, ref.indices) == (other.variable, other.indices):
        excerpt = context.report.source.excerpt(node.operand.span)
        context.complain("E0301", node.operand.span, cell=excerpt, notes=[Note("it is here first", node.cell.span)])
        return None
    return Condition(ref, cast("Literal['=', '!=']", node.operator), None, other)


def unknown_label(context: Context, span: Span, label: str, label_set: str) -> None:
    """Report a label that a label set lacks."""
    known = context.label_sets[label_set].labels or ()
    guess = context.names.guess(label, known)
    remedy = f"did you mean `{spelling.label(guess)}`?" if guess else _listed(known)
    context.complain("E0313", span, label=label, labels=label_set, help=remedy, notes=_declared(context, label_set))


def _listed(known: tuple[str, ...]) -> str:
    return f"its labels are {join_names(map(spelling.label, known), 'and')}" if len(known) <= MOST_LISTED else ""


def _declared(context: Context, label_set: str) -> list[Note]:
    return [Note(f"`{label_set}` is declared here", context.label_sets[label_set].span)]


def scheme(context: Context, node: t.SchemeStmt) -> Scheme | None:
    """Check `scheme`."""
    known = SCHEMES.get(node.scheme.text)
    if known is None:
        guess = context.names.guess(node.scheme.text, SCHEMES)
        remedy = f"did you mean `{guess}`?" if guess else f"known: {join_names(SCHEMES, 'and')}"
        context.complain("E0319", node.scheme.span, scheme=node.scheme.text, help=remedy)
    if context.names.find(node.variable, "output", "latent") is None or node.variable.text not in context.variables:
        return None
    variable = context.variables[node.variable.text]
    if not scorable(context, node.variable.span, variable) or known is None:
        return None
    if len(variable.dims) != 1:
        context.complain(
            "E0306",
            node.variable.span,
            notes=context.declared_here(variable.name),
            family="scheme",
            name=variable.name,
            type=variable.type,
        )
        return None
    label_set = context.label_sets.get(variable.type.element)
    for label in (label_set.labels or ()) if label_set else ():
        problem = misfit(known, label)
        if problem:
            context.complain(
                "E0320",
                node.scheme.span,
                notes=_declared(context, variable.type.element),
                label=label,
                labels=variable.type.element,
                scheme=node.scheme.text,
                problem=problem,
            )
            return None
    return Scheme(variable.name, node.scheme.text, node.span)

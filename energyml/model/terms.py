"""Terms that name their own scope: factors, scores, and hard constraints."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, cast

from energyml.diagnostics import Note, Span, did_you_mean, join_names
from energyml.model.context import Context
from energyml.model.declared import CellRef, Condition, Factor, Forbid, Scheme, Score
from energyml.model.expression import Expression, Relaxed
from energyml.model.schemes import SCHEMES, misfit
from energyml.model.scopes import cell, domain, scope_order
from energyml.model.typing import Indices, Place, expression
from energyml.syntax import tree as t


def name_term(context: Context, name: str, span: Span) -> bool:
    """Enter a term's name; two terms of one name are reported."""
    known = context.term_names.get(name)
    if known is not None:
        context.complain("E0101", span, name=name, notes=[Note(f"the term `{name}` is first here", known)])
        return False
    context.term_names[name] = span
    return True


def factor(context: Context, node: t.FactorStmt) -> Factor | None:
    """Check `factor`."""
    named = name_term(context, node.name.text, node.name.span)
    made = domain(context, node.binders)
    if made is None:
        return None
    bindings, indices = made
    cells = [cell(context, item.cell, indices, item.role) for item in node.scope]
    value = expression(context, node.value, Place(indices, potentials=True))
    if any(one is None for one in cells) or value is None or not named:
        return None
    scope = tuple(one for one in cells if one is not None)
    if not _distinct(context, node, scope) or not _all_used(context, node.binders, indices, scope):
        return None
    order = scope_order(context, node, scope, value)
    if order is None:
        return None
    return Factor(node.name.text, bindings, scope, value, order, node.span)


def _distinct(context: Context, node: t.FactorStmt, scope: tuple[CellRef, ...]) -> bool:
    seen: set[tuple[str, object]] = set()
    for item, ref in zip(node.scope, scope, strict=True):
        key = (ref.variable, ref.indices)
        if key in seen:
            context.complain("E0301", item.span, cell=context.report.source.excerpt(item.cell.span))
            return False
        seen.add(key)
    return True


def _all_used(
    context: Context, binders: tuple[t.Binder, ...], indices: Indices, scope: tuple[CellRef, ...]
) -> bool:
    in_scope = {affine.index for ref in scope for affine in ref.indices}
    for binder in binders:
        names = [binder.index.text, *(end.text for end in getattr(binder, "ends", ()))]
        if not in_scope.intersection(names):
            context.complain("E0305", binder.index.span, index=binder.index.text, help="leave the index out, or use it in a cell")
            return False
    return True


def score(context: Context, node: t.ScoreStmt) -> Score | None:
    """Check `score`."""
    named = name_term(context, node.name.text, node.name.span)
    entries = [context.names.find(ident, "output", "latent") for ident in node.variables]
    if any(entry is None for entry in entries):
        return None
    names = tuple(ident.text for ident in node.variables)
    value = expression(context, node.value, Place(relaxable=names))
    if value is None or not named:
        return None
    if value.type.axes or value.type.element != "real":
        context.complain("E0314", node.value.span, type=value.type)
        return None
    relaxed = list(_relaxations(value))
    for ident in node.variables:
        if not any(one.variable == ident.text for one in relaxed):
            context.complain("E0324", ident.span, name=ident.text, problem="listed here, but the score does not read it",
                             help=f"read it as `soft({ident.text})` or `hard({ident.text})`")  # fmt: skip
            return None
    return Score(node.name.text, names, value, all(one.soft for one in relaxed), node.span)


def _relaxations(value: Expression) -> list[Relaxed]:
    found = [value] if isinstance(value, Relaxed) else []
    for part in value.parts:
        found += _relaxations(part)
    return found


# ------------------------------------------------------------------------------------------------------------ constraints


def forbid(context: Context, node: t.ForbidStmt, number: int) -> Forbid | None:
    """Check `forbid`."""
    made = domain(context, node.binders)
    if made is None:
        return None
    bindings, indices = made
    conditions = [_condition(context, item, indices) for item in node.conditions]
    if any(one is None for one in conditions):
        return None
    sound = tuple(one for one in conditions if one is not None)
    refs = tuple(ref for one in sound for ref in ((one.cell, one.other) if one.other else (one.cell,)))
    if not _all_used(context, node.binders, indices, refs):
        return None
    return Forbid(f"forbid.{number}", bindings, sound, node.span)


def _condition(context: Context, node: t.Condition, indices: Indices) -> Condition | None:
    ref = cell(context, node.cell, indices)
    if ref is None:
        return None
    label_set = context.variables[ref.variable].type.element
    operator = cast("Literal['=', '!=', '~', '!~']", node.operator)
    operand = node.operand
    if isinstance(operand, t.Cell) and (operand.indices or operand.variable.text in context.variables):
        return _against_cell(context, node, ref, label_set, operand, indices)
    text = operand.value if isinstance(operand, t.String) else operand.variable.text
    made = Condition(ref, operator, text)
    known = context.label_sets[label_set].labels if label_set in context.label_sets else None
    if known is None:
        return made
    if operator.endswith("~") and not any(fnmatchcase(label, text) for label in known):
        context.complain("E0317", operand.span, pattern=text, labels=label_set, notes=[_declared(context, label_set)])
        return None
    if not operator.endswith("~") and text not in known:
        unknown_label(context, operand.span, text, label_set)
        return None
    return made


def _against_cell(
    context: Context, node: t.Condition, ref: CellRef, label_set: str, operand: t.Cell, indices: Indices
) -> Condition | None:
    other = cell(context, operand, indices)
    if other is None:
        return None
    other_set = context.variables[other.variable].type.element
    if other_set != label_set:
        context.complain("E0318", node.span, left=ref, right=other, left_labels=label_set, right_labels=other_set)
        return None
    if node.operator.endswith("~"):
        context.complain("E0325", operand.span, option="~", family="forbid", expected="a pattern in quotes", found="another cell",
                         help="compare cells with `=` or `!=`")  # fmt: skip
        return None
    return Condition(ref, cast("Literal['=', '!=']", node.operator), None, other)


def unknown_label(context: Context, span: Span, label: str, label_set: str) -> None:
    """Report a label that a label set lacks."""
    known = context.label_sets[label_set].labels or ()
    guess = did_you_mean(label, known)
    remedy = f"did you mean `{guess}`?" if guess else (f"its labels are {join_names(known, 'and')}" if len(known) <= 12 else "")
    context.complain("E0313", span, label=label, labels=label_set, help=remedy, notes=[_declared(context, label_set)])


def _declared(context: Context, label_set: str) -> Note:
    return Note(f"`{label_set}` is declared here", context.label_sets[label_set].span)


def scheme(context: Context, node: t.SchemeStmt) -> Scheme | None:
    """Check `scheme`."""
    known = SCHEMES.get(node.scheme.text)
    if known is None:
        guess = did_you_mean(node.scheme.text, SCHEMES)
        remedy = f"did you mean `{guess}`?" if guess else f"known: {join_names(SCHEMES, 'and')}"
        context.complain("E0319", node.scheme.span, scheme=node.scheme.text, help=remedy)
    if context.names.find(node.variable, "output", "latent") is None or known is None:
        return None
    variable = context.variables.get(node.variable.text)
    if variable is None:
        return None
    if len(variable.dims) != 1:
        note = Note(f"`{variable.name}` is declared here", variable.span)
        context.complain("E0306", node.variable.span, family="scheme", name=variable.name, type=variable.type, notes=[note])
        return None
    label_set = context.label_sets.get(variable.type.element)
    for label in (label_set.labels or ()) if label_set else ():
        problem = misfit(known, label)
        if problem:
            context.complain("E0320", node.span, label=label, labels=variable.type.element, scheme=node.scheme.text, problem=problem,
                             notes=[_declared(context, variable.type.element)])  # fmt: skip
            return None
    return Scheme(variable.name, node.scheme.text, node.span)

"""Syntax tree -> checked model: names, types, terms and choices, with every independent mistake reported."""

from __future__ import annotations

from collections.abc import Iterable

from energyml.cards.card import CardKind, Selection
from energyml.diagnostics import NOWHERE, Note, Report
from energyml.model import declarations, families, terms
from energyml.model.context import Context
from energyml.model.declared import CheckedModel, CheckedTerm, Choices, Let
from energyml.model.names import Names
from energyml.model.typing import Place, expression
from energyml.syntax import tree as t

_CHOICE_CARDS: dict[str, CardKind] = {"infer": "backend", "decode": "decoder", "train": "objective", "data": "reader"}


def check(spec: t.Spec, report: Report) -> CheckedModel:
    """Check a whole spec.  Problems go to the report; the model holds what is sound.

    Cost: linear in the size of the spec, but for `scheme`, which is quadratic in its labels.
    """
    context = Context(report, Names(report))
    declarations.collect_names(context, spec)
    _declare(context, spec)
    made = _terms(context, spec)
    choices = _choices(context, spec)
    _whole_file(context, spec, made)
    return CheckedModel(
        source=report.source,
        label_sets=context.label_sets,
        dims=context.dims,
        inputs=context.inputs,
        variables=context.variables,
        nets=context.nets,
        params=context.params,
        lets=context.lets,
        terms=tuple(made),
        choices=choices,
    )


def check_choice(
    kind: CardKind, choices: Iterable[t.Choice], report: Report, model: CheckedModel | None = None
) -> list[Selection]:
    """Check choices that were written outside a file, against the names of a model when there is one."""
    context = Context(report, Names(report))
    if model is not None:
        context.term_names = dict.fromkeys(term_names(model), NOWHERE)
    made = [_choice(context, kind, choice) for choice in choices]
    return [selection for selection in made if selection is not None]


def term_names(model: CheckedModel) -> list[str]:
    """The names that options such as `scale: y.unary` may use."""
    from energyml.model.declared import Chain, Factor, Gaussian, Masked, Score, Sequence

    names: list[str] = []
    for term in model.terms:
        match term:
            case Factor() | Score():
                names.append(term.name)
            case Chain():
                parts = ("unary", "pair", "start", "end")
                names += [f"{term.variable}.{part}" for part in parts if getattr(term, part) is not None]
            case Gaussian():
                names += [f"{term.field}.unary", *([f"{term.field}.pair"] if term.couplings else [])]
            case Sequence():
                names.append(f"{term.variable}.sequence")
            case Masked():
                names.append(f"{term.variable}.masked")
    return names


def _declare(context: Context, spec: t.Spec) -> None:
    by_pass: list[tuple[type, ...]] = [(t.LabelsDecl, t.DimDecl), (t.InputDecl, t.VariableDecl, t.NetDecl, t.ParamDecl)]
    for kinds in by_pass:
        for statement in spec.statements:
            if isinstance(statement, kinds):
                _declaration(context, statement)
    for statement in spec.statements:
        if isinstance(statement, t.DimDecl):
            declarations.check_nested_dims(context, statement)
        elif isinstance(statement, t.VariableDecl):
            declarations.check_readout(context, statement)


def _declaration(context: Context, statement: t.Statement) -> None:
    match statement:
        case t.LabelsDecl():
            declarations.labels_decl(context, statement)
        case t.DimDecl():
            declarations.dim_decl(context, statement)
        case t.InputDecl():
            declarations.input_decl(context, statement)
        case t.VariableDecl():
            declarations.variable_decl(context, statement)
        case t.NetDecl():
            declarations.net_decl(context, statement)
        case t.ParamDecl():
            declarations.param_decl(context, statement)


def _terms(context: Context, spec: t.Spec) -> list[CheckedTerm]:
    """Lets and terms in the order of the file, so that a `let` comes before its uses."""
    made: list[CheckedTerm | None] = []
    forbids = 0
    for statement in spec.statements:
        match statement:
            case t.LetDecl():
                _let(context, statement)
            case t.FactorStmt():
                made.append(terms.factor(context, statement))
            case t.FamilyStmt():
                made.append(families.family(context, statement))
            case t.ScoreStmt():
                made.append(terms.score(context, statement))
            case t.ForbidStmt():
                forbids += 1
                made.append(terms.forbid(context, statement, forbids))
            case t.SchemeStmt():
                made.append(terms.scheme(context, statement))
    return [term for term in made if term is not None]


def _let(context: Context, node: t.LetDecl) -> None:
    if not declarations.is_first(context, node.name):
        return
    value = expression(context, node.value, Place())
    if value is None:
        context.names.poison(node.name.text)
    else:
        context.lets[node.name.text] = Let(node.name.text, value, node.name.span)


# --------------------------------------------------------------------------------------------------------------- choices


def _choices(context: Context, spec: t.Spec) -> Choices:
    chosen: dict[str, list[Selection | None]] = {}
    spans = {}
    for statement in spec.statements:
        if not isinstance(statement, t.ChoiceStmt):
            continue
        kind = statement.kind
        if kind in chosen:
            context.complain("E0407", statement.span, kind=kind, notes=[Note("it is first chosen here", spans[kind])])
            continue
        if len(statement.choices) > 1 and kind != "train":
            context.complain("E0408", statement.choices[1].span)
        spans[kind] = statement.span
        chosen[kind] = [_choice(context, _CHOICE_CARDS[kind], choice) for choice in statement.choices]
    first = {kind: (made[0] if made else None) for kind, made in chosen.items()}
    stages = tuple(stage for stage in chosen.get("train", []) if stage is not None)
    return Choices(first.get("infer"), first.get("decode"), stages, first.get("data"), spans)


def _choice(context: Context, kind: CardKind, choice: t.Choice) -> Selection | None:
    arguments = (*choice.arguments, *(choice.block.options if choice.block else ()))
    return context.selection(kind, choice.name, arguments, choice.span)


# ------------------------------------------------------------------------------------------------------------ whole file


def _whole_file(context: Context, spec: t.Spec, made: list[CheckedTerm]) -> None:
    names = context.names
    if not names.of_kind("output", "field", "latent") and not spec.broken:
        context.complain("E0112", None)
    if not context.report.errors:
        _unscored(context, made)
        _unused(context)


def _unscored(context: Context, made: list[CheckedTerm]) -> None:
    scored: set[str] = set()
    fields: set[str] = set()
    for term in made:
        scored.update(ref.variable for ref in getattr(term, "scope", ()))
        scored.update(getattr(term, "variables", ()))
        scored.add(getattr(term, "variable", ""))
        fields.add(getattr(term, "field", ""))
    for variable in context.variables.values():
        if variable.kind == "field" and variable.name not in fields:
            context.complain("E0322", variable.span, name=variable.name)
        elif variable.kind != "field" and variable.readout is None and variable.name not in scored:
            context.complain("W0301", variable.span, name=variable.name)


def _unused(context: Context) -> None:
    for name, entry in context.names.table.items():
        if entry.kind in ("labels", "dim", "input", "net", "param", "let") and name not in context.names.used:
            context.complain("W0101", entry.span, name=name)

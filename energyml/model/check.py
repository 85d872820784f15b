"""Syntax tree -> checked model: names, types, terms and choices, with every independent mistake reported."""

from __future__ import annotations

from collections.abc import Iterable

from energyml.cards.card import CardKind, Selection
from energyml.diagnostics import NOWHERE, Note, Report, Span
from energyml.model import declarations, families, networks, terms
from energyml.model.context import Context
from energyml.model.declared import (
    Chain,
    CheckedModel,
    CheckedTerm,
    Choices,
    Factor,
    Gaussian,
    Let,
    Masked,
    Scheme,
    Score,
    Sequence,
)
from energyml.model.names import Names
from energyml.model.selections import selection
from energyml.model.typing import Place, expression
from energyml.syntax import tree as t

_CHOICE_CARDS: dict[str, CardKind] = {"infer": "backend", "decode": "decoder", "train": "objective", "data": "reader"}
_MUST_BE_USED = ("labels", "dim", "input", "net", "param", "let")


def check(spec: t.Spec, report: Report) -> CheckedModel:
    """Check a whole spec.  Problems go to the report; the model holds what is sound.

    Cost: linear in the size of the spec, but for `scheme`, which is quadratic in its labels.
    """
    context = Context(report, Names(report), incomplete=bool(spec.broken))
    declarations.collect_names(context, spec)
    _declare(context, spec)
    made = _terms(context, spec)
    choices = _choices(context, spec)
    _whole_file(context, made)
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
        context.label_sets = dict(model.label_sets)
        context.variables = dict(model.variables)
        named: dict[str, Iterable[str]] = {"net": model.nets, "param": model.params}
        for declared, names in named.items():
            for name in names:
                context.names.declare(t.Ident(NOWHERE, name), declared)
    made = [_choice(context, kind, choice) for choice in choices]
    return [chosen for chosen in made if chosen is not None]


def term_names(model: CheckedModel) -> list[str]:
    """The names that options such as `scale: y.unary` may use."""
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


# --------------------------------------------------------------------------------------------------------- declarations


def _declare(context: Context, spec: t.Spec) -> None:
    """Label sets and dims first, as types are made of them; then what has a type; then what refers to that."""
    for statement in spec.statements:
        if isinstance(statement, t.LabelsDecl):
            declarations.labels_decl(context, statement)
        elif isinstance(statement, t.DimDecl):
            declarations.dim_decl(context, statement)
    for statement in spec.statements:
        if isinstance(statement, t.DimDecl):
            declarations.check_nested_dims(context, statement)
    for statement in spec.statements:
        _typed_declaration(context, statement)
    for statement in spec.statements:
        if isinstance(statement, t.VariableDecl):
            declarations.check_readout(context, statement)
        elif isinstance(statement, t.LabelsDecl):
            declarations.check_label_source(context, statement)


def _typed_declaration(context: Context, statement: t.Statement) -> None:
    match statement:
        case t.InputDecl():
            declarations.input_decl(context, statement)
        case t.VariableDecl():
            declarations.variable_decl(context, statement)
        case t.NetDecl():
            networks.net_decl(context, statement)
        case t.ParamDecl():
            declarations.param_decl(context, statement)


# ---------------------------------------------------------------------------------------------------------------- terms


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


# -------------------------------------------------------------------------------------------------------------- choices


def _choices(context: Context, spec: t.Spec) -> Choices:
    chosen: dict[str, list[Selection | None]] = {}
    spans: dict[str, Span] = {}
    for statement in spec.statements:
        if not isinstance(statement, t.ChoiceStmt):
            continue
        kind = statement.kind
        first = statement.choices[0]
        if kind in chosen:
            note = Note("it is first chosen here", spans[kind])
            context.complain("E0407", Span(statement.span.start, first.name.span.end), kind=kind, notes=[note])
            continue
        if len(statement.choices) > 1 and kind != "train":
            context.complain("E0408", statement.choices[1].span, kind=kind)
        spans[kind] = first.name.span
        spans.update(_stage_spans(kind, statement.choices))
        chosen[kind] = [_choice(context, _CHOICE_CARDS[kind], choice) for choice in statement.choices]
    one = {kind: made[0] for kind, made in chosen.items()}
    stages = tuple(stage for stage in chosen.get("train", []) if stage is not None)
    return Choices(one.get("infer"), one.get("decode"), stages, one.get("data"), spans)


def _stage_spans(kind: str, choices: tuple[t.Choice, ...]) -> Iterable[tuple[str, Span]]:
    """Where each stage is named, `train.0`, and where it chooses its own backend, `train.0.infer`."""
    for number, choice in enumerate(choices):
        yield f"{kind}.{number}", choice.name.span
        for option in choice.block.options if choice.block else ():
            if option.key.text == "infer":
                yield f"{kind}.{number}.infer", option.value.span


def _choice(context: Context, kind: CardKind, choice: t.Choice) -> Selection | None:
    arguments = (*choice.arguments, *(choice.block.options if choice.block else ()))
    return selection(context, kind, choice.name, arguments)


# ----------------------------------------------------------------------------------------------------------- whole file


def _whole_file(context: Context, made: list[CheckedTerm]) -> None:
    names = context.names
    if not names.of_kind("output", "field") and not context.incomplete and not names.poisoned:
        context.complain("E0112", None)
    if context.report.errors:
        return
    _unscored(context, made)
    _endless(context, made)
    if not context.report.errors:
        _repeated_schemes(context, made)
        _unused(context)


def _unscored(context: Context, made: list[CheckedTerm]) -> None:
    """Variables that no term scores; constraints alone are no score."""
    scored: set[str] = set()
    for term in made:
        match term:
            case Factor(scope=scope):
                scored.update(ref.variable for ref in scope)
            case Score(variables=variables):
                scored.update(variables)
            case Gaussian(field=field):
                scored.add(field)
            case Chain(variable=name) | Sequence(variable=name) | Masked(variable=name):
                scored.add(name)
    for variable in context.variables.values():
        if variable.name in scored or variable.readout is not None:
            continue
        context.complain("E0322" if variable.kind == "field" else "W0301", variable.span, name=variable.name)


def _endless(context: Context, made: list[CheckedTerm]) -> None:
    """Variables over a free dim without a sequence score that says where it ends."""
    ended = {term.variable for term in made if isinstance(term, Sequence) and term.end is not None}
    dims_with_end = {dim for name in ended for dim in context.variables[name].dims}
    for variable in context.variables.values():
        for name in variable.dims:
            dim = context.dims[name]
            if dim.kind == "free" and name not in dims_with_end:
                notes = context.declared_here(name)
                remedy = (
                    f"give `{variable.name}` a `sequence` score with `end: ...`, or declare `dim {name}` without `free`"
                )
                context.complain("E0312", variable.span, dim=name, name=variable.name, notes=notes, help=remedy)
                return


def _repeated_schemes(context: Context, made: list[CheckedTerm]) -> None:
    seen: dict[Scheme, Span] = {}
    for term in made:
        if isinstance(term, Scheme) and seen.setdefault(term, term.span) != term.span:
            context.complain(
                "W0302", term.span, notes=[Note("it is first here", seen[term])], scheme=term.scheme, name=term.variable
            )


def _unused(context: Context) -> None:
    for name, entry in context.names.table.items():
        if entry.kind in _MUST_BE_USED and name not in context.names.used:
            context.complain("W0101", entry.span, name=name)

"""The text of a graph -> the graph, by the language's own parser and checker.

Every term line is rewritten, without moving what follows its kind, into the statement that it stands for:

    term y.pair : table [t in T-1] (from: y[t], to: y[t+1]) = W
    factor _12          [t in T-1] (from: y[t], to: y[t+1]) = W

so that the spec's grammar and checker read it, and their messages point into the text of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from energyml import errors
from energyml.diagnostics import Report, Source, Span, did_you_mean, join_names
from energyml.ir.build import build, lower
from energyml.ir.graph import Graph, Term
from energyml.model.check import check
from energyml.model.declared import CheckedModel
from energyml.syntax import tree as t
from energyml.syntax.parser import parse

VERSION = 1

_GRAPH = re.compile(r"[ \t]*graph[ \t]+(\S+)[ \t\r]*")
_TERM = re.compile(r"[ \t]*(term)[ \t]+([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)[ \t]*:[ \t]*([A-Za-z_]+)\b")
_GAIN = re.compile(r"[ \t]gain[ \t]+([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)[ \t\r]*\Z")
_CODE = re.compile(r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^#])*?(?=#|\Z)")
_SCHEME = re.compile(r"([ \t]+\w+[ \t]+\w+[ \t]+)(\w+)[ \t\r]*\Z")
_LINEAR = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*(?==)")

# The kind of a term -> the head of the statement that it stands for; `_N` is a name that nothing else has.
_HEADS: dict[str, Callable[[int], str]] = {
    "table": lambda number: f"factor _{number}",
    "black_box": lambda number: f"score _{number}",
    "forbid": lambda number: "forbid",
    "scheme": lambda number: "scheme",
    "linear": lambda number: f"let _{number}",
    "quadratic": lambda number: "gaussian",
    "stepwise": lambda number: "sequence",
    "masked": lambda number: "masked",
}
_PARTS = ("first", "next", "last")
_DECLARATIONS = (t.LabelsDecl, t.DimDecl, t.InputDecl, t.VariableDecl, t.NetDecl, t.ParamDecl, t.LetDecl)


@dataclass(frozen=True)
class _Line:
    """What a term line says before and after the statement that it stands for.

    Attributes:
        name: the term's name, at `span`.
        kind: the kind as written.
        gain: the gain, the name when left out.
        place: which of the statement's terms is meant, where it has several.
        field: the field of a linear term.
    """

    name: str
    span: Span
    kind: str
    gain: str
    place: int = 0
    field: t.Ident | None = None


def parse_graph(text: str, name: str = "graph") -> Graph:
    """Read the text of a graph; raises `SpecError` with every independent mistake, at the lines of this text."""
    source = Source(name, text)
    report = Report(source)
    rewritten, lines = _rewrite(source, report)
    spec = parse(Source(name, rewritten), report)
    statements = tuple(_statements(spec, lines, source, report))
    model = check(replace(spec, statements=statements), report)
    report.raise_errors()
    terms = tuple(_terms(model, lines, source))
    return replace(build(model), terms=terms)


def _terms(model: CheckedModel, lines: dict[int, _Line], source: Source) -> Iterator[Term]:
    for statement in model.terms:
        line = lines[source.position(statement.span.start)[0]]
        yield replace(lower(statement, model.variables)[line.place], name=line.name, gain=line.gain)


def _statements(spec: t.Spec, lines: dict[int, _Line], source: Source, report: Report) -> Iterator[t.Statement]:
    """The statements that a graph may have, the halves of a Gaussian as families of their own."""
    filled: set[int] = set()
    for statement in spec.statements:
        number = source.position(statement.span.start)[0]
        line = lines.get(number)
        if line is not None and number in filled:
            report.add(errors.diagnostic("E0602", statement.span, problem="a term has its line to itself"))
            continue
        filled.add(number)
        if line is None:
            if isinstance(statement, _DECLARATIONS):
                yield statement
            else:
                word = source.line(number).split()[0]
                report.add(errors.diagnostic("E0603", statement.span, word=word))
        elif isinstance(statement, t.LetDecl) and line.field is not None:
            unary = t.Option(statement.span, t.Ident(line.span, "unary"), statement.value)
            block = t.Block(statement.span, (unary,))
            yield t.FamilyStmt(statement.span, cast("t.FamilyKind", "linear"), line.field, block)
        elif isinstance(statement, t.FamilyStmt) and line.kind == "quadratic":
            yield replace(statement, kind=cast("t.FamilyKind", "quadratic"))
        else:
            yield statement


# ------------------------------------------------------------------------------------------------------------ rewriting


def _rewrite(source: Source, report: Report) -> tuple[str, dict[int, _Line]]:
    """The text as a spec of the same length, and its term lines by their numbers."""
    made: list[str] = []
    lines: dict[int, _Line] = {}
    names: dict[str, Span] = {}
    started = False
    start = 0
    for number, text in enumerate(source.text.split("\n"), start=1):
        code = cast("re.Match[str]", _CODE.match(text)).group()
        statement = code
        if not started and code.strip():
            started = True
            statement = _first_line(code, start, report)
        elif re.match(r"[ \t]*term\b", code):
            line, statement = _term_line(code, start, number, report)
            if line is not None:
                _claim(line, names, report)
                lines[number] = line
        made.append(statement + text[len(code) :])
        start += len(text) + 1
    if not started:
        report.add(errors.diagnostic("E0601", None, version=VERSION, found="nothing"))
    if any(problem.code == "E0601" for problem in report.errors):
        report.raise_errors()
    return "\n".join(made), lines


def _first_line(code: str, start: int, report: Report) -> str:
    found = _GRAPH.fullmatch(code)
    if found is None or found.group(1) != str(VERSION):
        span = Span(start + len(code) - len(code.lstrip()), start + len(code.rstrip()))
        report.add(errors.diagnostic("E0601", span, version=VERSION, found=f"`{code.strip()}`"))
    return " " * len(code)


def _claim(line: _Line, names: dict[str, Span], report: Report) -> None:
    if line.name in names:
        report.add(errors.diagnostic("E0101", line.span, name=line.name))
    names.setdefault(line.name, line.span)


def _term_line(code: str, start: int, number: int, report: Report) -> tuple[_Line | None, str]:
    """What a term line says, and the statement that it stands for, of the same length."""
    blank = " " * len(code)
    head = _TERM.match(code)
    if head is None:
        span = Span(start + len(code) - len(code.lstrip()), start + len(code.rstrip()))
        report.add(errors.diagnostic("E0602", span, problem="this is no term"))
        return None, blank
    name, kind = head.group(2), head.group(3)
    if kind not in _HEADS:
        guess = did_you_mean(kind, _HEADS)
        remedy = f"did you mean `{guess}`?" if guess else f"known: {join_names(_HEADS, 'and')}"
        span = Span(start + head.start(3), start + head.end(3))
        report.add(errors.diagnostic("E0602", span, problem=f"unknown kind of term `{kind}`", help=remedy))
        return None, blank
    gain = _GAIN.search(code, head.end())
    rest = code[head.end() : gain.start() if gain else len(code)]
    line = _Line(name, Span(start + head.start(2), start + head.end(2)), kind, gain.group(1) if gain else name)
    read = _read_rest(line, rest, start + head.end())
    if read is None:
        form = "scheme VARIABLE SCHEME first|next|last" if kind == "scheme" else "linear FIELD = VALUE"
        span = Span(start + head.end(3), start + max(head.end(3) + 1, len(code.rstrip())))
        report.add(errors.diagnostic("E0602", span, problem=f"this is no {kind} term", help=f"write `{form}`"))
        return None, blank
    line, rest = read
    before = " " * head.start(1) + _HEADS[kind](number).ljust(head.end() - head.start(1))
    return line, (before + rest).ljust(len(code))


def _read_rest(line: _Line, rest: str, start: int) -> tuple[_Line, str] | None:
    """Take what the statement has no place for out of the rest of a term line."""
    if line.kind == "scheme":
        found = _SCHEME.match(rest)
        if found is None or found.group(2) not in _PARTS:
            return None
        return replace(line, place=_PARTS.index(found.group(2))), found.group(1)
    if line.kind == "linear":
        found = _LINEAR.match(rest)
        if found is None:
            return None
        field = t.Ident(Span(start + found.start(1), start + found.end(1)), found.group(1))
        return replace(line, field=field), " " * found.end() + rest[found.end() :]
    return (replace(line, place=1) if line.kind == "quadratic" else line), rest


__all__ = ["VERSION", "parse_graph"]

"""Tree -> text: the one way in which a spec is laid out.

One statement a line, two blanks of indentation, at most 100 columns where a line can be broken.  Formatting keeps the
tree and every comment, and formatting twice changes nothing.  Trees that never were text are drawn alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from energyml.diagnostics import Report, Source
from energyml.syntax import spelling
from energyml.syntax import tree as t
from energyml.syntax.comments import Attached, attach, list_key
from energyml.syntax.layout import Doc, Line, Nest, Remark, group, joined, render, row
from energyml.syntax.parser import parse

_HARD = Line(hard=True)
_BLANK = Line(hard=True, blank=True)


def format_text(text: str, name: str = "spec") -> str:
    """Parse and lay out a spec; raises `SpecError` with all diagnostics if it has syntax errors."""
    source = Source(name, text)
    report = Report(source)
    spec = parse(source, report)
    report.raise_errors()
    return format_spec(spec, source)


def format_spec(spec: t.Spec, source: Source | None = None) -> str:
    """Lay out a spec.

    `source` is the text that the spec was read from.  It tells which blocks and blank lines the author wanted; a spec
    without one has no blank lines, and its blocks stand on one line where they fit.
    """
    printer = _Printer(source, attach(spec, source))
    lines = render(printer.statements(spec))
    return f"{lines}\n" if lines else ""


def format_statement(statement: t.Statement) -> str:
    """A statement, on several lines if it is long."""
    return render(_Printer().statement(statement))


def format_value(value: t.Value | t.Option) -> str:
    """A value or an option, on one line."""
    return render(_Printer().item(value), math.inf)


def format_type(type_: t.Type | t.Signature) -> str:
    """A type or the signature of a network, on one line."""
    return render(_Printer().type(type_), math.inf)


def format_choice(choice: t.Choice) -> str:
    """A choice such as `mean_field(steps: 10)`, on one line."""
    return render(_Printer().choice(choice), math.inf)


# --------------------------------------------------------------------------------------------------------------- words


def _writable(text: str) -> str:
    """The text itself; raises `ValueError` for one that no quotes can hold, which only a builder can make."""
    if not spelling.has_spelling(text):
        raise ValueError(f"{text!r} cannot be written in a spec: it has a line break, or both kinds of quotes")
    return text


def _string(string: t.String) -> str:
    return spelling.quoted(_writable(string.value))


def _key(key: t.Ident) -> str:
    return spelling.key(_writable(key.text))


def _label(label: t.Ident | t.String) -> str:
    return _string(label) if isinstance(label, t.String) else spelling.label(_writable(label.text))


def _offset(name: t.Ident | None, offset: int) -> str:
    """`t+1`, `T`, `-1`."""
    if name is None:
        return str(offset)
    return f"{name.text}{offset:+d}" if offset else name.text


def _indices(indices: Iterable[t.Index]) -> str:
    inner = ", ".join(_offset(index.name, index.offset) for index in indices)
    return f"[{inner}]" if inner else ""


def _cell(cell: t.Cell) -> str:
    return cell.variable.text + _indices(cell.indices)


def _names(names: Iterable[t.Ident]) -> str:
    return f"({', '.join(name.text for name in names)})"


def _axis(axis: t.Axis) -> str:
    extent = _offset(axis.extent.name, axis.extent.offset)
    return extent if axis.role is None else f"{_key(axis.role)}: {extent}"


def _scope_item(item: t.ScopeItem) -> str:
    return _cell(item.cell) if item.role is None else f"{_key(item.role)}: {_cell(item.cell)}"


def _binder(binder: t.Binder) -> str:
    if isinstance(binder, t.EdgeBinder):
        return f"{binder.index.text} = {_names(binder.ends)} in {binder.source.text}"
    return f"{binder.index.text} in {_offset(binder.dim, binder.offset)}"


def _condition(condition: t.Condition) -> str:
    operand = condition.operand
    right = _string(operand) if isinstance(operand, t.String) else _cell(operand)
    return f"{_cell(condition.cell)} {condition.operator} {right}"


def _dim_item(item: t.DimItem) -> str:
    if item.kind == "nested" and item.within is not None:
        return f"{item.name.text}[{item.within.text}]"
    if item.size is None:
        return item.name.text
    return f"{item.name.text} {'=' if item.kind == 'fixed' else 'free <='} {item.size.text}"


# ---------------------------------------------------------------------------------------------------------- precedence

_VALUE, _SUM, _PRODUCT, _SIGNED, _POWER, _ATOM = range(6)


def _level(value: t.Value) -> int:
    """How tightly a value holds together: where the grammar wants a tighter one, it needs parentheses."""
    match value:
        case t.Range() | t.Schedule():
            return _VALUE
        case t.Chained():
            return _SUM if set(value.operators) & {"+", "-"} else _PRODUCT
        case t.Signed():
            return _SIGNED
        case t.Number():
            return _SIGNED if value.text[:1] in ("+", "-") else _ATOM
        case t.Power():
            return _POWER
        case _:
            return _ATOM


# --------------------------------------------------------------------------------------------------------------- lists


@dataclass(frozen=True)
class _Style:
    """How a list is drawn: its brackets, and what its items are separated by on one line and on many."""

    open: str
    close: str
    padded: bool = False
    commas: bool = True
    filled: bool = False


_PARENTHESES = _Style("(", ")")
_SQUARE = _Style("[", "]")
_LABELS = _Style("{", "}", filled=True)
_BLOCK = _Style("{", "}", padded=True, commas=False)


@dataclass(frozen=True)
class _Printer:
    """Turns nodes into documents, with their comments where there are any."""

    source: Source | None = None
    comments: Attached = field(default_factory=Attached)

    # statements

    def statements(self, spec: t.Spec) -> Doc:
        """All statements, with the comments and blank lines between them."""
        lines: list[Doc] = []
        statements = iter(spec.statements)
        for node, blank in self._spaced(spec.statements, self.comments.end):
            lines.append(_end_of_line(blank) if lines else "")
            if isinstance(node, t.Comment):
                lines.append(node.text)
            else:
                lines.append(row(self.statement(next(statements)), self._behind(node)))
        return row(*lines)

    def statement(self, statement: t.Statement) -> Doc:
        """One statement without the comments around it."""
        match statement:
            case t.LabelsDecl():
                return row(f"labels {statement.name.text} ", self._members(statement.members))
            case t.DimDecl():
                return _filled("dim ", [_dim_item(item) for item in statement.items])
            case t.InputDecl():
                return row(f"input {statement.name.text} : ", self.type(statement.type))
            case t.VariableDecl():
                return self._variable(statement)
            case t.NetDecl():
                declared: Doc = row(" : ", self.type(statement.type)) if statement.type is not None else ""
                return row(f"net {statement.name.text}", declared, " = ", self.value(statement.call))
            case t.ParamDecl():
                initial: Doc = row(" = ", self.value(statement.initial)) if statement.initial is not None else ""
                return row(f"param {statement.name.text} : ", self.type(statement.type), initial)
            case t.LetDecl():
                return row(f"let {statement.name.text} = ", self.value(statement.value))
            case _:
                return self._term_or_choice(statement)

    def _term_or_choice(self, statement: t.Statement) -> Doc:
        match statement:
            case t.FactorStmt():
                return self._factor(statement)
            case t.FamilyStmt():
                return row(f"{statement.kind} {statement.variable.text} ", self.value(statement.block))
            case t.ScoreStmt():
                head = f"score {statement.name.text} {_names(statement.variables)} = "
                return row(head, self.value(statement.value))
            case t.ForbidStmt():
                return self._forbid(statement)
            case t.SchemeStmt():
                return f"scheme {statement.variable.text} {statement.scheme.text}"
            case t.ChoiceStmt():
                choices = joined(" then ", [self.choice(choice) for choice in statement.choices])
                return row(f"{statement.kind} ", choices)
            case t.IncludeStmt():
                return f"include {_string(statement.path)}"
            case _:
                raise TypeError(f"{type(statement).__name__} is not a statement")

    def _members(self, members: t.LabelList | t.LabelRange | t.LabelSource) -> Doc:
        match members:
            case t.LabelList():
                return row("= ", self._list(members, "labels", [_label(label) for label in members.labels], _LABELS))
            case t.LabelRange():
                return f"= {_string(members.first)}..{_string(members.last)}"
            case t.LabelSource():
                return row(f"from {members.name.text}", self._arguments(members))

    def _variable(self, statement: t.VariableDecl) -> Doc:
        readout = statement.readout
        tail = f" = argmax {readout.field.text} over {readout.over.text}" if readout is not None else ""
        return row(f"{statement.kind} {statement.name.text} : ", self.type(statement.type), tail)

    def _factor(self, statement: t.FactorStmt) -> Doc:
        scope = self._list(statement, "scope", [_scope_item(item) for item in statement.scope], _PARENTHESES)
        head = row(f"factor {statement.name.text} ", self._binders(statement), scope)
        return row(head, " = ", self.value(statement.value))

    def _forbid(self, statement: t.ForbidStmt) -> Doc:
        conditions = joined(row(Line(), "and "), [_condition(condition) for condition in statement.conditions])
        return row("forbid ", self._binders(statement), group(Nest(conditions)))

    def _binders(self, statement: t.FactorStmt | t.ForbidStmt) -> Doc:
        if not statement.binders:
            return ""
        binders = [_binder(binder) for binder in statement.binders]
        return row(self._list(statement, "binders", binders, _SQUARE), " ")

    # types and choices

    def type(self, type_: t.Type | t.Signature) -> Doc:
        """A type, or a signature."""
        if isinstance(type_, t.Signature):
            inputs = self._list(type_, "inputs", [self.type(given) for given in type_.inputs], _PARENTHESES)
            return row(inputs, " -> ", self.type(type_.output))
        parameters = _names(type_.parameters) if type_.parameters else ""
        axes = self._list(type_, "axes", [_axis(axis) for axis in type_.axes], _SQUARE) if type_.axes else ""
        return row(type_.element.text, parameters, axes)

    def choice(self, choice: t.Choice) -> Doc:
        """A choice with its arguments and options."""
        block: Doc = row(" ", self.value(choice.block)) if choice.block is not None else ""
        return row(choice.name.text, self._arguments(choice), block)

    def _arguments(self, node: t.LabelSource | t.Choice) -> Doc:
        """The arguments of a node that needs no parentheses without them."""
        if not node.arguments:
            return ""
        return self._list(node, "arguments", [self.item(argument) for argument in node.arguments], _PARENTHESES)

    # values

    def item(self, item: t.Value | t.Option) -> Doc:
        """An argument: a value, or an option."""
        if isinstance(item, t.Option):
            return row(f"{_key(item.key)}: ", self.value(item.value))
        return self.value(item)

    def value(self, value: t.Value, level: int = _VALUE) -> Doc:
        """A value at a place where the grammar wants one of at least this level."""
        if _level(value) < level:
            return row("(", self.value(value), ")")
        match value:
            case t.Range() | t.Schedule() | t.Chained() | t.Signed() | t.Power() | t.Group():
                return self._operation(value)
            case t.Name() | t.Number():
                return value.text
            case t.String():
                return _string(value)
            case t.Call():
                arguments = [self.item(argument) for argument in value.arguments]
                return row(value.function.text, self._list(value, "arguments", arguments, _PARENTHESES))
            case t.Subscript():
                return row(self.value(value.base), _indices(value.indices))
            case t.Block():
                return self._list(value, "options", [self.item(option) for option in value.options], _BLOCK)
            case t.Axes():
                return self._list(value, "axes", [_axis(axis) for axis in value.axes], _SQUARE)

    def _operation(self, value: t.Range | t.Schedule | t.Chained | t.Signed | t.Power | t.Group) -> Doc:
        match value:
            case t.Range():
                spread = _level(value.low) < _SIGNED or _level(value.high) < _SIGNED
                dots = " .. " if spread else ".."
                return row(self.value(value.low, _SUM), dots, self.value(value.high, _SUM))
            case t.Schedule():
                return row(self.value(value.first, _SUM), " -> ", self.value(value.last, _SUM))
            case t.Chained():
                return self._chained(value)
            case t.Signed():
                return row(value.operator, self.value(value.operand, _POWER))
            case t.Power():
                return row(self.value(value.base, _ATOM), "^", repr(value.exponent))
            case t.Group():
                return row("(", self.value(value.inner), ")")

    def _chained(self, value: t.Chained) -> Doc:
        tighter = _level(value) + 1
        operands = [self.value(operand, tighter) for operand in value.operands]
        pairs = zip(value.operators, operands[1:], strict=True)
        return group(operands[0], Nest(row(*(row(Line(), f"{operator} ", operand) for operator, operand in pairs))))

    # lists and their comments

    def _list(self, node: t.Node, name: str, docs: Sequence[Doc], style: _Style) -> Doc:
        """A list in brackets: on one line if it fits and no comment or author's line break forbids it."""
        opening = self.comments.opening.get(list_key(node, name))
        closing = self.comments.closing.get(list_key(node, name), [])
        items: Sequence[t.Node] = getattr(node, name)
        if not items and opening is None and not closing:
            return style.open + style.close
        edge = Line(" " if style.padded else "")
        remark: Doc = Remark(opening.text) if opening is not None else ""
        if not items and not closing:
            return group(style.open, remark, edge, style.close)
        inner = row(*self._lines(items, docs, closing, style))
        broken = bool(closing) or (style is _BLOCK and self._on_many_lines(node))
        return group(style.open, Nest(row(remark, edge, inner)), edge, style.close, broken=broken)

    def _lines(
        self, items: Sequence[t.Node], docs: Sequence[Doc], closing: Sequence[t.Comment], style: _Style
    ) -> Iterator[Doc]:
        """The items of a list and the comments between them, with what separates them."""
        drawn = iter(docs)
        filled = style.filled and not any(id(item) in self.comments.behind for item in items)
        commas = _commas(items, style)
        last: t.Node | None = None
        for node, blank in self._spaced(items, closing):
            if isinstance(node, t.Comment):
                yield row(_end_of_line(blank) if last is not None else "", node.text)
            else:
                doc = next(drawn)
                yield _with_separator(doc, last, blank and not style.commas, filled, commas)
                yield row("," if id(node) in commas else "", self._behind(node))
            last = node

    def _spaced(self, items: Iterable[t.Node], closing: Iterable[t.Comment]) -> Iterator[tuple[t.Node, bool]]:
        """Items and the comments on lines of their own, each with whether the author left a blank line before it."""
        end: int | None = None
        for item in items:
            start = item.span.start
            for comment in self.comments.above.get(id(item), ()):
                yield comment, self._blank(end, min(comment.span.start, start))
                end = min(comment.span.end, start)
            yield item, self._blank(end, start)
            behind = self.comments.behind.get(id(item), item)
            end = max(item.span.end, behind.span.end)
        for comment in closing:
            yield comment, self._blank(end, comment.span.start)
            end = comment.span.end

    def _blank(self, end: int | None, start: int) -> bool:
        return self.source is not None and end is not None and self.source.text.count("\n", end, start) > 1

    def _behind(self, node: t.Node) -> Doc:
        comment = self.comments.behind.get(id(node))
        return Remark(comment.text) if comment is not None else ""

    def _on_many_lines(self, node: t.Node) -> bool:
        return self.source is not None and "\n" in self.source.excerpt(node.span)


def _end_of_line(blank: bool) -> Doc:
    return _BLANK if blank else _HARD


def _filled(head: str, words: Sequence[str]) -> Doc:
    """Words separated by commas, as many on a line as fit."""
    rest = [row(",", group(Line(), word)) for word in words[1:]]
    return row(head, Nest(row(*words[:1], *rest)))


def _commas(items: Sequence[t.Node], style: _Style) -> set[int]:
    """The items, by `id`, that a comma must follow even at the end of a line."""
    return {id(item) for item, after in pairwise(items) if style.commas or _runs_on(item, after)}


def _with_separator(doc: Doc, last: t.Node | None, blank: bool, filled: bool, commas: set[int]) -> Doc:
    """An item of a list after what separates it from the item or comment before it."""
    if last is None:
        return doc
    if isinstance(last, t.Comment):
        return row(_end_of_line(blank), doc)
    if filled:
        return group(Line(), doc)
    return row(Line(" " if id(last) in commas else ", ", blank=blank), doc)


def _runs_on(item: t.Node, after: t.Node) -> bool:
    """Whether a line break between two options is no separator: the word `in` joins what stands around it."""
    return _last_word(item) == "in" or (isinstance(after, t.Option) and after.key.text == "in")


def _last_word(node: t.Node) -> str:
    match node:
        case t.Option():
            return _last_word(node.value)
        case t.Name():
            return node.text.rpartition(".")[2]
        case t.Chained():
            return _last_word(node.operands[-1])
        case t.Signed():
            return _last_word(node.operand)
        case t.Range():
            return _last_word(node.high)
        case t.Schedule():
            return _last_word(node.last)
        case _:
            return ""

"""Which comment belongs to what.

A comment on its own line belongs to the statement or list item below it, one at the end of a line to the item that it
follows.  A comment anywhere else goes above the item or statement that it stands in: it may move, but is never lost.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from energyml.diagnostics import Source
from energyml.syntax import tree as t

_NESTING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|#[^\n]*|([(\[{])|([)\]}])")

# The lists that can be drawn with one item a line: node -> its fields.
LISTS: dict[type[t.Node], tuple[str, ...]] = {
    t.LabelList: ("labels",),
    t.LabelSource: ("arguments",),
    t.Type: ("axes",),
    t.Axes: ("axes",),
    t.Signature: ("inputs",),
    t.Call: ("arguments",),
    t.Block: ("options",),
    t.Choice: ("arguments",),
    t.FactorStmt: ("binders", "scope"),
    t.ForbidStmt: ("binders",),
}

# The lists that have brackets even when they are empty; these end their node.
ALWAYS_BRACKETED = (t.LabelList, t.Call, t.Block)

ListKey = tuple[int, str]


def list_key(node: t.Node, name: str) -> ListKey:
    """What a list of a node is filed under."""
    return id(node), name


@dataclass
class Attached:
    """Comments by the node that they belong to.

    Attributes:
        above: on lines of their own above a statement or item, by the node's `id`.
        behind: at the end of the line of a statement or item.
        opening: at the end of the line of a list's opening bracket.
        closing: on lines of their own above a list's closing bracket.
        end: on lines of their own below the last statement.
    """

    above: dict[int, list[t.Comment]] = field(default_factory=dict)
    behind: dict[int, t.Comment] = field(default_factory=dict)
    opening: dict[ListKey, t.Comment] = field(default_factory=dict)
    closing: dict[ListKey, list[t.Comment]] = field(default_factory=dict)
    end: list[t.Comment] = field(default_factory=list)


def attach(spec: t.Spec, source: Source | None) -> Attached:
    """File every comment of a spec; without its source, comments inside statements all go above them.

    Cost: linear in the length of the source, times a logarithm for each comment.
    """
    attached = Attached()
    if not spec.comments:
        return attached
    brackets = Brackets(source.text if source is not None else "")
    starts = [statement.span.start for statement in spec.statements]
    inside: dict[int, list[t.Comment]] = {}
    for comment in spec.comments:
        place = bisect_right(starts, comment.span.start) - 1
        before = spec.statements[place] if place >= 0 else None
        after = spec.statements[place + 1] if place + 1 < len(starts) else None
        if before is not None and comment.span.start < before.span.end:
            inside.setdefault(place, []).append(comment)
        elif before is not None and not comment.own_line:
            attached.behind[id(before)] = comment
        elif after is not None:
            attached.above.setdefault(id(after), []).append(comment)
        else:
            attached.end.append(comment)
    for place, comments in inside.items():
        _attach_inside(spec.statements[place], comments, brackets, attached)
    return attached


# ------------------------------------------------------------------------------------------------------------ brackets


class Brackets:
    """The pairs of brackets of a text."""

    def __init__(self, text: str) -> None:
        self._opens: list[int] = []
        self._closes: list[int] = []
        self._parents: list[int] = []
        stack: list[int] = []
        for match in _NESTING.finditer(text):
            if match.group(1):
                self._parents.append(stack[-1] if stack else -1)
                stack.append(len(self._opens))
                self._opens.append(match.start())
                self._closes.append(len(text))
            elif match.group(2) and stack:
                self._closes[stack.pop()] = match.start()

    def around(self, offset: int) -> Iterator[int]:
        """Where the brackets around an offset open, the innermost one first."""
        place = bisect_left(self._opens, offset) - 1
        while place >= 0:
            if self._closes[place] >= offset:
                yield self._opens[place]
            place = self._parents[place]


# --------------------------------------------------------------------------------------------------- inside statements


@dataclass(frozen=True)
class _List:
    key: ListKey
    items: Sequence[t.Node]

    @cached_property
    def _starts(self) -> list[int]:
        return [item.span.start for item in self.items]

    def around(self, offset: int) -> tuple[t.Node | None, t.Node | None, t.Node | None]:
        """The item that ends before an offset, the one that contains it, and the one that starts after it."""
        place = bisect_right(self._starts, offset)
        last = self.items[place - 1] if place else None
        after = self.items[place] if place < len(self.items) else None
        if last is not None and last.span.end > offset:
            return None, last, after
        return last, None, after


def _attach_inside(statement: t.Statement, comments: list[t.Comment], brackets: Brackets, attached: Attached) -> None:
    lists = dict(_lists(statement, brackets))
    for comment in comments:
        _attach_one(statement, comment, [lists.get(o) for o in brackets.around(comment.span.start)], attached)


def _attach_one(statement: t.Statement, comment: t.Comment, lists: Sequence[_List | None], attached: Attached) -> None:
    """File a comment that stands in these lists, the innermost one first; None is a bracket that is no list."""
    for depth, items in enumerate(lists):
        if items is None:
            continue
        before, within, after = items.around(comment.span.start)
        if within is not None:
            attached.above.setdefault(id(within), []).append(comment)
            return
        if depth == 0:
            _attach_between(comment, items.key, before, after, attached)
            return
    attached.above.setdefault(id(statement), []).append(comment)


def _attach_between(
    comment: t.Comment, key: ListKey, before: t.Node | None, after: t.Node | None, attached: Attached
) -> None:
    """File a comment that stands between two items of a list, or between an item and a bracket."""
    if not comment.own_line:
        if before is None and key not in attached.opening:
            attached.opening[key] = comment
            return
        if before is not None and id(before) not in attached.behind:
            attached.behind[id(before)] = comment
            return
    if after is not None:
        attached.above.setdefault(id(after), []).append(comment)
    else:
        attached.closing.setdefault(key, []).append(comment)


def _lists(node: object, brackets: Brackets) -> Iterator[tuple[int, _List]]:
    """All lists of a tree, each with the place of its opening bracket."""
    if isinstance(node, tuple):
        for part in node:
            yield from _lists(part, brackets)
    if not isinstance(node, t.Node):
        return
    for name in LISTS.get(type(node), ()):
        items = getattr(node, name)
        if items or isinstance(node, ALWAYS_BRACKETED):
            first = items[0].span.start if items else node.span.end - 1
            opens = next(brackets.around(first), None)
            if opens is not None:
                yield opens, _List(list_key(node, name), items)
    for part in fields(node):
        yield from _lists(getattr(node, part.name), brackets)

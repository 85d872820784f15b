"""Documents that know where they may be broken into lines, and how they are drawn.

After Wadler, "A prettier printer" (2003): a group is drawn on one line if it fits there, else all its own lines break
and the groups inside it are asked again.  A comment is drawn at the end of its line, takes no room, and breaks the
groups around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

WIDTH = 100
INDENT = 2


@dataclass(frozen=True, slots=True)
class Line:
    """A place where a line may end: `flat` stands there when it does not; `blank` adds an empty line when it does."""

    flat: str = " "
    hard: bool = False
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment for the end of the line that is being drawn."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """Documents one after the other."""

    parts: tuple[Doc, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """A document whose broken lines are indented."""

    doc: Doc


@dataclass(frozen=True, slots=True)
class Group:
    """A document that is drawn on one line if it fits and is not broken from the start."""

    doc: Doc
    broken: bool


Doc: TypeAlias = str | Line | Remark | Row | Nest | Group


def row(*parts: Doc) -> Doc:
    """Documents one after the other."""
    return Row(parts)


def group(*parts: Doc, broken: bool = False) -> Group:
    """A group; broken from the start if asked for, or if something inside it must break."""
    return Group(Row(parts), broken or any(_must_break(part) for part in parts))


def joined(separator: Doc, parts: Iterable[Doc]) -> Doc:
    """Documents with another one between each two of them."""
    made: list[Doc] = []
    for part in parts:
        made += [separator, part] if made else [part]
    return Row(tuple(made))


def _must_break(doc: Doc) -> bool:
    match doc:
        case Line():
            return doc.hard
        case Remark():
            return True
        case Row():
            return any(_must_break(part) for part in doc.parts)
        case Nest():
            return _must_break(doc.doc)
        case Group():
            return doc.broken
        case _:
            return False


_Task: TypeAlias = tuple[int, bool, Doc]


def render(doc: Doc, width: float = WIDTH) -> str:
    """Draw a document within a width, as far as its lines can be broken.

    Cost: linear in the document, times the width at worst.
    """
    out: list[str] = []
    remarks: list[str] = []
    column = 0
    tasks: list[_Task] = [(0, False, doc)]
    while tasks:
        indent, flat, item = tasks.pop()
        match item:
            case str():
                out.append(item)
                column += len(item)
            case Remark():
                remarks.append(f"  {item.text}")
            case Row():
                tasks.extend((indent, flat, part) for part in reversed(item.parts))
            case Nest():
                tasks.append((indent + INDENT, flat, item.doc))
            case Group():
                flat = flat or (not item.broken and _fits(width - column, item.doc, tasks))
                tasks.append((indent, flat, item.doc))
            case Line() if flat and not item.hard:
                out.append(item.flat)
                column += len(item.flat)
            case Line():
                out += [*remarks, "\n\n" if item.blank else "\n", " " * indent]
                remarks.clear()
                column = indent
    return "".join(out + remarks)


def _fits(room: float, doc: Doc, rest: list[_Task]) -> bool:
    """Whether a document on one line, and what follows it up to where a line may end, leave the room unspent."""
    waiting = len(rest)
    tasks: list[tuple[bool, Doc]] = [(True, doc)]
    while room >= 0:
        if not tasks:
            if waiting == 0:
                return True
            waiting -= 1
            tasks.append((False, rest[waiting][2]))
        flat, item = tasks.pop()
        match item:
            case str():
                room -= len(item)
            case Line():
                if not flat:
                    return True
                room -= len(item.flat)
            case Row():
                tasks.extend((flat, part) for part in reversed(item.parts))
            case Nest() | Group():
                tasks.append((flat, item.doc))
            case Remark():
                pass
    return False

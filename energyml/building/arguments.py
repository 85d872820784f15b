"""Arguments of the builder's methods as nodes of the syntax tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from energyml.building.parts import Part, key, listed, required, size, string, wrong
from energyml.building.settings import arguments
from energyml.building.tensors import Binder, Cell, Condition, Net, Variable
from energyml.building.types import Dim, Labels
from energyml.diagnostics import NOWHERE
from energyml.syntax import tree as t

SHORTEST_RANGE = 3


def members_node(members: Iterable[str], name: str) -> t.LabelList | t.LabelRange:
    """Listed labels; three or more neighbours of the alphabet become a range."""
    place = f"labels `{name}`"
    if isinstance(members, Part) or not isinstance(members, Iterable):
        raise wrong(place, "the labels, as strings", members)
    labels = [string(label, f"a label of {place}") for label in members]
    points = [ord(label.value) if len(label.value) == 1 else -1 for label in labels]
    if len(points) >= SHORTEST_RANGE and points[0] >= 0 and points == list(range(points[0], points[0] + len(points))):
        return t.LabelRange(NOWHERE, labels[0], labels[-1])
    return t.LabelList(NOWHERE, tuple(t.Ident(NOWHERE, label.value) for label in labels))


def source_node(source: object, options: Mapping[str, Any]) -> t.LabelSource:
    """Where labels come from."""
    if isinstance(source, Net):
        name = source.name
    elif isinstance(source, str) and source == "data":
        name = t.Ident(NOWHERE, source)
    else:
        raise wrong("the source of labels", "'data' or a network", source)
    return t.LabelSource(NOWHERE, name, arguments(None, name.text, (), options)[1])


def dim_item(name: t.Ident, fixed: int | None, most: int | None, within: Dim | None) -> t.DimItem:
    """A declared dim, of the kind that its arguments say."""
    if sum(one is not None for one in (fixed, most, within)) > 1:
        raise TypeError(f"dim `{name.text}`: give at most one of `size`, `at_most` and `within`")
    if within is not None:
        return t.DimItem(NOWHERE, name, "nested", None, required(Dim, within, f"dim `{name.text}`").name)
    given = most if fixed is None else fixed
    if given is None:
        return t.DimItem(NOWHERE, name, "observed", None, None)
    made = size(given, f"dim `{name.text}`")
    return t.DimItem(NOWHERE, name, "free" if fixed is None else "fixed", t.Number(NOWHERE, str(made), made), None)


def readout_node(argmax: object, name: str) -> t.Readout:
    """The read-out of a field."""
    match argmax:
        case (Variable() as field, Labels() as over):
            return t.Readout(NOWHERE, field.node.variable, over.name)
    raise wrong(f"the read-out of output `{name}`", "a field and a label set, as in `argmax=(s, Seg)`", argmax)


def binder_nodes(given: object, place: str) -> tuple[t.Binder, ...]:
    """A list of index sets."""
    where = f"the index sets of {place}"
    return tuple(required(Binder, one, where, "t.over(T)").node for one in listed(given, where, "index sets"))


def condition_nodes(given: tuple[object, ...]) -> tuple[t.Condition, ...]:
    """The conditions of a constraint, at least one."""
    if not given:
        raise TypeError("forbid: it has no condition")
    return tuple(required(Condition, one, "forbid", "y[t] == 'O'").node for one in given)


def scope_items(given: object, place: str) -> tuple[t.ScopeItem, ...]:
    """The cells of a factor, at least one."""
    items = tuple(_scope_item(one, place) for one in listed(given, f"the scope of {place}", "cells"))
    if not items:
        raise TypeError(f"{place}: its scope has no cell")
    return items


def _scope_item(given: object, place: str) -> t.ScopeItem:
    match given:
        case Cell():
            return t.ScopeItem(NOWHERE, None, given.node)
        case (role, Cell() as cell):
            return t.ScopeItem(NOWHERE, key(role, f"a role of {place}"), cell.node)
    raise wrong(f"the scope of {place}", "a cell such as `y[t]`, or a role and a cell", given)

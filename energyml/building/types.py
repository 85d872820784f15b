"""Sizes and types as Python objects: `T - 1`, `em.real[T, 3]`, `Letter[T]`, `em.real["from": Tag, "to": Tag]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

from energyml.building.parts import Part, common_home, key, listed, required, shifted, size, whole, wrong
from energyml.diagnostics import NOWHERE
from energyml.syntax import tree as t
from energyml.syntax.formatter import format_type, format_value


@dataclass(frozen=True, eq=False, repr=False)
class Extent(Part):
    """A dim plus a constant: `T`, `T - 1`."""

    kind = "extent"
    node: t.Extent

    def __add__(self, offset: int) -> Extent:
        return Extent(self.home, t.Extent(NOWHERE, self.node.name, self.node.offset + whole(offset, f"`{self!r}`")))

    def __sub__(self, offset: int) -> Extent:
        return self + -whole(offset, f"`{self!r}`")

    def __repr__(self) -> str:
        return shifted(self.node.name, self.node.offset)


@dataclass(frozen=True, eq=False, repr=False)
class Dim(Extent):
    """A declared size."""

    kind = "dim"
    name: t.Ident


AxisLike: TypeAlias = "Extent | Labels | int | slice[Any, Any, Any]"


@dataclass(frozen=True, eq=False, repr=False)
class Type(Part):
    """A type; with axes in brackets, where a slice gives an axis its role."""

    kind = "type"
    node: t.Type

    def __getitem__(self, given: AxisLike | tuple[AxisLike, ...]) -> Type:
        if self.node.axes or self.node.parameters:
            raise TypeError(f"the type `{self!r}` has its axes already")
        node = t.Type(NOWHERE, self.node.element, (), axis_nodes(given, self.node.element.text))
        return Type(common_home(self, given), node)

    __iter__ = None

    def __repr__(self) -> str:
        return format_type(self.node)


@dataclass(frozen=True, eq=False, repr=False)
class Labels(Part):
    """A declared label set: the extent of an axis, and with axes of its own the type of labels, `Letter[T]`."""

    kind = "label set"
    name: t.Ident

    def __getitem__(self, given: AxisLike | tuple[AxisLike, ...]) -> Type:
        return self.type[given]

    __iter__ = None

    @property
    def type(self) -> Type:
        """The type of a single label."""
        return Type(self.home, t.Type(NOWHERE, self.name, (), ()))

    def __repr__(self) -> str:
        return self.name.text


@dataclass(frozen=True, eq=False, repr=False)
class Signature(Part):
    """The type of a network that is called."""

    kind = "signature"
    node: t.Signature

    def __repr__(self) -> str:
        return format_type(self.node)


real = Type(None, t.Type(NOWHERE, t.Ident(NOWHERE, "real"), (), ()))


def axis_nodes(given: object, place: str) -> tuple[t.Axis, ...]:
    """The axes between square brackets."""
    return tuple(_axis(one, place) for one in (given if isinstance(given, tuple) else (given,)))


def _axis(given: object, place: str) -> t.Axis:
    if isinstance(given, slice):
        if given.step is not None:
            raise wrong(f"an axis of `{place}`", "`role: extent`", given)
        role = key(given.start, f"the role of an axis of `{place}`")
        return t.Axis(NOWHERE, role, _extent(given.stop, place))
    return t.Axis(NOWHERE, None, _extent(given, place))


def _extent(given: object, place: str) -> t.Extent:
    match given:
        case Extent():
            return given.node
        case Labels():
            return t.Extent(NOWHERE, given.name, 0)
        case Integral() if not isinstance(given, bool):
            return t.Extent(NOWHERE, None, size(given, f"an axis of `{place}`"))
    raise wrong(f"an axis of `{place}`", "a dim, a label set or a whole number", given)


def type_node(given: object, place: str) -> t.Type:
    """A type as an argument; a label set is the type of a single label."""
    if isinstance(given, Labels):
        return given.type.node
    return required(Type, given, place, "em.real[T, 3]").node


def signature(inputs: Sequence[Type | Labels], output: Type) -> Signature:
    """The type of a network that is called, `(Word[T]) -> real[T, Tag]`, for `b.net(..., type=...)`."""
    given = listed(inputs, "the inputs of a signature", "types")
    nodes = tuple(type_node(one, "an input of a signature") for one in given)
    node = t.Signature(NOWHERE, nodes, type_node(output, "the output of a signature"))
    return Signature(common_home(*given, output), node)


def step(labels: Labels) -> Type:
    """The type of a step network over a label set, for `b.net(..., type=...)`."""
    return _role("step", labels)


def conditionals(labels: Labels) -> Type:
    """The type of a masked network over a label set, for `b.net(..., type=...)`."""
    return _role("conditionals", labels)


def _role(word: str, labels: Labels) -> Type:
    given = required(Labels, labels, f"`em.{word}`")
    return Type(given.home, t.Type(NOWHERE, t.Ident(NOWHERE, word), (given.name,), ()))


@dataclass(frozen=True, eq=False, repr=False)
class Setting(Part):
    """A value that only options take: axes, a range, a schedule."""

    kind = "option value"
    node: t.Value

    def __repr__(self) -> str:
        return format_value(self.node)


class _Axes:
    """`em.axes["from": Tag, "to": Tag]`: the axes of a network's result, for its option `out`."""

    def __getitem__(self, given: AxisLike | tuple[AxisLike, ...]) -> Setting:
        return Setting(common_home(given), t.Axes(NOWHERE, axis_nodes(given, "em.axes")))

    __iter__ = None


axes = _Axes()

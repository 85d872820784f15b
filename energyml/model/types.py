"""Types with named axes.

An axis is a role and an extent; an extent is a label set, a number, or a dim plus a constant.  Axes over dims are
*index axes* (subscripts consume them), axes over label sets are *label axes* (a factor's scope consumes them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from energyml.syntax import spelling

REAL = "real"

ExtentKind = Literal["labels", "dim", "number"]


@dataclass(frozen=True, slots=True)
class Extent:
    """How long an axis is.

    Attributes:
        kind: over what it runs.
        name: the label set or the dim; empty for a number.
        offset: the constant added to a dim (`T-1` has -1), or the number itself.
    """

    kind: ExtentKind
    name: str
    offset: int = 0

    def __str__(self) -> str:
        if self.kind == "number":
            return str(self.offset)
        return f"{self.name}{self.offset:+d}" if self.offset else self.name


@dataclass(frozen=True, slots=True)
class Axis:
    """An extent with an optional role."""

    extent: Extent
    role: str | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether it can be written without brackets where a list of axes is expected, as in `out: Letter`."""
        return self.role is None and (self.extent.kind == "number" or not self.extent.offset)

    def __str__(self) -> str:
        return f"{spelling.key(self.role)}: {self.extent}" if self.role else str(self.extent)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Elements (`real`, or the name of a label set) and axes; the batch axis is never written."""

    element: str
    axes: tuple[Axis, ...] = ()

    @property
    def index_axes(self) -> tuple[Axis, ...]:
        """The axes that subscripts consume, in order."""
        return tuple(axis for axis in self.axes if axis.extent.kind == "dim")

    @property
    def label_axes(self) -> tuple[Axis, ...]:
        """The axes that a scope consumes."""
        return tuple(axis for axis in self.axes if axis.extent.kind == "labels")

    @property
    def number_axes(self) -> tuple[Axis, ...]:
        """The axes of plain numbers: features."""
        return tuple(axis for axis in self.axes if axis.extent.kind == "number")

    def without_roles(self) -> TensorType:
        """The same type with its roles removed, for comparing shapes."""
        return replace(self, axes=tuple(Axis(axis.extent) for axis in self.axes))

    def __str__(self) -> str:
        return f"{self.element}[{', '.join(map(str, self.axes))}]" if self.axes else self.element


@dataclass(frozen=True, slots=True)
class EdgeType:
    """A run-time list of edges: `edge(T, T)[E]` has one row of positions in T and T for each e in E."""

    ends: tuple[str, ...]
    over: str

    def as_tensor(self) -> TensorType:
        """The list as an argument of a coupling: one element for each edge."""
        return TensorType("edge", (dim_axis(self.over),))

    def __str__(self) -> str:
        return f"edge({', '.join(self.ends)})[{self.over}]"


@dataclass(frozen=True, slots=True)
class StepType:
    """A step network over the labels of a set: usable in `sequence`."""

    labels: str

    def __str__(self) -> str:
        return f"step({self.labels})"


@dataclass(frozen=True, slots=True)
class MaskedType:
    """A network with masked conditionals over the labels of a set: usable in `masked`."""

    labels: str

    def __str__(self) -> str:
        return f"conditionals({self.labels})"


def labels_axis(name: str, role: str | None = None) -> Axis:
    """An axis over a label set."""
    return Axis(Extent("labels", name), role)


def dim_axis(name: str, offset: int = 0, role: str | None = None) -> Axis:
    """An axis over a dim plus a constant."""
    return Axis(Extent("dim", name, offset), role)


def number_axis(size: int, role: str | None = None) -> Axis:
    """An axis of a fixed number of features."""
    return Axis(Extent("number", "", size), role)

"""Which method serves a Gaussian field: its couplings, costs, and the choice with its reason.  Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from energyml.ir.fields import CoupledField
from energyml.model.types import Extent
from energyml.plan.cost import Sizes, human
from energyml.plan.elimination import human_bytes

Method = Literal["diagonal", "transform", "banded", "woodbury", "cholesky", "cg"]
Purpose = Literal["solve", "determinant"]

# Conjugate gradients are weighed as if they took this many iterations, and as if each of their operations, which wait
# for memory, took as long as several of a direct method, which are products of matrices.
USUAL_ITERATIONS = 50
WAITING = 8
# A cell of a Fourier transform, there and back, is weighed as a product with a row of this many cells.
FOURIER = 340
# No direct method is tried beyond this many operations for one example.
MOST_OPERATIONS = 1e12
TITLES: Mapping[Method, str] = {
    "diagonal": "division by the diagonal",
    "transform": "cosine transforms",
    "banded": "block Cholesky",
    "woodbury": "Woodbury identity",
    "cholesky": "dense Cholesky",
    "cg": "conjugate gradients",
}


@dataclass(frozen=True)
class FieldFacts:
    """What the couplings of one field are, and its sizes where they are known.

    Attributes:
        name: the field.
        channels: how many values each position has; `None` where unknown.
        shape: the sizes of its dims; `None` where unknown.
        rank: the numbers of all low-rank vectors; 0 without any, `None` where unknown.
        stencil: whether neighbours of the grid are coupled.
        constant: whether each direction of the grid has one weight.
        aligned: whether its directions are the axes.
        links: whether a list of edges couples positions.
        band: the bandwidth of the edges in a good order; `None` where unknown.
        dense: whether there is a dense matrix.
        gaps: whether positions are missing or observed, or anything else makes the diagonal uneven.
        bounded: whether it is positive definite by construction.
    """

    name: str
    channels: int | None = None
    shape: tuple[int, ...] | None = None
    rank: int | None = 0
    stencil: bool = False
    constant: bool = False
    aligned: bool = True
    links: bool = False
    band: int | None = None
    dense: bool = False
    gaps: bool = False
    bounded: bool = True

    @property
    def positions(self) -> int | None:
        """How many positions there are."""
        return None if self.shape is None else prod(self.shape)

    def describe(self) -> str:
        """The couplings in words."""
        parts = []
        if self.rank != 0:
            parts.append(f"low-rank couplings of rank {'?' if self.rank is None else self.rank}")
        if self.stencil:
            reach = "neighbours" if self.aligned else "neighbours and diagonals"
            parts.append(f"{'constant' if self.constant else 'varying'} weights between {reach}")
        if self.links:
            parts.append("edges of a list")
        if self.dense:
            parts.append("a dense matrix")
        return " and ".join(parts) or "no couplings"


def facts_of(coupled: CoupledField, sizes: Sizes) -> FieldFacts:
    """What is known about a field before there are tensors; `sizes` are those of the structure."""
    field = coupled.field
    channels = [_size(axis.extent, sizes) for axis in field.type.axes if axis.extent.kind != "dim"]
    shape = [_size(axis.extent, sizes) for axis in field.type.index_axes]
    names = [one.potential for one in coupled.couplings]
    ranks = [
        prod(axis.extent.offset for axis in one.type.number_axes)
        for one in coupled.couplings
        if one.potential in ("potts", "lowrank")
    ]
    smooth = [one for one in coupled.couplings if one.potential == "smooth"]
    return FieldFacts(
        field.name,
        channels=None if None in channels else prod(one for one in channels if one is not None),
        shape=None if None in shape else tuple(one for one in shape if one is not None),
        rank=sum(ranks),
        stencil=bool(smooth),
        constant=all(not one.type.index_axes for one in smooth),
        aligned=not any(dict(one.options).get("diagonals") for one in smooth),
        links="sparse" in names,
        dense="dense" in names,
        bounded=coupled.bounded,
    )


def _size(extent: Extent, sizes: Sizes) -> int | None:
    if extent.kind == "number":
        return extent.offset
    known = sizes.get(f"|{extent.name}|" if extent.kind == "labels" else extent.name)
    return None if known is None else int(known) + (extent.offset if extent.kind == "dim" else 0)


@dataclass(frozen=True)
class Choice:
    """A method for one field.

    Attributes:
        method: its name.
        base: below `woodbury`: what inverts the rest.
        why: the reason in words.
        operations: for one example; `None` where sizes are unknown.
        memory: bytes for one example, likewise.
    """

    method: Method
    base: Method | None = None
    why: str = ""
    operations: float | None = None
    memory: float | None = None

    def describe(self) -> str:
        """One line: the method, its cost, the reason."""
        over = f" over {TITLES[self.base]}" if self.base not in (None, "diagonal") else ""
        cost = "" if self.operations is None else f" ({human(self.operations)} operations"
        if self.operations is not None and self.memory is not None:
            cost += f", {human_bytes(self.memory)} for one example)"
        return f"{TITLES[self.method]}{over}{cost}: {self.why}"


def direct(facts: FieldFacts, budget: float) -> Choice | None:
    """The cheapest direct method for one example within a budget of bytes; `None` where there is none."""
    options = [one for one in (_layered(facts), _dense(facts)) if one is not None]
    fitting = [
        one for one in options
        if one.operations is None or (one.operations <= MOST_OPERATIONS and (one.memory or 0) <= budget)
    ]  # fmt: skip
    return min(fitting, key=lambda one: one.operations or 0.0, default=None)


def choose(facts: FieldFacts, budget: float, purpose: Purpose = "solve") -> Choice | None:
    """The method for solving, or for determinants, variances and all that needs them; `None` where none is exact."""
    found = direct(facts, budget)
    if purpose == "determinant":
        return found
    iterative = conjugate_gradients(facts)
    if found is None:
        return replace(iterative, why="no direct method fits the memory or the time")
    if found.operations is None or iterative.operations is None:
        return found
    if found.operations <= WAITING * iterative.operations:
        return found
    return replace(iterative, why=f"cheaper than {TITLES[found.method]}, {human(found.operations)} operations")


def conjugate_gradients(facts: FieldFacts) -> Choice:
    """The cost of conjugate gradients, if they take the usual number of iterations."""
    if facts.positions is None or facts.channels is None or facts.rank is None:
        return Choice("cg", why="asked for")
    cells = facts.positions * facts.channels
    product = 2.0 * cells * facts.rank + 40.0 * cells
    product += 30.0 * cells if facts.stencil or facts.links else 0.0
    product += float(cells) ** 2 if facts.dense else 0.0
    return Choice("cg", None, "asked for", USUAL_ITERATIONS * product, 8.0 * 8 * cells)


def _layered(facts: FieldFacts) -> Choice | None:
    """A base that all channels share, and the low-rank part on top of it."""
    if facts.dense:
        return None
    base = _base(facts)
    if base is None or facts.rank == 0:
        return base
    n, rank = facts.positions, facts.rank
    why = f"the low-rank part is solved by {2 if facts.channels != 1 else 1} systems of {rank or 'K'} equations"
    if base.method != "diagonal":
        why += f", the rest by {TITLES[base.method]}"
    if n is None or rank is None or facts.channels is None or base.operations is None:
        return Choice("woodbury", base.method, why)
    operations = base.operations * (1 if base.method == "diagonal" else rank) + 2.0 * n * rank**2 + rank**3
    kept = 0.0 if base.method == "diagonal" else 8.0 * n * rank
    return Choice("woodbury", base.method, why, operations, (base.memory or 0) + kept + 8.0 * 4 * n * facts.channels)


def by_fourier(shape: Sequence[int]) -> bool:
    """Whether a grid is transformed by Fourier transforms, or by products: below it many small steps cost too much.

    Measured on one core in float32 on square images: equal at 128 rows, six times faster at 1024.
    """
    return len(shape) == 2 and min(shape) >= 160


def _base(facts: FieldFacts) -> Choice | None:
    n, channels = facts.positions, facts.channels
    if not facts.stencil and not facts.links:
        why = "nothing is coupled" if facts.rank == 0 else "the ridge alone"
        known = n is not None and channels is not None
        return Choice("diagonal", None, why, 2.0 * n * channels if n and channels and known else None, 0.0)
    if facts.stencil and not facts.links and facts.constant and facts.aligned and not facts.gaps:
        why = "constant weights on a grid without gaps"
        if n is None or channels is None or facts.shape is None:
            return Choice("transform", None, why)
        each = min(sum(facts.shape), FOURIER) if by_fourier(facts.shape) else sum(facts.shape)
        return Choice("transform", None, why, 4.0 * n * channels * each, 8.0 * 3 * n * channels)
    if facts.stencil and facts.links:
        return None  # lines of a grid are no blocks of the list's edges, and no order of both is looked for
    if n is None or facts.shape is None:
        return Choice("banded", None, "sparse couplings, if the field is small enough")
    if facts.links and facts.band is None:
        return Choice("banded", None, "sparse couplings, if their bandwidth is small enough")
    size = facts.band if facts.links and facts.band is not None else n // max(1, *facts.shape, 1)
    why = f"sparse couplings of bandwidth {size}"
    return Choice("banded", None, why, 3.0 * n * size**2 + 4.0 * n * size * (channels or 1), 8.0 * 3 * n * size)


def _dense(facts: FieldFacts) -> Choice | None:
    why = "a dense matrix" if facts.dense else "the field is small"
    if facts.positions is None or facts.channels is None:
        return Choice("cholesky", None, why) if facts.dense or (facts.stencil and facts.links) else None
    cells = float(facts.positions * facts.channels)
    return Choice("cholesky", None, why, cells**3 / 3 + 20 * cells**2, 8.0 * 3 * cells**2)


__all__ = [
    "Choice",
    "FieldFacts",
    "Method",
    "Purpose",
    "by_fourier",
    "choose",
    "conjugate_gradients",
    "direct",
    "facts_of",
]

"""Structures: families of answers with one recursion over their parts, from which every query follows.

A structure stands for one batch and holds no parameters.  Its answers give each cell a label; scores belong to cells
and to parts (a transition, an arc, a segment).  See `energyml.inference.derived` for what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from energyml.inference.reductions import Reduce


class Weights(NamedTuple):
    """The scores of one batch; a named tuple of dicts, as `torch.func` takes these apart and no dataclass.

    Attributes:
        cells: by variable: [B or 1, *dims or 1, labels].
        parts: by kind of part: [B or 1, *domain or 1, *labels].  Axes of size 1 are shared.
    """

    cells: dict[str, Tensor]
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Axes:
    """The full sizes of the cells of a variable or of the parts of a kind, which shared axes do not tell.

    Attributes:
        sizes: of the dims, or of the domain.
        labels: how many labels each cell of it has.
        exists: [B or 1, *sizes] which are there; `None` where all are.
    """

    sizes: tuple[int, ...]
    labels: tuple[int, ...]
    exists: Tensor | None = None


class Structure(Protocol):
    """A family of answers for one batch.

    Attributes:
        batch: B.
        cells: the axes of each variable.
        parts: the axes of each kind of part.
        latent: the variables that are summed out.
    """

    @property
    def batch(self) -> int:
        """The number of examples."""
        ...

    @property
    def cells(self) -> Mapping[str, Axes]:
        """The axes of each variable."""
        ...

    @property
    def parts(self) -> Mapping[str, Axes]:
        """The axes of each kind of part."""
        ...

    @property
    def latent(self) -> frozenset[str]:
        """The variables that are summed out."""
        ...

    def total(self, weights: Weights, reduce: Reduce) -> Tensor:
        """[B]: the scores of all answers, summed up by a reduction; -inf where there is none.

        No score may count twice in one answer.  Scores are finite or -inf, and 0 where nothing exists.
        """
        ...

    def covers(self, other: Structure) -> bool:
        """Whether every answer of another structure is one of this, whatever the scores."""
        ...

    def restricted(self, allowed: Mapping[str, Tensor]) -> Structure:
        """A structure of at least the answers that keep to allowed labels, where known cells make it smaller."""
        ...

"""What a backend returns: values with their quality, a status and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from energyml.queries import Quality

ABSENT = -1


@dataclass(frozen=True)
class Status:
    """How a computation ended; a failing status names likely causes and remedies."""

    ok: bool = True
    message: str = "ok"


@dataclass(frozen=True)
class Result:
    """An answer to a query.

    Attributes:
        value: tensors, or an `Assignment`.
        quality: what it promises about the true value.
        status: how the computation ended.
        statistics: iterations, residuals, acceptance rates: whatever the backend measured.
    """

    value: Any
    quality: Quality = Quality.EXACT
    status: Status = field(default_factory=Status)
    statistics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """Labels for every cell, and the scores of the answers.

    Attributes:
        labels: by variable: [..., B, *dims] (`sample`), [B, k, *dims] (`n_best`) or [B, *dims]; -1 where there is no
            cell.
        score: the scores, with the same leading axes.
        names: the labels' names, by variable.
    """

    labels: Mapping[str, Tensor]
    score: Tensor
    names: Mapping[str, tuple[str, ...]]

    def __getitem__(self, variable: str) -> Tensor:
        """The labels of one variable."""
        return self.labels[variable]

    def decode(self, variable: str | None = None) -> Any:
        """Label names as nested lists; along the last axis absent cells are left out.

        A variable without dims has one cell for each answer: its name, or `None` where there is no answer.
        """
        name = variable if variable is not None else next(iter(self.labels))
        if name not in self.labels:
            raise KeyError(f"no labels for `{name}`; there are labels for {', '.join(self.labels)}")
        labels = self.labels[name]
        return _named(labels.tolist(), self.names[name], labels.dim() > self.score.dim())

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {list(labels.shape)}" for name, labels in self.labels.items())
        return f"Assignment({shapes}; score: {list(self.score.shape)})"


def _named(values: Any, names: tuple[str, ...], leave_out: bool) -> Any:
    if not isinstance(values, list):
        return names[values] if values >= 0 else None
    made = [_named(value, names, leave_out) for value in values]
    return [one for one in made if one is not None] if leave_out else made

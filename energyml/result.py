"""What a backend returns: values with their quality, a status and statistics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from energyml.diagnostics import EnergyError
from energyml.queries import Quality

ABSENT = -1


class Failed(EnergyError):
    """An answer that would be useless; the message names causes and remedies."""


class Status:
    """How a computation ended; a failing status names likely causes and remedies.

    Args:
        check: finds out what is wrong: (whether the answer is useless, message), or `None` when all is well.  It may
            wait for a device, so it is called when somebody asks.
    """

    def __init__(self, check: Callable[[], tuple[bool, str] | None] | None = None) -> None:
        self._check = check
        self._further: tuple[Callable[[], tuple[bool, str] | None], ...] = ()
        self._seen: tuple[bool, str] | None = None
        self._looked = False

    def also(self, check: Callable[[], tuple[bool, str] | None]) -> Status:
        """This status, and a further check that counts where those before do not find the answer useless."""
        made = Status(self._check)
        made._further = (*self._further, check)
        return made

    def __reduce__(self) -> tuple[Callable[[tuple[bool, str] | None], Status], tuple[tuple[bool, str] | None]]:
        """A copy knows what this one finds now: checks refer to the batch."""
        return _looked_at, (self._found,)

    @property
    def is_open(self) -> bool:
        """Whether the backend has something to check; further checks are made where the status is read."""
        return self._check is not None

    @property
    def _found(self) -> tuple[bool, str] | None:
        if not self._looked:
            self._seen, self._looked = None if self._check is None else self._check(), True
            for further in self._further:
                if not (self._seen and self._seen[0]):
                    self._seen = further() or self._seen
        return self._seen

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self._found is None

    @property
    def message(self) -> str:
        """What is wrong, with likely causes and remedies; `ok` when nothing is."""
        return "ok" if self._found is None else self._found[1]

    @property
    def is_useless(self) -> bool:
        """Whether the answer means nothing."""
        return self._found is not None and self._found[0]

    def insist(self) -> None:
        """Raise `Failed` where the answer is useless; warn where it is only less exact than it was asked to be."""
        if self._found is None:
            return
        if self._found[0]:
            raise Failed(self._found[1])
        warnings.warn(self._found[1], stacklevel=4)


def _looked_at(found: tuple[bool, str] | None) -> Status:
    """A status that was read."""
    made = Status()
    made._seen, made._looked = found, True
    return made


def not_a_number(value: Any) -> tuple[bool, str] | None:
    """A failing status where an answer holds NaN; reading it waits for the device."""
    if not any(bool(one.isnan().any()) for one in _tensors(value) if one.is_floating_point()):
        return None
    return True, (
        "the answer is not a number (NaN): likely (a) NaN or inf in the weights or the inputs, (b) scores that leave "
        "their floating-point type; look at both, or use float64"
    )


def without_answer(kind: str, value: Any) -> Tensor | None:
    """[B]: where the answer to a query says that no answer has positive weight; `None` for other queries."""
    if kind == "log_partition":
        gone: Tensor = value.isneginf()
        return gone
    if kind in ("map", "max_with_cost", "n_best", "sample"):
        axis = {"n_best": 1, "sample": 0}.get(kind)
        none: Tensor = value.score.isneginf()
        return none if axis is None else none.all(axis)
    if kind == "marginals":
        totals = [one.reshape(one.shape[0], -1).sum(1) for one in value.values()]
        return torch.stack(totals).sum(0) == 0 if totals else None
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Assignment):
        yield from (value.score, *value.fields.values())
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


class Measured(Mapping[str, Any]):
    """Statistics that are computed when somebody looks at them: on an accelerator, looking waits for the device."""

    def __init__(self, measures: Mapping[str, Callable[[], Any]]) -> None:
        self._measures = measures

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[list[tuple[str, Any]]]]:
        """A copy holds the numbers themselves."""
        return dict, (list(self.items()),)

    def __getitem__(self, name: str) -> Any:
        return self._measures[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._measures)

    def __len__(self) -> int:
        return len(self._measures)

    def __repr__(self) -> str:
        return repr(dict(self))


def _fine() -> Status:
    return Status()  # compiled code calls functions, not classes, for what a class has by default


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
    status: Status = field(default_factory=_fine)
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """Labels for every cell, and the scores of the answers.

    Attributes:
        labels: by variable: [..., B, *dims] (`sample`), [B, k, *dims] (`n_best`) or [B, *dims]; -1 where there is no
            cell.
        score: the scores, with the same leading axes.
        names: the labels' names, by variable.
        fields: the values of fields: [..., B, *axes].
    """

    labels: Mapping[str, Tensor]
    score: Tensor
    names: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, variable: str) -> Tensor:
        """The labels of one variable, or the values of a field."""
        return self.fields[variable] if variable in self.fields else self.labels[variable]

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
        shapes = ", ".join(f"{name}: {list(one.shape)}" for name, one in (*self.labels.items(), *self.fields.items()))
        return f"Assignment({shapes}; score: {list(self.score.shape)})"


def _named(values: Any, names: tuple[str, ...], leave_out: bool) -> Any:
    if not isinstance(values, list):
        return names[values] if values >= 0 else None
    made = [_named(value, names, leave_out) for value in values]
    return [one for one in made if one is not None] if leave_out else made

"""Cells that are known, from a JSON file: what `energyml sample --evidence` holds fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energyml.diagnostics import EnergyError
from energyml.energy_model import EnergyModel
from energyml.model.declared import Variable
from energyml.run import _read_json

# What stands for a cell that is not known, beside `null`, where no label is called so.
OPEN = "?"


@dataclass(frozen=True)
class Known:
    """What a file says.

    Attributes:
        values: by variable, as `EnergyModel.infer` takes evidence: labels [B, *dims] with -1 for cells that are not
            known, values of fields [B, *axes] with NaN.
        lengths: by observed dim: [B], how many positions each example has; for sequences of different lengths.
        sizes: the sizes of dims.
        count: how many examples there are; `None` without a file.
    """

    values: Mapping[str, Tensor] = field(default_factory=dict)
    lengths: Mapping[str, Tensor] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    count: int | None = None


def read_evidence(path: Path, model: EnergyModel) -> Known:
    """Known cells by variable: for each example nested lists of labels, `null` where a cell is not known.

    `"?"` stands for `null` where no label is called so.  A sequence of labels of one character may be a string, as in
    `{"y": ["EVQL??SGG"]}`.  Sequences may have different lengths.  Fields have numbers.
    """
    values: dict[str, Tensor] = {}
    lengths: dict[str, Tensor] = {}
    sizes: dict[str, int] = {}
    count: int | None = None
    for name, rows in _read_json(path).items():
        variable = model.graph.variables.get(name)
        where = f"{path}: `{name}`"
        if variable is None or variable.readout is not None:
            known = [v.name for v in model.graph.variables.values() if v.readout is None]
            raise EnergyError(f"{where} is nothing that can be known about an answer; that is {_listed(known)}")
        if not isinstance(rows, list) or (count is not None and len(rows) != count):
            raise EnergyError(f"{where} must be a list with an entry for each example, as many as others have")
        count = len(rows)
        cells = [_cells(row, variable, model, where) for row in rows]
        if len(variable.dims) == 1 and variable.kind != "field":
            (dim,) = variable.dims
            declared = model.graph.dims[dim]
            own = [len(row) for row in cells]
            longest = max([*own, declared.size or 0 if declared.kind != "observed" else 0, 0])
            cells = [[*row, *[-1] * (longest - len(row))] for row in cells]
            sizes[dim] = longest
            if declared.kind == "observed" and (len(set(own)) > 1 or not model.graph.inputs):
                lengths[dim] = torch.tensor(own, dtype=torch.long)
        try:
            values[name] = torch.tensor(cells, dtype=torch.float32 if variable.kind == "field" else torch.long)
        except (ValueError, TypeError, RuntimeError) as problem:
            raise EnergyError(f"{where} is no rectangular list of cells, declared `{variable.type}`") from problem
        if len(variable.dims) == values[name].dim() - 1:
            sizes |= dict(zip(variable.dims, values[name].shape[1:], strict=True))
    return Known(values, lengths, sizes, count)


def _cells(row: Any, variable: Variable, model: EnergyModel, where: str) -> Any:
    """An example's cells as numbers."""
    if variable.kind == "field":
        return _valued(row)
    names = model.graph.label_sets[variable.type.element].labels or ()
    numbers = {label: number for number, label in enumerate(names)}
    if isinstance(row, str) and len(variable.dims) == 1:
        if any(len(label) != 1 for label in names):
            raise EnergyError(f"{where} has labels of several characters: write a sequence as a list of them")
        row = list(row)

    def numbered(value: Any) -> Any:
        if isinstance(value, list):
            return [numbered(one) for one in value]
        if value is None or (value == OPEN and OPEN not in numbers):
            return -1
        if isinstance(value, str) and value in numbers:
            return numbers[value]
        if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < len(names):
            return value
        raise EnergyError(f"{where} holds {value!r}, which is no label of `{variable.type.element}`")

    made = numbered(row)
    if len(variable.dims) == 1 and not isinstance(made, list):
        raise EnergyError(f"{where} needs a sequence for each example, declared `{variable.type}`")
    return made


def _valued(row: Any) -> Any:
    if isinstance(row, list):
        return [_valued(one) for one in row]
    return float("nan") if row is None or row == OPEN else row


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{one}`" for one in names)


__all__ = ["Known", "read_evidence"]

"""Answers from outside: labels, allowed labels, values of fields; checked, and put where the batch lives."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.inputs import NO_LABELS, SCALED, DataError, beyond, data_error, extremes, overflow
from energyml.diagnostics import EnergyError, Source, Span, did_you_mean
from energyml.execution import is_host_readable
from energyml.ir.graph import Graph
from energyml.model.declared import Variable


class Answers:
    """Checks labels against one graph.

    Args:
        graph: whose variables the labels are for; its label sets are known.
        source: the spec, for messages.
    """

    def __init__(self, graph: Graph, source: Source) -> None:
        self.graph, self.source = graph, source
        self.variables = dict(graph.variables)
        labelled = [v for v in graph.variables.values() if v.kind != "field"]
        self.counts = {v.name: len(graph.label_sets[v.type.element].labels or ()) for v in labelled}

    def fail(self, code: str, span: Span | None, **facts: object) -> DataError:
        """The error for an answer that breaks a declaration."""
        return data_error(self.source, code, span, **facts)

    def labels(self, answer: Mapping[str, Tensor], batch: Batch, *, full: bool = False) -> dict[str, Tensor]:
        """Labels [B, *dims] by variable, -1 where there is no cell or (unless `full`) no label; fields as `values`.

        On the host each label of an existing cell is checked; on an accelerator that would wait for the device.
        """
        found: dict[str, Tensor] = {}
        for name, labels in answer.items():
            if not full and labels is not None and labels is batch.checked.get(name):
                found[name] = labels
                continue
            declared = self.variable(name)
            if declared.kind == "field":
                found[name] = self.values(declared, labels, batch, full=full)
                continue
            self._shape(declared, labels, batch, ())
            if labels.is_floating_point() or labels.is_complex() or labels.dtype in NO_LABELS:
                kind = NO_LABELS.get(labels.dtype, "real numbers")
                raise self.fail("E0504", declared.span, name=name, found=kind, type=declared.type)
            cells = batch.cells(name, declared.dims)
            self._range(declared, labels, cells, full)
            placed = labels.to(device=batch.device, dtype=torch.int64)
            found[name] = placed if cells is None else placed.masked_fill(~cells, -1)
        return found

    def values(self, declared: Variable, values: Tensor, batch: Batch, *, full: bool = False) -> Tensor:
        """The values [B, *axes] of a field: zero where there is no position, NaN (unless `full`) where unknown."""
        dims = [axis.extent.name if axis.extent.kind == "dim" else None for axis in declared.type.axes]
        sizes = [
            batch.size_of(axis.extent.name) if axis.extent.kind == "dim"
            else len(self.graph.label_sets[axis.extent.name].labels or ()) if axis.extent.kind == "labels"
            else axis.extent.offset
            for axis in declared.type.axes
        ]  # fmt: skip
        if not isinstance(values, Tensor):
            raise self.fail("E0504", declared.span, name=declared.name, found=type(values).__name__, type=declared.type,
                            help="pass a torch.Tensor")  # fmt: skip
        if list(values.shape) != [batch.size, *sizes]:
            raise self.fail("E0503", declared.span, name=declared.name, shape=list(values.shape), type=declared.type,
                            problem=f"expected {[batch.size, *sizes]}")  # fmt: skip
        if not values.is_floating_point():
            raise self.fail("E0504", declared.span, name=declared.name, found="no real numbers", type=declared.type)
        cells = batch.cells(declared.name, declared.dims)
        if cells is not None:
            cells = cells.reshape(batch.size, *(size if dim else 1 for size, dim in zip(sizes, dims, strict=True)))
        placed = self._placed(declared, values, batch, cells)
        if cells is not None:
            placed = torch.where(cells, placed, 0)
        if full and is_host_readable(placed) and bool(placed.isnan().any()):
            raise self.fail("E0504", declared.span, name=declared.name, found="NaN", type=declared.type,
                            help="a score needs a value for every cell")  # fmt: skip
        return placed

    def allowed(self, name: str, allowed: Tensor, batch: Batch) -> Tensor:
        """Allowed labels bool [B, *dims, labels] of one variable."""
        declared = self.variable(name)
        self._shape(declared, allowed, batch, (self.counts[name],))
        return allowed.to(batch.device)

    def costs(self, costs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Costs [B, *dims, labels] by variable, in the type of scores."""
        found: dict[str, Tensor] = {}
        for name, cost in costs.items():
            declared = self.variable(name)
            self._shape(declared, cost, batch, (self.counts.get(name, 0),))
            cells = batch.cells(name, declared.dims)
            cells = None if cells is None else cells.unsqueeze(-1)
            found[name] = self._placed(declared, cost, batch, cells)
            if is_host_readable(cost) and not float(cost.detach().sum()) < math.inf:
                bad = cost.isnan() | cost.isposinf()
                if bool((bad if cells is None else bad & cells).any()):
                    raise EnergyError(f"the cost of `{name}` holds NaN or inf; costs are numbers, or -inf to forbid")
        return found

    def vectors(self, answer: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Probability vectors [B, *dims, labels] by variable, zero where there is no cell; fields as `values`."""
        found: dict[str, Tensor] = {}
        for name, vectors in answer.items():
            declared = self.variable(name)
            if declared.kind == "field":
                found[name] = self.values(declared, vectors, batch, full=True)
                continue
            self._shape(declared, vectors, batch, (self.counts[name],))
            if not vectors.is_floating_point():
                raise self.fail("E0504", declared.span, name=name, found="no real numbers", type=declared.type,
                                help="a relaxed answer has a probability for each label")  # fmt: skip
            cells = batch.cells(name, declared.dims)
            cells = None if cells is None else cells.unsqueeze(-1)
            placed = self._placed(declared, vectors, batch, cells)
            found[name] = placed if cells is None else torch.where(cells, placed, 0)
        return found

    def _placed(self, declared: Variable, given: Tensor, batch: Batch, cells: Tensor | None) -> Tensor:
        """Numbers where and as scores are computed; one of a cell that leaves their type is refused."""
        placed = given.to(device=batch.device, dtype=batch.dtype)
        if placed.dtype != given.dtype and is_host_readable(given) and is_host_readable(placed):
            left = overflow(given, placed)
            bad = left if left is None or cells is None else left & cells
            if bad is not None and bool(bad.any()):
                spot = bad.nonzero()[0].tolist()
                value = beyond(given[tuple(spot)], placed)
                facts = {"name": declared.name, "value": value, "example": spot[0], "place": spot[1:]}
                raise self.fail("E0512", declared.span, help=SCALED, **facts)
        return placed

    def variable(self, name: str) -> Variable:
        """The variable of that name."""
        found = self.variables.get(name)
        if found is None:
            guess = did_you_mean(name, self.variables)
            hint = f"did you mean `{guess}`?" if guess else f"its variables are {', '.join(self.variables)}"
            raise self.fail("E0502", None, name=name, help=hint)
        return found

    def _shape(self, declared: Variable, tensor: Tensor, batch: Batch, beyond: tuple[int, ...]) -> None:
        if not isinstance(tensor, Tensor):
            raise self.fail("E0504", declared.span, name=declared.name, found=type(tensor).__name__, type=declared.type,
                            help="pass a torch.Tensor")  # fmt: skip
        expected = [batch.size, *(batch.size_of(dim) for dim in declared.dims), *beyond]
        if list(tensor.shape) != expected:
            raise self.fail("E0503", declared.span, name=declared.name, shape=list(tensor.shape), type=declared.type,
                            problem=f"expected {expected}")  # fmt: skip

    def _range(self, declared: Variable, labels: Tensor, cells: Tensor | None, full: bool) -> None:
        if labels.numel() == 0 or not is_host_readable(labels):
            return
        count = self.counts[declared.name]
        low = 0 if full and not any(self.graph.dims[dim].kind == "free" for dim in declared.dims) else -1
        least, most = extremes(labels)
        if least >= low and most < count:
            return
        bad = (labels < low) | (labels >= count)
        bad = bad if cells is None else bad & cells.to(labels.device)
        if bool(bad.any()):
            spot = bad.nonzero()[0]
            facts = {"value": int(labels[tuple(spot)]), "example": int(spot[0]), "count": count}
            raise self.fail("E0505", declared.span, name=declared.name, labels=declared.type.element, **facts)

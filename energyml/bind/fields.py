"""The terms of Gaussian fields: a linear part, and a precision matrix whose couplings stay symbolic.

The bounded parametrisation keeps the matrix positive definite whatever the weights are.  Edges keep their weights off
the diagonal and add their magnitudes on it; those of `smooth` count by their magnitude.  Couplings of different labels
(`potts`, whose smallest eigenvalue is the negative of the largest one of A Aᵀ) and dense matrices are divided by
1 + b / (SHARE · ridge), with b a bound on the magnitude of their smallest eigenvalue: weak couplings are those of the
paper (Shevchenko & Osokin 2019, eq. 16), strong ones never use up more than SHARE of the ridge.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from energyml.bind.batch import Batch
from energyml.bind.bound import BoundTerm, Labels, Softened
from energyml.bind.gains import Normalised
from energyml.bind.lowrank import Bound, Vectors
from energyml.bind.quadratic import Links, QuadraticForm, Sizes, Stencil
from energyml.bind.tensors import Compiler, Environment, Evaluator, full
from energyml.bind.whole import expanded
from energyml.caching import cached_property
from energyml.diagnostics import EnergyError
from energyml.execution import cached
from energyml.ir.graph import Graph, Quadratic, Term
from energyml.model.couplings import directions
from energyml.model.declared import Variable
from energyml.model.expression import Potential
from energyml.model.types import Axis, TensorType

SHARE = 0.9
_directions = cached(16)(directions)


class FieldLayout:
    """Where the cells of a field stand: [B, *axes] as the caller has it, [B, M, N] as backends see it.

    Channels are the axes over labels and numbers, positions those over dims, each in the declared order.
    """

    def __init__(self, field: Variable) -> None:
        self.field = field
        self.dims = field.dims
        self.order = _in_order(field.type.axes)
        self.is_in_order = self.order == sorted(self.order)

    def shape(self, batch: Batch) -> tuple[int, ...]:
        """The sizes of the positions' dims."""
        return tuple([batch.size_of(dim) for dim in self.dims])

    def present(self, batch: Batch) -> Tensor | None:
        """[B, N]: which positions exist; `None` when all do."""
        cells = batch.cells(self.field.name, self.dims)
        return None if cells is None else cells.reshape(batch.size, prod(self.shape(batch)))

    def to_cells(self, tensor: Tensor, batch: Batch) -> Tensor:
        """[B or 1, *axes] as [B or 1, M, N]."""
        moved = tensor if self.is_in_order else tensor.permute(0, *(1 + axis for axis in self.order))
        channels = prod(moved.shape[1 : moved.dim() - len(self.dims)])
        return moved.reshape(moved.shape[0], channels, prod(self.shape(batch)))

    def from_cells(self, cells: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """[..., M, N] as [..., *axes], `sizes` the sizes of the axes."""
        lead = cells.shape[:-2]
        if self.is_in_order:
            return cells.reshape(*lead, *sizes)
        moved = cells.reshape(*lead, *(sizes[axis] for axis in self.order))
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return moved.permute(*range(len(lead)), *(len(lead) + axis for axis in back))


def _in_order(axes: tuple[Axis, ...]) -> list[int]:
    """The axes over labels and numbers, then those over dims."""
    return sorted(range(len(axes)), key=lambda i: axes[i].extent.kind == "dim")


class LinearTerm(BoundTerm):
    """The linear part of a Gaussian score: uᵀs."""

    def __init__(self, term: Term, graph: Graph, field: str, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.field, self.value = field, value
        self.layout = FieldLayout(graph.variables[field])

    def linear(self, env: Environment) -> Tensor:
        """QUADRATIC: u as [B, M, N]; zero where there is no position."""
        cells = self.layout.to_cells(full(self.scaled(env, self.value(env)), env.batch.size), env.batch)
        present = self.layout.present(env.batch)
        return cells if present is None else torch.where(present.unsqueeze(1), cells, 0)

    def weight(self, env: Environment) -> tuple[Tensor, Tensor]:
        """[B], [B]: the sum of the magnitudes of u, and how many cells there are."""
        batch = env.batch
        cells = self.layout.to_cells(full(self.value(env), batch.size), batch)
        present = self.layout.present(batch)
        if present is None:
            return cells.abs().sum((1, 2)), cells.new_full((batch.size,), cells[0].numel() if batch.size else 0)
        counted = present.unsqueeze(1).expand(cells.shape)
        return torch.where(counted, cells, 0).abs().sum((1, 2)), counted.sum((1, 2)).to(cells.dtype)

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: uᵀs for field values s [B * copies, *axes]."""
        s = self.layout.to_cells(answer[self.field], env.batch)
        return (expanded(self.linear(env), copies) * s).flatten(1).sum(1, dtype=dtype)

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT: a field's values need no relaxation."""
        return lambda answer: self.score(env, answer, copies)


class _Coupling:
    """A coupling as it was declared: what its numbers stand for does not depend on the batch.

    Attributes:
        potential: its declaration.
        declared: the type of its first argument, the vectors, weights or edges.
        diagonals: whether neighbours across corners are coupled too.
        local: whether positions have numbers of their own.
        directed: whether directions do.
    """

    def __init__(self, potential: Potential) -> None:
        self.potential, self.declared = potential, potential.arguments[0].type
        self.diagonals = bool(dict(potential.options).get("diagonals", False))
        self.local, self.directed = bool(self.declared.index_axes), bool(self.declared.number_axes)
        ranks = {"number": 0, "labels": 1, "dim": 2}
        axes = self.declared.axes
        order = sorted(range(len(axes)), key=lambda i: ranks[axes[i].extent.kind])
        self._moves = None if order == sorted(order) else (0, *(1 + axis for axis in order))

    def in_order(self, value: Tensor) -> Tensor:
        """The value of the first argument with its axes over numbers first, then those over labels, then over dims."""
        return value if self._moves is None else value.permute(self._moves)


class QuadraticTerm(BoundTerm):
    """The quadratic part of a Gaussian score: -1/2 sᵀQs.  Its gain scales the couplings, never the ridge."""

    def __init__(self, term: Term, graph: Graph, body: Quadratic, compiler: Compiler) -> None:
        super().__init__(term, graph)
        self.field, self.bounded = body.field, body.bounded
        self.layout = FieldLayout(graph.variables[body.field])
        self.ridge = compiler.plain(body.ridge)
        add = {
            "potts": self._potts,
            "lowrank": self._lowrank,
            "smooth": self._smooth,
            "sparse": self._sparse,
            "dense": self._dense,
        }
        self.couplings = [
            (_Coupling(one), [compiler.plain(argument) for argument in one.arguments], add[one.potential])
            for one in body.couplings
            if isinstance(one, Potential)
        ]
        divided = sum(one.potential.potential in ("potts", "dense") for one, _, _ in self.couplings)
        self.share = SHARE / max(1, divided)

    @cached_property
    def channels(self) -> int:
        """How many values a position has."""
        axes = self.layout.field.type.axes
        return prod([_axis_size(axis, self.graph) for axis in axes if axis.extent.kind != "dim"])

    def form(self, env: Environment) -> QuadraticForm:
        """QUADRATIC: the precision matrix, with tensors behind its couplings; no more than they cost is computed."""
        batch = env.batch
        sizes = Sizes(batch.size, self.channels, prod(self.layout.shape(batch)))
        ridge = self.ridge(env)
        if ridge.dim() != 1 or ridge.dtype != batch.dtype:
            ridge = ridge.reshape(-1).to(batch.dtype)
        made = QuadraticForm(sizes, ridge, self.layout.present(batch))
        for coupling, arguments, add in self.couplings:
            made = add(made, env, coupling, [argument(env) for argument in arguments])
        return _merged(made)

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: -1/2 sᵀQs for field values s [B * copies, *axes]."""
        form = self.form(env)
        s = self.layout.to_cells(answer[self.field], env.batch)
        s = s.reshape(s.shape[0], *form.sizes[1:])
        if form.present is not None:
            s = torch.where(expanded(form.present, copies).unsqueeze(1), s, 0)
        each = s.unflatten(0, (env.batch.size, copies)).movedim(1, 0)
        scores = [-0.5 * (one * form.multiply(one)).sum((1, 2), dtype=dtype) for one in each]
        return torch.stack(scores, 1).flatten()

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT: a field's values need no relaxation."""
        return lambda answer: self.score(env, answer, copies)

    def axis_sizes(self, batch: Batch) -> tuple[int, ...]:
        """The sizes of the field's axes, as declared."""
        return tuple([batch.size_of(known) if isinstance(known, str) else known for known in self._axes])

    @cached_property
    def _axes(self) -> tuple[int | str, ...]:
        """The size of each axis, or the dim that has it."""
        axes = self.layout.field.type.axes
        return tuple(axis.extent.name if axis.extent.kind == "dim" else _axis_size(axis, self.graph) for axis in axes)

    # ------------------------------------------------------------------------------------------------------ couplings

    def _gain(self, env: Environment) -> float:
        gain = env.gains.get(self.term.gain, 1.0)
        if isinstance(gain, Normalised):
            raise EnergyError(f"`{self.term.name}` couples a field and has no entries to normalise; use `online`")
        return gain

    def _potts(self, form: QuadraticForm, env: Environment, one: _Coupling, values: list[Tensor]) -> QuadraticForm:
        vectors = self._vectors(form, values[0], one)
        gain = self._gain(env)
        bounded = self.bounded and form.sizes.channels > 1
        weight = Bound(gain, self.share, form.ridge) if bounded else vectors.new_full((1,), gain)
        return replace(form, vectors=(*form.vectors, Vectors(vectors, weight, 0.0, 1.0)))

    def _lowrank(self, form: QuadraticForm, env: Environment, one: _Coupling, values: list[Tensor]) -> QuadraticForm:
        vectors = self._vectors(form, values[0], one)
        own = Vectors(vectors, vectors.new_full((1,), self._gain(env)))
        if one.declared.label_axes:  # a vector for each cell: every channel is coupled with every other
            own = replace(own, given=vectors.flatten(2))
        return replace(form, vectors=(*form.vectors, own))

    def _vectors(self, form: QuadraticForm, value: Tensor, one: _Coupling) -> Tensor:
        """[B or 1, K, N], or [B or 1, K, M, N] for vectors of cells; zero where there is no position."""
        moved = one.in_order(value)
        numbers = prod(moved.shape[1 : 1 + len(one.declared.number_axes)])
        beyond = (form.sizes.channels,) if one.declared.label_axes else ()
        cells = moved.reshape(moved.shape[0], numbers, *beyond, form.sizes.positions)
        if form.present is None:
            return cells
        present = form.present[:, None] if cells.dim() == 3 else form.present[:, None, None]
        return torch.where(present, cells, 0)

    def _smooth(self, form: QuadraticForm, env: Environment, one: _Coupling, values: list[Tensor]) -> QuadraticForm:
        shape = self.layout.shape(env.batch)
        offsets = _directions(len(shape), one.diagonals)
        if not offsets:
            return form
        weights = one.in_order(values[0])
        local = form.sizes.positions if one.local else 1
        by_direction = len(offsets) if one.directed else 1
        weights = weights.reshape(weights.shape[0], by_direction, local)
        if by_direction != len(offsets):
            weights = weights.expand(-1, len(offsets), -1)
        gain = self._gain(env)
        weights = weights if gain == 1 else weights * gain
        made = Stencil(shape, offsets, weights.abs() if self.bounded else weights)
        if form.present is not None:
            made = replace(made, weights=torch.where(made.between(form.present), made.weights, 0))
        return replace(form, stencil=made if form.stencil is None else _joined(form.stencil, made))

    def _sparse(self, form: QuadraticForm, env: Environment, one: _Coupling, values: list[Tensor]) -> QuadraticForm:
        if not form.sizes.positions:
            return form  # no edge has ends
        rows = full(values[0], form.sizes.batch)
        weights = values[1] if values[1].dim() == 2 else values[1].unsqueeze(1)
        weights = full(weights, form.sizes.batch).expand(-1, rows.shape[1])
        weights = weights * self._gain(env)
        exists = (rows >= 0).all(-1)
        counted = env.batch.along[one.declared.index_axes[0].extent.name].valid(rows.shape[1], rows.device)
        exists = exists if counted is None else exists & counted
        ends = torch.where(exists.unsqueeze(-1), rows, 0)
        if form.present is not None:
            exists = exists & form.present.gather(1, ends[..., 0]) & form.present.gather(1, ends[..., 1])
        weights = torch.where(exists, weights, 0)
        loops = ends[..., 0] == ends[..., 1]
        # An entry w off the diagonal is an edge of weight -w, with w put back on the diagonal.
        made = Links(ends, -weights.masked_fill(loops, 0))
        entries = weights.clamp(min=0) * 2 if self.bounded else weights
        on_loops = (weights.abs() if self.bounded else weights).masked_fill(~loops, 0)
        added = replace(made, weights=entries.masked_fill(loops, 0)).diagonal(form.sizes.positions)
        added = added.scatter_add(1, ends[..., 0], on_loops)
        form = _on_diagonal(form, added)
        if form.links is not None:
            ends = torch.cat([form.links.ends, made.ends], 1)
            made = Links(ends, torch.cat([form.links.weights, made.weights], 1))
        return replace(form, links=made)

    def _dense(self, form: QuadraticForm, env: Environment, one: _Coupling, values: list[Tensor]) -> QuadraticForm:
        matrix = self._matrix(values[0] * self._gain(env), one.declared)
        if form.present is not None:
            cells = form.present.unsqueeze(1).expand(-1, form.sizes.channels, -1).flatten(1)
            matrix = torch.where(cells.unsqueeze(1) & cells.unsqueeze(2), matrix, 0)
        if self.bounded and matrix.shape[-1]:
            # Numbers that are not finite stay in the matrix, where the solver finds them and says so.
            below = torch.linalg.eigvalsh(torch.nan_to_num(matrix, posinf=0.0, neginf=0.0))[:, 0].neg().clamp(min=0)
            matrix = matrix / (1 + below / (self.share * _positive(form.ridge)))[:, None, None]
        return replace(form, dense=matrix if form.dense is None else form.dense + matrix)

    def _matrix(self, value: Tensor, declared: TensorType) -> Tensor:
        """[B or 1, M N, M N], symmetric: each axis of the field stands first for rows, then for columns."""
        left = [str(axis.extent) for axis in declared.axes]
        rows, columns = [], []
        for axis in (self.layout.field.type.axes[i] for i in self.layout.order):
            rows.append(left.index(str(axis.extent)))
            left[rows[-1]] = ""
        for axis in (self.layout.field.type.axes[i] for i in self.layout.order):
            columns.append(left.index(str(axis.extent)))
            left[columns[-1]] = ""
        moved = value.permute(0, *(1 + axis for axis in (*rows, *columns)))
        cells = prod(moved.shape[1 : 1 + len(rows)])
        matrix = moved.reshape(moved.shape[0], cells, cells)
        return (matrix + matrix.transpose(1, 2)) / 2


def _axis_size(axis: Axis, graph: Graph) -> int:
    """The size of an axis over labels or numbers."""
    extent = axis.extent
    return extent.offset if extent.kind == "number" else len(graph.label_sets[extent.name].labels or ())


def _positive(ridge: Tensor) -> Tensor:
    return ridge.clamp(min=torch.finfo(ridge.dtype).tiny)


def _on_diagonal(form: QuadraticForm, added: Tensor) -> QuadraticForm:
    return replace(form, diagonal=added if form.diagonal is None else form.diagonal + added)


def _joined(one: Stencil, other: Stencil) -> Stencil:
    """Two stencils of one grid; directions that both have add up when the form multiplies."""
    batch, count = torch.broadcast_shapes(one.weights.shape[::2], other.weights.shape[::2])
    weights = [stencil.weights.expand(batch, -1, count) for stencil in (one, other)]
    return Stencil(one.shape, (*one.offsets, *other.offsets), torch.cat(weights, 1))


def _merged(form: QuadraticForm) -> QuadraticForm:
    """Vectors of cells [B or 1, K, M N] see a field of one channel; beside other parts they become a dense matrix."""
    if not form.vectors:
        return form
    cells = form.sizes.channels * form.sizes.positions
    of_cells = [part for part in form.vectors if part.given.shape[2] != form.sizes.positions]
    if not of_cells or form.sizes.channels == 1:
        return form
    alone = len(of_cells) == len(form.vectors) and form.stencil is None and form.links is None and form.dense is None
    if alone and form.diagonal is None:
        present = None
        if form.present is not None:
            present = form.present.unsqueeze(1).expand(-1, form.sizes.channels, -1).flatten(1)
        return replace(form, sizes=Sizes(form.sizes.batch, 1, cells), present=present)
    dense = form.dense
    for part in of_cells:
        matrix = (part.values.transpose(1, 2) @ part.values) * part.strength[:, None, None]
        dense = matrix if dense is None else dense + matrix
    kept = tuple(part for part in form.vectors if part.given.shape[2] == form.sizes.positions)
    return replace(form, vectors=kept, dense=dense)


__all__ = ["FieldLayout", "LinearTerm", "QuadraticTerm"]

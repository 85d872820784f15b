"""Tables seen from left to right: what each adds at the step that decides the last of its cells.

Along a sequence of cells, an element of a table's index set is *decided* at the step of its last cell.  Windows (cells
at fixed distances, as in chains of any order) are decided at one step for the whole batch; constants such as `y[-1]`
and edges that come with the data are decided at steps that differ from example to example.  Where the length is part of
the answer, what depends on it waits for the end label.

Labels before a step are labels [R, t], or distributions [R, t, C].  A table row under distributions is its expectation
over the finite entries plus the log of their mass: the plain expectation where nothing is forbidden, and at one-hot
distributions the row itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.batch import Along, Batch, full_precision
from energyml.bind.places import value_constants
from energyml.bind.tables import TableTerm
from energyml.bind.tensors import Environment
from energyml.ir.graph import Range

_NINF = float("-inf")
# Elements of an index set that are not worth waiting for a device.
FEW = 8


class StepTable(ABC):
    """A table along one sequence.

    Attributes:
        reach: how many labels before the current one it looks at; `None` for all of them.
    """

    reach: int | None = 0

    @abstractmethod
    def scores(self, history: Tensor, t: int) -> Tensor | None:
        """What each label at step t adds: [B or 1, 1 or R / B, C]; `None` for nothing.

        Args:
            history: the labels before step t, the latest last: [R, at least `reach`] or [R, at least `reach`, C].
            t: the step.
        """

    @abstractmethod
    def best(self, t: int) -> Tensor | None:
        """[B or 1]: a bound of what step t can add, whatever came before; `None` for nothing, infinite for no bound."""


class Window(StepTable):
    """Cells at fixed distances from each other: unary tables, pairs of neighbours, higher orders.

    Args:
        table: [B or 1, N or 1, *labels] by element, the label axes from the oldest cell to the newest.
        valid: [B or 1, N or 1] which elements exist; `None` when all do.
        distances: how far each cell lies before the newest, the newest (0) last.
        first: the step that decides element 0.
        count: N, how many elements there are.
        examples: B.
        unless: where the length is part of the answer and the element exists only if the sequence goes on: the end
            label, which adds nothing.
    """

    def __init__(
        self,
        table: Tensor,
        valid: Tensor | None,
        distances: tuple[int, ...],
        first: int,
        count: int,
        examples: int,
        unless: int | None = None,
    ) -> None:
        self.table, self.valid, self.distances = table, valid, distances
        self.first, self.count, self.examples, self.unless = first, count, examples, unless
        self.reach = distances[0]

    def scores(self, history: Tensor, t: int) -> Tensor | None:
        """One row of the table for each history."""
        element = t - self.first
        if not 0 <= element < self.count:
            return None
        row = self._row(history, self.table[:, min(element, self.table.shape[1] - 1)])
        if self.unless is not None:
            ends = torch.arange(row.shape[-1], device=row.device) == self.unless
            row = row.masked_fill(ends, 0)
        if self.valid is not None:
            exists = self.valid[:, min(element, self.valid.shape[1] - 1)]
            row = torch.where(exists.reshape(-1, 1, 1), row, 0)
        return row

    def _row(self, history: Tensor, table: Tensor) -> Tensor:
        """[B or 1, 1 or R / B, C]: tables [B or 1, *labels] at the labels before."""
        if len(self.distances) == 1:
            return table.unsqueeze(1)
        shared, copies = table.shape[0], history.shape[0] // max(1, self.examples)
        shape = (shared, history.shape[0] // max(1, shared))
        if history.is_floating_point():
            finite = ~table.isneginf()
            mean, mass = table.masked_fill(~finite, 0).unsqueeze(1), finite.to(history.dtype).unsqueeze(1)
            for distance in self.distances[:-1]:
                p = history[:, -distance].reshape(*shape, -1)
                mean, mass = _contracted(p, mean), _contracted(p, mass)
            row = _with_mass(mean, mass)
        else:
            joint = history[:, -self.distances[0]]
            for distance in self.distances[1:-1]:
                joint = joint * table.shape[-1] + history[:, -distance]
            flat = table.flatten(1, -2)
            row = flat[torch.arange(shared, device=flat.device).unsqueeze(1), joint.reshape(shape)]
        return row.reshape(self.examples, copies, table.shape[-1])

    def best(self, t: int) -> Tensor | None:
        """The largest entry of the table."""
        element = t - self.first
        if not 0 <= element < self.count:
            return None
        top = self.table[:, min(element, self.table.shape[1] - 1)].flatten(1).amax(1)
        if self.unless is not None:
            top = top.clamp(min=0)
        if self.valid is not None:
            top = torch.where(self.valid[:, min(element, self.valid.shape[1] - 1)], top, 0)
        return top


def _contracted(p: Tensor, table: Tensor) -> Tensor:
    """[E, n, *rest]: tables [E, 1 or n, C, *rest] averaged over their first label axis by p [E, n, C]."""
    shape = (*p.shape[:2], *table.shape[3:])
    with full_precision(p.device):
        if table.shape[1] == 1:
            return (p @ table.squeeze(1).flatten(2)).reshape(shape)
        return (p.unsqueeze(2) @ table.flatten(3)).reshape(shape)


def _with_mass(mean: Tensor, mass: Tensor) -> Tensor:
    """The expectation over finite entries plus the log of their mass; -inf without any."""
    gone = mass <= 0
    # Rounding must not make a full mass differ from 1: nothing is forbidden then.
    log = torch.where(gone | (mass > 1 - 1e-6), 1, mass).log()
    return (mean + log).masked_fill(gone, _NINF)


class Placed(StepTable):
    """Cells anywhere in a sequence of known length: constants and edges that come with the data.

    Args:
        term: the term.
        env: the batch.
        along: the sequence's cells.

    Cost of a step: elements decided at it, times the labels; finding many elements waits for the device once.
    """

    def __init__(self, term: TableTerm, env: Environment, along: Along) -> None:
        batch = env.batch
        sizes = (batch.size, *term.domain_sizes(batch))
        table, valid = term.table(env), term.valid(batch)
        self.labels = tuple(table.shape[1 + term.rank :])
        self.table = table.expand(*sizes, *self.labels).reshape(batch.size, -1, prod(self.labels))
        self.ranks = torch.stack([_ranks(term, batch, along, n, sizes) for n in range(len(term.term.scope))], -1)
        decided, oldest = self.ranks.amax(-1), self.ranks.amin(-1)  # [B, N]
        if valid is not None:
            exists = valid.expand(sizes).reshape(batch.size, -1)
            decided, oldest = torch.where(exists, decided, along.size), torch.where(exists, oldest, along.size)
        steps = torch.arange(along.size + 1, device=batch.device)
        order = decided.argsort(dim=1, stable=True)
        starts = torch.searchsorted(decided.gather(1, order), steps.expand(batch.size, -1).contiguous())
        counts = starts.diff(dim=1)  # [B, T]
        number, cells = decided.shape[1], self.ranks.shape[-1]
        if batch.size == 0 or number == 0:
            self.most, self.reach = [0] * along.size, 0
        elif batch.device.type == "cpu" or number > FEW:
            self.most, self.reach = counts.amax(0).tolist(), int((decided - oldest).max())
        else:  # so few that looking at all of them at every step beats waiting for the device
            self.most, self.reach = [number] * along.size, along.size if cells > 1 else 0
        offsets = torch.arange(max(self.most, default=0), device=batch.device)
        at = (starts[:, :-1, None] + offsets).clamp(max=max(0, order.shape[1] - 1))
        self.elements = order.unsqueeze(1).expand(-1, along.size, -1).gather(2, at)  # [B, T, M]
        self.exists = offsets < counts.unsqueeze(-1)

    def scores(self, history: Tensor, t: int) -> Tensor | None:
        """The sum over the elements that step t decides."""
        if self.most[t] == 0:
            return None
        elements, exists = self.elements[:, t, : self.most[t]], self.exists[:, t, : self.most[t]]
        examples = torch.arange(elements.shape[0], device=elements.device).unsqueeze(1)
        tables, ranks = self.table[examples, elements], self.ranks[examples, elements]  # [B, M, joint], [B, M, cells]
        given = history.unflatten(0, (elements.shape[0], -1))
        before = (given.shape[2] - t + ranks).clamp(0, max(0, given.shape[2] - 1))  # where the history holds each cell
        if given.shape[2] == 0:
            given = given.new_zeros(*given.shape[:2], 1, *given.shape[3:])
        look = self._soft if history.is_floating_point() else self._hard
        value = look(tables, ranks == t, before, given)
        return torch.where(exists[:, None, :, None], value, 0).sum(2)

    def best(self, t: int) -> Tensor | None:
        """The largest entries of the tables that step t decides."""
        if self.most[t] == 0:
            return None
        elements, exists = self.elements[:, t, : self.most[t]], self.exists[:, t, : self.most[t]]
        return torch.where(exists, self.table.amax(-1).gather(1, elements), 0).sum(1)

    def _hard(self, tables: Tensor, now: Tensor, before: Tensor, given: Tensor) -> Tensor:
        """[B, n, M, C]: the entries at labels given [B, n, t]; cells that are decided now take each label."""
        copies = given.shape[1]
        every = torch.arange(self.labels[0], device=given.device)
        joint = torch.zeros(1, dtype=torch.long, device=given.device)
        for number, size in enumerate(self.labels):
            label = given.gather(2, before[..., number].unsqueeze(1).expand(-1, copies, -1)).unsqueeze(-1)
            joint = joint * size + torch.where(now[:, None, :, number, None], every, label)
        return tables.unsqueeze(1).expand(-1, copies, -1, -1).gather(-1, joint)

    def _soft(self, tables: Tensor, now: Tensor, before: Tensor, given: Tensor) -> Tensor:
        """[B, n, M, C]: the expected entries under distributions given [B, n, t, C]."""
        copies, count = given.shape[1], given.shape[-1]
        every = torch.eye(count, dtype=given.dtype, device=given.device)
        finite = ~tables.isneginf()
        mean = tables.masked_fill(~finite, 0).unflatten(-1, (1, *self.labels)).unsqueeze(1)
        mass = finite.to(given.dtype).unflatten(-1, (1, *self.labels)).unsqueeze(1)
        for number in range(len(self.labels)):
            index = before[..., number, None].unsqueeze(1).expand(-1, copies, -1, count)
            weights = torch.where(now[:, None, :, number, None, None], every, given.gather(2, index).unsqueeze(-2))
            weights = weights.reshape(*weights.shape, *([1] * (mean.dim() - weights.dim())))
            mean, mass = (weights * mean).sum(4), (weights * mass).sum(4)
        return _with_mass(mean, mass)


def _ranks(term: TableTerm, batch: Batch, along: Along, number: int, sizes: tuple[int, ...]) -> Tensor:
    """[B, N]: the step of the n-th cell of each element."""
    place = term.cells(batch, number)[0].expand(sizes).reshape(batch.size, -1)
    if along.rank is None or along.size == 0:
        return place
    return along.rank.gather(1, place.clamp(max=along.size - 1)).clamp(min=0)


class AtEnd(StepTable):
    """A table that depends on a length which is part of the answer: all of it is added with the end label.

    Args:
        term: the term.
        env: the batch.
        variable: the sequence.
        end: its end label.
        count: how many labels it has.
    """

    reach = None

    def __init__(self, term: TableTerm, env: Environment, variable: str, end: int, count: int) -> None:
        self.term, self.env, self.variable, self.end, self.count = term, env, variable, end, count
        self.dim = term.graph.variables[variable].dims[0]

    def scores(self, history: Tensor, t: int) -> Tensor | None:
        """The term's score of the answers that end at step t, at the end label."""
        batch = self.env.batch
        copies = history.shape[0] // max(1, batch.size)
        length = torch.full((batch.size,), t + 1, dtype=torch.long, device=batch.device)
        env = Environment(self.env.module, batch.with_lengths({self.dim: length}), gains=self.env.gains)
        last = torch.full((history.shape[0], 1), self.end, dtype=torch.long, device=batch.device)
        beyond = batch.along[self.dim].size - t - 1
        if history.is_floating_point():
            answer = torch.cat([history, F.one_hot(last, self.count).to(history.dtype)], 1)
            total = self.term.soft(env, {self.variable: F.pad(answer, (0, 0, 0, beyond))}, copies)
        else:
            answer = F.pad(torch.cat([history, last], 1), (0, beyond), value=-1)
            total = self.term.score(env, {self.variable: answer}, copies)
        row = torch.zeros(total.shape[0], self.count, device=total.device, dtype=total.dtype)
        ends = torch.arange(self.count, device=total.device) == self.end
        return torch.where(ends, total.unsqueeze(1), row).reshape(batch.size, copies, self.count)

    def best(self, t: int) -> Tensor | None:
        """No bound: what it adds depends on the length."""
        return torch.full((1,), float("inf"), device=self.env.batch.device, dtype=self.env.batch.dtype)


def step_table(term: TableTerm, env: Environment, variable: str, along: Along, end: int | None) -> StepTable:
    """One table along a sequence; `end` is the end label where the length is part of the answer."""
    dim = term.graph.variables[variable].dims[0]
    indices = {ref.indices[0].index for ref in term.term.scope}
    binding = next((b for b in term.term.domain if isinstance(b, Range) and b.index in indices), None)
    if len(indices) == 1 and binding is not None:
        waits = end is not None and any(extent.name == dim for value in term.term.expressions()
                                        for _, extent in value_constants(value))  # fmt: skip
        window = None if waits else _window(term, env, binding, along, end)
        if window is not None:
            return window
    if end is not None:
        return AtEnd(term, env, variable, end, len(term.graph.label_sets[
            term.graph.variables[variable].type.element].labels or ()))  # fmt: skip
    return Placed(term, env, along)


def _window(term: TableTerm, env: Environment, binding: Range, along: Along, end: int | None) -> Window | None:
    """A term whose cells are all at fixed distances; index sets beside the sequence's own are added up."""
    offsets = [ref.indices[0].offset for ref in term.term.scope]
    last, shrink = max(offsets), binding.shrink
    if end is not None and shrink > last + 1:
        return None  # whether the element exists is not known when its last cell is
    batch, rank = env.batch, term.rank
    table, valid = term.table(env), term.valid(batch)
    own = 1 + term.term.domain.index(binding)
    sizes = (batch.size, *term.domain_sizes(batch))
    if rank > 1:
        table, valid = _summed(table, valid, own, rank, sizes)
    labels = list(dict.fromkeys(sorted(offsets)))
    if len(labels) < len(offsets):
        table = _diagonal(table, offsets, labels)
    else:
        table = table.permute(0, 1, *(2 + offsets.index(offset) for offset in labels))
    count = max(0, along.size - shrink)
    distances = tuple(last - offset for offset in labels)
    unless = end if end is not None and shrink == last + 1 else None
    return Window(table, valid, distances, last, count, batch.size, unless)


def _summed(
    table: Tensor, valid: Tensor | None, own: int, rank: int, sizes: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Tables [B or 1, N or 1, *labels] with the index sets beside the sequence's own added up."""
    beside = [axis for axis in range(1, 1 + rank) if axis != own]
    shape = [size if axis in beside else table.shape[axis] for axis, size in enumerate(sizes)]
    if valid is not None:
        shape = [max(a, b) for a, b in zip(shape, valid.shape, strict=True)]
        table = torch.where(valid.reshape(*valid.shape, *([1] * (table.dim() - valid.dim()))), table, 0)
    table = table.expand(*shape, *table.shape[1 + rank :])
    return table.sum(beside), None


def _diagonal(table: Tensor, offsets: list[int], labels: list[int]) -> Tensor:
    """A table whose scope holds a cell more than once, over distinct cells."""
    letters = {offset: chr(ord("a") + number) for number, offset in enumerate(labels)}
    before = "".join(letters[offset] for offset in offsets)
    return torch.einsum(f"yz{before}->yz{''.join(letters[one] for one in labels)}", table)

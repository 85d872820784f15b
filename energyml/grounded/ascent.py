"""Coordinate ascent on the evidence lower bound over products of independent cells.

For q(y) = prod_i q_i(y_i), log Z >= E_q[score] + H(q).  The best q_i for given others is

    log q_i(y_i) = sum over factors f of i of E[f | y_i] + constant,

which for a chain is eq. 6 of Shevchenko & Osokin 2019.

What is forbidden outright (a table entry of -inf) leaves no slope to follow: the bound is -inf as long as q gives it
any mass.  There are two ways around it.  During the sweeps of `Ascent.run` such an entry counts as a finite penalty,
larger than any difference of scores in its example; `Ascent.repaired` then takes away what mass is left on it.
`Ascent.within` starts from a product that gives it no mass, and keeps it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from energyml.bind.batch import full_precision
from energyml.execution import under_transform
from energyml.grounded.factors import FactorGraph, Factors, Potentials
from energyml.grounded.logspace import entropy_terms
from energyml.grounded.schedule import Entry, Pick, Schedule, Step, add, put, take

Product = dict[str, Tensor]
"""The probabilities of each cell by variable: [R, N, labels]."""

# A label of less than this share of the best one's probability is dropped when it meets a forbidden combination.
SMALL = 1e-3
# A penalty in nats beyond the differences of scores: exp(-20) = 2e-9.
BEYOND = 20.0


class Ascent:
    """Updates of products for one batch.

    Args:
        graph: the batch.
        potentials: its scores.
        schedule: steps over its cells.
        damping: the share of the old value that an update keeps.
    """

    def __init__(self, graph: FactorGraph, potentials: Potentials, schedule: Schedule, damping: float = 0.0) -> None:
        self.graph, self.potentials, self.schedule, self.damping = graph, potentials, schedule, damping
        self.finite: list[Tensor] = []
        self.forbidden: list[Tensor | None] = []
        for factors in potentials.factors:
            gone = factors.table.isneginf() if factors.hard else None
            self.finite.append(factors.table if gone is None else factors.table.masked_fill(gone, 0))
            self.forbidden.append(None if gone is None else gone.to(factors.table.dtype))
        self.hard = any(one is not None for one in self.forbidden)
        self.penalty = self._penalties() if self.hard else None
        tensors = [*potentials.unary.values(), *(factors.table for factors in potentials.factors)]
        self.tracked = is_tracked(tensors)

    # ---------------------------------------------------------------------------------------------------------- starts

    def start(self, uniform: bool) -> Product:
        """The softmax of each cell's own scores, or all labels that it may have alike."""
        made = {}
        for name, scores in self.potentials.unary.items():
            if uniform:
                scores = torch.where(scores.isneginf(), scores, 0)
            made[name] = scores.softmax(-1)
        return made

    # --------------------------------------------------------------------------------------------------------- updates

    def run(self, q: Product, steps: Sequence[Step]) -> Product:
        """Update a product step by step.  Cost of a sweep: one look at every table for each of its cells."""
        in_place = not (self.tracked or is_tracked(q.values()))
        if in_place:
            q = {name: one.clone() for name, one in q.items()}
        for step in steps:
            new = {name: self._updated(q, name, step) for name in step.cells}
            q = {
                name: put(one, step.cells[name], new[name], in_place) if name in new else one for name, one in q.items()
            }
        return q

    def _updated(self, q: Product, name: str, step: Step) -> Tensor:
        scores = take(self.potentials.unary[name], step.cells[name])
        for entry in step.entries[name]:
            scores = add(scores, entry, self._message(q, entry))
        p = scores.softmax(-1)
        return p if not self.damping else (1 - self.damping) * p + self.damping * take(q[name], step.cells[name])

    def _message(self, q: Product, entry: Entry) -> Tensor:
        """[R, n, labels]: the expected tables of an entry's factors for each label of its cells."""
        message = self._expected(self.finite[entry.block], q, entry)
        forbidden = self.forbidden[entry.block]
        if forbidden is not None and self.penalty is not None:
            penalty = self.penalty
            if self.graph.union:
                penalty = take(penalty[self._rows(entry.block)].unsqueeze(0), entry.elements)
            message = message - penalty.unsqueeze(-1) * self._expected(forbidden, q, entry)
        return message

    def _rows(self, number: int) -> Tensor:
        rows = self.graph.skeleton.blocks[number].rows
        assert rows is not None
        return self.graph.placed(rows)

    def _expected(self, table: Tensor, q: Product, entry: Entry) -> Tensor:
        factors = self.potentials.factors[entry.block]
        names = factors.block.variables
        others = [take(q[name], pick) for name, pick in zip(names, entry.others, strict=True)]
        message = contracted(table if table.shape[1] == 1 else take(table, entry.elements), others, entry.slot)
        if factors.valid is None:
            return message
        return torch.where(take(factors.valid, entry.elements).unsqueeze(-1), message, 0)

    def constrained(self) -> Tensor:
        """[B]: whether some table of an example forbids a combination."""
        found = torch.zeros(self.graph.batch.size, device=self.graph.device, dtype=self.graph.dtype)
        for factors, forbidden in zip(self.potentials.factors, self.forbidden, strict=True):
            if forbidden is not None and forbidden.numel():
                found = torch.maximum(found, self.graph.largest_of_factors(factors, forbidden.flatten(2).amax(-1)))
        return found > 0

    def _penalties(self) -> Tensor:
        """[B, 1], or [B] in a union: what a forbidden combination costs, more than any difference of scores."""
        graph = self.graph
        span = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        with torch.no_grad():
            for scores in self.potentials.unary.values():
                if scores.shape[1]:
                    low = scores.masked_fill(scores.isneginf(), float("inf")).amin(-1)
                    span = torch.maximum(span, graph.largest_of_cells(scores.amax(-1) - low))
            for factors, finite in zip(self.potentials.factors, self.finite, strict=True):
                flat = finite.flatten(2)
                span = torch.maximum(span, graph.largest_of_factors(factors, flat.amax(-1) - flat.amin(-1)))
            made = 2 * span + BEYOND
        return made if graph.union else made.unsqueeze(1)

    # ---------------------------------------------------------------------------------------------------- constraints

    def weighed(self, q: Product, name: str, step: Step) -> tuple[Tensor, Tensor]:
        """[R, n, labels] twice for a step's cells: the forbidden mass that a label meets, and its score without it."""
        scores = take(self.potentials.unary[name], step.cells[name])
        mass = torch.zeros_like(scores)
        for entry in step.entries[name]:
            scores = add(scores, entry, self._expected(self.finite[entry.block], q, entry))
            forbidden = self.forbidden[entry.block]
            if forbidden is not None:
                mass = add(mass, entry, self._expected(forbidden, q, entry))
        return mass.masked_fill(scores.isneginf(), float("inf")), scores

    def repaired(self, q: Product) -> Product:
        """A product near q that gives forbidden combinations no mass, where one sweep finds it.

        Labels of small probability that meet a forbidden combination are dropped first; then each cell in turn keeps
        the labels that meet the least forbidden mass.
        """
        everything = self.schedule.everything()
        trimmed = {}
        for name, one in q.items():
            if name not in everything.cells:
                trimmed[name] = one
                continue
            mass, _ = self.weighed(q, name, everything)
            left = one.masked_fill((one < SMALL * one.amax(-1, keepdim=True)) & (mass > 0), 0)
            trimmed[name] = left / left.sum(-1, keepdim=True)
        return self.within(trimmed, self.schedule.sweeps(1))

    def within(self, q: Product, steps: Sequence[Step]) -> Product:
        """A product updated step by step, in which each cell keeps the labels that meet the least forbidden mass.

        Where q gives forbidden combinations no mass, this is coordinate ascent among such products: the bound never
        falls.
        """
        for step in steps:
            new = {}
            for name in step.cells:
                mass, scores = self.weighed(q, name, step)
                least = mass.amin(-1, keepdim=True)
                # Where a label meets none, another may meet none either; sums of some are rounded.
                most = torch.where(least > 0, least + torch.finfo(mass.dtype).eps, 0)
                new[name] = scores.masked_fill(mass > most, float("-inf")).softmax(-1)
            q = {name: put(one, step.cells[name], new[name], False) if name in new else one for name, one in q.items()}
        return q

    # ----------------------------------------------------------------------------------------------------------- bound

    def bound(self, q: Product) -> Tensor:
        """[B]: E_q[score] + H(q), a lower bound of log Z for any q; -inf where q gives forbidden answers mass."""
        graph = self.graph
        total = torch.zeros(graph.batch.size, device=graph.device, dtype=graph.dtype)
        mass = torch.zeros_like(total)
        for name, p in q.items():
            scores = self.potentials.unary[name]
            gone = scores.isneginf()
            total = total + graph.by_example(name, (p * scores.masked_fill(gone, 0) + entropy_terms(p)).sum(-1))
            mass = mass + graph.by_example(name, (p * gone).sum(-1))
        for number, factors in enumerate(self.potentials.factors):
            picks = self.schedule.scope(number)
            total = total + graph.factor_sums(factors, self._mean(self.finite[number], q, factors, picks))
            forbidden = self.forbidden[number]
            if forbidden is not None:
                mass = mass + graph.factor_sums(factors, self._mean(forbidden, q, factors, picks))
        return total.masked_fill((mass > 0) | self.potentials.impossible, float("-inf"))

    def _mean(self, table: Tensor, q: Product, factors: Factors, picks: tuple[Pick, ...]) -> Tensor:
        """[R, E]: the expectation of each factor."""
        others = [take(q[name], pick) for name, pick in zip(factors.block.variables, picks, strict=True)]
        return (contracted(table, others, 0) * others[0]).sum(-1)

    def residual(self, q: Product) -> Tensor:
        """The largest change that one more update of all cells at once would make."""
        with torch.no_grad():
            step = self.schedule.everything()
            found = [
                (self._updated(q, name, step) - take(q[name], step.cells[name])).abs().amax() for name in step.cells
            ]
        return torch.stack(found).amax() if found else torch.zeros((), device=self.graph.device)


def contracted(table: Tensor, others: Sequence[Tensor], slot: int) -> Tensor:
    """[R, n, labels of the slot]: the expectation of a table over all slots but one.

    Args:
        table: [R or 1, n or 1, *labels], finite.
        others: for every slot: [R, n, labels], the probabilities there; that of `slot` is not looked at.
        slot: whose labels stay.
    """
    if len(others) == 2:
        return times(others[1 - slot], table.mT if slot == 0 else table)
    for other in reversed(range(len(others))):
        if other != slot:
            axis = 2 + other if other < slot else table.dim() - 1
            # Slots are summed out from the last to the first: those after `slot` are gone when one before it is met.
            p = others[other]
            shape = [1] * table.dim()
            shape[:2], shape[axis] = list(p.shape[:2]), p.shape[2]
            table = (table * p.reshape(shape)).sum(axis)
    return table


def times(p: Tensor, matrix: Tensor) -> Tensor:
    """[R, n, labels]: vectors [R, n, labels] times a matrix [R or 1, n or 1, labels, labels] each."""
    if p.is_cpu and not torch.is_autocast_enabled("cpu"):  # the usual case: sweeps come here often
        return _times(p, matrix)
    with full_precision(p.device):
        return _times(p, matrix)


def _times(p: Tensor, matrix: Tensor) -> Tensor:
    if matrix.shape[1] == 1:
        return p @ (matrix[0, 0] if matrix.shape[0] == 1 else matrix[:, 0])
    return (p.unsqueeze(-2) @ matrix).squeeze(-2)


def is_tracked(tensors: Iterable[Tensor]) -> bool:
    """Whether gradients of some tensor are wanted, or the computation is transformed."""
    return under_transform() or (torch.is_grad_enabled() and any(one.requires_grad for one in tensors))

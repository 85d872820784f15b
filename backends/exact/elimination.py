"""Elimination on a batch: groups of examples that share a structure, slices, and the choice of native or torch.

Tables are [B or 1, *index set (1 where shared), *labels of the scope]; `None` stands for a table of zeros.
Half precision is too coarse to add up in: whoever has tables in it widens them first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energyml.backends.exact.contraction import Piece, best_answers, best_through, contract, entropy_of, piece, walk
from energyml.backends.exact.plans import Plan, Tables
from energyml.execution import is_addressable
from energyml.grounded.grounding import Group
from energyml.grounded.logspace import entropy_terms, logsumexp, softmax
from energyml.native import elimination as graphs
from energyml.native import graph as native


@dataclass(frozen=True)
class Part:
    """The examples of one structure, and its plan."""

    group: Group
    plan: Plan

    @property
    def rows(self) -> np.ndarray:
        """[R]: the numbers of the examples in the batch."""
        return self.group.rows


class BatchElimination:
    """Everything that elimination answers about one batch.

    Args:
        parts: the groups of examples.
        size: how many examples there are.
        cells: how many cells are numbered.
        labels: [B, cells] int64: the labels of observed cells.
        device: where the tables live.
        kernels: whether the native kernel may be used.
    """

    def __init__(
        self, parts: Sequence[Part], size: int, cells: int, labels: Tensor, device: torch.device, kernels: bool
    ) -> None:
        self.parts, self.size, self.cells, self.labels, self.device = parts, size, cells, labels, device
        self.kernels = kernels

    def direct(self, tables: Tables) -> bool:
        """Whether the native kernel answers, without a tape: it may, it can, and no gradients are wanted."""
        return self._native(tables) and not tracked(tables)

    def _native(self, tables: Tables) -> bool:
        return self.kernels and runs_natively(tables)

    @property
    def _alone(self) -> bool:
        """Whether one run answers for all: the examples share a structure, and it is not sliced."""
        return len(self.parts) == 1 and not self.parts[0].plan.program.slices

    # ---------------------------------------------------------------------------------------------------------- sums

    def log_partition(self, tables: Tables) -> Tensor:
        """[B]: log Z, differentiable twice; in float64 where the native kernel answers, in the type of tables else."""
        if not self._native(tables):
            return self._twin(tables)
        if tracked(tables):
            found: Tensor = _LogPartition.apply(self, *tables)  # type: ignore[no-untyped-call]
            return found
        return self._sums(_wide(tables))

    def _sums(self, wide: Tables) -> Tensor:
        if self._alone:
            return self._one(self.parts[0], wide, self.labels, products=True).total
        total = torch.empty(self.size, dtype=torch.float64, device="cpu")
        for part in self.parts:
            total[part.rows] = logsumexp(
                torch.stack([self._one(part, wide, known, products=True).total for known in self._known(part)]), 0
            )
        return total

    def shares(
        self, tables: Tables, wanted: Sequence[bool], weight: Tensor | None = None, entropies: bool = False
    ) -> Shares:
        """Gradients of the weighted sum of log-partitions and, when asked for, entropies, without a tape.  float64."""
        wide = _wide(tables)
        weight = (
            torch.ones(self.size, dtype=torch.float64, device="cpu")
            if weight is None
            else weight.detach().to(torch.float64)
        )
        gradients = _gradients(wide, wanted, 0.0)
        if self._alone:
            found = self._one(
                self.parts[0],
                wide,
                self.labels,
                weights=weight.contiguous(),
                gradients=gradients,
                products=not entropies,
            )
            return Shares(found.total, gradients, found.entropy)
        total, entropy = (
            torch.empty(self.size, dtype=torch.float64, device="cpu"),
            torch.empty(self.size, dtype=torch.float64, device="cpu"),
        )
        for part in self.parts:
            slices = list(self._known(part))
            each = None
            if len(slices) > 1:
                each = torch.stack([self._one(part, wide, known, products=True).total for known in slices])
            share = (
                torch.ones(1, len(part.rows), dtype=torch.float64, device="cpu") if each is None else softmax(each, 0)
            )
            outcomes = [
                self._one(
                    part, wide, known, weights=weight[part.rows] * one, gradients=gradients, products=not entropies
                )
                for known, one in zip(slices, share, strict=True)
            ]
            total[part.rows] = outcomes[0].total if each is None else logsumexp(each, 0)
            if entropies:
                entropy[part.rows] = _mixed_entropy([o.entropy for o in outcomes], share)
        return Shares(total, gradients, entropy)

    def _twin(self, tables: Tables) -> Tensor:
        """[B]: log Z by torch operations, differentiable any number of times."""
        found: list[Tensor] = []
        for part in self.parts:
            each = [
                contract(part.plan.program, factors, self._zeros(part, tables)).total
                for _, factors in self._slices(part, tables)
            ]
            found.append(each[0] if len(each) == 1 else logsumexp(torch.stack(each), 0))
        total = self._gathered(found).to(_dtype(tables))
        if tracked(tables) and not total.requires_grad:
            # As the kernels' answers are: a function of all tables, though models without cells use none of them.
            total = total + sum(table.flatten()[:0].sum() for table in tables if table is not None)
        return total

    def entropy_twin(self, tables: Tables) -> Tensor:
        """[B]: the entropy of the cells that are no part of the first steps, by torch operations; differentiable."""
        found: list[Tensor] = []
        for part in self.parts:
            program, nothing = part.plan.program, self._zeros(part, tables)
            slices = [factors for _, factors in self._slices(part, tables)]
            passes = [contract(program, factors, nothing) for factors in slices]
            share = softmax(torch.stack([one.total for one in passes]), 0)
            total = entropy_terms(share).sum(0)
            for factors, done, weight in zip(slices, passes, share, strict=True):
                total = total + entropy_of(program, factors, done, weight, part.plan.first)
            found.append(total)
        return self._gathered(found)

    # ------------------------------------------------------------------------------------------------------- answers

    def best(self, tables: Tables) -> tuple[Tensor, Tensor]:
        """The best answer: labels [B, cells] and its score [B], -inf where there is none; no gradients."""
        if not self._native(tables):
            labels, scores = self.n_best(tables, 1)
            return labels[:, 0], scores[:, 0]
        wide = _wide(tables)
        labels = torch.zeros(self.size, self.cells, dtype=torch.long, device="cpu")
        scores = torch.empty(self.size, dtype=torch.float64, device="cpu")
        for part in self.parts:
            for number, known in enumerate(self._known(part)):
                found = self._one(part, wide, known, maximise=True, draws=1)
                assert found.labels is not None
                answer = self._completed(part, known, found.labels)[:, 0]
                better = found.total > scores[part.rows] if number else torch.ones_like(found.total, dtype=torch.bool)
                scores[part.rows] = torch.where(better, found.total, scores[part.rows])
                labels[part.rows] = torch.where(better.unsqueeze(1), answer, labels[part.rows])
        return labels, scores.to(_dtype(tables))

    @torch.no_grad()
    def n_best(self, tables: Tables, count: int) -> tuple[Tensor, Tensor]:
        """The k best answers: labels [B, k, cells] and scores [B, k], best first, -inf for none; no gradients."""
        labels: list[Tensor] = []
        scores: list[Tensor] = []
        for part in self.parts:
            found = [
                best_answers(part.plan.program, factors, self._zeros(part, tables), known, count, part.plan.first)
                for known, factors in self._slices(part, tables)
            ]
            answers, values = torch.cat([one[0] for one in found], 1), torch.cat([one[1] for one in found], 1)
            top = values.topk(count, 1)
            labels.append(answers.gather(1, top.indices.unsqueeze(2).expand(-1, -1, answers.shape[2])))
            scores.append(top.values)
        return self._gathered(labels), self._gathered(scores)

    def max_shares(self, tables: Tables, wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None]]:
        """[B] the best scores, and for each table the best score through each of its entries.  float64."""
        wide = _wide(tables)
        gradients = _gradients(wide, wanted, float("-inf"))
        total = torch.full((self.size,), float("-inf"), dtype=torch.float64, device="cpu")
        for part in self.parts:
            weight = torch.ones(len(part.rows), dtype=torch.float64, device="cpu")
            for known in self._known(part):
                found = self._one(part, wide, known, maximise=True, weights=weight, gradients=gradients)
                total[part.rows] = torch.maximum(total[part.rows], found.total)
        return total, gradients

    def max_shares_twin(self, tables: Tables, sources: Sequence[int]) -> list[Tensor]:
        """As `max_shares` for tables [B, *dims, labels] of cells, by torch operations and differentiable."""
        found = [[] for _ in sources]  # type: list[list[Tensor]]
        for part in self.parts:
            nothing = self._zeros(part, tables)
            rows = [self._best_through(part, fs, nothing, known) for known, fs in self._slices(part, tables)]
            for number, source in enumerate(sources):
                found[number].append(torch.stack([self._placed(part, row, source, tables) for row in rows]).amax(0))
        return [self._gathered(one) for one in found]

    def _best_through(self, part: Part, factors: list[Piece], nothing: Tensor, known: Tensor) -> dict[int, Tensor]:
        """By cell: [R, labels], the best score with the cell fixed to each label."""
        program, structure = part.plan.program, part.plan.structure
        done = contract(program, factors, nothing, sums=part.plan.first)
        through = best_through(program, factors, done, part.plan.first)
        best: dict[int, Tensor] = {}
        for number, value in through.items():
            if number >= len(factors) or len(structure.scopes[number]) != 1:
                continue
            (cell,) = structure.scopes[number]
            if cell in program.known:
                here = torch.arange(program.sizes[cell], device=self.device) == known[:, cell].unsqueeze(1)
                value = torch.where(here, value.unsqueeze(1), float("-inf"))
            best[cell] = value.expand(self._count(part), program.sizes[cell])
        return best

    def _placed(self, part: Part, best: dict[int, Tensor], source: int, tables: Tables) -> Tensor:
        """[R, *dims, labels] of the cells of one variable; -inf for cells that do not exist."""
        structure, table = part.plan.structure, tables[source]
        assert table is not None
        nothing = torch.full((self._count(part), table.shape[-1]), float("-inf"), device=self.device, dtype=table.dtype)
        rows = [nothing] * prod(part.plan.domains[source])
        for factor, scope in zip(structure.factors, structure.scopes, strict=True):
            if factor.source == source:
                rows[factor.element] = best.get(scope[0], nothing)
        shape = (self._count(part), *part.plan.domains[source], table.shape[-1])
        return torch.stack(rows, 1).reshape(shape) if rows else nothing.new_zeros(shape)

    @torch.no_grad()
    def draws(self, tables: Tables, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Exact draws: labels [B, count, cells], and log Z [B]: -inf where there is no answer."""
        labels: list[Tensor] = []
        totals: list[Tensor] = []
        wide = _wide(tables) if self._native(tables) else None
        for part in self.parts:
            drawn: list[Tensor] = []
            each: list[Tensor] = []
            for known, factors in self._slices(part, tables) if wide is None else ((k, ()) for k in self._known(part)):
                answers, total = self._draw(part, wide, known, factors, self._zeros(part, tables), count, generator)
                drawn.append(answers)
                each.append(total)
            answers, total = drawn[0], each[0]
            if len(drawn) > 1:
                stacked = torch.stack(each, 1).to(torch.float64)
                total = logsumexp(stacked, 1)
                weights = torch.where(total.isneginf().unsqueeze(1), 1, softmax(stacked, 1))
                picked = torch.multinomial(weights, count, replacement=True, generator=generator)
                index = picked.unsqueeze(0).unsqueeze(-1).expand(1, *drawn[0].shape)
                answers = torch.stack(drawn).gather(0, index).squeeze(0)
            labels.append(answers)
            totals.append(total)
        return self._gathered(labels), self._gathered(totals)

    def _draw(
        self,
        part: Part,
        wide: Tables | None,
        known: Tensor,
        factors: Sequence[Piece],
        nothing: Tensor,
        count: int,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        program = part.plan.program
        if wide is None:
            done = contract(program, factors, nothing)
            return walk(program, done, count, generator, known), done.total
        shape = (len(part.rows), count, len(program.steps))
        uniforms = torch.rand(shape, dtype=torch.float64, generator=generator, device="cpu")
        found = self._one(part, wide, known, draws=count, uniforms=uniforms)
        assert found.labels is not None
        return self._completed(part, known, found.labels), found.total

    # --------------------------------------------------------------------------------------------------------- pieces

    def _known(self, part: Part) -> Iterator[Tensor]:
        """[R, cells]: the labels of observed cells, with those of sliced cells for one slice after another."""
        program = part.plan.program
        labels = self.labels[torch.from_numpy(part.rows).to(self.labels.device)] if len(self.parts) > 1 else self.labels
        for values in product(*(range(program.sizes[cell]) for cell in program.slices)):
            if values:
                labels = labels.clone()
                for cell, value in zip(program.slices, values, strict=True):
                    labels[:, cell] = value
            yield labels

    def _one(self, part: Part, wide: Tables, known: Tensor, **wanted: Any) -> native.Outcome:
        plan = part.plan
        code = plan.code(wide)
        worth = plan.program.costs.operations * len(part.rows) // native.WORTH_A_THREAD
        threads = int(min(torch.get_num_threads(), worth)) if worth > 1 else 1
        labels = code.labels_of_known(known)
        return native.run(code, part.rows, wide, labels, first=plan.first, threads=threads, **wanted)

    def _slices(self, part: Part, tables: Tables) -> Iterator[tuple[Tensor, list[Piece]]]:
        """For each slice the labels of known cells, and the factors as pieces."""
        rows = torch.from_numpy(part.rows).to(self.device) if len(self.parts) > 1 else None
        own = [
            table if table is None or table.shape[0] == 1 or rows is None else table.index_select(0, rows)
            for table in tables
        ]
        for known in self._known(part):
            yield known, [self._piece(part, number, own, known) for number in range(len(part.plan.structure.factors))]

    def _piece(self, part: Part, number: int, tables: Tables, known: Tensor) -> Piece:
        factor, scope = part.plan.structure.factors[number], part.plan.structure.scopes[number]
        table = tables[factor.source]
        if table is None:
            sizes = [part.plan.program.sizes[cell] for cell in scope]
            value = torch.zeros(1, *sizes, device=self.device, dtype=_dtype(tables))
        else:
            value = table
            for place in part.plan.element(factor.source, factor.element, table.shape[1:]):
                value = value.select(1, place)
        return piece(value, scope, part.plan.program, known)

    def _count(self, part: Part) -> int:
        """How many examples a part has: a symbol in compiled code, where there is one part."""
        return self.size if len(self.parts) == 1 else len(part.rows)

    def _zeros(self, part: Part, tables: Tables) -> Tensor:
        return torch.zeros(self._count(part), device=self.device, dtype=_dtype(tables))

    @staticmethod
    def _completed(part: Part, known: Tensor, drawn: Tensor) -> Tensor:
        """Draws [R, n, cells] with the labels of known cells put in."""
        cells = sorted(part.plan.program.known - part.plan.structure.absent)
        if cells:
            drawn[:, :, cells] = known[:, cells].unsqueeze(1)
        return drawn

    def _gathered(self, found: list[Tensor]) -> Tensor:
        """Rows of all parts in the order of the batch."""
        if len(found) == 1:
            return found[0]
        order = np.concatenate([part.rows for part in self.parts])
        return torch.cat(found)[torch.from_numpy(np.argsort(order)).to(found[0].device)]


@dataclass
class Shares:
    """Log-partitions [B], gradients by table, and entropies [B] if asked for, of a batch, in float64."""

    total: Tensor
    gradients: list[Tensor | None]
    entropy: Tensor | None


def _mixed_entropy(entropies: Sequence[Tensor | None], share: Tensor) -> Tensor:
    """[R]: the entropy of a mixture of disjoint slices, from what the weighted slices reported."""
    total = torch.zeros_like(share[0])
    for entropy in entropies:
        assert entropy is not None
        total = total + entropy
    return total - torch.where(share > 0, share * torch.where(share > 0, share, 1).log(), 0).sum(0)


class _LogPartition(torch.autograd.Function):
    """log Z by the native kernel; the second derivative goes through torch operations."""

    @staticmethod
    def forward(ctx: Any, run: BatchElimination, *tables: Tensor | None) -> Tensor:
        ctx.run, ctx.given = run, [table is not None for table in tables]
        ctx.save_for_backward(*[table for table in tables if table is not None])
        return run._sums(_wide(tables))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        tables: list[Tensor | None] = [next(saved) if given else None for given in ctx.given]
        wanted = [bool(one) for one in ctx.needs_input_grad[1:]]
        if torch.is_grad_enabled() or not is_addressable(gradients[0]):
            return (None, *_differentiable(ctx.run, tables, wanted, gradients[0]))
        found = ctx.run.shares(tables, wanted, gradients[0])
        return (
            None,
            *(
                None if one is None or table is None else one.to(table.dtype)
                for one, table in zip(found.gradients, tables, strict=True)
            ),
        )


@torch.enable_grad()
def _differentiable(
    run: BatchElimination, tables: Tables, wanted: Sequence[bool], weight: Tensor
) -> list[Tensor | None]:
    # Under other names: the gradient by these leaves out that the weight may depend on the tables too.
    tables = [None if table is None else table.view_as(table) for table in tables]
    total = run._twin(tables)
    weighted = (total.masked_fill(total.isneginf(), 0) * weight).sum()
    leaves = [table for table, one in zip(tables, wanted, strict=True) if one and table is not None]
    found = iter(slopes(weighted, leaves, again=True))
    return [next(found) if one else None for one in wanted]


def slopes(total: Tensor, leaves: Sequence[Tensor], *, again: bool) -> Sequence[Tensor]:
    """The gradients of a number, zero by what it does not depend on; differentiable where `again` is set."""
    if not leaves or not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(total, leaves, create_graph=again, materialize_grads=True)


def runs_natively(tables: Tables) -> bool:
    """Whether the native kernel can run on these tables."""
    return graphs is not None and is_addressable(*[table for table in tables if table is not None])


def tracked(tables: Tables) -> bool:
    """Whether gradients by some table are wanted."""
    return torch.is_grad_enabled() and any(table is not None and table.requires_grad for table in tables)


def leaf(table: Tensor, again: bool) -> Tensor:
    """A table to differentiate by: itself where its own graph goes on, else a copy that starts one."""
    return table if again and table.requires_grad else table.detach().clone().requires_grad_()


def savable(table: Tensor | None) -> Tensor | None:
    """A table that autograd takes: a copy where it was made in inference mode."""
    return table.clone() if table is not None and table.is_inference() else table


def _wide(tables: Tables) -> list[Tensor | None]:
    """Tables as the kernel reads them; most are so already, and asking is much sooner than converting."""
    return [
        table
        if table is None or (table.dtype is torch.float64 and not table.requires_grad and table.is_contiguous())
        else table.detach().to(torch.float64).contiguous()
        for table in tables
    ]


def _gradients(wide: Tables, wanted: Sequence[bool], fill: float) -> list[Tensor | None]:
    return [
        torch.full_like(table, fill) if table is not None and one else None
        for table, one in zip(wide, wanted, strict=True)
    ]


def _dtype(tables: Tables) -> torch.dtype:
    return next(table.dtype for table in tables if table is not None)

"""The relaxed output space of a batch: a probability vector for each cell, parametrised by logits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.grounded.logspace import entropy_terms

Vectors = dict[str, Tensor]
"""By variable: [B * copies, *dims, labels]; probabilities, logits or their gradients."""


class Space:
    """Where relaxed labels live.

    Args:
        problem: the batch; evidence takes labels away.
        copies: K, how many answers each example has; those of an example stand together.

    Attributes:
        impossible: [B] whether evidence leaves some cell of an example no label.
    """

    def __init__(self, problem: Problem, copies: int) -> None:
        batch = problem.env.batch
        self.examples, self.copies = batch.size, copies
        self.device, self.dtype = batch.device, batch.dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.cells: dict[str, Tensor | None] = {}
        self.present: dict[str, Tensor | None] = {}
        self.forbidden: dict[str, Tensor | None] = {}
        self.impossible = torch.zeros(batch.size, dtype=torch.bool, device=batch.device)
        for variable in problem.graph.discrete:
            name = variable.name
            count = problem.label_count(name)
            self.shapes[name] = (*(batch.size_of(dim) for dim in variable.dims), count)
            cells = batch.cells(name, variable.dims)
            allowed = problem.evidence.allowed.get(name)
            if allowed is not None:
                stuck = ~allowed.any(-1)
                gone = stuck if cells is None else stuck & cells
                self.impossible = self.impossible | gone.reshape(batch.size, -1).any(1)
                allowed = ~(allowed | stuck.unsqueeze(-1))  # a cell without any label is given all, and its example up
            self.cells[name] = None if cells is None else self.copied(cells.unsqueeze(-1))
            self.present[name] = None if cells is None else self.copied(cells.unsqueeze(-1).to(self.dtype))
            self.forbidden[name] = None if allowed is None else self.copied(allowed)

    @property
    def rows(self) -> int:
        """B * K."""
        return self.examples * self.copies

    def copied(self, values: Tensor) -> Tensor:
        """Values [B, ...] for every copy: [B * K, ...]."""
        return values if self.copies == 1 else values.repeat_interleave(self.copies, 0)

    def probabilities(self, logits: Mapping[str, Tensor]) -> Vectors:
        """The softmax of each cell's logits; zero for labels that evidence rules out, and where there is no cell."""
        made = {}
        for name, z in logits.items():
            gone, present = self.forbidden[name], self.present[name]
            p = (z if gone is None else z.masked_fill(gone, float("-inf"))).softmax(-1)
            made[name] = p if present is None else p * present
        return made

    def allows(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[B * K]: whether labels [B * K, *dims] keep to the evidence; -1 where there is no cell."""
        fine = torch.ones(self.rows, dtype=torch.bool, device=self.device)
        for name, one in labels.items():
            gone = self.forbidden[name]
            if gone is not None:
                broken = gone.gather(-1, one.clamp(min=0).unsqueeze(-1)).squeeze(-1) & (one >= 0)
                fine = fine & ~broken.reshape(self.rows, -1).any(1)
        return fine

    def entropy(self, p: Mapping[str, Tensor]) -> Tensor:
        """[B * K]: the sum of the cells' entropies, in nats."""
        total = torch.zeros(self.rows, device=self.device, dtype=self.dtype)
        for one in p.values():
            total = total + by_row(entropy_terms(one))
        return total

    def tangent(self, p: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Vectors:
        """The gradient in logits of what has the gradient `slopes` in probabilities: p (g - E[g])."""
        if torch.is_grad_enabled():
            return {name: one * self._centred(one, slopes[name]) for name, one in p.items()}
        # The same in one pass, which cannot be differentiated again.
        return {name: torch._softmax_backward_data(slopes[name], one, -1, one.dtype) for name, one in p.items()}

    def natural(self, p: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Vectors:
        """The gradient in probabilities less its mean: the direction of exponentiated gradients in logits."""
        return {name: torch.where(one > 0, self._centred(one, slopes[name]), 0) for name, one in p.items()}

    @staticmethod
    def _centred(p: Tensor, slope: Tensor) -> Tensor:
        return slope - (p * slope).sum(-1, keepdim=True)

    def change(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        """[B * K]: the largest difference of two probabilities in each row."""
        largest = torch.zeros(self.rows, device=self.device, dtype=self.dtype)
        for name, p in one.items():
            if p[0].numel() if self.rows else False:
                largest = torch.maximum(largest, (p - other[name]).abs().reshape(self.rows, -1).amax(1))
        return largest


def by_row(values: Tensor) -> Tensor:
    """[R]: the sums of values [R, ...]."""
    return values.reshape(values.shape[0], -1).sum(1) if values.numel() else values.new_zeros(values.shape[0])


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Values [R] with axes of size 1 behind, to meet a tensor [R, ...]."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))


def chosen(condition: Tensor, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Vectors:
    """The rows of `one` where a condition [R] holds, those of `other` elsewhere."""
    return {name: torch.where(per_row(condition, a), a, other[name]) for name, a in one.items()}

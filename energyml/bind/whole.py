"""Terms over whole variables: step networks, masked conditionals, black boxes.

Networks that read labels see only the positions that carry a cell; networks that read inputs alone see all that exist.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.batch import Along, Batch, repeated
from energyml.bind.bound import BoundTerm, Labels
from energyml.bind.places import counted_dims
from energyml.bind.tensors import Environment, Evaluator, full
from energyml.ir.graph import BlackBox, Graph, MaskedEnergy, Stepwise, Term


class StepwiseTerm(BoundTerm):
    """A step network over a sequence."""

    def __init__(self, term: Term, graph: Graph, body: Stepwise, given: list[Evaluator]) -> None:
        super().__init__(term, graph)
        self.body, self.given = body, given
        self.dim = graph.variables[body.variable].dims[0]
        self.aligned = [_axes_over(one.type.axes, self.dim) for one in body.given]
        labels = graph.label_sets[graph.variables[body.variable].type.element].labels or ()
        self.count = len(labels)
        self._end = labels.index(body.end) if body.end is not None else None

    @property
    def end(self) -> tuple[str, int] | None:
        """The variable whose length it decides, and the label that ends it."""
        return None if self._end is None else (self.body.variable, self._end)

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the steps' scores of the labels, added up over the sequence; O(length) steps.

        Step t scores the t-th cell.  What is given over the same dim is brought into the order of cells too.
        """
        net: Any = env.module._modules[self.body.net]
        batch, rows = env.batch, env.batch.size * copies
        along = batch.frame(counted_dims(self.term, self.graph))[self.dim]
        given = tuple(
            expanded(_compacted(full(one(env), batch.size), along, axes), copies)
            for one, axes in zip(self.given, self.aligned, strict=True)
        )
        masks = {name: expanded(mask, copies) for name, mask in batch.exists.items()}
        along = along.repeat(copies)
        labels = along.compact(answer[self.body.variable], 1)
        exists = along.valid(along.size, batch.device)
        if exists is not None:
            masks[self.dim] = exists
        counted = labels >= 0 if exists is None else exists & (labels >= 0)
        state = net.start(given, masks, rows)
        previous = torch.full((rows,), self.count, dtype=torch.long, device=batch.device)
        total = torch.zeros(rows, device=batch.device, dtype=batch.dtype)
        alive = torch.ones(rows, dtype=torch.bool, device=batch.device)
        for t in range(labels.shape[1]):
            scores, state = net.step(state, net.embed(previous), t)
            if self.body.normalize == "local":
                scores = F.log_softmax(scores, -1)
            here = labels[:, t].clamp(min=0)
            picked = scores.gather(1, here.unsqueeze(1)).squeeze(1)
            total = total + torch.where(alive & counted[:, t], picked, 0)
            if self._end is not None:
                alive = alive & (here != self._end)
            previous = here
        return self.scaled(env, total)


class MaskedTerm(BoundTerm):
    """Masked conditionals over a sequence."""

    def __init__(self, term: Term, graph: Graph, body: MaskedEnergy, given: list[Evaluator]) -> None:
        super().__init__(term, graph)
        self.body, self.given = body, given
        self.dim = graph.variables[body.variable].dims[0]

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the masked scores of the labels, raw or as log-probabilities, added up over positions."""
        batch = env.batch
        net: Any = env.module._modules[self.body.net]
        given = tuple(expanded(full(one(env), batch.size), copies) for one in self.given)
        masks = {name: expanded(mask, copies) for name, mask in batch.exists.items()}
        exists = repeated(batch.cells(self.body.variable, (self.dim,)), copies)
        if exists is not None:
            masks[self.dim] = exists
        labels = answer[self.body.variable].clamp(min=0)
        scores = net.masked_scores(labels, given, masks)
        if self.body.energy == "local":
            scores = F.log_softmax(scores, -1)
        picked = scores.gather(2, labels.unsqueeze(2)).squeeze(2)
        if exists is not None:
            picked = torch.where(exists, picked, 0)
        return self.scaled(env, picked.sum(1))


class BlackBoxTerm(BoundTerm):
    """A network over whole variables, given labels or their one-hot vectors."""

    def __init__(self, term: Term, graph: Graph, body: BlackBox, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.body, self.value = body, value

    def score(self, env: Environment, answer: Labels, copies: int = 1) -> Tensor:
        """SCORE: the network at the corners of the relaxed space; absent cells are zero vectors, or the label -1."""
        relaxed: dict[tuple[str, bool], Tensor] = {}
        for name in self.body.variables:
            labels = answer[name]
            one_hot = F.one_hot(labels.clamp(min=0), self.label_count(name)).to(env.batch.dtype)
            relaxed[name, True] = one_hot * (labels >= 0).unsqueeze(-1)
            relaxed[name, False] = labels
        batch = self._seen(env.batch, copies)
        return self.scaled(
            env, full(self.value(Environment(env.module, batch, relaxed, None, env, copies)), batch.size)
        )

    def _seen(self, batch: Batch, copies: int) -> Batch:
        """The batch of all copies, its masks those of the cells; inputs are read from the plain batch."""
        seen = dict(batch.seen)
        for dim, variables in counted_dims(self.term, self.graph):
            several = [one for name in variables if (one := batch.cells(name, (dim,))) is not None]
            if several:
                seen[dim] = torch.stack(several).all(0)
        return replace(batch, tensors={}, seen=seen).repeat(copies)


def expanded(tensor: Tensor, copies: int) -> Tensor:
    """Every row `copies` times in a row; a single row is not copied in memory."""
    if copies == 1:
        return tensor
    return tensor.expand(copies, *tensor.shape[1:]) if tensor.shape[0] == 1 else tensor.repeat_interleave(copies, 0)


def _axes_over(axes: tuple[Any, ...], dim: str) -> list[int]:
    return [i for i, axis in enumerate(axes, start=1) if axis.extent.kind == "dim" and axis.extent.name == dim]


def _compacted(tensor: Tensor, along: Along, axes: list[int]) -> Tensor:
    for axis in axes:
        tensor = along.compact(tensor, axis)
    return tensor

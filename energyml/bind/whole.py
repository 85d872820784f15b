"""Terms over whole variables: step networks, masked conditionals, black boxes.

Networks that read labels see only the positions that carry a cell; networks that read inputs alone see all that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.batch import Along, Batch, repeated
from energyml.bind.bound import BoundTerm, Labels, Softened
from energyml.bind.places import counted_dims
from energyml.bind.tensors import Environment, Evaluator, full
from energyml.diagnostics import EnergyError
from energyml.execution import is_host_readable
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
        if body.end is not None and body.end not in labels:
            name = graph.variables[body.variable].type.element
            raise EnergyError(
                f"the sequence `{body.variable}` ends with `{body.end}`, which is no label of `{name}`; "
                f"write `labels {name} from data(end: '{body.end}')`, or list it"
            )
        self._end = labels.index(body.end) if body.end is not None else None

    @property
    def end(self) -> tuple[str, int] | None:
        """The variable whose length it decides, and the label that ends it."""
        return None if self._end is None else (self.body.variable, self._end)

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: the steps' scores of the labels, added up; O(length) steps, none behind the last end.

        Step t scores the t-th cell.  What is given over the same dim is brought into the order of cells too.
        """
        walk = self._walk(env, copies)
        labels = walk.along.compact(answer[self.body.variable], 1)
        counted = labels >= 0 if walk.exists is None else walk.exists & (labels >= 0)
        state, embedded = walk.start()
        total = walk.zeros() if dtype is None else walk.zeros().to(dtype)
        alive = torch.ones(walk.rows, dtype=torch.bool, device=labels.device)
        for t in range(labels.shape[1]):
            scores, state = self._step(env, walk, state, embedded, t)
            here = labels[:, t].clamp(min=0)
            picked = scores.gather(1, here.unsqueeze(1)).squeeze(1)
            total = total + torch.where(alive & counted[:, t], picked, 0)
            if self._end is not None:
                alive = alive & (here != self._end)
                if is_host_readable(alive) and not bool(alive.any()):
                    break  # steps behind the last end count nothing
            embedded = walk.net.embed(here)
        return self.scaled(env, total)

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT: each step reads the expected embedding of the label before it and adds its expected score.

        Steps behind an end label count with the probability that it has not come yet.
        """
        walk = self._walk(env, copies)
        first = walk.start()

        def evaluate(answer: Mapping[str, Tensor]) -> Tensor:
            given = walk.along.compact(answer[self.body.variable], 1)
            state, embedded = first
            total, alive = walk.zeros(), torch.ones_like(walk.zeros())
            for t in range(given.shape[1]):
                scores, state = self._step(env, walk, state, embedded, t)
                here = given[:, t] if walk.exists is None else torch.where(walk.exists[:, t, None], given[:, t], 0)
                total = total + alive * (here * scores).sum(-1)
                if self._end is not None:
                    alive = alive * (1 - here[:, self._end])
                embedded = walk.net.embed_soft(here)
            return self.scaled(env, total)

        return evaluate

    def step_scores(self, env: Environment, labels: Tensor, copies: int = 1) -> Tensor:
        """PROPOSE: [B * copies, T, labels]: at each position the network's scores after the labels before it.

        Before any softmax and any gain; zero behind the last cell that any answer has.  Cost: a step for each position
        up to there.

        Args:
            env: the batch of B examples.
            labels: [B * copies, T], -1 where there is no cell; the copies of an example stand together.
            copies: how many answers each example has.
        """
        walk = self._walk(env, copies)
        compact = walk.along.compact(labels, 1)
        # Cells that exist stand in front; where the host would have to wait to see how many, all count.
        steps = int((compact >= 0).any(0).sum()) if is_host_readable(compact) else labels.shape[1]
        compact = compact.clamp(min=0)
        state, embedded = walk.start()
        made = []
        for t in range(steps):
            scores, state = walk.net.step(state, embedded, t)
            made.append(scores)
            embedded = walk.net.embed(compact[:, t])
        if not made:
            return torch.zeros(*labels.shape, self.count, device=env.batch.device, dtype=env.batch.dtype)
        found, exists = torch.stack(made, 1), walk.exists
        self.finite.check_now(env, found, lambda: None if exists is None else exists[:, :steps])
        return walk.along.spread(F.pad(found, (0, 0, 0, labels.shape[1] - steps)), 0.0)

    def started(self, env: Environment) -> Any:
        """STEP: the network's state before its first step, a row for each example."""
        walk = self._walk(env, 1)
        return walk.net.start(walk.given, walk.masks, walk.rows)

    def _step(self, env: Environment, walk: _Walk, state: Any, embedded: Tensor, t: int) -> tuple[Tensor, Any]:
        scores, state = walk.net.step(state, embedded, t)
        self.finite.check_now(env, scores, lambda: None if walk.exists is None else walk.exists[:, t])
        return F.log_softmax(scores, -1) if self.body.normalize == "local" else scores, state

    def _walk(self, env: Environment, copies: int) -> _Walk:
        """The network and what it is given, in the order of cells."""
        batch = env.batch
        along = batch.frame(counted_dims(self.term, self.graph))[self.dim]
        given = tuple(
            expanded(_compacted(full(one(env), batch.size), along, axes), copies)
            for one, axes in zip(self.given, self.aligned, strict=True)
        )
        masks = {name: expanded(mask, copies) for name, mask in batch.exists.items()}
        along = along.repeat(copies)
        exists = along.valid(along.size, batch.device)
        if exists is not None:
            masks[self.dim] = exists
        net = env.module._modules[self.body.net]
        return _Walk(net, self.count, given, masks, along, exists, batch, batch.size * copies)


@dataclass(frozen=True)
class _Walk:
    """A step network before its first step.

    Attributes:
        net: the network.
        labels: how many labels there are; the number stands for the start symbol.
        given: what it is given, a row for each copy of each example.
        masks: which positions exist.
        along: the sequence's dim.
        exists: [rows, T] which cells exist; `None` when all do.
        batch: the examples.
        rows: how many sequences there are.
    """

    net: Any
    labels: int
    given: tuple[Tensor, ...]
    masks: Mapping[str, Tensor]
    along: Along
    exists: Tensor | None
    batch: Batch
    rows: int

    def start(self) -> tuple[Any, Tensor]:
        """The state before the first step, and the embedding of the start symbol."""
        symbol = torch.full((self.rows,), self.labels, dtype=torch.long, device=self.batch.device)
        return self.net.start(self.given, self.masks, self.rows), self.net.embed(symbol)

    def zeros(self) -> Tensor:
        """[rows]: nothing yet."""
        return torch.zeros(self.rows, device=self.batch.device, dtype=self.batch.dtype)


class MaskedTerm(BoundTerm):
    """Masked conditionals over a sequence."""

    def __init__(self, term: Term, graph: Graph, body: MaskedEnergy, given: list[Evaluator]) -> None:
        super().__init__(term, graph)
        self.body, self.given = body, given
        self.dim = graph.variables[body.variable].dims[0]

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: the masked scores of the labels, raw or as log-probabilities, added up over positions."""
        labels = answer[self.body.variable]
        scores = self.masked_scores(env, labels, copies)
        if self.body.energy == "local":
            scores = F.log_softmax(scores, -1)
        picked = scores.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        exists = repeated(env.batch.cells(self.body.variable, (self.dim,)), copies)
        if exists is not None:
            picked = torch.where(exists, picked, 0)
        return self.scaled(env, picked.sum(1, dtype=dtype))

    def masked_scores(self, env: Environment, labels: Tensor, copies: int = 1) -> Tensor:
        """PROPOSE: the network's scores [B * copies, T, labels] of each label, the position itself being masked.

        Before any softmax and any gain; what stands where there is no cell means nothing.

        Args:
            env: the batch of B examples.
            labels: [B * copies, T], -1 where there is no cell; the copies of an example stand together.
            copies: how many answers each example has.
        """
        net: Any = env.module._modules[self.body.net]
        scores: Tensor = net.masked_scores(labels.clamp(min=0), *self._read(env, copies))
        self.finite.check_now(env, scores, lambda: labels >= 0)
        return scores

    def hidden_scores(self, env: Environment, labels: Tensor, hidden: Tensor, copies: int = 1) -> Tensor:
        """The scores [B * copies, T, labels] of positions that are hidden together; others' rows mean nothing.

        Args:
            env: the batch of B examples.
            labels: as in `masked_scores`.
            hidden: bool [B * copies, T].
            copies: how many answers each example has.
        """
        net: Any = env.module._modules[self.body.net]
        if not hasattr(net, "hidden_scores"):
            raise EnergyError(
                f"the network `{self.body.net}` hides one position at a time and has no `hidden_scores`; leave "
                "`hide: some` out"
            )
        count = self.label_count(self.body.variable)
        scores: Tensor = net.hidden_scores(labels.clamp(min=0).masked_fill(hidden, count), *self._read(env, copies))
        self.finite.check_now(env, scores, lambda: hidden & (labels >= 0))
        return scores

    def _read(self, env: Environment, copies: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """What the network is given, and which positions exist, a row for each copy of each example."""
        batch = env.batch
        given = tuple(expanded(full(one(env), batch.size), copies) for one in self.given)
        masks = {name: expanded(mask, copies) for name, mask in batch.exists.items()}
        exists = repeated(batch.cells(self.body.variable, (self.dim,)), copies)
        if exists is not None:
            masks[self.dim] = exists
        return given, masks


class BlackBoxTerm(BoundTerm):
    """A network over whole variables, given labels or their one-hot vectors."""

    def __init__(self, term: Term, graph: Graph, body: BlackBox, value: Evaluator) -> None:
        super().__init__(term, graph)
        self.body, self.value = body, value

    def score(self, env: Environment, answer: Labels, copies: int = 1, dtype: torch.dtype | None = None) -> Tensor:
        """SCORE: the network at the corners of the relaxed space; absent cells are zero vectors, or the label -1."""
        relaxed: dict[tuple[str, bool], Tensor] = {}
        for name in self.body.variables:
            labels = answer[name]
            one_hot = F.one_hot(labels.clamp(min=0), self.label_count(name)).to(env.batch.dtype)
            relaxed[name, True] = one_hot * (labels >= 0).unsqueeze(-1)
            relaxed[name, False] = labels
        value = self._valued(env, relaxed, self._seen(env.batch, copies), copies)
        return value if dtype is None else value.to(dtype)

    def softened(self, env: Environment, copies: int = 1, penalty: float | None = None) -> Softened:
        """SOFT: the network at the vectors."""
        if not self.body.relaxable:
            raise EnergyError(
                f"the score `{self.term.name}` reads hard labels and cannot be relaxed; let it read `soft(...)`"
            )
        batch = self._seen(env.batch, copies)

        def evaluate(answer: Mapping[str, Tensor]) -> Tensor:
            return self._valued(env, {(name, True): answer[name] for name in self.body.variables}, batch, copies)

        return evaluate

    def _valued(
        self, env: Environment, relaxed: Mapping[tuple[str, bool], Tensor], batch: Batch, copies: int
    ) -> Tensor:
        """[B * copies]: the network at labels or vectors; what does not read them is computed once for all copies."""
        value = full(self.value(Environment(env.module, batch, relaxed, None, env, copies)), batch.size)
        self.finite.check_now(env, value)
        return self.scaled(env, value)

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

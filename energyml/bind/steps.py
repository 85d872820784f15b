"""The STEP view of a whole problem: one sequence variable, scored from left to right.

Step networks, tables, constraints and evidence are one object that scores the label of the next cell after a prefix:

    steps = problem.steps()
    state = steps.start()
    scores, state = steps.advance(state, None, 0)
    scores, state = steps.advance(state, scores.argmax(-1), 1)

The scores of a full answer's labels, added up over its steps, are `problem.score` of the answer.  Step t scores the
t-th *cell*: gaps of a mask are left out (see `energyml.bind.batch`), and `place` puts labels back at the caller's
positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.bind.batch import Along
from energyml.bind.bound import BoundTerm
from energyml.bind.gains import Normalised
from energyml.bind.step_tables import StepTable, step_table
from energyml.bind.tables import TableTerm
from energyml.bind.tensors import Environment
from energyml.bind.whole import StepwiseTerm
from energyml.diagnostics import ShapeError
from energyml.ir.graph import Graph
from energyml.queries import View

_NINF = float("-inf")


class State(NamedTuple):
    """What is known after some steps; a tree of tensors.

    The rows R of an example stand together.  What is the same for all rows of an example may have one row for each
    example, so rows are moved by `Steps.select` and `Steps.blend` alone.

    Attributes:
        nets: the state of each step network.
        history: the latest labels that tables look at, [R, n], or their distributions, [R, n, C]; the latest last.
        alive: [R] whether the end label has not come yet, bool; the probability of that under distributions.
        normalizer: [R] the log-normaliser of the step just made: log sum exp of the networks' raw scores.
    """

    nets: tuple[Any, ...]
    history: Tensor
    alive: Tensor
    normalizer: Tensor


def why_not_stepwise(graph: Graph, variable: str | None, terms: Sequence[BoundTerm]) -> str | None:
    """Why a model cannot be scored from left to right; `None` when it can."""
    known = [v.name for v in graph.discrete]
    if graph.fields or not known:
        return "it has a continuous field, which no step decides" if graph.fields else "it has no variable with labels"
    name = known[0] if variable is None else variable
    if name not in known:
        return f"it has no variable `{name}` with labels; there is {', '.join(known)}"
    if len(graph.variables[name].dims) != 1:
        return f"`{name}` is no sequence: it has {len(graph.variables[name].dims)} dims"
    others = [one for one in known if one != name]
    if others:
        return f"steps decide one variable, and beside `{name}` there is `{others[0]}`"
    if graph.variables[name].kind == "latent":
        return f"`{name}` is summed out"
    for term in terms:
        if View.STEP not in term.views:
            return f"the term `{term.term.name}` ({term.term.kind}) scores whole answers, not prefixes"
    return None


class Steps:
    """One sequence variable of a problem, scored from left to right.

    Args:
        terms: all terms; see `why_not_stepwise` for what they must be.
        env: the batch of B examples.
        graph: the model.
        variable: the sequence.
        allowed: evidence: [B, positions, C] which labels each cell may take; `None` for all.

    Attributes:
        variable: the name of the sequence.
        size: how many steps the longest example has.
        count: C, how many labels there are.
        lengths: [B] how many steps each example has; where the length is part of the answer, how many it may have.
        is_ragged: whether some examples may have fewer steps than others.
        end: the label that ends the answer, where its length is part of it; else `None`.
        local: whether the steps' scores are log-probabilities: one locally normalised network and nothing else.

    Cost of a step: one step of the networks, a row of each table.
    """

    def __init__(
        self, terms: Sequence[BoundTerm], env: Environment, graph: Graph, variable: str, allowed: Tensor | None
    ) -> None:
        self.env, self.graph, self.variable = env, graph, variable
        declared, batch = graph.variables[variable], env.batch
        self.batch, self.dim = batch, declared.dims[0]
        self.count = len(graph.label_sets[declared.type.element].labels or ())
        self.nets = [term for term in terms if isinstance(term, StepwiseTerm)]
        self.along = batch.frame(((self.dim, (variable,)),))[self.dim]
        self.size = self.along.size
        self.lengths = self.along.counts(batch.device).expand(batch.size)
        self.is_ragged = self.along.count is not None
        ends = [term.end[1] for term in self.nets if term.end is not None]
        self.end = ends[0] if ends and graph.dims[self.dim].kind == "free" and not self.is_ragged else None
        self.tables: list[StepTable] = [
            step_table(term, env, variable, self.along, self.end) for term in terms if isinstance(term, TableTerm)
        ]
        self.allowed = None if allowed is None else self.along.compact(allowed, 1)
        reaches = [table.reach for table in self.tables]
        self.reach = self.size if None in reaches else max((one for one in reaches if one is not None), default=0)
        plain = len(self.nets) == 1 and self.nets[0].body.normalize == "local" and not self._gain(self.nets[0])
        self.local = (
            plain and not self.tables and allowed is None and (self.nets[0].end is None or self.end is not None)
        )

    def _gain(self, term: StepwiseTerm) -> float | Normalised | None:
        return self.env.gains.get(term.term.gain)

    # ----------------------------------------------------------------------------------------------------------- steps

    def start(self, copies: int = 1, *, apart: bool = False) -> State:
        """The state before the first step, each example `copies` times.

        Rows that stay `apart`, never to be selected or blended, share nothing that grows with their number.
        """
        batch = self.batch
        nets = tuple(_repeated(term.started(self.env), self._repeats(term, apart), copies) for term in self.nets)
        rows = batch.size * copies
        history = torch.zeros(rows, 0, dtype=torch.long, device=batch.device)
        alive = torch.ones(rows, dtype=torch.bool, device=batch.device)
        return State(nets, history, alive, torch.zeros(rows, dtype=batch.dtype, device=batch.device))

    def advance(self, state: State, previous: Tensor | None, t: int) -> tuple[Tensor, State]:
        """Score the labels of cell t.

        Args:
            state: the state after the steps before t.
            previous: the labels [R] of cell t - 1, or their distributions [R, C], whose expected embeddings and
                expected table rows are taken; `None` at t = 0.
            t: the step.

        Returns:
            Scores [R, C], -inf for what evidence or constraints rule out, and the state, whose `normalizer` is that of
            this step.  Behind the end of an example, the label 0 (the end label, where there is one) is the only one,
            and it adds nothing.  Where the length is part of the answer, the last step leaves the end label alone.
        """
        rows = state.alive.shape[0]
        history, alive = state.history, state.alive
        if previous is not None:
            history, alive = self._pushed(history, previous), self._lived(alive, previous)
        total: Tensor | None = None
        normalizer: Tensor | None = None
        nets = []
        for term, net_state in zip(self.nets, state.nets, strict=True):
            scores, log_z, after = self._step(term, net_state, previous, rows, t)
            nets.append(after)
            if term.end is not None and self.end is None and t:
                scores = scores * alive.unsqueeze(1)  # the network has nothing to say behind its end label
            total = scores if total is None else total + scores
            normalizer = log_z if normalizer is None else normalizer + log_z
        if total is None or normalizer is None:
            total = torch.zeros(rows, self.count, device=self.batch.device, dtype=self.batch.dtype)
            normalizer = torch.zeros_like(state.normalizer)
        total = self._absorbed(self._with_tables(total, history, t), alive, t)
        return total, State(tuple(nets), history, alive, normalizer)

    def _step(
        self, term: StepwiseTerm, state: Any, previous: Tensor | None, rows: int, t: int
    ) -> tuple[Tensor, Tensor, Any]:
        """The network's scores [R, C] times its gain, its log-normaliser [R], its next state."""
        net = self._net(term)
        if previous is None:
            embedded = net.embed(torch.full((rows,), self.count, dtype=torch.long, device=self.batch.device))
        else:
            embedded = net.embed_soft(previous) if previous.is_floating_point() else net.embed(previous)
        scores, state = net.step(state, embedded, t)
        if scores.shape != (embedded.shape[0], self.count):
            raise ShapeError(
                f"the step network `{term.body.net}` gave scores of shape {list(scores.shape)}, and "
                f"`{term.body.variable}` has {self.count} labels: [{embedded.shape[0]}, {self.count}] is needed"
            )
        term.finite.check_now(self.env, scores, lambda: self._per_row(self.lengths > t, rows))
        if term.body.normalize == "local":
            raw, scores = scores, F.log_softmax(scores, -1)
            log_z = raw.amax(-1) - scores.amax(-1)
        else:
            log_z = scores.logsumexp(-1)
        gain = self._gain(term)
        if isinstance(gain, Normalised):
            factor = gain.of(self.env)
            scores = scores * factor.repeat_interleave(rows // max(1, factor.shape[0])).unsqueeze(1)
        elif gain is not None:
            scores = scores * gain
        return scores, log_z, state

    def _net(self, term: StepwiseTerm) -> Any:
        return self.env.module._modules[term.body.net]

    def _by_row(self, term: StepwiseTerm) -> tuple[str, ...] | None:
        """The fields of a network's state that have a row for each hypothesis; `None` for all."""
        by_row: tuple[str, ...] | None = getattr(self._net(term), "by_row", None)
        return by_row

    def _repeats(self, term: StepwiseTerm, apart: bool) -> tuple[str, ...] | None:
        """The fields to repeat at the start: all of them where rows would look at each other's past."""
        by_row = self._by_row(term)
        shares_past = by_row is not None and not set(self._net(term).varying) <= set(by_row)
        return None if apart and shares_past else by_row

    def _pushed(self, history: Tensor, previous: Tensor) -> Tensor:
        """The history with the latest label, as far as tables look back."""
        if self.reach == 0:
            return history
        if history.is_floating_point() and not previous.is_floating_point():
            previous = F.one_hot(previous, self.count).to(history.dtype)
        elif previous.is_floating_point() and not history.is_floating_point():
            history = F.one_hot(history, self.count).to(previous.dtype)
        kept = history[:, max(0, history.shape[1] + 1 - self.reach) :]
        return torch.cat([kept, previous.unsqueeze(1)], 1)

    def _lived(self, alive: Tensor, previous: Tensor) -> Tensor:
        ends = next((term.end[1] for term in self.nets if term.end is not None), None)
        if ends is None:
            return alive
        if previous.is_floating_point():
            return (1 - previous[:, ends]) * alive
        goes_on = previous != ends
        return alive * goes_on if alive.is_floating_point() else alive & goes_on

    def _with_tables(self, total: Tensor, history: Tensor, t: int) -> Tensor:
        """Scores with what tables add and what evidence rules out."""
        parts = [part for table in self.tables if (part := table.scores(history, t)) is not None]
        if parts or self.allowed is not None:
            grouped = total.unflatten(0, (self.batch.size, -1)) if total.shape[0] else total.unsqueeze(1)
            for part in parts:
                grouped = grouped + part
            if self.allowed is not None:
                grouped = grouped.masked_fill(~self.allowed[:, t].unsqueeze(1), _NINF)
            total = grouped.flatten(0, 1)
        return total

    def _absorbed(self, total: Tensor, alive: Tensor, t: int) -> Tensor:
        """Behind the end there is one label, which adds nothing."""
        labels = torch.arange(self.count, device=total.device)
        if self.end is None:
            if not self.is_ragged:
                return total
            past = self._per_row(self.lengths <= t, total.shape[0]).unsqueeze(1)
            return torch.where(past, _only(labels == 0, total.dtype), total)
        ends = labels == self.end
        if t == self.size - 1:
            total = total.masked_fill(~ends, _NINF)
        if t == 0:
            return total
        if alive.is_floating_point():
            return _mixed_with_end(total, alive.unsqueeze(1), ends)
        return torch.where(alive.unsqueeze(1), total, _only(ends, total.dtype))

    def _per_row(self, each: Tensor, rows: int) -> Tensor:
        """[R]: what holds for each example, for each of its rows."""
        return each.unsqueeze(1).expand(-1, rows // max(1, each.shape[0])).reshape(rows)

    def score(self, labels: Tensor) -> Tensor:
        """[B, n]: the scores of n answers of each example, labels [B, n, size] by step; differentiable.

        Equal to `problem.score` of the placed answers where evidence allows them, else -inf.  Cost: `size` steps.
        """
        copies = labels.shape[1]
        given = labels.flatten(0, 1).clamp(min=0)
        state = self.start(copies, apart=True)
        total = torch.zeros(given.shape[0], device=self.batch.device, dtype=self.batch.dtype)
        for t in range(self.size):
            scores, state = self.advance(state, given[:, t - 1] if t else None, t)
            total = total + scores.gather(1, given[:, t : t + 1]).squeeze(1)
        return total.reshape(labels.shape[:2])

    def best_remaining(self) -> Tensor:
        """[size + 1, B]: an upper bound of what the steps from t on can add, whatever came before; perhaps infinite.

        Log-probabilities add at most 0, tables their largest entries; raw scores of a network have no bound.
        """
        batch = self.batch
        bounds = torch.zeros(self.size + 1, batch.size, device=batch.device, dtype=batch.dtype)
        open_ended = any(term.body.normalize != "local" or not _is_scaled_up(self._gain(term)) for term in self.nets)
        for t in range(self.size - 1, -1, -1):
            here = torch.full_like(bounds[t], float("inf") if open_ended else 0.0)
            for table in self.tables:
                part = table.best(t)
                here = here if part is None else _bounded_sum(here, part)
            later = bounds[t + 1] if self.end is None or t == self.size - 1 else bounds[t + 1].clamp(min=0)
            bounds[t] = torch.where(self.lengths <= t, 0, _bounded_sum(here, later))
        return bounds

    # ------------------------------------------------------------------------------------------------------------ rows

    def select(self, state: State, index: Tensor) -> State:
        """The state of chosen rows: index [B, n] counts the rows of each example; n may differ from before."""
        old = state.alive.shape[0] // max(1, index.shape[0])
        first = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * old
        flat = (index + first).flatten()
        nets = tuple(
            _mapped(one, self._by_row(term), lambda tensor: tensor.index_select(0, flat))
            for term, one in zip(self.nets, state.nets, strict=True)
        )
        return State(nets, *(tensor.index_select(0, flat) for tensor in state[1:]))

    @property
    def can_narrow(self) -> bool:
        """Whether examples can be left out on the way: where networks alone score."""
        return not self.tables

    def narrowed(self, state: State, examples: Tensor) -> tuple[Steps, State]:
        """The steps and the state of some of the examples, by number [b]; see `can_narrow`."""
        made, rows = copy(self), state.alive.shape[0] // max(1, self.batch.size)
        made.batch = replace(self.batch, size=examples.shape[0], tensors={}, along={}, nested={}, masks={}, seen={})
        made.lengths = self.lengths[examples]
        made.allowed = None if self.allowed is None else self.allowed[examples]
        made.along = Along(self.along.size, None if self.along.count is None else made.lengths)
        flat = (examples.unsqueeze(1) * rows + torch.arange(rows, device=examples.device)).flatten()
        nets = tuple(
            _mapped(
                one,
                self._by_row(term),
                lambda tensor: tensor.index_select(0, flat),
                lambda tensor: tensor.index_select(0, examples),
            )
            for term, one in zip(self.nets, state.nets, strict=True)
        )
        return made, State(nets, *(tensor.index_select(0, flat) for tensor in state[1:]))

    def blend(self, state: State, weights: Tensor) -> State:
        """The state of mixed rows: weights [B, k, n] make k rows of each example from its n rows.

        Labels in the history become distributions.  Cost: k * n times the size of what varies.
        """
        if state.history.shape[1] and not state.history.is_floating_point():
            state = state._replace(history=F.one_hot(state.history, self.count).to(weights.dtype))
        examples, made, _ = weights.shape

        def mixed(tensor: Tensor) -> Tensor:
            if tensor.numel() == 0:
                return tensor.new_zeros(examples * made, *tensor.shape[1:])
            rows = tensor.to(weights.dtype).reshape(examples, -1, tensor[0].numel())
            return (weights @ rows).reshape(examples * made, *tensor.shape[1:])

        nets = tuple(_mapped(one, self._by_row(term), mixed) for term, one in zip(self.nets, state.nets, strict=True))
        return State(nets, *(mixed(tensor) for tensor in state[1:]))

    # --------------------------------------------------------------------------------------------------------- answers

    def place(self, labels: Tensor) -> Tensor:
        """Labels [B, n, size] by step at the caller's positions, -1 where there is no cell.

        Where the length is part of the answer, what stands behind the end label is no cell.
        """
        if self.end is not None:
            behind = (labels == self.end).cumsum(-1) - (labels == self.end).long() > 0
            return labels.masked_fill(behind, -1)
        batch, copies, size = labels.shape
        if self.along.rank is None and self.along.count is None:
            return labels
        spread = self.along.repeat(copies).spread(labels.reshape(batch * copies, size), -1)
        return spread.reshape(batch, copies, size)

    def by_step(self, labels: Tensor) -> Tensor:
        """Labels [B, positions] (or any [B, positions, ...]) in the order of steps; -1 behind the end."""
        found = self.along.compact(labels, 1)
        exists = self.along.valid(self.size, labels.device)
        if exists is None or labels.dim() > 2:
            return found
        return found.masked_fill(~exists, -1)


def _is_scaled_up(gain: float | Normalised | None) -> bool:
    """Whether a gain leaves what is at most 0 at most 0."""
    return gain is None or (gain.alpha if isinstance(gain, Normalised) else gain) >= 0


def _bounded_sum(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two bounds; what is impossible stays so, whatever is added."""
    return torch.where(one.isneginf() | other.isneginf(), _NINF, one + other)


def _only(label: Tensor, dtype: torch.dtype) -> Tensor:
    """[C]: 0 for one label, -inf for all others."""
    return torch.zeros(label.shape, dtype=dtype, device=label.device).masked_fill(~label, _NINF)


def _mixed_with_end(total: Tensor, alive: Tensor, ends: Tensor) -> Tensor:
    """Scores [R, C] of sequences that go on with probability alive [R, 1] and have ended otherwise.

    The log of the mixed exponentials: `total` where alive is 1, the end label alone where it is 0.
    """
    gone, dead = alive <= 0, 1 - alive
    going = total + torch.where(gone, 1, alive).log()
    some = dead > 0
    closing = torch.logaddexp(going, torch.where(some, dead, 1).log())
    return torch.where(gone, _only(ends, total.dtype), torch.where(ends & some, closing, going))


def _mapped(state: Any, by_row: tuple[str, ...] | None, change: Any, other: Any = lambda tensor: tensor) -> Any:
    """A network's state with the tensors that have a row for each hypothesis changed, and `other` done to the rest."""
    if by_row is None:
        return _each(state, change)
    return state._make(
        change(tensor) if name in by_row else other(tensor) for name, tensor in zip(state._fields, state, strict=True)
    )


def _each(state: Any, change: Any) -> Any:
    """A tree of tensors, tuples, lists and dictionaries with every tensor changed; what else is in it stays."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple) and hasattr(state, "_make"):
        return state._make(_each(one, change) for one in state)
    if isinstance(state, list | tuple):
        return type(state)(_each(one, change) for one in state)
    if isinstance(state, dict):
        return {name: _each(one, change) for name, one in state.items()}
    return state


def _repeated(state: Any, by_row: tuple[str, ...] | None, copies: int) -> Any:
    if copies == 1:
        return state
    return _mapped(state, by_row, lambda tensor: tensor.repeat_interleave(copies, 0))


__all__ = ["State", "Steps", "why_not_stepwise"]

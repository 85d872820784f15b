"""Beam search on tensors: the best continuations of all hypotheses of all examples at once.

Goyal et al. 2018, algorithm 1, with the first step expanded from one row: k equal rows would stay equal.  Where the
length is part of the answer, hypotheses that end stand beside the beam (or, if so chosen, stay in it); diverse groups
follow Vijayakumar et al. 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.backends.beam.walks import walk_of
from energyml.bind.steps import State, Steps
from energyml.native.beam import WIDEST, Choosing, Rows

_NINF = float("-inf")
# On accelerators, looking whether everything has ended waits for the device.
LOOK_EVERY = 8
# The share of settled examples that is worth going on without them.
LEAVE = 0.2


@dataclass(frozen=True)
class Plan:
    """How to search.

    Attributes:
        width: hypotheses of an example, over all groups.
        groups: groups of hypotheses, each kept apart from those before it.
        diversity: what a label costs for each hypothesis of an earlier group that takes it at the same step; it counts
            for the choice of hypotheses and not for their scores.
        length_penalty: complete answers are ranked by score / length ** length_penalty.
        beside: whether complete answers of a free length make room for others.
        wanted: how many of the best answers are wanted; a search over log-probabilities ends when no other answer can
            come before them.  All that it finds when `None`.
    """

    width: int
    groups: int = 1
    diversity: float = 0.0
    length_penalty: float = 0.0
    beside: bool = True
    wanted: int | None = None


@dataclass(frozen=True)
class Found:
    """Complete answers, best first.

    Attributes:
        labels: [B, n, T] by step; the end label behind the end of a free length.
        score: [B, n], -inf for none.
        rank: [B, n] what they were ranked by: the score, with the length penalty.
        steps: how many steps were made.
    """

    labels: Tensor
    score: Tensor
    rank: Tensor
    steps: int


class Trace:
    """Back-pointers: the labels of each step's hypotheses, and which of the step before they extend."""

    def __init__(self) -> None:
        self.labels: list[Tensor] = []
        self.parents: list[Tensor] = []

    def add(self, labels: Tensor, parents: Tensor) -> None:
        """A step: the labels [B, n] of its hypotheses, and the hypotheses [B, n] of the step before."""
        self.labels.append(labels)
        self.parents.append(parents)

    def keep(self, examples: Tensor) -> None:
        """Go on with some of the examples, by number."""
        self.labels = [one[examples] for one in self.labels]
        self.parents = [one[examples] for one in self.parents]

    def follow(self, rows: Tensor, last: Tensor | None = None, end: int = 0) -> Tensor:
        """[B, m, steps]: the labels of hypotheses.

        Args:
            rows: [B, m] hypotheses of the last step; of the step before `last` where that is given.
            last: [B, m] the step at which each one ended, with the label `end`, which fills the rest.
            end: that label.
        """
        found: list[Tensor] = []
        for t in range(len(self.labels) - 1, -1, -1):
            before = torch.ones_like(rows, dtype=torch.bool) if last is None else last > t
            here = rows.clamp(max=self.labels[t].shape[1] - 1)
            found.append(torch.where(before, self.labels[t].gather(1, here), end))
            rows = torch.where(before, self.parents[t].gather(1, here), rows)
        return torch.stack(found[::-1], -1) if found else rows.unsqueeze(-1)[..., :0]


@dataclass
class _Pool:
    """Complete answers that stand beside the beam.

    Attributes:
        rank: [B, G, n] what they are ranked by, -inf for none.
        score: [B, G, n].
        parent: [B, G, n] the hypothesis (of all groups) that ended.
        last: [B, G, n] the step at which it did.
    """

    rank: Tensor
    score: Tensor
    parent: Tensor
    last: Tensor

    @staticmethod
    def empty(like: Tensor, groups: int, size: int) -> _Pool:
        none = like.new_full((like.shape[0], groups, size), _NINF)
        zeros = torch.zeros_like(none, dtype=torch.long)
        return _Pool(none, none, zeros, zeros)

    def of(self, examples: Tensor) -> _Pool:
        """Those of some of the examples."""
        return _Pool(self.rank[examples], self.score[examples], self.parent[examples], self.last[examples])

    def joined(self, rank: Tensor, score: Tensor, parent: Tensor, t: int) -> _Pool:
        """The best of these and others [B, G, m] that end at step t."""
        size = self.rank.shape[-1]
        best, index = torch.cat([self.rank, rank], -1).topk(size, -1)
        score, parent = torch.cat([self.score, score], -1), torch.cat([self.parent, parent], -1)
        last = torch.cat([self.last, torch.full_like(parent[..., size:], t)], -1)
        return _Pool(best, *(one.gather(-1, index) for one in (score, parent, last)))


class Search:
    """One beam search.

    Args:
        steps: what is searched.
        plan: how.
        bonus: [B, T, C] by step, added to all scores; a cost for each label.
        narrows: whether examples whose answers are settled may leave the batch; `trace` then lacks them.

    Cost: T steps of B * width rows, a selection among width * C continuations at each.
    """

    def __init__(self, steps: Steps, plan: Plan, bonus: Tensor | None = None, *, narrows: bool = True) -> None:
        self.steps, self.plan, self.bonus = steps, plan, bonus
        self.narrows = narrows and steps.can_narrow
        self.each = plan.width // plan.groups
        self.trace = Trace()
        self.pools = steps.end is not None and plan.beside

    @torch.no_grad()
    def run(self) -> Found:
        """Search from the first step to the last, or until nothing can change.

        Examples whose answers are settled leave the batch once they are a good part of it.
        """
        steps, plan = self.steps, self.plan
        if steps.batch.size == 0:
            nothing = torch.zeros(0, plan.width, device=steps.batch.device, dtype=steps.batch.dtype)
            return Found(nothing.long().unsqueeze(-1).expand(-1, -1, steps.size), nothing, nothing, 0)
        if (walked := self._walked()) is not None:
            return walked
        state = steps.start()
        total = torch.zeros(steps.batch.size, 1, 1, device=steps.batch.device, dtype=steps.batch.dtype)
        pool = _Pool.empty(total[:, 0], plan.groups, self.each) if self.pools else None
        previous: Tensor | None = None
        places = torch.arange(steps.batch.size, device=total.device)
        parts: list[tuple[Tensor, Found]] = []
        made = 0
        for t in range(steps.size):
            scores, state = self.steps.advance(state, previous, t)
            if self.bonus is not None:
                added = self.bonus[:, t].repeat_interleave(scores.shape[0] // max(1, total.shape[0]), 0)
                scores = scores + added * state.alive.unsqueeze(1)
            total, previous, state, pool = self._extended(total, scores, state, pool, t)
            made = t + 1
            settled = self._settled(total, pool, t)
            if settled is None:
                continue
            left = int(settled.numel() - settled.sum())
            if left == 0:
                break
            if self.narrows and settled.numel() - left >= LEAVE * settled.numel():
                gone, kept = settled.nonzero().flatten(), (~settled).nonzero().flatten()
                parts.append((places[gone], self._complete(total, pool, made, gone)))
                places, previous = places[kept], previous.reshape(settled.numel(), -1)[kept].flatten()
                total, pool = total[kept], None if pool is None else pool.of(kept)
                self.bonus = None if self.bonus is None else self.bonus[kept]
                self.trace.keep(kept)
                self.steps, state = self.steps.narrowed(state, kept)
        parts.append((places, self._complete(total, pool, made, torch.arange(total.shape[0], device=total.device))))
        return _together(parts)

    def _walked(self) -> Found | None:
        """The same search by native code; `None` where that does not serve, or where a score is not a number."""
        steps, plan = self.steps, self.plan
        if not self.narrows or self.bonus is not None or plan.groups > 1 or plan.width > WIDEST or steps.size == 0:
            return None
        walk = walk_of(steps, plan.width)
        if walk is None:
            return None
        chosen = Choosing(
            steps.lengths, steps.size, steps.count, steps.end, width=plan.width, wanted=plan.wanted or plan.width,
            local=steps.nets[0].body.normalize == "local", within=not plan.beside, penalty=plan.length_penalty,
            dtype=steps.batch.dtype,
        )  # fmt: skip
        rows: Rows | None = chosen.start()
        made = 0
        while rows is not None and len(rows):
            rows = chosen.step(walk.step(rows, made), walk.bias, made)
            made += 1
        if rows is None:
            return None
        labels, score, rank = chosen.answers(), chosen.score, chosen.rank
        if not plan.beside and plan.length_penalty:
            order = rank.argsort(dim=1, descending=True, stable=True)
            labels = labels.gather(1, order.unsqueeze(-1).expand_as(labels))
            score, rank = score.gather(1, order), rank.gather(1, order)
        return Found(labels, score, rank, made)

    # ----------------------------------------------------------------------------------------------------------- a step

    def _extended(
        self, total: Tensor, scores: Tensor, state: State, pool: _Pool | None, t: int
    ) -> tuple[Tensor, Tensor, State, _Pool | None]:
        """The best continuations: their scores [B, G, n], labels [R], state, and the answers that are complete."""
        batch, groups, old = total.shape
        count = self.steps.count
        every = (total.reshape(batch, -1, 1) + scores.reshape(batch, -1, count)).reshape(batch, groups, -1)
        keys, values, index = self._chosen(every, old)
        label, parent = index % count, index // count
        if groups > 1:
            parent = parent + old * torch.arange(groups, device=parent.device).unsqueeze(-1)
        if pool is not None:
            values, label, parent, pool = self._ended(keys, values, label, parent, pool, t)
        state = self.steps.select(state, parent.flatten(1))
        self.trace.add(label.flatten(1), parent.flatten(1))
        return values, label.flatten(), state, pool

    def _chosen(self, every: Tensor, old: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations [B, G, n] of those [B, 1 or G, old * C] that there are: by what, score, and place."""
        # Of 2n, at least n do not end: each hypothesis ends in one way.
        wanted = min(2 * self.each if self.pools else self.each, every.shape[-1])
        if self.plan.groups == 1:
            values, index = every.topk(wanted, -1)
            return values, values, index
        count = self.steps.count
        taken = torch.zeros(every.shape[0], count, device=every.device, dtype=every.dtype)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for group in range(self.plan.groups):
            own = every[:, min(group, every.shape[1] - 1)]
            key, index = (own - self.plan.diversity * taken.repeat(1, old)).topk(wanted, -1)
            here = index[:, : self.each]
            taken = taken.scatter_add(1, here % count, (key[:, : self.each] > _NINF).to(every.dtype))
            found.append((key, own.gather(-1, index), index))
        keys, values, index = (torch.stack(each, 1) for each in zip(*found, strict=True))
        return keys, values, index

    def _ended(
        self, keys: Tensor, values: Tensor, label: Tensor, parent: Tensor, pool: _Pool, t: int
    ) -> tuple[Tensor, Tensor, Tensor, _Pool]:
        """Set complete answers aside: those whose end is among the n best continuations; n others go on."""
        assert self.steps.end is not None
        ends = label == self.steps.end
        closing = torch.where(ends, values, _NINF)[..., : self.each]
        pool = pool.joined(self._ranked(closing, t + 1), closing, parent[..., : self.each], t)
        index = torch.where(ends, _NINF, keys).topk(min(self.each, keys.shape[-1]), -1).indices
        values = torch.where(ends, _NINF, values)
        return values.gather(-1, index), label.gather(-1, index), parent.gather(-1, index), pool

    def _ranked(self, score: Tensor, length: Tensor | int) -> Tensor:
        if self.plan.length_penalty == 0:
            return score
        length = length.to(score.dtype) if isinstance(length, Tensor) else length
        return score / length**self.plan.length_penalty

    def _settled(self, total: Tensor, pool: _Pool | None, t: int) -> Tensor | None:
        """[B]: for which examples no further step can change the answers; `None` when nobody looks."""
        if t + 1 == self.steps.size or (total.device.type != "cpu" and (t + 1) % LOOK_EVERY):
            return None
        if self.steps.end is None:
            return self.steps.lengths <= t + 1 if self.steps.is_ragged else None
        if pool is None:
            done = self.trace.labels[-1].reshape(total.shape) == self.steps.end
            return (done | total.isneginf()).flatten(1).all(1)
        best = total.amax(-1)
        if not (self.steps.local and self.bonus is None):
            return best.isneginf().all(1)
        # Log-probabilities only fall, and at best the longest length divides them.
        limit = self._ranked(best, self.steps.size)
        if self.plan.wanted is None:
            return (limit <= pool.rank[..., -1]).all(1)
        least = pool.rank.flatten(1).topk(min(self.plan.wanted, self.plan.width), 1).values[:, -1:]
        return (limit <= least).all(1)

    # --------------------------------------------------------------------------------------------------------- the end

    def _complete(self, total: Tensor, pool: _Pool | None, made: int, examples: Tensor) -> Found:
        """The answers of some of the examples."""
        steps, end = self.steps, self.steps.end
        trace = Trace()
        trace.labels, trace.parents = self.trace.labels, self.trace.parents
        if examples.shape[0] < total.shape[0]:
            trace.keep(examples)
        if pool is not None:
            pool = pool.of(examples)
            labels = trace.follow(pool.parent.flatten(1), pool.last.flatten(1), end or 0)
            score, rank = pool.score.flatten(1), pool.rank.flatten(1)
        else:
            score = total[examples].flatten(1)
            rows = torch.arange(score.shape[1], device=score.device).expand(score.shape)
            labels = trace.follow(rows)
            if end is not None and made:
                score = score.masked_fill(labels[..., -1] != end, _NINF)
                rank = self._ranked(score, (labels != end).sum(-1) + 1)
            else:
                rank = score
        if labels.shape[-1] < steps.size:
            rest = labels.new_full((*labels.shape[:-1], steps.size - labels.shape[-1]), end or 0)
            labels = torch.cat([labels, rest], -1)
        if self.plan.groups > 1:
            twice = _repeats(labels)
            score, rank = score.masked_fill(twice, _NINF), rank.masked_fill(twice, _NINF)
        order = rank.argsort(dim=1, descending=True, stable=True)
        labels = labels.gather(1, order.unsqueeze(-1).expand_as(labels))
        return Found(labels, score.gather(1, order), rank.gather(1, order), made)


def _together(parts: list[tuple[Tensor, Found]]) -> Found:
    """The answers of all examples, from parts with the places of their examples."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.cat([places for places, _ in parts]).argsort()
    most = max(found.score.shape[1] for _, found in parts)
    labels = torch.cat([_filled(found.labels, most, 0) for _, found in parts])[order]
    score, rank = (torch.cat([_filled(getattr(found, name), most, _NINF) for _, found in parts])[order]
                   for name in ("score", "rank"))  # fmt: skip
    return Found(labels, score, rank, max(found.steps for _, found in parts))


def _filled(tensor: Tensor, count: int, fill: float) -> Tensor:
    """[B, count, ...]: filled up along axis 1."""
    rest = tensor.new_full((tensor.shape[0], count - tensor.shape[1], *tensor.shape[2:]), fill)
    return torch.cat([tensor, rest], 1)


def _repeats(labels: Tensor) -> Tensor:
    """[B, n]: which answers [B, n, T] stand before in the list."""
    same = (labels.unsqueeze(1) == labels.unsqueeze(2)).all(-1)
    return same.tril(-1).any(-1)

"""What is sampled: the score of full answers, many chains at once.

`ScoreTarget` asks the terms for scores and serves every model.  `FactorTarget` serves models of tables: it holds the
grounded factor graph and its potentials, so that networks run once and conditionals are lookups.

Where the length is part of the answer, cells behind the end label do not exist.  Chains of fixed size then carry
*auxiliary* labels there, uniform and independent of everything (the pseudo-priors of Carlin & Chib 1995): summed over
them the distribution of answers is the model's, and moves need not change the number of cells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import log, prod
from typing import TypeAlias

import torch
from torch import Tensor

from energyml.backend import Evidence, Problem
from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.variational.ascent import Ascent
from energyml.backends.variational.decoding import likeliest, searched
from energyml.backends.variational.factors import FactorGraph, Grounder, Potentials
from energyml.backends.variational.schedule import Pick, Schedule, Step
from energyml.bind.tensors import Environment
from energyml.result import ABSENT

Labels: TypeAlias = Mapping[str, Tensor]

# Answers that are scored at once, over all examples: networks hold all of their activations.
CHUNK = 1 << 13
# Sweeps that look for a possible start, and what a forbidden combination then costs.
REPAIRS = 60
PENALTY = 30.0


class Target(ABC):
    """The distribution of C chains for each of B examples.

    Labels are [B, C, cells] by variable.  The score is -inf for what is forbidden, or ruled out by evidence.

    Args:
        problem: the batch.
        chains: how many chains each example has.
    """

    def __init__(self, problem: Problem, chains: int) -> None:
        self.problem, self.chains = problem, chains
        batch = problem.env.batch
        self.size, self.device, self.dtype = batch.size, batch.device, batch.dtype
        self.variables = {v.name: v.dims for v in problem.graph.discrete}
        self.counts = {name: problem.label_count(name) for name in self.variables}
        self.shapes = {name: tuple(batch.size_of(dim) for dim in dims) for name, dims in self.variables.items()}
        self.cells = {name: prod(shape) for name, shape in self.shapes.items()}

    @abstractmethod
    def score(self, labels: Labels) -> Tensor:
        """[B, C]: the scores of full answers."""

    @abstractmethod
    def exists(self, name: str) -> Tensor | None:
        """[B, 1, cells]: which cells of a variable exist; `None` when all do."""

    @abstractmethod
    def outward(self, labels: Labels) -> dict[str, Tensor]:
        """[B, C, *dims] by variable, at the caller's positions; -1 where there is no cell."""

    @abstractmethod
    def local_scores(self, labels: Labels) -> dict[str, Tensor]:
        """[B, C, cells, labels] by variable: the score with each label at each cell, up to a constant for each cell."""

    @abstractmethod
    def random_labels(self, random: Randomness) -> dict[str, Tensor]:
        """Labels [B, C, cells] that evidence allows, uniformly and independently; cells that do not exist have 0."""

    @abstractmethod
    def log_states(self) -> Tensor:
        """[B]: the log of the number of labels that `random_labels` draws from."""

    @abstractmethod
    def start(self, random: Randomness) -> dict[str, Tensor]:
        """Spread-out labels with a finite score, where they are found."""

    def auxiliary(self, labels: Labels) -> Tensor:
        """[B, C]: minus the log-probability of auxiliary labels, which is in the target's score but not the model's."""
        chains = next(iter(labels.values())).shape[1]
        return torch.zeros(self.size, chains, device=self.device, dtype=self.dtype)

    def existing(self, name: str) -> Tensor:
        """[B, 1, cells]: which cells of a variable exist."""
        found = self.exists(name)
        return torch.ones(1, 1, self.cells[name], dtype=torch.bool, device=self.device) if found is None else found


class ScoreTarget(Target):
    """Any model, by the scores of its terms.  Cost of a score: all networks that read labels, once for each chain."""

    def __init__(self, problem: Problem, chains: int) -> None:
        super().__init__(problem, chains)
        batch = problem.env.batch
        self.free = {
            name: end for name, end in problem.ends().items() if batch.along[self.variables[name][0]].count is None
        }
        self._exists: dict[str, Tensor | None] = {}
        self._allowed: dict[str, Tensor] = {}
        for name, dims in self.variables.items():
            found = batch.cells(name, dims)
            self._exists[name] = None if found is None else found.reshape(self.size, 1, self.cells[name])
            if name in problem.evidence.allowed:
                shape = (self.size, 1, self.cells[name], self.counts[name])
                self._allowed[name] = problem.evidence.allowed[name].reshape(shape)
        self._repeated: dict[int, Problem] = {1: problem}

    def exists(self, name: str) -> Tensor | None:
        """[B, 1, cells]: which cells exist; where lengths are part of the answer, all that there could be."""
        return self._exists[name]

    def outward(self, labels: Labels) -> dict[str, Tensor]:
        """[B, C, *dims]: -1 where there is no cell, so also behind the end label."""
        made = {}
        for name, present in self.present(labels).items():
            one = labels[name] if present is None else labels[name].masked_fill(~present, ABSENT)
            made[name] = one.reshape(*one.shape[:2], *self.shapes[name])
        return made

    def present(self, labels: Labels) -> dict[str, Tensor | None]:
        """By variable: [B, 1 or C, cells] which cells the answers have; `None` when all."""
        found = dict(self._exists)
        for length, dim in self._lengths(labels):
            for name, dims in self.variables.items():
                if dims == (dim,):
                    inside = torch.arange(self.cells[name], device=self.device) < length.unsqueeze(-1)
                    known = found[name]
                    found[name] = inside if known is None else inside & known
        return found

    def _lengths(self, labels: Labels) -> list[tuple[Tensor, str]]:
        """For each free dim: [B, C] the length that the end label gives; the full size where there is none."""
        made = []
        for name, end in self.free.items():
            (dim,) = self.variables[name]
            before = (labels[name] == end).cumsum(-1) == 0
            made.append(((before.sum(-1) + 1).clamp(max=self.cells[name]), dim))
        return made

    def repeated(self, copies: int) -> Problem:
        """The problem with every example `copies` times, without evidence."""
        found = self._repeated.get(copies)
        if found is None:
            env = self.problem.env
            made = Environment(env.module, env.batch.repeat(copies), gains=env.gains)
            found = Problem(self.problem.graph, self.problem.terms, made, Evidence(), self.problem.answers)
            self._repeated = {1: self.problem, copies: found}
        return found

    def score(self, labels: Labels) -> Tensor:
        """[B, C]: for any number of chains, so many answers of an example at a time as memory allows."""
        copies = next(iter(labels.values())).shape[1] if labels else self.chains
        most = max(1, CHUNK // max(1, self.size))
        parts = [
            self._score({name: one[:, first : first + most] for name, one in labels.items()})
            for first in range(0, copies, most)
        ]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _score(self, labels: Labels) -> Tensor:
        copies = next(iter(labels.values())).shape[1] if labels else self.chains
        answer = {name: one.flatten(0, 1) for name, one in self.outward(labels).items()}
        if self.free:
            total = self.repeated(copies).score(self._ended(labels, answer))
        else:
            total = self.problem.score(answer, copies)
        return self.ruled(labels, total.reshape(self.size, copies))

    def _ended(self, labels: Labels, answer: Labels) -> dict[str, Tensor]:
        """Answers as `Problem.score` wants them; it finds out itself where they end."""
        made = dict(answer)
        for name in self.free:
            made[name] = labels[name].reshape(answer[name].shape)
        return made

    def ruled(self, labels: Labels, total: Tensor) -> Tensor:
        """Scores [B, C] with what evidence and auxiliary labels say."""
        present = self.present(labels)
        for name, allowed in self._allowed.items():
            copies = labels[name].shape[1]
            here = allowed.expand(-1, copies, -1, -1).gather(-1, labels[name].unsqueeze(-1)).squeeze(-1)
            inside = present[name]
            fine = here if inside is None else here | ~inside
            total = total.masked_fill(~fine.all(-1), float("-inf"))
        return total - self.auxiliary(labels) if self.free else total

    def auxiliary(self, labels: Labels) -> Tensor:
        """[B, C]: minus the log-probability of auxiliary labels; 0 where lengths are known."""
        total = torch.zeros((), device=self.device, dtype=self.dtype)
        if self.free:
            for name, inside in self.present(labels).items():
                if inside is not None:
                    total = total + log(self.counts[name]) * (~inside & self.existing(name)).sum(-1)
        return total.expand(self.size, next(iter(labels.values())).shape[1])

    def trials(self, labels: Labels, name: str, cell: int) -> Tensor:
        """[B, C, labels]: the scores with each label at one cell.  Cost: a score for each label."""
        count, chains = self.counts[name], labels[name].shape[1]
        full = {other: one.repeat_interleave(count, 1) for other, one in labels.items()}
        full[name][:, :, cell] = torch.arange(count, device=self.device).repeat(chains)
        found = self.score(full).reshape(self.size, chains, count)
        return found if self._exists[name] is None else found.masked_fill(self._hidden(name, cell), float("-inf"))

    def _hidden(self, name: str, cell: int) -> Tensor:
        """[B, 1, labels]: all labels but 0 of a cell that does not exist."""
        gone = ~self.existing(name)[:, :, cell].unsqueeze(-1)
        return gone & (torch.arange(self.counts[name], device=self.device) > 0)

    def local_scores(self, labels: Labels) -> dict[str, Tensor]:
        """By trial: a score for each label of each cell."""
        return {
            name: torch.stack([self.trials(labels, name, cell) for cell in range(cells)], 2)
            if cells
            else torch.zeros(self.size, self.chains, 0, self.counts[name], device=self.device, dtype=self.dtype)
            for name, cells in self.cells.items()
        }

    def permitted(self, name: str) -> Tensor:
        """[B, 1, cells, labels]: 0 for the labels that evidence allows at a cell, -inf for others.

        Where lengths are part of the answer a cell may be auxiliary, so that evidence counts in the score alone.
        """
        shape = (self.size, 1, self.cells[name], self.counts[name])
        scores = torch.zeros(shape, device=self.device, dtype=self.dtype)
        allowed = self._allowed.get(name)
        if allowed is not None and not self.free:
            scores = scores.masked_fill(~allowed & allowed.any(-1, keepdim=True), float("-inf"))
        gone = ~self.existing(name).unsqueeze(-1)
        return scores.masked_fill(gone & (torch.arange(self.counts[name], device=self.device) > 0), float("-inf"))

    def random_labels(self, random: Randomness) -> dict[str, Tensor]:
        """Uniform over what evidence allows."""
        return {name: random.categorical(self.permitted(name).expand(-1, self.chains, -1, -1)) for name in self.cells}

    def log_states(self) -> Tensor:
        """[B]: the log of the number of allowed labels, over all cells."""
        total = torch.zeros(self.size, device=self.device, dtype=self.dtype)
        for name in self.cells:
            total = total + self.permitted(name).exp().sum(-1).log().sum((1, 2))
        return total

    def start(self, random: Randomness) -> dict[str, Tensor]:
        """Random labels; chains whose labels are impossible try again, then borrow the start of one that succeeded."""
        labels = self.random_labels(random)
        score = self.score(labels)
        for _ in range(REPAIRS):
            bad = score.isneginf()
            if not bool(bad.any()):
                return labels
            other = self.random_labels(random)
            value = self.score(other)
            better = bad & ~value.isneginf()
            labels = {name: torch.where(better.unsqueeze(-1), other[name], one) for name, one in labels.items()}
            score = torch.where(better, value, score)
        best = score.argmax(1, keepdim=True)
        bad = score.isneginf()
        found = {}
        for name, one in labels.items():
            lent = one.gather(1, best.unsqueeze(-1).expand(-1, 1, one.shape[2]))
            found[name] = torch.where(bad.unsqueeze(-1), lent, one)
        return found


class FactorTarget(Target):
    """A model of tables, grounded.  Cost of a score, and of all local scores: every table once.

    Args:
        problem: the batch.
        chains: how many chains each example has.
        grounder: finds and keeps structures.
    """

    def __init__(self, problem: Problem, chains: int, grounder: Grounder) -> None:
        super().__init__(problem, chains)
        with torch.no_grad():
            self.graph: FactorGraph = grounder.ground(problem)
            self.potentials: Potentials = self.graph.potentials(problem.evidence)
        self.hard = any(factors.hard for factors in self.potentials.factors)
        self._lookups: dict[tuple[int, int], tuple[Tensor, int]] = {}
        self._schedules: dict[str, Schedule] = {}

    # ---------------------------------------------------------------------------------------------------------- layout

    def rows(self, values: Tensor) -> Tensor:
        """Values [B, C, cells, ...] as the factor graph has them: [R, C, cells of a row, ...]."""
        if not self.graph.union:
            return values
        moved = values.movedim(1, 0)
        return moved.reshape(1, moved.shape[0], moved.shape[1] * moved.shape[2], *moved.shape[3:])

    def by_example(self, values: Tensor) -> Tensor:
        """Values [R, C, cells of a row, ...] by example: [B, C, cells, ...]."""
        if not self.graph.union:
            return values
        size = max(1, self.size)
        split = values.reshape(values.shape[1], self.size, values.shape[2] // size, *values.shape[3:])
        return split.movedim(0, 1)

    def exists(self, name: str) -> Tensor | None:
        """[B, 1, cells]."""
        found = self.graph.exists(name)
        return None if found is None else self.by_example(found.unsqueeze(1))

    def outward(self, labels: Labels) -> dict[str, Tensor]:
        """[B, C, *dims]."""
        made = {}
        for name, one in labels.items():
            placed = self.rows(one).movedim(1, 2)  # [R, cells, C]
            made[name] = self.graph.outward(name, placed, ABSENT).movedim(-1, 1)
        return made

    def schedule(self, order: str) -> Schedule:
        """The steps of an order of updates; kept with the structure."""
        kept, key = self.graph.skeleton.kept, ("schedule", order, self.device)
        if key not in kept:
            kept[key] = Schedule(self.graph.skeleton, order, self.device)
        made: Schedule = kept[key]
        return made

    # ---------------------------------------------------------------------------------------------------------- scores

    def lookup(self, number: int, slot: int) -> tuple[Tensor, int]:
        """A block's table as rows [.., labels of the slot], and how many joint labels the other slots have."""
        found = self._lookups.get((number, slot))
        if found is None:
            table = self.potentials.factors[number].table
            moved = table.movedim(2 + slot, -1)
            found = moved.reshape(-1, moved.shape[-1]).contiguous(), prod(moved.shape[2:-1])
            self._lookups[number, slot] = found
        return found

    def heard(self, labels: Labels, number: int, slot: int, elements: Pick, others: tuple[Pick, ...]) -> Tensor:
        """[R, C, n, labels]: what factors say about each label of the cell at a slot, the other cells as they are.

        Args:
            labels: [R, C, cells of a row] by variable.
            number: the block.
            slot: where the cells stand in its scope.
            elements: which of its factors.
            others: for every slot the cells there.
        """
        factors = self.potentials.factors[number]
        rows, joint_count = self.lookup(number, slot)
        joint: Tensor | None = None
        for place, (name, pick) in enumerate(zip(factors.block.variables, others, strict=True)):
            if place == slot:
                continue
            here = picked(labels[name], pick)
            joint = here if joint is None else joint * self.counts[name] + here
        assert joint is not None
        row = joint if rows.shape[0] == joint_count else joint + self._base(number, elements) * joint_count
        value = rows.index_select(0, row.flatten()).reshape(*row.shape, rows.shape[1])
        if factors.valid is not None:
            value = torch.where(picked(factors.valid.unsqueeze(1), elements).unsqueeze(-1), value, 0)
        return value

    def _base(self, number: int, elements: Pick) -> Tensor:
        """[R or 1, 1, n or 1]: which table each factor has."""
        table = self.potentials.factors[number].table
        examples, each = table.shape[:2]
        steps = torch.arange(each, device=self.device)
        own = steps if each == 1 else steps[elements]
        return torch.arange(examples, device=self.device).reshape(-1, 1, 1) * each + own

    def local(self, labels: Labels, name: str, step: Step) -> Tensor:
        """[R, C, n, labels]: the scores of each label at a step's cells of a variable, all others as they are."""
        total = picked(self.potentials.unary[name].unsqueeze(1), step.cells[name])
        for entry in step.entries[name]:
            value = self.heard(labels, entry.block, entry.slot, entry.elements, entry.others)
            total = added(total, entry.targets, value)
        return total.expand(-1, labels[name].shape[1], -1, -1)

    def local_scores(self, labels: Labels) -> dict[str, Tensor]:
        """All cells at once."""
        step = self.schedule("parallel").everything()
        placed = {name: self.rows(one) for name, one in labels.items()}
        made = {}
        for name, one in labels.items():
            if name in step.cells:
                made[name] = self.by_example(self.local(placed, name, step))
            else:
                made[name] = torch.zeros(*one.shape, self.counts[name], device=self.device, dtype=self.dtype)
        return made

    def score(self, labels: Labels) -> Tensor:
        """[B, C], from the potentials: no network runs."""
        placed = {name: self.rows(one) for name, one in labels.items()}
        copies = next(iter(labels.values())).shape[1] if labels else self.chains
        total = torch.zeros(self.size, copies, device=self.device, dtype=self.dtype)
        for name, one in placed.items():
            scores = self.potentials.unary[name].unsqueeze(1).expand(-1, copies, -1, -1)
            total = total + self.by_example(scores.gather(-1, one.unsqueeze(-1)).squeeze(-1)).sum(-1)
        for number, factors in enumerate(self.potentials.factors):
            total = total + self._factor_sums(number, self.factor_scores(placed, number), factors.block.rows)
        return total.masked_fill(self.potentials.impossible.unsqueeze(1), float("-inf"))

    def factor_scores(self, labels: Labels, number: int) -> Tensor:
        """[R, C, E]: the scores of a block's factors for labels [R, C, cells of a row]."""
        factors = self.potentials.factors[number]
        picks = self.schedule("parallel").scope(number)
        joint: Tensor | None = None
        for name, pick in zip(factors.block.variables, picks, strict=True):
            here = picked(labels[name], pick)
            joint = here if joint is None else joint * self.counts[name] + here
        assert joint is not None
        table = factors.table
        flat, count = table.reshape(-1), prod(table.shape[2:])
        row = joint if flat.shape[0] == count else joint + self._base(number, slice(None)) * count
        value = flat.index_select(0, row.flatten()).reshape(row.shape)
        return value if factors.valid is None else torch.where(factors.valid.unsqueeze(1), value, 0)

    def _factor_sums(self, number: int, values: Tensor, rows: object) -> Tensor:
        """[B, C]: sums over factors [R, C, E]."""
        if rows is None:
            return values.sum(-1)
        index = self.graph.placed(self.potentials.factors[number].block.rows)  # type: ignore[arg-type]
        zeros = torch.zeros(self.size, values.shape[1], device=self.device, dtype=values.dtype)
        return zeros.index_add(0, index, values[0].movedim(0, 1))

    # ---------------------------------------------------------------------------------------------------------- starts

    def _permitted(self, name: str) -> Tensor:
        """[B, C, cells, labels]: 0 for what evidence and single cells allow, -inf for others."""
        unary = self.potentials.unary[name]
        scores = torch.where(unary.isneginf(), unary, 0).unsqueeze(1).expand(-1, self.chains, -1, -1)
        return self.by_example(scores)

    def random_labels(self, random: Randomness) -> dict[str, Tensor]:
        """Uniform over what evidence and single cells allow."""
        return {name: random.categorical(self._permitted(name)) for name in self.cells}

    def log_states(self) -> Tensor:
        """[B]."""
        total = torch.zeros(self.size, device=self.device, dtype=self.dtype)
        for name in self.cells:
            total = total + self._permitted(name)[:, :1].exp().sum(-1).log().sum((1, 2))
        return total

    def start(self, random: Randomness) -> dict[str, Tensor]:
        """Random labels; where constraints rule them out, sweeps that pay for broken ones lead to possible labels.

        Chains that find none so start where a search for good labels ends.
        """
        labels = self.random_labels(random)
        if not self.hard:
            return labels
        softened = self._softened()
        for _ in range(REPAIRS):
            if not bool(self._broken(labels).any()):
                return labels
            placed = {name: self.rows(one).clone() for name, one in labels.items()}
            for step in self.schedule("sequential").sweeps(1):
                for name, pick in step.cells.items():
                    new = random.categorical(softened.local(placed, name, step))
                    replaced(placed[name], pick, new)
            found = {name: self.by_example(one) for name, one in placed.items()}
            broken = self._broken(labels)
            labels = {name: torch.where(broken.unsqueeze(-1), found[name], one) for name, one in labels.items()}
        ascent = Ascent(self.graph, self.potentials, self.schedule("sequential"))
        best = searched(ascent, [lambda: likeliest(ascent)])
        broken = self._broken(labels)
        return {
            name: torch.where(broken.unsqueeze(-1), self.by_example(best[name].unsqueeze(1)), one)
            for name, one in labels.items()
        }

    def _broken(self, labels: Labels) -> Tensor:
        """[B, C]: whether labels are forbidden, though nothing says that all of them are."""
        return self.score(labels).isneginf() & ~self.potentials.impossible.unsqueeze(1)

    def _softened(self) -> FactorTarget:
        """The same graph where a forbidden combination costs `PENALTY`, and nothing else counts."""
        made = object.__new__(FactorTarget)
        made.__dict__.update(self.__dict__)
        factors = []
        for one in self.potentials.factors:
            table = torch.where(one.table.isneginf(), -PENALTY, 0.0).to(one.table.dtype)
            factors.append(type(one)(one.block, table, one.valid, False))
        unary = {name: torch.where(one.isneginf(), one, 0) for name, one in self.potentials.unary.items()}
        made.potentials = Potentials(unary, factors, self.potentials.impossible)
        made._lookups = {}
        return made


def picked(values: Tensor, pick: Pick) -> Tensor:
    """[R, C, n, ...]: the picked cells or factors of values [R, C, N, ...]."""
    return values[:, :, pick] if isinstance(pick, slice) else values.index_select(2, pick)


def replaced(values: Tensor, pick: Pick, new: Tensor) -> None:
    """Write the picked ones of values [R, C, N] in place."""
    if isinstance(pick, slice):
        values[:, :, pick] = new
    else:
        values.index_copy_(2, pick, new)


def added(values: Tensor, pick: Pick, new: Tensor) -> Tensor:
    """Values [R, 1 or C, n, ...] of a step's cells plus what factors say about some of them, [R, C, m, ...]."""
    lead = torch.broadcast_shapes(values.shape[:2], new.shape[:2])
    if isinstance(pick, slice) and pick.step == 1 and pick.stop - pick.start == values.shape[2]:
        return values + new
    values = values.expand(*lead, *values.shape[2:]).contiguous()
    if isinstance(pick, slice):
        values = values.clone()
        values[:, :, pick] += new
        return values
    return values.index_add(2, pick, new.expand(*lead, *new.shape[2:]))


__all__ = ["FactorTarget", "Labels", "ScoreTarget", "Target"]

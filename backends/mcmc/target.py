"""What is sampled: the score of full answers, many chains at once.

`ScoreTarget` asks the terms for scores and serves every model.  `FactorTarget` (factor_target.py) serves models of
tables: it holds the grounded factor graph and its potentials, so that networks run once and conditionals are lookups.

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

from energyml.backends.mcmc.randomness import Randomness
from energyml.bind.problem import Evidence, Problem
from energyml.bind.tensors import Environment
from energyml.execution import is_host_readable
from energyml.result import ABSENT

Labels: TypeAlias = Mapping[str, Tensor]

# Answers that are scored at once, over all examples: networks hold all of their activations.
CHUNK = 1 << 13
# Sweeps that look for a possible start.
REPAIRS = 60


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
    def allowed(self, name: str) -> Tensor:
        """[B, 1, cells, labels]: the labels that evidence and single cells allow; 0 alone where there is no cell.

        All of them where nothing is allowed.
        """

    @abstractmethod
    def impossible(self) -> Tensor:
        """[B]: the examples that have no possible answer by what evidence and single factors say."""

    @abstractmethod
    def start(self, random: Randomness) -> dict[str, Tensor]:
        """Spread-out labels with a finite score, where they are found."""

    def ceiling(self) -> Tensor:
        """[B]: an upper bound on log Z that costs no more than a score; inf where none is known."""
        return torch.full((self.size,), float("inf"), device=self.device, dtype=self.dtype)

    def spread(self, random: Randomness) -> dict[str, Tensor]:
        """[B, C, cells]: random labels; in the second half of chains no cell has the label that the first half has.

        Chains that start at opposite answers tell modes apart that are each other's opposite.  A cell that is allowed
        one label keeps it.
        """
        labels = self.random_labels(random)
        half = self.chains // 2
        opposite = self.opposite({name: one[:, :half] for name, one in labels.items()})
        return {name: torch.cat([one[:, :half], opposite[name], one[:, 2 * half :]], 1) for name, one in labels.items()}

    def opposite(self, labels: Labels) -> dict[str, Tensor]:
        """Labels [B, C, cells] none of which is that of another answer, where a cell is allowed several."""
        made = {}
        for name, one in labels.items():
            allowed = self.allowed(name).expand(-1, one.shape[1], -1, -1)
            rank = allowed.cumsum(-1) - 1
            count = rank[..., -1:] + 1
            other = (rank.gather(-1, one.unsqueeze(-1)) + (count // 2).clamp(min=1)) % count.clamp(min=1)
            made[name] = (allowed & (rank == other)).to(torch.uint8).argmax(-1)
        return made

    def apart(self, labels: Labels) -> Tensor:
        """[B]: whether chains [B, C, cells] stand at different answers, or there is but one."""
        several = torch.zeros(self.size, dtype=torch.bool, device=self.device)
        differ = several
        for name, one in labels.items():
            several = several | (self.allowed(name).sum(-1) > 1).flatten(1).any(1)
            differ = differ | (one != one[:, :1]).flatten(1).any(1)
        return differ | ~several

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
        """[B, C, labels]: the scores with each label at one cell.

        Cost: a score for each label; none where the cell is auxiliary in all chains, so that all labels score alike.
        """
        count, chains = self.counts[name], labels[name].shape[1]
        if self.free and not self._matters(labels, name, cell):
            return self.score(labels).unsqueeze(-1).expand(-1, -1, count)
        full = {other: one.repeat_interleave(count, 1) for other, one in labels.items()}
        full[name][:, :, cell] = torch.arange(count, device=self.device).repeat(chains)
        found = self.score(full).reshape(self.size, chains, count)
        return found if self._exists[name] is None else found.masked_fill(self._hidden(name, cell), float("-inf"))

    def _matters(self, labels: Labels, name: str, cell: int) -> bool:
        """Whether some answer may have a cell; on an accelerator the host does not wait to find out."""
        inside = self.present(labels)[name]
        return inside is None or not is_host_readable(inside) or bool(inside[:, :, cell].any())

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

    def allowed(self, name: str) -> Tensor:
        """[B, 1, cells, labels]."""
        return self.permitted(name).isfinite()

    def impossible(self) -> Tensor:
        """[B]: where evidence leaves some cell no label."""
        found = torch.zeros(self.size, dtype=torch.bool, device=self.device)
        for name, allowed in () if self.free else self._allowed.items():
            found = found | (~allowed.any(-1) & self.existing(name)).flatten(1).any(1)
        return found

    def fixed(self, name: str) -> Tensor:
        """[B, 1, cells]: the cells that evidence leaves one label, and those that do not exist."""
        return self.permitted(name).isfinite().sum(-1) <= 1

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
        labels = self.spread(random)
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


__all__ = ["Labels", "ScoreTarget", "Target"]

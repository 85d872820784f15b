"""What is sampled where every term is a table: the grounded factor graph and its potentials, many chains at once."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from energyml.backends.mcmc.randomness import Randomness
from energyml.backends.mcmc.target import REPAIRS, Labels, Target
from energyml.bind.problem import Problem
from energyml.grounded.ascent import Ascent
from energyml.grounded.decoding import likeliest, searched
from energyml.grounded.factors import FactorGraph, Grounder, Potentials
from energyml.grounded.schedule import Pick, Schedule, Step
from energyml.result import ABSENT

# What a forbidden combination costs where it must cost something finite.
PENALTY = 30.0
# What rounding may change a sum of differences of scores by, in nats, beside the sum of scores.
FORGOTTEN = 2.0**-18


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
        self._subtractable: bool | None = None
        self._lookups: dict[tuple[int, int], tuple[Tensor, int]] = {}
        self._schedules: dict[str, Schedule] = {}

    @property
    def subtractable(self) -> bool:
        """Whether sums of differences of scores, of different answers, stand for sums of scores.

        Next to a difference of 1e9, which stands for a mask, single precision forgets all others.  The host reads
        scores.
        """
        if self._subtractable is None:
            scores = [*self.potentials.unary.values(), *(factors.table for factors in self.potentials.factors)]
            largest = max((float(_finite(one.detach()).abs().amax()) for one in scores if one.numel()), default=0.0)
            self._subtractable = largest * torch.finfo(self.dtype).eps <= FORGOTTEN
        return self._subtractable

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

    def allowed(self, name: str) -> Tensor:
        """[B, 1, cells, labels]."""
        found = self.by_example(self.potentials.unary[name].unsqueeze(1)).isfinite()
        return found | ~found.any(-1, keepdim=True)

    def impossible(self) -> Tensor:
        """[B]: where evidence and scores leave some cell no label, or some factor no joint label."""
        return self.ceiling().isneginf()

    def ceiling(self) -> Tensor:
        """[B]: the sum over single cells, and the largest score of each factor."""
        total = torch.zeros(self.size, device=self.device, dtype=self.dtype)
        for name in self.cells:
            scores = self.by_example(self.potentials.unary[name].unsqueeze(1))
            total = total + torch.logsumexp(scores, -1).sum((1, 2))
        for factors in self.potentials.factors:
            total = total + self.graph.factor_sums(factors, factors.table.flatten(2).amax(-1))
        return total.masked_fill(self.potentials.impossible, float("-inf"))

    def start(self, random: Randomness) -> dict[str, Tensor]:
        """Random labels; where constraints rule them out, sweeps that pay for broken ones lead to possible labels.

        Chains that find none so start where a search for good labels ends.
        """
        labels = self.spread(random)
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


def _finite(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores.isneginf(), 0)


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


__all__ = ["PENALTY", "FactorTarget", "added", "picked", "replaced"]

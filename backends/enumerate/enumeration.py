"""Every answer of one example, and its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log10, prod

import torch
from torch import Tensor

from energyml import errors
from energyml.backends.enumerate.card import MOST_ADVISED, count_of_answers
from energyml.bind.batch import Batch
from energyml.bind.problem import Evidence, Problem
from energyml.bind.tensors import Environment
from energyml.diagnostics import QueryRefused, join_names
from energyml.grounded.logspace import grouped_logsumexp
from energyml.model.declared import Variable
from energyml.plan.planner import candidates
from energyml.plan.structure import Structure
from energyml.queries import View
from energyml.result import ABSENT

# Answers that are scored at once: tables are gathers, networks hold all of their activations.
TABLE_CHUNK = 1 << 15
NETWORK_CHUNK = 1 << 12


@dataclass
class Enumerated:
    """All answers of one example.

    Attributes:
        labels: by variable: [N, *dims], -1 where there is no cell.
        score: [N] in float64; -inf for what is forbidden or ruled out by evidence.
        outputs: [N] the number of the answer's output part; answers that differ only in latents share it.
        first: [M] for each output part the first answer that has it.
        groups: the answers of each choice of lengths, in order: the batch with these lengths, and how many there are.
    """

    labels: dict[str, Tensor]
    score: Tensor
    outputs: Tensor
    first: Tensor
    groups: list[tuple[Batch, int]]

    def output_scores(self) -> Tensor:
        """[M]: the log of the summed exp(score) of each output part; the plain scores without latents."""
        count = self.first.numel()
        return self.score if count == self.score.numel() else grouped_logsumexp(self.score, self.outputs, count)


@dataclass(frozen=True)
class _Cell:
    variable: str
    position: tuple[int, ...]
    labels: list[int]


@dataclass(frozen=True)
class _Group:
    """The answers of one choice of lengths: cells with their labels, outputs first, so that latents vary fastest."""

    batch: Batch
    cells: list[_Cell]
    latent_from: int

    @property
    def count(self) -> int:
        return prod(len(cell.labels) for cell in self.cells)

    @property
    def latent_count(self) -> int:
        return prod(len(cell.labels) for cell in self.cells[self.latent_from :])


class Enumeration:
    """Enumerates the answers of a problem's examples.

    Args:
        problem: the batch.
        variables: its discrete variables, latents last.
        structure: the model's; its free dims have a size that is part of the answer.
        limit: the largest number of answers of an example; more are refused before anything is allocated.
    """

    def __init__(
        self,
        problem: Problem,
        variables: Sequence[Variable],
        structure: Structure,
        limit: int,
    ) -> None:
        self.problem, self.variables, self.structure, self.limit = problem, variables, structure, limit
        self.free = structure.free
        self.ends = problem.ends()
        tables = all(View.TABLE in term.views for term in problem.terms)
        self.chunk = TABLE_CHUNK if tables else NETWORK_CHUNK

    def examples(self) -> list[Enumerated]:
        """The answers of every example; examples of one kind share theirs.  Cost: one score for each answer of a kind.

        Without inputs, what scores depend on are the cells alone: `-log p(y)` of a whole batch takes one enumeration.
        """
        found: dict[object, Enumerated] = {}
        for number, kind in enumerate(kinds := self._kinds()):
            if kind not in found:
                found[kind] = self.example(number)
        return [found[kind] for kind in kinds]

    def _kinds(self) -> list[object]:
        """For each example what it shares with those that have the same answers and scores."""
        batch = self.problem.env.batch
        if batch.tensors or not batch.size:
            return list(range(batch.size))
        parts = [*batch.masks.values(), *batch.seen.values(), *self.problem.evidence.allowed.values()]
        for along in batch.along.values():
            parts += [part for part in (along.count, along.order) if part is not None]
        parts += [nested.count for nested in batch.nested.values() if nested.count is not None]
        rows = [part.reshape(batch.size, -1).tolist() for part in parts]
        return [tuple(tuple(part[number]) for part in rows) for number in range(batch.size)]

    def example(self, number: int) -> Enumerated:
        """All answers of one example.  Cost: one score for each."""
        batch = self.problem.env.batch.example(number)
        groups = self._groups(batch, number, narrowed=True)
        if not groups:  # evidence rules everything out: the answers are still answers, with the score -inf
            groups = self._groups(batch, number, narrowed=False)
        self._check(groups)
        parts = [self._group(group, number) for group in groups]
        outputs, first = [], []
        answers_before, outputs_before = 0, 0
        for part in parts:
            outputs.append(part.outputs + outputs_before)
            first.append(part.first + answers_before)
            answers_before, outputs_before = answers_before + part.score.numel(), outputs_before + part.first.numel()
        labels = {v.name: torch.cat([part.labels[v.name] for part in parts]) for v in self.variables}
        score = torch.cat([part.score for part in parts])
        sizes = [one for part in parts for one in part.groups]
        return Enumerated(labels, score, torch.cat(outputs), torch.cat(first), sizes)

    def scores(self, number: int, labels: dict[str, Tensor]) -> Tensor:
        """[N]: the scores of given answers [N, *dims] of one example; -inf for those that evidence rules out."""
        count = next(iter(labels.values())).shape[0]
        return self._clamped(number, labels, self._score(self.problem.env.batch.example(number), labels, count))

    # ----------------------------------------------------------------------------------------------------------- cells

    def _groups(self, batch: Batch, number: int, narrowed: bool) -> list[_Group]:
        """One group for each choice of the free lengths; the end label stands last and nowhere else."""
        groups = []
        for lengths in product(*(range(1, batch.along[dim].size + 1) for dim in self.free)):
            chosen = dict(zip(self.free, lengths, strict=True))
            counts = {dim: torch.full((1,), n, dtype=torch.long, device=batch.device) for dim, n in chosen.items()}
            sized = batch.with_lengths(counts) if counts else batch
            group = self._cells(sized, number, chosen, narrowed)
            if all(cell.labels for cell in group.cells):
                groups.append(group)
        return groups

    def _cells(self, batch: Batch, number: int, lengths: Mapping[str, int], narrowed: bool) -> _Group:
        cells: list[_Cell] = []
        latent_from: int | None = None
        for variable in self.variables:
            if variable.kind == "latent" and latent_from is None:
                latent_from = len(cells)
            every = list(range(self.problem.label_count(variable.name)))
            allowed = self.problem.evidence.allowed.get(variable.name) if narrowed else None
            known = None if allowed is None else allowed[number].tolist()
            for position in _positions(batch, variable):
                labels = self._standing(variable, position, every, lengths)
                if known is not None:
                    here = _entry(known, position)
                    labels = [label for label in labels if here[label]]
                cells.append(_Cell(variable.name, position, labels))
        return _Group(batch, cells, len(cells) if latent_from is None else latent_from)

    def _standing(
        self, variable: Variable, position: tuple[int, ...], every: list[int], lengths: Mapping[str, int]
    ) -> list[int]:
        """The labels that may stand at a position: the end label last, all others before it."""
        end = self.ends.get(variable.name)
        if end is None:
            return every
        last = position[0] == lengths[variable.dims[0]] - 1
        return [end] if last else [label for label in every if label != end]

    def _check(self, groups: list[_Group]) -> None:
        total = sum(group.count for group in groups)
        if total > self.limit:
            raise QueryRefused(self._refusal(total))

    def _refusal(self, total: int) -> str:
        digits = log10(total)
        message = errors.diagnostic("E0509", None, count=count_of_answers(digits), limit=self.limit).message
        others = [one.selection.name for one in candidates(self.structure, ()) if one.selection.name != "enumerate"]
        remedies = [f"{join_names(others[:3])} can serve it"] if others else ["make the example smaller"]
        if total <= MOST_ADVISED:
            remedies.insert(0, f"raise it with `enumerate(limit: {total})`")
        return f"{message}; {', or '.join(remedies)}"

    # ---------------------------------------------------------------------------------------------------------- answers

    def _group(self, group: _Group, number: int) -> Enumerated:
        count = group.count
        labels = self._labels(group, count)
        score = self._clamped(number, labels, self._score(group.batch, labels, count))
        latent = max(1, group.latent_count)
        device = group.batch.device
        outputs = torch.arange(count, device=device) // latent
        first = torch.arange(0, count, latent, device=device)
        return Enumerated(labels, score, outputs, first, [(group.batch, count)])

    def _labels(self, group: _Group, count: int) -> dict[str, Tensor]:
        """Every combination, the last cell running fastest."""
        batch = group.batch
        labels: dict[str, Tensor] = {}
        for variable in self.variables:
            sizes = [batch.size_of(dim) for dim in variable.dims]
            labels[variable.name] = torch.full((count, *sizes), ABSENT, dtype=torch.long, device=batch.device)
        block = count
        for cell in group.cells:
            options = torch.tensor(cell.labels, dtype=torch.long, device=batch.device)
            block //= len(cell.labels)
            column = options.repeat_interleave(block).repeat(count // (block * len(cell.labels)))
            place: tuple[slice | int, ...] = (slice(None), *cell.position)
            labels[cell.variable][place] = column
        return labels

    def _score(self, batch: Batch, labels: dict[str, Tensor], count: int) -> Tensor:
        env = self.problem.env
        alone = Environment(env.module, batch, gains=env.gains)
        problem = Problem(self.problem.graph, self.problem.terms, alone, Evidence(), self.problem.answers)
        parts = []
        for start in range(0, count, self.chunk):
            piece = {name: one[start : start + self.chunk] for name, one in labels.items()}
            parts.append(problem.score(piece, min(self.chunk, count - start), wide=True))
        return torch.cat(parts)

    def _clamped(self, number: int, labels: dict[str, Tensor], score: Tensor) -> Tensor:
        """-inf for answers that the evidence rules out."""
        for name, allowed in self.problem.evidence.allowed.items():
            score = score.masked_fill(~consistent(labels[name], allowed[number]), float("-inf"))
        return score


def consistent(labels: Tensor, allowed: Tensor) -> Tensor:
    """[N]: whether answers [N, *dims] keep to the allowed labels, [*dims, labels] for all or [N, *dims, labels]."""
    known = allowed.expand(*labels.shape, allowed.shape[-1]).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    fine = known | (labels < 0)
    return fine.flatten(1).all(1) if fine.dim() > 1 else fine


def _positions(batch: Batch, variable: Variable) -> list[tuple[int, ...]]:
    exists = batch.cells_exist(variable.dims, variable.name)[0]
    if not variable.dims:
        return [()] if bool(exists) else []
    return [tuple(position) for position in exists.nonzero().tolist()]


def _entry(nested: list[object], position: tuple[int, ...]) -> list[bool]:
    here: object = nested
    for place in position:
        here = here[place]  # type: ignore[index]
    return here  # type: ignore[return-value]

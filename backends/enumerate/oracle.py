"""The oracle: every answer of a small example, scored one by one.

It needs only the SCORE view, so it serves tables, constraints, stepwise, masked and black-box scores and all of their sums,
latent variables and free lengths included.  Everything else in the package is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml import errors
from energyml.backend import Backend, Evidence, Problem, QueryRefused, Session
from energyml.bind.batch import Along, Batch
from energyml.bind.tensors import Environment
from energyml.bind.terms import BoundTerm
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result

CHUNK = 1 << 15


@dataclass
class Answers:
    """All answers of one example.

    Attributes:
        labels: by variable: [N, *dims], -1 where there is no cell.
        score: [N].
        outputs: [N] the number of the answer's output part; answers that differ only in latents share it.
    """

    labels: dict[str, Tensor]
    score: Tensor
    outputs: Tensor

    def output_scores(self) -> Tensor:
        """[M]: the log of the summed exp(score) of each output part; the plain scores without latents."""
        count = int(self.outputs.max()) + 1 if self.outputs.numel() else 0
        if count == self.score.numel():
            return self.score
        return _grouped_logsumexp(self.score, self.outputs, count)

    def first_of_each(self) -> Tensor:
        """[M]: for each output part an answer that has it."""
        count = int(self.outputs.max()) + 1 if self.outputs.numel() else 0
        first = torch.zeros(count, dtype=torch.long, device=self.outputs.device)
        first[self.outputs.flip(0)] = torch.arange(self.outputs.numel(), device=self.outputs.device).flip(0)
        return first


def _grouped_logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """logsumexp of each group, safe where a whole group is -inf."""
    peak = values.detach().new_full((count,), float("-inf")).scatter_reduce(0, groups, values.detach(), "amax")
    safe = torch.where(peak.isfinite(), peak, 0)
    total = torch.zeros_like(safe).index_add(0, groups, (values - safe[groups]).exp())
    return torch.where(total > 0, total.clamp(min=torch.finfo(values.dtype).tiny).log() + safe, float("-inf"))


class Oracle(Backend):
    """Enumeration.  Cost: one score for each answer; refuses beyond `limit` answers before it starts."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Remember which variables are summed out and which lengths are free."""
        self.free = structure.free
        self.outputs_first = sorted(graph.discrete, key=lambda v: v.kind == "latent")

    def open(self, problem: Problem) -> Session:
        """Nothing is enumerated before a query asks."""
        return OracleSession(self, problem, int(self.selection["limit"]))


class OracleSession(Session):
    """All answers of each example, enumerated once."""

    def __init__(self, oracle: Oracle, problem: Problem, limit: int) -> None:
        self.oracle, self.problem, self.limit = oracle, problem, limit
        self._answers: list[Answers] | None = None

    def ask(self, query: Query) -> Result:
        """Answer any query of the card."""
        handler = getattr(self, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`enumerate` does not answer `{query.kind}`")
        value = handler(query)
        return Result(value, statistics={"answers": float(sum(a.score.numel() for a in self.answers))})

    # ----------------------------------------------------------------------------------------------------- enumeration

    @property
    def answers(self) -> list[Answers]:
        """The answers of each example."""
        if self._answers is None:
            self._answers = [self._enumerate(b) for b in range(self.problem.env.batch.size)]
        return self._answers

    def _enumerate(self, example: int) -> Answers:
        batch = self.problem.env.batch.example(example)
        if not self.oracle.free:
            return self._one_length(batch, example, None)
        return self._free_lengths(batch, example)

    def _free_lengths(self, batch: Batch, example: int) -> Answers:
        """Answers of every length up to the bound; the end label stands last and nowhere else."""
        dim = self.oracle.free[0]
        bound = batch.along[dim].size
        parts: list[Answers] = []
        for length in range(1, bound + 1):
            count = torch.full((1,), length, dtype=torch.long, device=batch.device)
            sized = Batch(1, batch.tensors, {**batch.along, dim: Along(bound, count)}, batch.exists, batch.present, batch.device, batch.dtype)
            parts.append(self._one_length(sized, example, length))
        offsets = [0]
        for part in parts:
            offsets.append(offsets[-1] + (int(part.outputs.max()) + 1 if part.outputs.numel() else 0))
        return Answers(
            {name: torch.cat([part.labels[name] for part in parts]) for name in parts[0].labels},
            torch.cat([part.score for part in parts]),
            torch.cat([part.outputs + offset for part, offset in zip(parts, offsets, strict=False)]),
        )

    def _one_length(self, batch: Batch, example: int, length: int | None) -> Answers:
        choices, places = self._choices(batch, length)
        count = 1
        for options in choices:
            count *= len(options)
        if count > self.limit:
            raise QueryRefused(
                errors.diagnostic("E0509", None, count=f"{count:.3g}", limit=self.limit).message
                + "; raise it with `enumerate(limit: ...)`, or choose another backend (`energyml explain` lists them)"
            )
        grid = _grid(choices, count, batch.device)
        labels = self._labels(batch, grid, places, count)
        score = self._score(batch, labels, count)
        score = self._clamped(example, labels, score)
        return Answers(labels, score, self._output_numbers(choices, places, count, batch.device))

    def _choices(self, batch: Batch, length: int | None) -> tuple[list[list[int]], list[tuple[str, tuple[int, ...]]]]:
        """For each cell the labels it may take; outputs come first, so that latents vary fastest."""
        choices: list[list[int]] = []
        places: list[tuple[str, tuple[int, ...]]] = []
        for variable in self.oracle.outputs_first:
            every = list(range(self.problem.label_count(variable.name)))
            exists = batch.cells_exist(variable.dims, variable.name)[0] if variable.dims else None
            spots = [()] if exists is None else [tuple(spot) for spot in exists.nonzero().tolist()]
            end = self._end_label(variable.name) if length is not None and variable.dims == self.oracle.free else None
            for spot in spots:
                allowed = every
                if end is not None:
                    allowed = [end] if spot[0] == (length or 0) - 1 else [label for label in every if label != end]
                choices.append(allowed)
                places.append((variable.name, spot))
        return choices, places

    def _end_label(self, variable: str) -> int | None:
        for term in self.problem.terms:
            if variable in term.term.variables and getattr(term, "end", None) is not None:
                end: int = term.end  # type: ignore[attr-defined]
                return end
        return None

    def _labels(
        self, batch: Batch, grid: Tensor, places: list[tuple[str, tuple[int, ...]]], count: int
    ) -> dict[str, Tensor]:
        labels: dict[str, Tensor] = {}
        for variable in self.oracle.outputs_first:
            sizes = [batch.along[d].size if d in batch.along else batch.exists[d].shape[-1] for d in variable.dims]
            labels[variable.name] = torch.full((count, *sizes), ABSENT, dtype=torch.long, device=batch.device)
        for column, (name, spot) in enumerate(places):
            labels[name][(slice(None), *spot)] = grid[:, column]
        return labels

    def _score(self, batch: Batch, labels: dict[str, Tensor], count: int) -> Tensor:
        env = self.problem.env
        alone = Environment(env.module, batch, gains=env.gains)
        problem = Problem(self.problem.graph, self.problem.terms, alone, Evidence())
        parts = []
        for start in range(0, count, CHUNK):
            piece = {name: one[start : start + CHUNK] for name, one in labels.items()}
            parts.append(problem.score(piece, min(CHUNK, count - start)))
        return torch.cat(parts)

    def _clamped(self, example: int, labels: dict[str, Tensor], score: Tensor) -> Tensor:
        """-inf for answers that the evidence rules out."""
        for name, allowed in self.problem.evidence.allowed.items():
            here = allowed[example]
            chosen = labels[name]
            fine = here.expand(chosen.shape[0], *here.shape).gather(-1, chosen.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            ruled_out = ~(fine | (chosen < 0))
            score = score.masked_fill(ruled_out.flatten(1).any(1) if ruled_out.dim() > 1 else ruled_out, float("-inf"))
        return score

    def _output_numbers(
        self, choices: list[list[int]], places: list[tuple[str, tuple[int, ...]]], count: int, device: torch.device
    ) -> Tensor:
        kinds = {v.name: v.kind for v in self.oracle.outputs_first}
        latent = 1
        for options, (name, _) in zip(choices, places, strict=True):
            latent *= len(options) if kinds[name] == "latent" else 1
        return torch.arange(count, device=device) // latent

    # --------------------------------------------------------------------------------------------------------- queries

    def _log_partition(self, query: Query) -> Tensor:
        return torch.stack([_safe_logsumexp(a.score) for a in self.answers])

    def _probabilities(self) -> list[Tensor]:
        """p(answer) of each example, all zero where every answer is forbidden."""
        return [_safe_softmax(a.score) for a in self.answers]

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for variable in self.oracle.outputs_first:
            count = self.problem.label_count(variable.name)
            rows = []
            for answers, p in zip(self.answers, self._probabilities(), strict=True):
                labels = answers.labels[variable.name]
                hot = torch.nn.functional.one_hot(labels.clamp(min=0), count).to(p.dtype) * (labels >= 0).unsqueeze(-1)
                rows.append(torch.tensordot(p, hot, 1))
            found[variable.name] = torch.stack(rows)
        return found

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each term with a table; zero where an element of the index set does not exist."""
        batch = self.problem.env.batch
        found: dict[str, Tensor] = {}
        for term in self.problem.terms:
            if not hasattr(term, "cells") or (query.target is not None and term.term.name != query.target):
                continue
            rows = [self._one_factor_marginal(term, batch.example(b), b, p) for b, p in enumerate(self._probabilities())]
            found[term.term.name] = torch.cat(rows)
        return found

    def _one_factor_marginal(self, term: BoundTerm, batch: Batch, example: int, p: Tensor) -> Tensor:
        sizes = [self.problem.label_count(ref.variable) for ref in term.term.scope]
        joint: Tensor | None = None
        for number, ref in enumerate(term.term.scope):
            places = term.cells(batch, number)  # type: ignore[attr-defined]
            labels = self.answers[example].labels[ref.variable].movedim(0, -1)
            here = labels[tuple(place[0] for place in places)].clamp(min=0) if places else labels
            joint = here if joint is None else joint * sizes[number] + here
        assert joint is not None
        total = 1
        for size in sizes:
            total *= size
        value = torch.zeros(*joint.shape[:-1], total, dtype=p.dtype, device=p.device)
        value = value.scatter_add(-1, joint, p.expand(joint.shape))
        valid = term.valid(batch)  # type: ignore[attr-defined]
        value = value.unflatten(-1, sizes).unsqueeze(0)
        if valid is not None:
            value = value * valid.reshape(*valid.shape, *([1] * len(sizes)))
        return value

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for variable in self.oracle.outputs_first:
            count = self.problem.label_count(variable.name)
            rows = []
            for answers in self.answers:
                labels = answers.labels[variable.name]
                hot = torch.nn.functional.one_hot(labels.clamp(min=0), count).bool() & (labels >= 0).unsqueeze(-1)
                shape = (-1, *([1] * (hot.dim() - 1)))
                rows.append(torch.where(hot, answers.score.reshape(shape), float("-inf")).amax(0))
            found[variable.name] = torch.stack(rows)
        return found

    def _map(self, query: Query) -> Assignment:
        best = self._n_best(Query("n_best", count=1))
        return Assignment({name: labels[:, 0] for name, labels in best.labels.items()}, best.score[:, 0], best.names)

    def _n_best(self, query: Query) -> Assignment:
        """The best output parts; latents are summed out, so their labels are left out."""
        scores, rows = [], []
        for answers in self.answers:
            total = answers.output_scores()
            k = min(query.count, total.numel())
            top = total.topk(k)
            padded = torch.nn.functional.pad(top.values, (0, query.count - k), value=float("-inf"))
            chosen = answers.first_of_each()[top.indices]
            scores.append(padded)
            rows.append(torch.where(top.values.isfinite(), chosen, -1))
        labels = self._pick(rows, query.count)
        return Assignment(labels, torch.stack(scores), self.problem.label_names())

    def _pick(self, rows: list[Tensor], count: int) -> dict[str, Tensor]:
        """[B, count, *dims] labels of chosen answers, -1 where there are fewer."""
        found: dict[str, Tensor] = {}
        for variable in self.oracle.outputs_first:
            if variable.kind == "latent":
                continue
            picked = []
            for answers, row in zip(self.answers, rows, strict=True):
                labels = answers.labels[variable.name][row.clamp(min=0)]
                labels = labels.masked_fill((row < 0).reshape(-1, *([1] * (labels.dim() - 1))), ABSENT)
                missing = labels.new_full((count - labels.shape[0], *labels.shape[1:]), ABSENT)
                picked.append(torch.cat([labels, missing]))
            found[variable.name] = torch.stack(picked)
        return found

    def _sample(self, query: Query) -> Assignment:
        rows = []
        for p in self._probabilities():
            weights = p.detach().to(torch.float64)
            if float(weights.sum()) == 0:
                raise QueryRefused("no answer has positive probability, so there is nothing to draw")
            rows.append(torch.multinomial(weights, query.count, replacement=True, generator=query.generator))
        labels = {name: one.movedim(0, 1) for name, one in self._pick(rows, query.count).items()}
        score = torch.stack([a.score[row] for a, row in zip(self.answers, rows, strict=True)], 1)
        return Assignment(labels, score, self.problem.label_names())

    def _entropy(self, query: Query) -> Tensor:
        """The entropy of the outputs, latents summed out."""
        rows = []
        for answers in self.answers:
            total = answers.output_scores()
            p = _safe_softmax(total)
            log_p = torch.where(p > 0, total - _safe_logsumexp(total), 0)
            rows.append(-(p * torch.where(p > 0, log_p, 0)).sum())
        return torch.stack(rows)

    def _log_prob(self, query: Query) -> Tensor:
        counts = {v.name: self.problem.label_count(v.name) for v in self.oracle.outputs_first}
        known = self.problem.evidence.both(Evidence.from_labels(query.answer, counts))
        clamped = Problem(self.problem.graph, self.problem.terms, self.problem.env, known)
        numerator = OracleSession(self.oracle, clamped, self.limit)._log_partition(query)
        return numerator - self._log_partition(query)

    def _max_with_cost(self, query: Query) -> Assignment:
        rows, scores = [], []
        for example, answers in enumerate(self.answers):
            total = answers.score
            for name, cost in query.cost.items():
                labels = answers.labels[name]
                here = cost[example].expand(labels.shape[0], *cost[example].shape)
                added = here.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (labels >= 0)
                total = total + (added.flatten(1).sum(1) if added.dim() > 1 else added)
            best = total.argmax()
            rows.append(best.unsqueeze(0))
            scores.append(total[best])
        labels = {name: one[:, 0] for name, one in self._pick(rows, 1).items()}
        return Assignment(labels, torch.stack(scores), self.problem.label_names())

    def _conditionals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels]: log p(cell | all other cells of the given answer)."""
        answer: dict[str, Tensor] = query.answer
        found: dict[str, Tensor] = {}
        batch = self.problem.env.batch
        for variable in self.oracle.outputs_first:
            count = self.problem.label_count(variable.name)
            given = answer[variable.name]
            flat = given.reshape(batch.size, -1)
            columns = []
            for cell in range(flat.shape[1]):
                trials = flat.repeat_interleave(count, 0)
                trials[:, cell] = torch.arange(count, device=flat.device).repeat(batch.size)
                full = {name: one.repeat_interleave(count, 0) for name, one in answer.items()}
                full[variable.name] = trials.reshape(-1, *given.shape[1:])
                scores = self.problem.score(full, count).unflatten(0, (batch.size, count))
                columns.append(torch.log_softmax(scores, -1))
            found[variable.name] = torch.stack(columns, 1).reshape(*given.shape, count)
        return found


def _grid(choices: list[list[int]], count: int, device: torch.device) -> Tensor:
    """[N, cells]: every combination, the last cell running fastest."""
    columns = []
    repeat, tile = count, 1
    for options in choices:
        repeat //= len(options)
        column = torch.tensor(options, dtype=torch.long, device=device).repeat_interleave(repeat).repeat(tile)
        tile *= len(options)
        columns.append(column)
    return torch.stack(columns, 1) if columns else torch.zeros(count, 0, dtype=torch.long, device=device)


def _safe_logsumexp(scores: Tensor) -> Tensor:
    """logsumexp that is -inf, with zero gradients, when every score is."""
    peak = scores.detach().amax() if scores.numel() else scores.new_full((), float("-inf"))
    if not bool(peak.isfinite()):
        return scores.new_full((), float("-inf"))
    return torch.logsumexp(torch.where(scores.isinf(), torch.finfo(scores.dtype).min, scores), 0)


def _safe_softmax(scores: Tensor) -> Tensor:
    """softmax that is zero everywhere when every score is -inf."""
    feasible = scores.detach() > float("-inf")
    finite = torch.where(feasible, scores, torch.finfo(scores.dtype).min)
    return torch.where(feasible, torch.softmax(finite, 0), 0)

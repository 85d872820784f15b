"""The oracle: every answer of a small example, scored one by one.

It needs only the SCORE view, so it serves tables, constraints, stepwise, masked and black-box scores and all of their
sums, latent variables and free lengths included.  Everything else in the package is tested against it.

Latents are summed out: the best answers, the entropy and the scores of answers are those of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.backend import Backend, Session
from energyml.backends.enumerate.enumeration import Enumerated, Enumeration, consistent
from energyml.bind.batch import Batch
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import TableView
from energyml.diagnostics import QueryRefused
from energyml.grounded.logspace import difference, entropy_terms, logsumexp, softmax
from energyml.inference.costs import cost_of
from energyml.inference.expectations import comparable, divergence, expected, factored_expectation
from energyml.inference.precision import compensated, rounded
from energyml.ir.graph import Graph
from energyml.model.declared import Variable
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result


class Oracle(Backend):
    """Enumeration.  Cost: one score for each answer; refuses beyond `limit` answers before it starts."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Remember which variables are summed out and which lengths are free."""
        self.structure = structure
        self.variables = sorted(graph.discrete, key=lambda v: v.kind == "latent")

    def open(self, problem: Problem) -> Session:
        """Nothing is enumerated before a query asks."""
        return OracleSession(problem, self.variables, self.structure, int(self.selection["limit"]))


class OracleSession(Session):
    """All answers of each example, enumerated once."""

    def __init__(self, problem: Problem, variables: Sequence[Variable], structure: Structure, limit: int) -> None:
        self.problem, self.variables, self.structure, self.free = problem, variables, structure, structure.free
        self.outputs = [v for v in variables if v.kind != "latent"]
        self.enumeration = Enumeration(problem, variables, structure, limit)
        self._answers: dict[bool, list[Enumerated]] = {}

    def ask(self, query: Query) -> Result:
        """Answer any query of the card."""
        handler = getattr(self, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`enumerate` does not answer `{query.kind}`")
        value = handler(query)
        if not query.wide:
            value = rounded(value, self.problem.env.batch.dtype)
        return Result(value, statistics={"answers": float(sum(a.score.numel() for a in self.answers))})

    @property
    def answers(self) -> list[Enumerated]:
        """The answers of each example; those that were scored without gradients serve only where none are wanted."""
        tracked = torch.is_grad_enabled()
        found = self._answers.get(True) or (None if tracked else self._answers.get(False))
        if found is None:
            found = self._answers[tracked] = self.enumeration.examples()
        return found

    def _stacked(self, rows: list[Tensor], *shape: int) -> Tensor:
        """Rows of all examples; of that shape when there is no example."""
        batch = self.problem.env.batch
        return torch.stack(rows) if rows else torch.zeros(0, *shape, device=batch.device, dtype=batch.dtype)

    def _shape(self, variable: Variable) -> list[int]:
        return [self.problem.env.batch.size_of(dim) for dim in variable.dims]

    # --------------------------------------------------------------------------------------------------- probabilities

    def _log_partition(self, query: Query) -> Tensor:
        return self._stacked([logsumexp(a.score, 0) for a in self.answers])

    def _log_prob(self, query: Query) -> Tensor:
        """The log of the share of the answers that agree with a full or partial one."""
        known = self.problem.known(query.answer)
        totals: dict[int, Tensor] = {}  # examples of one kind have one log Z
        rows = []
        for example, answers in enumerate(self.answers):
            fine = torch.ones_like(answers.score, dtype=torch.bool)
            for name, allowed in known.allowed.items():
                fine = fine & consistent(answers.labels[name], allowed[example])
            if query.cost:
                score = answers.score + self._costs(example, query.cost)
                total = logsumexp(score, 0)
            else:
                score = answers.score
                if id(answers) not in totals:
                    totals[id(answers)] = logsumexp(score, 0)
                total = totals[id(answers)]
            # Few answers agree with a full one: the sum is over these alone.
            picked = score[fine] if bool(fine.any()) else score.new_full((1,), float("-inf"))
            rows.append(difference(logsumexp(picked, 0), total))
        return self._stacked(rows)

    _log_prob_with_cost = _log_prob

    def _costs(self, example: int, costs: Mapping[str, Tensor]) -> Tensor:
        """[N]: what each answer of an example costs."""
        return cost_of(self.answers[example].labels, {name: cost[example] for name, cost in costs.items()})

    def _entropy(self, query: Query) -> Tensor:
        return self._stacked([entropy_terms(softmax(a.output_scores(), 0)).sum() for a in self.answers])

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for variable in self.variables:
            count = self.problem.label_count(variable.name)
            rows = []
            for answers in self.answers:
                p = softmax(answers.score, 0)
                labels = answers.labels[variable.name]
                hot = F.one_hot(labels.clamp(min=0), count).to(p.dtype) * (labels >= 0).unsqueeze(-1)
                rows.append(torch.tensordot(p, hot, 1))
            found[variable.name] = self._stacked(rows, *self._shape(variable), count)
        return found

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each term with a table; zero where an element of the index set does not exist."""
        found: dict[str, Tensor] = {}
        for term in self.problem.tables():
            if query.target in (None, term.term.name):
                found[term.term.name] = self._one_term(term)
        return found

    def _one_term(self, term: TableView) -> Tensor:
        sizes = [self.problem.label_count(ref.variable) for ref in term.term.scope]
        shape = (*term.domain_sizes(self.problem.env.batch), *sizes)
        rows = []
        for answers in self.answers:
            p = softmax(answers.score, 0)
            total = torch.zeros(shape, dtype=p.dtype, device=p.device)
            start = 0
            for batch, count in answers.groups:
                part = slice(start, start + count)
                total = total + _joint(
                    term, batch, {name: one[part] for name, one in answers.labels.items()}, p[part], sizes
                )
                start += count
            rows.append(total)
        return self._stacked(rows, *shape)

    def _expectation(self, query: Query) -> Tensor:
        factors = self._factor_marginals(Query("factor_marginals"))
        return factored_expectation(query.values, self._marginals(Query("marginals")), factors)

    def _cross_entropy(self, query: Query) -> Tensor:
        """-E[log q] over all answers of this model."""
        if self.free:
            raise QueryRefused("two models are compared cell by cell, and here the length is part of the answer")
        comparable(self.problem, query.other)
        second = Enumeration(query.other.problem, self.variables, self.structure, self.enumeration.limit)
        log_z = query.other.unrounded("log_partition")
        rows = []
        for example, answers in enumerate(self.answers):
            theirs = difference(second.scores(example, answers.labels), log_z[example])
            rows.append(-expected(softmax(answers.score, 0).unsqueeze(0), theirs.unsqueeze(0)).squeeze(0) + 0.0)
        return self._stacked(rows)

    def _kl(self, query: Query) -> Tensor:
        return divergence(self._cross_entropy(query), self._entropy(query))

    # --------------------------------------------------------------------------------------------------- best answers

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels] for outputs: the best score with a cell fixed, latents summed out."""
        found: dict[str, Tensor] = {}
        for variable in self.outputs:
            count = self.problem.label_count(variable.name)
            rows = []
            for answers in self.answers:
                labels = answers.labels[variable.name][answers.first]
                hot = F.one_hot(labels.clamp(min=0), count).bool() & (labels >= 0).unsqueeze(-1)
                scores = answers.output_scores().reshape(-1, *([1] * (hot.dim() - 1)))
                rows.append(torch.where(hot, scores, float("-inf")).amax(0))
            found[variable.name] = self._stacked(rows, *self._shape(variable), count)
        return found

    def _map(self, query: Query) -> Assignment:
        return self._first(self._best([a.output_scores() for a in self.answers], 1))

    def _n_best(self, query: Query) -> Assignment:
        return self._best([a.output_scores() for a in self.answers], query.count)

    def _max_with_cost(self, query: Query) -> Assignment:
        """The best of score plus cost; the score includes the cost."""
        latent = {v.name for v in self.variables} - {v.name for v in self.outputs}
        for name in query.cost:
            if name in latent:
                raise QueryRefused(f"`{name}` is summed out, so that a cost cannot be about it")
        totals = []
        for example, answers in enumerate(self.answers):
            total = answers.output_scores()
            totals.append(total + self._costs(example, query.cost)[answers.first] if query.cost else total)
        return self._first(self._best(totals, 1))

    def _first(self, best: Assignment) -> Assignment:
        return Assignment({name: one[:, 0] for name, one in best.labels.items()}, best.score[:, 0], best.names)

    def _best(self, totals: list[Tensor], count: int) -> Assignment:
        """The best output parts by their totals [M]."""
        scores, rows = [], []
        for answers, total in zip(self.answers, totals, strict=True):
            k = min(count, total.numel())
            top = total.topk(k)
            chosen = torch.where(top.values.isneginf(), ABSENT, answers.first[top.indices])
            scores.append(F.pad(top.values, (0, count - k), value=float("-inf")))
            rows.append(F.pad(chosen, (0, count - k), value=ABSENT))
        return Assignment(self._pick(rows, count), self._stacked(scores, count), self.problem.label_names())

    def _pick(self, rows: list[Tensor], count: int) -> dict[str, Tensor]:
        """[B, count, *dims]: the output labels of chosen answers [count], -1 where there are fewer."""
        found: dict[str, Tensor] = {}
        for variable in self.outputs:
            picked = []
            for answers, row in zip(self.answers, rows, strict=True):
                labels = answers.labels[variable.name][row.clamp(min=0)]
                picked.append(labels.masked_fill((row < 0).reshape(-1, *([1] * (labels.dim() - 1))), ABSENT))
            found[variable.name] = self._stacked(picked, count, *self._shape(variable)).long()
        return found

    # ----------------------------------------------------------------------------------------------------------- draws

    def _sample(self, query: Query) -> Assignment:
        """Draws; -1 and -inf where no answer has positive probability."""
        rows, scores = [], []
        for answers in self.answers:
            total = answers.output_scores()
            p = softmax(total.detach().to(torch.float64), 0)
            possible = p.sum() > 0
            drawn = torch.multinomial(
                torch.where(possible, p, 1), query.count, replacement=True, generator=query.generator
            )
            rows.append(torch.where(possible, answers.first[drawn], ABSENT))
            scores.append(total[drawn])
        labels = {name: one.movedim(0, 1) for name, one in self._pick(rows, query.count).items()}
        return Assignment(labels, self._stacked(scores, query.count).movedim(0, 1), self.problem.label_names())

    def _conditionals(self, query: Query) -> dict[str, Tensor]:
        """[B, *dims, labels]: log p(cell | all other cells of the given answer); -inf where there is no cell."""
        answer = self._full_answer(query)
        found: dict[str, Tensor] = {}
        for variable in self.variables:
            count, given = self.problem.label_count(variable.name), answer[variable.name]
            cells = range(_cells_of(given).shape[1])
            columns = [self._one_cell(answer, variable, count, cell) for cell in cells]
            shape = (*given.shape, count)
            scores = torch.stack(columns, 1).reshape(shape) if columns else self._stacked([], count).reshape(shape)
            scores = scores.masked_fill((given < 0).unsqueeze(-1), float("-inf"))
            found[variable.name] = difference(scores, logsumexp(scores, -1).unsqueeze(-1))
        return found

    def _one_cell(self, answer: dict[str, Tensor], variable: Variable, count: int, cell: int) -> Tensor:
        """[B, labels]: the scores of the answer with one cell set to each label, less the best of them.

        Scores are compared factor by factor: what is far from the cell cancels, however large it is.
        """
        size = self.problem.env.batch.size
        full = {name: one.repeat_interleave(count, 0) for name, one in answer.items()}
        trials = _cells_of(full[variable.name]).clone()
        every = torch.arange(count, device=trials.device).repeat(size)
        trials[:, cell] = torch.where(trials[:, cell] >= 0, every, ABSENT)
        full[variable.name] = trials.reshape(full[variable.name].shape)
        parts = self.problem.parts_of_score(full, count)
        gone = parts.isneginf().any(1)
        for name, allowed in self.problem.evidence.allowed.items():
            broken = ~consistent(full[name], allowed.repeat_interleave(count, 0))
            gone = gone | broken.unflatten(0, (size, count))
        parts = parts.masked_fill(parts.isneginf(), 0)
        total = parts.detach().sum(1).masked_fill(gone, float("-inf"))
        base = parts.gather(2, total.argmax(1).reshape(-1, 1, 1).expand(-1, parts.shape[1], 1))
        level = compensated(torch.cat([parts, -base.expand_as(parts)], 1).movedim(1, -1))
        return level.masked_fill(gone, float("-inf"))

    def _full_answer(self, query: Query) -> dict[str, Tensor]:
        if self.free:
            raise QueryRefused("`conditionals` need a fixed length, and here it is part of the answer")
        answer: dict[str, Tensor] = query.answer or {}
        missing = [v.name for v in self.variables if v.name not in answer]
        if missing:
            raise QueryRefused(f"`conditionals` need an answer for every variable; `{missing[0]}` is missing")
        return answer


def _cells_of(labels: Tensor) -> Tensor:
    """[B, cells] of labels [B, *dims]."""
    return labels.flatten(1) if labels.dim() > 1 else labels.unsqueeze(1)


def _joint(term: TableView, batch: Batch, labels: dict[str, Tensor], p: Tensor, sizes: list[int]) -> Tensor:
    """[*domain, *labels]: the probability of each joint label of each factor, from answers [N] of one length."""
    joint: Tensor | None = None
    for number, ref in enumerate(term.term.scope):
        here = term.at_cells(batch, number, labels[ref.variable].movedim(0, -1).unsqueeze(0)).clamp(min=0)
        joint = here if joint is None else joint * sizes[number] + here
    assert joint is not None
    shape = (1, *term.domain_sizes(batch), p.numel())
    valid = term.valid(batch)
    weights = (p if valid is None else torch.where(valid.unsqueeze(-1), p, 0)).expand(shape)
    value = torch.zeros(*shape[:-1], prod(sizes), dtype=p.dtype, device=p.device)
    found: Tensor = value.scatter_add(-1, joint.expand(shape), weights).squeeze(0).unflatten(-1, sizes)
    return found

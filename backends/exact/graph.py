"""Any factor graph of bounded width, exactly: order-k chains, trees, grids, run-time graphs, latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from energyml.backend import Session
from energyml.backends.exact.elimination import BatchElimination, leaf, runs_natively, savable, slopes, tracked
from energyml.backends.exact.ground import Elimination, Ground
from energyml.backends.exact.plans import Tables
from energyml.bind.batch import Batch, wide
from energyml.bind.problem import Evidence, Problem
from energyml.bind.views import TableView
from energyml.caching import ValueCache
from energyml.diagnostics import QueryRefused
from energyml.execution import gradients, graph_break, is_functional, unwrapped
from energyml.grounded.grounding import Sources, masked_table, spread_cells
from energyml.grounded.logspace import difference
from energyml.inference.costs import cost_of
from energyml.inference.expectations import (
    comparable,
    cross_entropy,
    divergence,
    expected,
    factored_expectation,
    log_z_of,
    tables_of,
)
from energyml.inference.precision import accumulated, cancels, large, rounded, widened
from energyml.ir.graph import Graph
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result

# What the compiler says where it is told to make one graph.
OUTSIDE = (
    "which cells these factors touch is known at run time only (edges that a call gives, masks with gaps, a last cell "
    "where lengths differ), so that `exact` plans and runs this elimination outside of the graph: compile without "
    "fullgraph=True, or give what holds for all calls to the model, as in `model.fix(edges=...)`"
)


class GraphSession(Session):
    """One batch of factor graphs.

    Args:
        problem: the batch.
        ground: what was found about it.
        dtype: a type to compute in, whatever the scores are in.
    """

    def __init__(self, problem: Problem, ground: Ground, dtype: torch.dtype | None = None) -> None:
        # All else is read from these: many sessions answer one question.
        self.problem, self._dtype = problem, dtype
        self.ground: Ground = ground
        self._once = ValueCache().once

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.problem.graph

    @property
    def batch(self) -> Batch:
        """The examples."""
        return self.problem.env.batch

    @property
    def dtype(self) -> torch.dtype:
        """The type that everything is computed in; answers are rounded to that of the batch where it is coarser."""
        return self._dtype or accumulated(self.batch.dtype)

    @property
    def sources(self) -> Sources:
        """The tables of the batch."""
        return self.ground.sources

    @property
    def terms(self) -> list[TableView]:
        """The terms, each of which has a table."""
        return self.ground.terms

    @property
    def kernels(self) -> bool:
        """Whether native kernels may be used."""
        return self.ground.kernels

    @property
    def latent(self) -> list[str]:
        """The variables that are summed out."""
        return self.ground.latent

    @property
    def variables(self) -> list[str]:
        """All variables with labels."""
        return self.ground.sources.variables

    @property
    def outputs(self) -> list[str]:
        """The variables that answers are about."""
        return [name for name in self.variables if name not in self.latent]

    def ask(self, query: Query) -> Result:
        """Answer any query of the card; where the structure is a constant of compiled code, that holds all of this."""
        if not self.sources.traced:
            return self._look_and_answer(query)
        return self._answer(query) if query.generator is None else self._draw_and_answer(query)

    @graph_break(OUTSIDE)
    def _look_and_answer(self, query: Query) -> Result:
        return self._answer(query)

    @graph_break("compiled code has no generator of its own: `exact` draws outside of the graph where one is given")
    def _draw_and_answer(self, query: Query) -> Result:
        return self._answer(query)

    def _answer(self, query: Query) -> Result:
        session = self.in_double() if cancels(query) or self._rounds(query) else self
        handler = getattr(session, f"_{query.kind}", None)
        if handler is None:
            raise QueryRefused(f"`exact` does not answer `{query.kind}`")
        value, dtype = handler(query), self.batch.dtype
        return Result(rounded(value, dtype) if session.dtype is not dtype and not query.wide else value)

    def _rounds(self, query: Query) -> bool:
        """Whether sums of large scores would lose digits; kernels that eliminate cells add up in double precision."""
        if query.wide or (query.cost and large(*query.cost.values())):
            return True
        direct = self.kernels and runs_natively(()) and self.batch.device.type == "cpu"
        if direct and (query.kind == "log_partition" or not torch.is_grad_enabled()):
            return False
        tables = [table for table in self.tables() if table is not None]
        return (not direct or tracked(tables)) and large(*tables)

    def in_double(self) -> GraphSession:
        """The session of the same batch in double precision; itself where it computes in that."""
        dtype = wide(self.batch.device)
        if self.dtype is dtype:
            return self
        found: GraphSession = self._once("in double", lambda: self._of_type(dtype))
        return found

    def _of_type(self, dtype: torch.dtype) -> GraphSession:
        return GraphSession(self.problem, self.ground, dtype)

    # ------------------------------------------------------------------------------------------------------- the batch

    def tables(self) -> list[Tensor | None]:
        """The terms' tables."""
        found: list[Tensor] = self._once("tables", lambda: [self.table_of(term) for term in self.terms])
        return list(found)

    def table_of(self, term: TableView) -> Tensor:
        """A term's table, with zeros for elements that a structure of padded sizes has too many."""
        table = term.table(self.problem.env)
        table = widened(table) if self._dtype is None else table.to(self._dtype)
        return masked_table(term, self.batch, table) if self.sources.fixed else table

    def cell_tables(
        self, evidence: Evidence, needed: bool = False, cost: Mapping[str, Tensor] | None = None
    ) -> list[Tensor | None]:
        """For each variable [B, *dims, labels]: costs, and -inf where evidence rules a label out.

        `None` where all would be 0, or where programs know all that evidence says, unless tables are needed.
        """
        found = [self._cell_table(v.name, v.dims, evidence, needed=needed) for v in self.graph.discrete]
        for number, variable in enumerate(self.graph.discrete):
            added, table = (cost or {}).get(variable.name), found[number]
            if added is not None and table is not None:
                exists = self.batch.cells(variable.name, variable.dims)
                found[number] = table + (added if exists is None else torch.where(exists.unsqueeze(-1), added, 0))
        return found

    def _cell_table(
        self, name: str, dims: tuple[str, ...], evidence: Evidence, *, needed: bool = False, whole: bool = True
    ) -> Tensor | None:
        """As `cell_tables`, for one variable; unless `whole`, without what programs know."""
        exists = self.batch.cells(name, dims) if self.sources.fixed else None
        said = name in evidence.allowed and not ((not needed or not whole) and self.ground.observed(evidence).settled)
        if exists is None and not needed and not said:
            return None
        allowed = evidence.allowed[name] if said else None
        shape = (self.batch.size, *self.sources.cells.shapes[name], self.problem.label_count(name))
        table = torch.zeros(shape, device=self.batch.device, dtype=self.dtype)
        if allowed is not None:
            table = table.masked_fill(~allowed, float("-inf"))
        if exists is not None:  # a cell that does not exist has one label, so that it counts for nothing
            only = torch.arange(shape[-1], device=self.batch.device) == 0
            table = torch.where(exists.unsqueeze(-1), table, torch.where(only, 0.0, float("-inf")).to(table.dtype))
        return table

    # --------------------------------------------------------------------------------------------------- probabilities

    @property
    def log_z(self) -> Tensor:
        """[B]: the log-partition of each example."""
        return self._wide_log_z.to(self.dtype)

    @property
    def _wide_log_z(self) -> Tensor:
        """The same in the type that sums are taken in."""
        found: Tensor = self._once("log_z", lambda: self._sum(self.problem.evidence))
        return found

    def _sum(self, evidence: Evidence, cost: Mapping[str, Tensor] | None = None) -> Tensor:
        tables = [*self.tables(), *self.cell_tables(evidence, needed=bool(cost), cost=cost)]
        run = self.ground.run(evidence)
        if not run.parts:
            return self._nothing()
        if all(table is None for table in tables):
            tables = [*self.tables(), *self.cell_tables(evidence, needed=True)]
        return run.log_partition(tables)

    def _nothing(self, *shape: int) -> Tensor:
        """The answer for an empty batch: no numbers, and yet a function of the scores, so that it has gradients."""
        none = torch.zeros(0, *shape, device=self.batch.device, dtype=self.dtype)
        return none + sum(table.sum() for table in self.tables() if table is not None)

    def _unasked(self) -> Tensor:
        """What stands for a gradient that nobody wanted."""
        return torch.zeros(0, device=self.batch.device, dtype=self.dtype)

    def _no_labels(self, *shape: int) -> Tensor:
        return torch.zeros(0, *shape, self.sources.cells.count, device=self.batch.device, dtype=torch.long)

    def _log_partition(self, query: Query) -> Tensor:
        return self.log_z

    def _log_prob(self, query: Query) -> Tensor:
        """The log-partition of the answers that agree with a full or partial one, less that of all."""
        whole = self._whole(query.answer)
        precise = self if whole and self.kernels and runs_natively(self.tables()) else self.in_double()
        return precise._share(query, whole).to(self.dtype)

    def _share(self, query: Query, whole: bool) -> Tensor:
        """The same in the type that sums are taken in; whether an answer is a whole one is known."""
        cost = query.cost or {}
        total = self._sum(self.problem.evidence, cost) if cost else self._wide_log_z
        if whole:
            share = self._score(query.answer, total.dtype)
            share = share + cost_of(query.answer, cost, dtype=total.dtype) if cost else share
        else:
            share = self._sum(self.problem.known(query.answer), cost)
        # Two large numbers may be close to each other: what they differ by is rounded, and not they.
        return difference(share, total)

    def _score(self, answer: Mapping[str, Tensor], dtype: torch.dtype, copies: int = 1) -> Tensor:
        """[B * copies]: the score of full answers, summed up in some type."""
        scores = [term.score(self.problem.env, answer, copies, dtype) for term in self.terms]
        none = torch.zeros(self.batch.size * copies, device=self.batch.device, dtype=dtype)
        return torch.stack(scores).sum(0) if scores else none

    _log_prob_with_cost = _log_prob

    def _whole(self, answer: Mapping[str, Tensor]) -> bool:
        """Whether an answer has a label for every cell and nothing else is known; not everywhere may one look."""
        if self.sources.traced or self.batch.device.type != "cpu":
            return False
        if self.problem.evidence.allowed or set(answer) != set(self.variables):
            return False
        absent = [self.batch.cells(v.name, v.dims) for v in self.graph.discrete]
        if any(one is not None and unwrapped(one) is None for one in (*answer.values(), *absent)):
            return False
        return all(
            bool(((answer[v.name] >= 0) if cells is None else (answer[v.name] >= 0) | ~cells).all())
            for v, cells in zip(self.graph.discrete, absent, strict=True)
        )

    def _marginals(self, query: Query) -> dict[str, Tensor]:
        evidence = self.problem.evidence
        cells = [self._cell_table(v.name, v.dims, evidence, needed=True, whole=False) for v in self.graph.discrete]
        terms: list[Tensor | None] = self.tables()
        found = self.shares([*terms, *cells], [False] * len(terms) + [True] * len(cells))
        return {v.name: self._without_absent(_untaped_shares(one, 1), v.name, v.dims, 0.0)
                for v, one in zip(self.graph.discrete, found[len(terms) :], strict=True)}  # fmt: skip

    def _without_absent(self, value: Tensor, name: str, dims: tuple[str, ...], fill: float) -> Tensor:
        exists = self.batch.cells(name, dims)
        return value if exists is None else value.masked_fill(~exists.unsqueeze(-1), fill)

    def shares(self, tables: Tables, wanted: Sequence[bool]) -> list[Tensor]:
        """Gradients of log Z by the wanted tables; differentiable where the scores are."""
        run = self.ground.run(self.problem.evidence)
        if not run.parts:
            return [self._unasked() if table is None else self._nothing(*table.shape[1:]) for table in tables]
        if is_functional():
            return self._followed_shares(run, tables, wanted)
        if isinstance(run, BatchElimination) and run.direct(tables):
            shares, unasked = run.shares(tables, wanted).gradients, self._unasked()
            return [unasked if one is None else one.to(self.dtype) for one in shares]
        wanted_again = tracked(tables)
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [leaf(table, wanted_again) if one and table is not None else savable(table)
                      for table, one in zip(tables, wanted, strict=True)]  # fmt: skip
            log_z = run.log_partition(leaves)
            total = log_z.masked_fill(log_z.isneginf(), 0).sum()
            chosen = [table for table, one in zip(leaves, wanted, strict=True) if one and table is not None]
            found = iter(slopes(total, chosen, again=wanted_again))
        return [next(found) if one else self._unasked() for one in wanted]

    def _followed_shares(self, run: Elimination, tables: Tables, wanted: Sequence[bool]) -> list[Tensor]:
        """The same as functions that transforms see through."""
        chosen = {number: table for number, table in enumerate(tables) if wanted[number] and table is not None}

        def total(*leaves: Tensor) -> Tensor:
            given = dict(zip(chosen, leaves, strict=True))
            log_z = run.log_partition([given.get(number, table) for number, table in enumerate(tables)])
            return log_z.masked_fill(log_z.isneginf(), 0).sum()

        found = dict(zip(chosen, gradients(total, list(chosen.values())), strict=True))
        return [found.get(number, self._unasked()) for number in range(len(tables))]

    def expanded(self) -> list[Tensor]:
        """The terms' tables with all elements of their index sets: [B, *domain, *labels]."""
        found = []
        for term, table in zip(self.terms, self.tables(), strict=True):
            assert table is not None
            domain = term.domain_sizes(self.batch)
            found.append(table.expand(self.batch.size, *domain, *table.shape[1 + len(domain) :]))
        return found

    def _factor_marginals(self, query: Query) -> dict[str, Tensor]:
        """[B, *domain, *labels] for each table; zero where an element of its index set does not exist."""
        names = [term.term.name for term in self.terms]
        wanted = [query.target in (None, name) for name in names]
        cells = self.cell_tables(self.problem.evidence)
        found = self.shares([*self.expanded(), *cells], [*wanted, *([False] * len(cells))])
        shares = {
            name: _untaped_shares(one, len(term.term.scope))
            for name, term, one, asked in zip(names, self.terms, found, wanted, strict=False)
            if asked
        }
        if not self.sources.fixed:
            return shares
        return {
            term.term.name: masked_table(term, self.batch, shares[term.term.name])
            for term in self.terms
            if term.term.name in shares
        }

    def _entropy(self, query: Query) -> Tensor:
        """H of the outputs: of each cell given those eliminated after it; no large scores are subtracted."""
        run = self.ground.run(self.problem.evidence, outputs_last=bool(self.latent))
        if not run.parts:
            return self._nothing()
        tables = [*self.tables(), *self.cell_tables(self.problem.evidence, needed=True)]
        if isinstance(run, BatchElimination) and run.direct(tables):
            shares = run.shares(tables, [False] * len(tables), entropies=True)
            assert shares.entropy is not None
            return torch.where(shares.total.isneginf(), 0, shares.entropy).to(self.dtype)
        precise = self.in_double()  # where kernels do not answer, which add up in that
        return run.entropy_twin(tables) if precise is self else precise._entropy(query).to(self.dtype)

    # ---------------------------------------------------------------------------------------------- other functions

    def _expectation(self, query: Query) -> Tensor:
        factors = self._factor_marginals(Query("factor_marginals"))
        return factored_expectation(query.values, self._marginals(Query("marginals")), factors)

    def _cross_entropy(self, query: Query) -> Tensor:
        """The other model's log Z less its expected score."""
        other = comparable(self.problem, query.other)
        return cross_entropy(log_z_of(query.other), self.expected_score(other), ~self.log_z.isneginf())

    def _kl(self, query: Query) -> Tensor:
        return divergence(self._cross_entropy(query), self._entropy(query))

    def expected_score(self, other: Problem) -> Tensor:
        """[B]: the expected score of another model: its tables are added to the graph, with zeros for numbers."""
        theirs = [(term, other.env.batch) for term in tables_of(other)]
        traced = self.sources.traced
        their = Sources(other.graph, theirs, other.env.batch, traced)
        if traced and not their.fixed:
            return self._look_and_expect(other)
        second = GraphSession(other, self._ground(their, other.evidence), self._dtype)
        by_name = dict(zip(second.variables, second.cell_tables(other.evidence, needed=True), strict=True))
        scores = [*second.expanded(), *(one for name in self.variables if (one := by_name[name]) is not None)]
        sources = Sources(self.graph, [*self.sources.terms, *theirs], self.batch, traced)
        joint = GraphSession(self.problem, self._ground(sources, self.problem.evidence), self._dtype)
        own = [joint.table_of(term) for term in self.terms]
        cells = joint.cell_tables(self.problem.evidence, needed=True)
        zeros = [torch.zeros_like(one) for one in scores[: len(theirs)]]
        found = joint.shares([*own, *zeros, *cells], [False] * len(own) + [True] * len(scores))[len(own) :]
        total = torch.zeros(self.batch.size, device=self.batch.device, dtype=self.dtype)
        arities = [*(len(term.term.scope) for term, _ in theirs), *[1] * (len(scores) - len(theirs))]
        for p, score, arity in zip(found, scores, arities, strict=True):
            total = total + expected(_summing_to_one(p, arity), score)
        return total

    @graph_break(OUTSIDE)
    def _look_and_expect(self, other: Problem) -> Tensor:
        ground = Ground.of(self.problem, self.ground.plans, self.kernels)
        return GraphSession(self.problem, ground, self._dtype).expected_score(other)

    def _ground(self, sources: Sources, evidence: Evidence) -> Ground:
        return Ground(self.ground.plans, sources, evidence, self.ground.kernels)

    # ---------------------------------------------------------------------------------------------------- best answers

    def _map(self, query: Query) -> Assignment:
        return self._best({})

    def _max_with_cost(self, query: Query) -> Assignment:
        """The best of score plus cost; the score includes the cost."""
        for name in query.cost:
            if name not in self.outputs:
                raise QueryRefused(f"`{name}` is summed out, so that a cost cannot be about it")
        return self._best(query.cost)

    def _best(self, cost: dict[str, Tensor]) -> Assignment:
        run, tables = self._maximising(cost)
        if not run.parts:
            return self._assignment(self._no_labels(), self._nothing(), cost)
        with torch.no_grad():
            labels, scores = run.best(tables)
        return self._assignment(labels, scores, cost)

    def _maximising(self, cost: dict[str, Tensor]) -> tuple[Elimination, list[Tensor | None]]:
        run = self.ground.run(self.problem.evidence, outputs_last=bool(self.latent))
        return run, [*self.tables(), *self.cell_tables(self.problem.evidence, needed=True, cost=cost)]

    def _n_best(self, query: Query) -> Assignment:
        run, tables = self._maximising({})
        if not run.parts:
            return self._assignment(self._no_labels(query.count), self._nothing(query.count), {})
        return self._assignment(*run.n_best(tables, query.count), {})

    def _assignment(self, labels: Tensor, scores: Tensor, cost: dict[str, Tensor]) -> Assignment:
        """Answers [B, (k,) cells] by variable, -1 where there is no cell or no answer; scores with gradients."""
        scores = scores.to(self.dtype)
        found = ~scores.isneginf()
        by_name = dict(spread_cells(self.sources.cells, labels.masked_fill(~found.unsqueeze(-1), ABSENT), self.outputs))
        for variable in self.graph.discrete:
            exists = self.batch.cells(variable.name, variable.dims)
            if exists is not None and variable.name in by_name:
                between = [1] * (scores.dim() - 1)
                there = exists.reshape(exists.shape[0], *between, *exists.shape[1:])
                by_name[variable.name] = by_name[variable.name].masked_fill(~there, ABSENT)
        if tracked([*self.tables(), *cost.values()]) or is_functional():
            path = self._answer_scores(by_name, scores.shape, cost).masked_fill(~found, 0)
            # the values stay sorted, the gradients are those of the answers
            scores = scores.detach() + (path - path.detach())
        return Assignment(by_name, scores, self.problem.label_names())

    def _answer_scores(self, labels: dict[str, Tensor], shape: torch.Size, cost: dict[str, Tensor]) -> Tensor:
        """[B, (k)]: the scores of answers; with latents, of the sum over them."""
        count = shape[1] if len(shape) > 1 else 1
        flat = {name: one.unsqueeze(1) if len(shape) == 1 else one for name, one in labels.items()}
        if self.latent:
            each = []
            for number in range(count):
                answer = {name: one[:, number] for name, one in flat.items()}
                each.append(self._sum(self.problem.known(answer)).to(self.dtype))
            total = torch.stack(each, 1)
        else:
            repeated = {name: one.flatten(0, 1) for name, one in flat.items()}
            total = self._score(repeated, self.dtype, count).reshape(-1, count)
        if cost:
            total = total + cost_of(flat, {name: added.unsqueeze(1) for name, added in cost.items()}, 2, self.dtype)
        return total.reshape(shape)

    def _max_marginals(self, query: Query) -> dict[str, Tensor]:
        run, tables = self._maximising({})
        chosen = [(number, v) for number, v in enumerate(self.graph.discrete) if v.name in self.outputs]
        sources = [len(self.terms) + number for number, _ in chosen]
        if not run.parts:
            return {v.name: torch.zeros_like(tables[s]) for s, (_, v) in zip(sources, chosen, strict=True)}  # type: ignore[arg-type]
        if isinstance(run, BatchElimination) and run.direct(tables):
            shares = run.max_shares(tables, [number in sources for number in range(len(tables))])[1]
            found = [shares[source].to(self.dtype) for source in sources]  # type: ignore[union-attr]
        else:
            found = run.max_shares_twin(tables, sources)
        return {
            v.name: self._without_absent(one, v.name, v.dims, float("-inf"))
            for (_, v), one in zip(chosen, found, strict=True)
        }

    # ----------------------------------------------------------------------------------------------------------- draws

    def _sample(self, query: Query) -> Assignment:
        """Exact draws; -1 and -inf where no answer has positive probability."""
        run = self.ground.run(self.problem.evidence)
        tables = [*self.tables(), *self.cell_tables(self.problem.evidence, needed=True)]
        if not run.parts:
            drawn = self._assignment(self._no_labels(query.count), self._nothing(query.count), {})
            return Assignment({n: one.movedim(0, 1) for n, one in drawn.labels.items()}, drawn.score.t(), drawn.names)
        labels, total = run.draws(tables, query.count, query.generator)
        possible = ~total.isneginf()
        marks = torch.where(possible, 0.0, float("-inf")).unsqueeze(1).expand(-1, query.count)
        with torch.no_grad():
            drawn = self._assignment(labels, marks, {})
        scores = self._answer_scores(dict(drawn.labels), drawn.score.shape, {})
        scores = scores.masked_fill(~possible.unsqueeze(1), float("-inf"))
        return Assignment({n: one.movedim(0, 1) for n, one in drawn.labels.items()}, scores.movedim(0, 1), drawn.names)


def _untaped_shares(p: Tensor, arity: int) -> Tensor:
    """Marginals over the last axes that add up to 1 or 0: kernels take them relative to log Z, which is rounded."""
    return p if p.requires_grad or is_functional() else _summing_to_one(p, arity)


def _summing_to_one(p: Tensor, axes: int) -> Tensor:
    """Probabilities over the last axes, divided by their sum: large scores would multiply what log Z was rounded by."""
    total = p.sum(tuple(range(-axes, 0)), keepdim=True)
    return p / torch.where(total > 0.5, total, 1)

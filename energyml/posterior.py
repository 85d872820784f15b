"""The answer of `model.infer`: queries under names that read well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from html import escape
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Problem, QueryRefused, Session
from energyml.plan.planner import Verdict
from energyml.queries import Query
from energyml.result import Assignment, Result


class Posterior:
    """p(y | x) of one batch, as a backend sees it.

    Tensors are computed when they are first asked for.  `ask` returns the whole `Result` with its quality and statistics.
    """

    def __init__(self, session: Session, verdict: Verdict, problem: Problem) -> None:
        self._session, self._verdict, self.problem = session, verdict, problem

    def ask(self, query: Query | str, **arguments: Any) -> Result:
        """Answer a query with its quality, status and statistics."""
        asked = query if isinstance(query, Query) else Query(query, **arguments)
        quality = self._verdict.answers.get(asked.kind)
        if quality is None:
            known = ", ".join(self._verdict.answers)
            raise QueryRefused(f"`{self.backend}` does not answer `{asked.kind}`; it answers {known}")
        result = self._session.ask(asked)
        return Result(result.value, quality, result.status, result.statistics)

    @property
    def backend(self) -> str:
        """The backend that answers."""
        return self._verdict.selection.name

    @cached_property
    def log_partition(self) -> Tensor:
        """[B]: log Z of each example, -inf where every answer is forbidden; differentiable."""
        value: Tensor = self.ask("log_partition").value
        return value

    @cached_property
    def marginals(self) -> Mapping[str, Tensor]:
        """By variable: [B, *dims, labels], the probability of each label at each cell; zero where there is no cell."""
        value: Mapping[str, Tensor] = self.ask("marginals").value
        return value

    @cached_property
    def factor_marginals(self) -> Mapping[str, Tensor]:
        """By term: [B, *domain, *labels], the probability of each joint label of each factor."""
        value: Mapping[str, Tensor] = self.ask("factor_marginals").value
        return value

    @cached_property
    def max_marginals(self) -> Mapping[str, Tensor]:
        """By variable: [B, *dims, labels], the best score with a cell fixed to a label."""
        value: Mapping[str, Tensor] = self.ask("max_marginals").value
        return value

    @cached_property
    def entropy(self) -> Tensor:
        """[B]: the entropy of p(y | x) in nats."""
        value: Tensor = self.ask("entropy").value
        return value

    def map(self) -> Assignment:
        """The best answer: labels [B, *dims] and its score [B]."""
        value: Assignment = self.ask("map").value
        return value

    def n_best(self, count: int) -> Assignment:
        """The best answers, best first: labels [B, count, *dims], scores [B, count]; -1 and -inf when there are fewer."""
        if count < 1:
            raise ValueError(f"n_best needs a count of at least 1, found {count}")
        value: Assignment = self.ask(Query("n_best", count=count)).value
        return value

    def sample(self, count: int = 1, generator: torch.Generator | None = None) -> Assignment:
        """Draws from p(y | x): labels [count, B, *dims], scores [count, B]."""
        if count < 1:
            raise ValueError(f"sample needs a count of at least 1, found {count}")
        value: Assignment = self.ask(Query("sample", count=count, generator=generator)).value
        return value

    def log_prob(self, **answer: Tensor) -> Tensor:
        """[B]: the log-probability of a full answer, or of a partial one with -1 for "any label"."""
        value: Tensor = self.ask(Query("log_prob", answer=answer)).value
        return value

    def max_with_cost(self, **cost: Tensor) -> Assignment:
        """The best of score plus cost; costs are [B, *dims, labels] by variable."""
        value: Assignment = self.ask(Query("max_with_cost", cost=cost)).value
        return value

    def __repr__(self) -> str:
        batch = self.problem.env.batch
        cells = ", ".join(f"{v.name} : {v.type}" for v in self.problem.graph.discrete)
        return f"Posterior({cells}; {batch.size} examples, by {self._verdict.selection})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(query)}</td><td>{escape(quality.value)}</td></tr>"
            for query, quality in self._verdict.answers.items()
        )
        return f"<p><b>{escape(repr(self))}</b></p><table><tr><th>query</th><th>quality</th></tr>{rows}</table>"

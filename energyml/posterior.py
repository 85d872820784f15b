"""The answer of `model.infer`: queries under names that read well."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.bind.inputs import overflow
from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.copied import Call, kept_values
from energyml.diagnostics import EnergyError, QueryRefused, join_names
from energyml.execution import call_or_explain, is_functional, is_host_readable, may_cache
from energyml.plan.planner import Verdict, candidates
from energyml.queries import QUERIES, Quality, Query
from energyml.resolution import RESOLVED, SCORED, leave_type, outside, too_large, unresolved
from energyml.result import Assignment, Result, Status, not_a_number, without_answer

if TYPE_CHECKING:
    from energyml.certificates import Certificate
    from energyml.inference.trace import Trace

_grad_enabled = torch.is_grad_enabled  # by its name: short calls ask often
# Queries without arguments, made once: a posterior is asked for them often.
_PLAIN = {kind: Query(kind) for kind in QUERIES}
# Queries about a second posterior, whose log Z they take.
COMPARING = frozenset({"cross_entropy", "kl"})
# Answers of these qualities prove that nothing is possible where they say so.
PROOFS = frozenset({Quality.EXACT, Quality.UPPER})


class Posterior:
    """p(y | x) of one batch, as a backend sees it.

    Tensors are computed when they are first asked for, and kept.  Latents are summed out: answers and their scores are
    those of the outputs.  `ask` returns the whole `Result` with its quality and statistics.

    A posterior is about the weights and inputs at the time of `infer`.  After they have changed it still gives the
    tensors that it has kept; whatever it would have to compute raises `PosteriorOutdated`.

    Attributes:
        problem: the batch: terms, tensors, evidence.
    """

    def __init__(self, session: Session, verdict: Verdict, problem: Problem, backend: Backend | None = None) -> None:
        self._session, self._verdict, self.problem, self._backend = session, verdict, problem, backend
        self._values: dict[tuple[str, bool], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of its own model, inputs and answers, for pickles, `copy.deepcopy` and other processes.

        It is about the weights and inputs of now, and gives gradients for its own; what inputs were computed by is left
        behind.  Raises `PosteriorOutdated` where weights or inputs have changed since `infer`.
        """
        self.problem.insist_unchanged()
        call = Call.of(self.problem, str(self.selection))
        # Copied here, as tensors that go to other processes are moved to shared memory, where both would write.
        return _copied, copy.deepcopy((call, self._session.drawn(), kept_values(self._values)))

    def again(self) -> Posterior:
        """The posterior of the same call under the parameters that the model has now.

        Nothing is checked or planned again, so that this is the way to ask one question of many parameters: inputs,
        lengths, masks and evidence are those that the call was given.  What this posterior has computed it keeps.
        """
        if self._backend is None:
            raise EnergyError("what `model.infer` returned can be asked again, and this posterior was made otherwise")
        problem = self.problem.afresh()
        return Posterior(self._backend.reopen(problem, self._session.ground), self._verdict, problem, self._backend)

    def ask(self, query: Query | str, **arguments: Any) -> Result:
        """Answer a query with its quality, status and statistics.

        Where an answer that is not exact shows no answer of positive weight, its status is useless and says so: only an
        exact answer, or an upper bound, proves that there is none.
        """
        return self._asked(query, True, **arguments)

    def _asked(self, query: Query | str, searched: bool = False, **arguments: Any) -> Result:
        """As `ask`; whether the status tells of searches that found nothing is up to the caller."""
        self.problem.insist_unchanged()
        asked = query if isinstance(query, Query) else Query(query, **arguments)
        quality = self._verdict.answers.get(asked.kind)
        if quality is None:
            known = ", ".join(self._verdict.answers)
            raise QueryRefused(f"`{self.backend}` does not answer `{asked.kind}`; it answers {known}")
        checked = self._checked(asked)
        if asked.kind in COMPARING and quality is Quality.EXACT:
            quality = checked.other.answers["log_partition"]  # which enters with its sign, so a bound stays one
        result = self._answered(checked)
        # What the card promises, unless the session says that this answer is less: a proof may run out of time.
        weaker = quality is Quality.EXACT and result.quality is not Quality.EXACT
        quality = result.quality if weaker else quality
        status = result.status
        if not is_functional():
            status = status.also(partial(self._check, checked, quality, result, searched, _grad_enabled()))
        return Result(result.value, quality, status, result.statistics)

    def _check(
        self, query: Query, quality: Quality, result: Result, searched: bool, tracked: bool
    ) -> tuple[bool, str] | None:
        """A failing status where scores or an answer are NaN, or too large for what is asked about them."""
        value = result.value
        for check in self.problem.env.unseen:  # on the CPU scores were checked before inference
            problem = check()
            if problem is not None:
                return True, problem
        found = not_a_number(value)
        if found is None and query.kind in SCORED:
            self.problem.insist_unchanged()
            found = outside(self.problem, self._session, query, value, quality is Quality.EXACT)
        if found is None and quality in (Quality.ESTIMATE, Quality.READOUT) and leave_type(self.problem):
            found = too_large(self.problem)
        if found is None and searched and quality not in PROOFS:
            found = self._nothing_found(query.kind, value, result.status)
        return found or self._unresolved(query.kind, quality, value, tracked)

    def _nothing_found(self, kind: str, value: Any, status: Status) -> tuple[bool, str] | None:
        """A failing status where an answer that proves nothing shows no answer of positive weight.

        Its words are those of the backend's own status, where that has some.
        """
        gone = without_answer(kind, value)
        if gone is None:
            return None
        batch, graph = self.problem.env.batch, self.problem.graph
        if kind == "marginals":  # they are 0 as well where there is no cell
            cells = [batch.cells_exist(v.dims, v.name).reshape(batch.size, -1).any(1) for v in graph.discrete]
            gone = gone & torch.stack(cells).any(0) if cells else torch.zeros_like(gone)
        known = self._session.impossible()
        gone = gone if known is None else gone & ~known
        if not bool(gone.any()):
            return None
        if not status.ok:
            return True, status.message
        first = int(gone.nonzero()[0])
        where = f" for example {first + 1} of {gone.numel()}" if gone.numel() > 1 else ""
        exact = [
            one.selection.name
            for one in candidates(self._verdict.structure, (kind,))
            if one.answers[kind] is Quality.EXACT
        ]
        tellers = f"ask {join_names(exact[:2])}, which can tell, or try" if exact else "try"
        return True, (
            f"`{self.backend}` found no answer of positive weight{where}, which does not prove that there is none; "
            f"{tellers} other options of `{self.backend}` or another backend (`energyml explain` lists them)"
        )

    def _unresolved(self, kind: str, quality: Quality, value: Any, tracked: bool) -> tuple[bool, str] | None:
        if kind not in RESOLVED or quality is not Quality.EXACT:
            return None
        if any(self.answers.get(one) is not Quality.EXACT for one in ("log_partition", "factor_marginals", "n_best")):
            return None
        self.problem.insist_unchanged()
        return unresolved(self.problem, self._session, kind, value, tracked)

    def _checked(self, query: Query) -> Query:
        """A query whose tensors fit the declarations and live where the batch does."""
        answers, batch = self.problem.answers, self.problem.env.batch
        if isinstance(query.count, float) or query.count < 1:
            raise ValueError(f"`{query.kind}` needs a whole number of at least 1 as its count, found {query.count}")
        for what, given in (("answer", query.answer), ("cost", query.cost), ("values", query.values)):
            if given is not None and not isinstance(given, Mapping):
                kind = type(given).__name__
                raise QueryRefused(f"`{query.kind}` takes its {what} by name, as in {{'y': tensor}}, found {kind}")
        if query.answer is not None:
            query = replace(query, answer=answers.labels(query.answer, batch))
        if query.cost is not None:
            query = replace(query, cost=answers.costs(query.cost, batch))
        if query.kind in ("log_prob", "log_prob_with_cost") and query.answer is None:
            raise QueryRefused(f"`{query.kind}` needs an answer: labels by variable")
        if query.kind in ("max_with_cost", "log_prob_with_cost") and query.cost is None:
            raise QueryRefused(f"`{query.kind}` needs costs [B, *dims, labels] by variable")
        if query.kind == "expectation":
            self._check_values(query.values)
        if query.kind in COMPARING:
            self._check_other(query)
        if query.target is not None and query.target not in self._targets():
            raise QueryRefused(f"`{query.kind}` asks about `{query.target}`, which the model does not have")
        return query

    def _check_other(self, query: Query) -> None:
        other = query.other
        if not isinstance(other, Posterior):
            raise QueryRefused(f"`{query.kind}` needs the posterior of a second model")
        if "log_partition" not in other.answers:
            raise QueryRefused(
                f"`{query.kind}` needs log Z of the second model, which `{other.backend}` does not answer; infer that "
                "model with `exact`, or with `mean_field` for a lower bound and `trw` for an upper one"
            )

    def _check_values(self, values: Mapping[str, Tensor] | None) -> None:
        if not values:
            raise QueryRefused("`expectation` needs values: tensors by variable or term")
        for name, one in values.items():
            if name not in self._targets():
                raise QueryRefused(f"`expectation` asks about `{name}`, which the model does not have")
            if not isinstance(one, Tensor):
                raise QueryRefused(f"`expectation` needs a tensor for `{name}`, found {type(one).__name__}")
            if one.is_floating_point() and is_host_readable(one) and math.isnan(float(one.detach().sum())):
                self._refuse_values(name, one.isnan(), "NaN")
            left = overflow(one, one.to(self.problem.env.batch.dtype)) if is_host_readable(one) else None
            if left is not None:
                kind = str(self.problem.env.batch.dtype).removeprefix("torch.")
                self._refuse_values(name, left, f"a number that {kind} cannot hold")

    def _refuse_values(self, name: str, bad: Tensor, value: str) -> None:
        """Refuse values [B or 1, *places, ...] that are bad where there is a cell or a factor."""
        problem, batch = self.problem, self.problem.env.batch
        if name in problem.graph.variables:
            variable = problem.graph.variables[name]
            span, exists = variable.span, batch.cells(name, variable.dims)
        else:
            term = next(one for one in problem.terms if one.term.name == name)
            span, exists = term.term.span, term.valid(batch)
        if exists is not None:
            pairs = zip(bad.shape, exists.shape, strict=False)
            if bad.dim() < exists.dim() or any(1 not in (size, full) and size != full for size, full in pairs):
                return  # values of another shape are refused where they are used
            bad = bad & exists.reshape(*exists.shape, *([1] * (bad.dim() - exists.dim())))
        if bool(bad.any()):
            spot = bad.nonzero()[0].tolist()
            remedy = "`expectation` takes a number for every label; what is not to count has the value 0"
            facts = {"name": name, "value": value, "example": spot[0], "place": spot[1:]}
            raise problem.answers.fail("E0512", span, help=remedy, **facts)

    def _targets(self) -> set[str]:
        return {term.term.name for term in self.problem.terms} | set(self.problem.graph.variables)

    def _value(self, kind: str) -> Any:
        """The value of a query without arguments, computed once.

        One that was computed without gradients serves only where none are wanted.
        """
        tracked = _grad_enabled()
        if self._values:
            for known in (True,) if tracked else (True, False):
                if (kind, known) in self._values:
                    return self._values[kind, known]
        if kind not in self._verdict.answers:
            self.ask(kind)  # refuses, and says what can be asked
        self.problem.insist_unchanged()
        value = self._insisted(self._answered(_PLAIN[kind]))
        if self.problem.env.batch.device.type == "cpu" and not is_functional():
            Status(partial(self._unresolved, kind, self._verdict.answers[kind], value, tracked)).insist()
        self._values[kind, tracked] = value
        return value

    def _answered(self, query: Query) -> Result:
        if self.problem.snapshot is not None:  # made where operations ran at once
            return self._session.ask(query)
        return call_or_explain(f"`{self.backend}` answering `{query.kind}`", self._session.ask, query)

    def _insisted(self, result: Result) -> Any:
        """The value of an answer that is no failure; where asking would wait for a device, failures are NaN."""
        if result.status.is_open and self.problem.env.batch.device.type == "cpu" and may_cache():
            result.status.insist()
        return result.value

    @property
    def backend(self) -> str:
        """The backend that answers."""
        return self._verdict.selection.name

    @property
    def selection(self) -> Selection:
        """The backend that answers, with its options."""
        return self._verdict.selection

    @property
    def answers(self) -> Mapping[str, Quality]:
        """What can be asked, and how good each answer is."""
        return self._verdict.answers

    @property
    def log_partition(self) -> Tensor:
        """[B]: log Z of each example, differentiable; -inf where every answer is forbidden.

        Of a backend that is not exact, -inf says that it found no answer of positive weight; so does the status of
        `ask("log_partition")`.
        """
        value: Tensor = self._value("log_partition")
        return value

    @property
    def marginals(self) -> Mapping[str, Tensor]:
        """By variable: [B, *dims, labels], the probability of each label at each cell; zero where there is no cell.

        Of a read-out: the softmax of the field's mode, which is no marginal of the Gaussian.
        """
        value: Mapping[str, Tensor] = self._value("marginals")
        return value

    @property
    def factor_marginals(self) -> Mapping[str, Tensor]:
        """By term: [B, *domain, *labels], the probability of each joint label of each factor."""
        value: Mapping[str, Tensor] = self._value("factor_marginals")
        return value

    @property
    def max_marginals(self) -> Mapping[str, Tensor]:
        """By output: [B, *dims, labels], the best score with a cell fixed to a label; -inf where there is no cell."""
        value: Mapping[str, Tensor] = self._value("max_marginals")
        return value

    @property
    def entropy(self) -> Tensor:
        """[B]: the entropy of p(y | x) in nats."""
        value: Tensor = self._value("entropy")
        return value

    @property
    def mode(self) -> Mapping[str, Tensor]:
        """By field: [B, *axes], its best value, which is its mean too; zero where there is no cell; differentiable."""
        value: Mapping[str, Tensor] = self._value("mode")
        return value

    @property
    def variance(self) -> Mapping[str, Tensor]:
        """By field: [B, *axes], the variance of each cell; zero where it is observed or does not exist."""
        value: Mapping[str, Tensor] = self._value("variance")
        return value

    def conditionals(self, **answer: Tensor) -> Mapping[str, Any]:
        """The distribution of each cell given all others of a full answer.

        By variable: log-probabilities [B, *dims, labels]; by field: (mean, variance), each [B, *axes].
        """
        value: Mapping[str, Any] = self._insisted(self._asked(Query("conditionals", answer=answer)))
        return value

    def map(self) -> Assignment:
        """The best answer: labels [B, *dims] and its score [B]; -1 and -inf where every answer is forbidden.

        A backend that is not exact gives -1 and -inf where it found no answer; the status of `ask("map")` says so.
        Of a field: its read-outs, the labels with the largest values of its mode.
        """
        value: Assignment = self._insisted(self._asked("map"))
        return value

    def n_best(self, count: int) -> Assignment:
        """The best answers, best first: labels [B, count, *dims] and scores [B, count]; -1 and -inf for none."""
        value: Assignment = self._insisted(self._asked(Query("n_best", count=count)))
        return value

    def sample(self, count: int = 1, generator: torch.Generator | None = None) -> Assignment:
        """Draws from p(y | x): labels [count, B, *dims], scores [count, B]; -1 and -inf where there is no answer.

        Draws of a field are in `fields`, [count, B, *axes], and their read-outs in `labels`.
        """
        value: Assignment = self._insisted(self._asked(Query("sample", count=count, generator=generator)))
        return value

    def log_prob(self, **answer: Tensor) -> Tensor:
        """[B]: the log-probability of a full answer, or of a partial one with -1 for "any label".

        Of fields: the log-density of values [B, *axes], NaN for cells that are integrated out.
        """
        value: Tensor = self._insisted(self._asked(Query("log_prob", answer=answer)))
        return value

    def max_with_cost(self, **cost: Tensor) -> Assignment:
        """The best of score plus cost; costs are [B, *dims, labels] by variable, and the score includes them."""
        value: Assignment = self._insisted(self._asked(Query("max_with_cost", cost=cost)))
        return value

    def log_prob_with_cost(self, answer: Mapping[str, Tensor], cost: Mapping[str, Tensor]) -> Tensor:
        """[B]: the log-probability of a full or partial answer under exp(score + cost); differentiable in both.

        Args:
            answer: labels [B, *dims] by variable, -1 for "any label".
            cost: [B, *dims, labels] by variable; one that is missing costs nothing.
        """
        value: Tensor = self._insisted(self._asked(Query("log_prob_with_cost", answer=answer, cost=cost)))
        return value

    def expectation(self, values: Mapping[str, Tensor]) -> Tensor:
        """[B]: the expectation of a sum of functions, each of one cell or of the cells of one factor.

        Args:
            values: by variable [B or 1, *dims, labels], by term [B or 1, *domain, *labels]; size 1 where shared.
        """
        value: Tensor = self._insisted(self._asked(Query("expectation", values=values)))
        return value

    def unrounded(self, kind: str, **arguments: Any) -> Any:
        """The value of a query in the type that it was computed in, for those who go on subtracting; see `Query`."""
        return self._insisted(self._asked(Query(kind, wide=True, **arguments)))

    def cross_entropy(self, other: Posterior) -> Tensor:
        """[B]: -E[log q(y)] of a second model q of the same cells, in nats; inf where q rules out what p does not.

        The two models may have different terms; their variables, label sets and sizes must agree.  log Z of q is the
        one that its backend gives: where that is a bound or an estimate, so is the answer, as `ask` says.
        """
        value: Tensor = self._insisted(self._asked(Query("cross_entropy", other=other)))
        return value

    def kl(self, other: Posterior) -> Tensor:
        """[B]: the divergence KL(p, q) of a second model q of the same cells, in nats; see `cross_entropy`."""
        value: Tensor = self._insisted(self._asked(Query("kl", other=other)))
        return value

    def certificate(
        self,
        answer: Mapping[str, Tensor] | Assignment | None = None,
        *,
        using: str | None = None,
        log_partition: bool = True,
    ) -> Certificate:
        """How far an answer can be from the best one, whoever found it: "at most 0.3 from the best possible".

        Args:
            answer: labels [B, *dims] of every output; the answer of `map` when left out.
            using: the backend that bounds the best score: `exact`, `dual`, `ilp`, `trw`.  When left out, whoever is
                exact at little cost, else `dual`.
            log_partition: whether log Z is bounded too, by `exact`, or from below by `mean_field` and from above by
                `trw`; an upper bound of log Z is one of the best score as well.
        """
        from energyml.certificates import certify

        self.problem.insist_unchanged()
        return certify(self, answer, using=using, log_partition=log_partition)

    def trace(self) -> Trace:
        """All draws of a sampler's chains, with acceptance, energies and convergence; see `docs/sampling.md`."""
        from energyml.inference.trace import Sampled

        if not isinstance(self._session, Sampled):
            raise QueryRefused(f"`{self.backend}` keeps no draws; `gibbs`, `metropolis` and other samplers do")
        self.problem.insist_unchanged()
        return self._session.trace()

    def to_arviz(self) -> Any:
        """The draws of a sampler's chains as an `arviz.InferenceData`, dims named by the model's axes."""
        from energyml.interop.arviz import to_arviz

        return to_arviz(self.trace())

    def to_pyro(self) -> Any:
        """p(y | x) as a Pyro distribution: `sample`, `log_prob`, and `enumerate_support` where it is small."""
        from energyml.interop.pyro import distribution

        return distribution(self)

    def __repr__(self) -> str:
        batch = self.problem.env.batch
        cells = ", ".join(f"{v.name} : {v.type}" for v in (*self.problem.graph.discrete, *self.problem.graph.fields))
        return f"Posterior({cells}; {batch.size} examples, by {self._verdict.selection})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(query)}</td><td>{escape(quality.value)}</td></tr>"
            for query, quality in self._verdict.answers.items()
        )
        return f"<p><b>{escape(repr(self))}</b></p><table><tr><th>query</th><th>quality</th></tr>{rows}</table>"


def _copied(call: Call, drawn: Mapping[tuple[str, bool], Any], values: Mapping[tuple[str, bool], Any]) -> Posterior:
    """A posterior from what pickles hold of it."""
    backend, verdict = call.model.prepared(call.using)
    problem = call.problem()
    made = Posterior(backend.open(problem), verdict, problem, backend)
    made._session.keep_drawn(drawn)
    made._values.update(values)
    return made

"""Queries about Gaussian fields, answered by whichever method was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from energyml.backend import Session
from energyml.backends.gaussian.conditioning import Conditioned, condition
from energyml.backends.gaussian.methods import Methods, Policy
from energyml.backends.gaussian.solver import Outcome, Solver
from energyml.backends.gaussian.status import not_finite
from energyml.backends.gaussian.status import problem as problem_of
from energyml.bind.conditionals import field_conditionals
from energyml.bind.fields import FieldLayout
from energyml.bind.problem import Problem
from energyml.bind.quadratic import QuadraticForm
from energyml.bind.views import LinearView, QuadraticView
from energyml.caching import ValueCache
from energyml.diagnostics import QueryRefused
from energyml.execution import graph_break, is_fullgraph, is_host_readable, is_recording
from energyml.model.declared import Variable
from energyml.plan.elimination import human_bytes
from energyml.plan.fields import MOST_OPERATIONS, Purpose, direct
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Failed, Result, Status

LOG_2_PI = math.log(2 * math.pi)
# Queries that need no determinant.
SOLVED = frozenset({"mode", "marginals", "map", "conditionals"})
# Why fields are left out of compiled code, unless all of it must be one graph.
KERNELS = "native kernels solve fields sooner, and compiling takes long where there are many cells"
# What the compiler says where it is told to make one graph.
ITERATIONS = (
    "conjugate gradients end when numbers say so, and so they run outside of the graph: compile without "
    "fullgraph=True, or `infer exact` with a `memory` that a direct method fits into (`energyml explain` says which is "
    "taken; edges of a list are known at run time only, so that dense Cholesky is the direct method for them)"
)
GENERATOR = "compiled code has no generator of its own: `exact` draws outside of the graph where one is given"
OBSERVED = (
    "which cells of a field are observed is known at run time only, and decides how a field of several values at each "
    "position is solved, so that this is answered outside of the graph: compile without fullgraph=True"
)


class Field:
    """One field of one batch: its linear part, its precision matrix, and what is observed of it."""

    def __init__(
        self, variable: Variable, problem: Problem, linear: LinearView, quadratic: QuadraticView, policy: Policy
    ) -> None:
        self.variable, self.problem, self.policy = variable, problem, policy
        self.linear, self.quadratic = linear, quadratic
        self.layout: FieldLayout = quadratic.layout
        self._kept = ValueCache()

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the field's axes."""
        return self.quadratic.axis_sizes(self.problem.env.batch)

    @property
    def form(self) -> QuadraticForm:
        """The precision matrix of all cells."""
        form: QuadraticForm = self._kept.once("form", lambda: self.quadratic.form(self.problem.env))
        return form

    def to_cells(self, values: Tensor) -> Tensor:
        """[B, *axes] as the cells [B, M, N] of the form."""
        return self.layout.to_cells(values, self.problem.env.batch).reshape(self.form.sizes)

    def from_cells(self, cells: Tensor) -> Tensor:
        """[..., M, N] as [..., *axes]."""
        return self.layout.from_cells(cells, self.axes)

    @property
    def system(self) -> Conditioned:
        """The field given the evidence."""
        made: Conditioned = self._kept.once("system", lambda: self.given(self.problem.evidence.observed))
        return made

    def given(self, observed: Any) -> Conditioned:
        """The field given observed values by field; NaN leaves a cell free."""
        linear, sizes = self.linear.linear(self.problem.env), self.form.sizes
        if linear.shape[1:] != sizes[1:]:
            linear = linear.reshape(sizes)
        values = observed.get(self.variable.name)
        if values is not None and is_host_readable(values) and bool(values.isinf().any()):
            raise QueryRefused(
                f"what is observed of `{self.variable.name}` holds infinite numbers; "
                "give finite values, and NaN for cells that are not observed"
            )
        return condition(self.form, linear, None if values is None else self.to_cells(values))

    # -------------------------------------------------------------------------------------------------------- answers

    def methods(self, system: Conditioned) -> Methods:
        """The methods for a system."""
        made: Methods = system.kept.once("methods", lambda: Methods(self.variable.name, system.form, self.policy))
        return made

    def solution(self, system: Conditioned) -> tuple[Tensor, Outcome]:
        """The best value of the free cells [B, M, N], zero elsewhere, and how finding it went."""

        def make() -> tuple[Tensor, Outcome]:
            given = self.problem.start
            start = given.get(self.variable.name) if given and system is self.system else None
            if start is not None:
                # An earlier answer may have failed: where it is no number, it is no better than zero.
                finite = start.detach().nan_to_num(0, 0, 0)
                start = system.inside(self.to_cells(finite).reshape(system.form.sizes))
            return self.methods(system).solution(system.rhs, start)

        found: tuple[Tensor, Outcome] = system.kept.once("solution", make)
        return found

    def exact_solver(self, system: Conditioned, query: str) -> Solver:
        """The solver behind determinants and variances."""
        methods = self.methods(system)
        choice = methods.choice("determinant")
        if choice is None:
            sizes = "x".join(map(str, methods.facts.shape or ()))
            what = f"{methods.facts.describe()} on {sizes} positions"
            larger = direct(methods.facts, math.inf)
            if larger is None or larger.memory is None:
                limit, remedy = f"{what} take every direct method more than {MOST_OPERATIONS:g} operations", ""
            else:
                limit = f"{what} need {human_bytes(larger.memory)} for one example, and `memory` allows "
                limit += human_bytes(self.policy.budget)
                remedy = f"raise it, as in `exact(memory: {math.ceil(larger.memory / (1 << 20))})`, or "
            raise QueryRefused(
                f"`exact` has no {query} for `{self.variable.name}`: {limit}; {remedy}ask `cg`, which estimates it "
                "with its error"
            )
        return methods.solver(choice, attached=torch.is_grad_enabled())

    def estimated(self, value: Tensor, error: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A number with its error: 0 where an estimate was asked for, and there are no cells to estimate it from."""
        return value, torch.zeros_like(value) if error is None and self.policy.iterative else error

    def determinant(self, system: Conditioned, query: str) -> tuple[Tensor, Tensor | None, Outcome]:
        """[B]: log det Q of the free cells, its error, and how it went."""

        def make() -> tuple[Tensor, Tensor | None, Outcome]:
            solver = self.exact_solver(system, query)
            value, error = self.estimated(*solver.log_determinant())
            return value, error, replace(solver.outcome, answer=value)

        found: tuple[Tensor, Tensor | None, Outcome] = system.kept.once("determinant", make)
        return found

    def log_partition(self, system: Conditioned) -> tuple[Tensor, Tensor | None, list[Outcome]]:
        """[B]: the log of the integral of exp(score) over the free cells, its error, and how it went."""
        x, outcome = self.solution(system)
        determinant, error, other = self.determinant(system, "log_partition")
        value = system.constant + 0.5 * (system.rhs * x).sum((1, 2)) - 0.5 * determinant + 0.5 * system.count * LOG_2_PI
        return value, None if error is None else 0.5 * error, [outcome, replace(other, answer=value)]


class FieldSession(Session):
    """A batch of Gaussian fields; several fields are independent of each other."""

    def __init__(self, problem: Problem, policy: Policy) -> None:
        self.problem = problem
        if problem.env.batch.dtype not in (torch.float32, torch.float64):
            given = str(problem.env.batch.dtype).removeprefix("torch.")
            raise QueryRefused(
                f"fields are solved in float32 or float64, and the inputs are {given}; convert them: `u.float()`"
            )
        linear, quadratic = problem.linear(), problem.quadratic()
        self.policy = policy
        self.fields = {
            v.name: Field(v, problem, linear[v.name], quadratic[v.name], policy) for v in problem.graph.fields
        }
        self.readouts = [v for v in problem.graph.variables.values() if v.readout is not None]

    def ask(self, query: Query) -> Result:
        """Answer a query of the cards of `cg` and `exact` for fields."""
        if is_recording():
            reason = self._outside(query) if is_fullgraph() else KERNELS
            return self._answer(query) if reason is None else graph_break(reason)(self._answer)(query)
        try:
            return self._answer(query)
        except LinAlgError as problem:
            # Eigenvalues of matrices that are not finite: torch raises where it could not go on.
            raise Failed(self._broken()) from problem

    def _answer(self, query: Query) -> Result:
        return _ANSWERS[query.kind](self, query)

    def _outside(self, query: Query) -> str | None:
        """Why a query cannot be a part of compiled code; `None` where it can."""
        if self.policy.iterative:
            return ITERATIONS
        if query.generator is not None:
            return GENERATOR
        channels = [field.form.sizes.channels for field in self.fields.values()]
        if (self.problem.evidence.observed or query.answer) and max(channels) > 1:
            return OBSERVED
        purposes: list[Purpose] = ["solve"] if query.kind in SOLVED else ["solve", "determinant"]
        for field in self.fields.values():
            for purpose in purposes:
                choice = field.methods(field.system).choice(purpose)
                if choice is None or choice.method == "cg":
                    return ITERATIONS
        return None

    def _broken(self) -> str:
        """What to say where linear algebra gave up."""
        for field in self.fields.values():
            try:
                form = field.form
            except LinAlgError:
                return not_finite(field.variable.name, "a coupling (a dense matrix)")
            definite = torch.ones(form.sizes.batch, dtype=torch.bool, device=form.ridge.device)
            outcome = Outcome(definite, answer=torch.full_like(field.system.rhs, float("nan")))
            found = problem_of(field.variable.name, form, field.system.rhs, outcome, 0.0, field.quadratic.bounded)
            if found is not None:
                return found[1]
        return "the eigenvalues of a field's couplings were not found; use float64, or scale its couplings down"

    # --------------------------------------------------------------------------------------------------------- values

    def _modes(self) -> tuple[dict[str, Tensor], list[tuple[Field, Conditioned, Outcome]]]:
        """By field [B, *axes], with what each solve said."""
        found, how = {}, []
        for name, field in self.fields.items():
            system = field.system
            x, outcome = field.solution(system)
            x, observed = _sound(x, outcome), system.observed
            found[name] = field.from_cells(x if observed is None else x + observed)
            how.append((field, system, outcome))
        return found, how

    def _result(
        self, value: Any, how: Sequence[tuple[Field, Conditioned, Outcome]], error: Tensor | None = None
    ) -> Result:
        if is_recording():  # numbers are not read there: a failure is NaN
            return Result(value)

        def check() -> tuple[bool, str] | None:
            for field, system, outcome in how:
                bounded = field.quadratic.bounded
                tol = field.policy.settings.tol
                found = problem_of(field.variable.name, system.form, system.rhs, outcome, tol, bounded)
                if found is not None:
                    return found
            return None

        statistics: dict[str, Any] = {}
        for _, _, outcome in how:
            if outcome.iterations is not None and outcome.residual is not None:
                statistics |= {"iterations": outcome.iterations, "residual": outcome.residual}
        if error is not None:
            statistics["error"] = error
        return Result(value, status=Status(check), statistics=statistics)

    def _mode(self, query: Query) -> Result:
        return self._result(*self._modes())

    def _read(self, variable: Variable, values: Tensor) -> Tensor:
        """[..., B, *dims, labels]: the values of a field [..., B, *axes] that a read-out compares."""
        assert variable.readout is not None
        axes = self.problem.graph.variables[variable.readout.field].type.axes
        over = next(i for i, axis in enumerate(axes) if axis.extent.name == variable.readout.over)
        return values.movedim(values.dim() - len(axes) + over, -1)

    def _asked_readouts(self, query: str) -> list[Variable]:
        if not self.readouts:
            raise QueryRefused(
                f"`{query}` is about labels, and no output is read out of a field; "
                "declare one: `output y : Seg[H, W] = argmax s over Seg`, or ask for `mode`"
            )
        return self.readouts

    def _cells(self, variable: Variable) -> Tensor | None:
        """[B, *dims]: which cells of a read-out exist; `None` when all do."""
        assert variable.readout is not None
        field = self.problem.graph.variables[variable.readout.field]
        return self.problem.env.batch.cells(field.name, field.dims)

    def _marginals(self, query: Query) -> Result:
        """The softmax of the mode over labels (Shevchenko & Osokin 2019, eq. 14)."""
        readouts = self._asked_readouts("marginals")
        modes, how = self._modes()
        found = {}
        for variable in readouts:
            assert variable.readout is not None
            p = self._read(variable, modes[variable.readout.field]).softmax(-1)
            cells = self._cells(variable)
            found[variable.name] = p if cells is None else torch.where(cells.unsqueeze(-1), p, 0)
        return self._result(found, how)

    def _labels(self, modes: dict[str, Tensor], readouts: list[Variable]) -> dict[str, Tensor]:
        """[..., B, *dims]: the labels with the largest values (eq. 13)."""
        found = {}
        for variable in readouts:
            assert variable.readout is not None
            labels = self._read(variable, modes[variable.readout.field]).argmax(-1)
            cells = self._cells(variable)
            found[variable.name] = labels if cells is None else labels.masked_fill(~cells, ABSENT)
        return found

    def _names(self) -> dict[str, tuple[str, ...]]:
        return {v.name: self.problem.graph.label_sets[v.type.element].labels or () for v in self.readouts}

    def _map(self, query: Query) -> Result:
        readouts = self._asked_readouts("map")
        modes, how = self._modes()
        scores = [
            system.constant + 0.5 * (system.rhs * field.solution(system)[0]).sum((1, 2)) for field, system, _ in how
        ]
        how += [(*one[:2], Outcome(one[2].definite, answer=own)) for one, own in zip(how, scores, strict=True)]
        score = sum(scores[1:], scores[0])
        return self._result(Assignment(self._labels(modes, readouts), score, self._names(), modes), how)

    def _variance(self, query: Query) -> Result:
        found, errors, how = {}, [], []
        for name, field in self.fields.items():
            system = field.system
            solver = field.exact_solver(system, "variance")
            value, error = field.estimated(*solver.variances())
            found[name] = field.from_cells(system.inside(_sound(value, solver.outcome)))
            if error is not None:
                errors.append(field.from_cells(system.inside(error)))
            how.append((field, system, replace(solver.outcome, answer=value)))
        return self._result(found, how, errors[0] if errors else None)

    # --------------------------------------------------------------------------------------------------- normalisation

    def _sum(
        self, each: Callable[[Field], tuple[Tensor, Tensor | None, Sequence[tuple[Field, Conditioned, Outcome]]]]
    ) -> Result:
        """A sum over fields of numbers [B]."""
        batch = self.problem.env.batch
        total = torch.zeros(batch.size, device=batch.device, dtype=batch.dtype)
        error: Tensor | None = None
        how: list[tuple[Field, Conditioned, Outcome]] = []
        for field in self.fields.values():
            value, own, outcomes = each(field)
            total = total + value
            error = _together(error, own)
            how += outcomes
        sound = torch.ones(batch.size, dtype=torch.bool, device=batch.device)
        for _, _, outcome in how:
            sound = sound & outcome.definite
        return self._result(total.masked_fill(~sound, float("nan")), how, error)

    def _log_partition(self, query: Query) -> Result:
        def each(field: Field) -> tuple[Tensor, Tensor | None, list[tuple[Field, Conditioned, Outcome]]]:
            value, error, outcomes = field.log_partition(field.system)
            return value, error, [(field, field.system, one) for one in outcomes]

        return self._sum(each)

    def _entropy(self, query: Query) -> Result:
        """n/2 log(2πe) - 1/2 log det Q."""

        def each(field: Field) -> tuple[Tensor, Tensor | None, list[tuple[Field, Conditioned, Outcome]]]:
            system = field.system
            determinant, error, outcome = field.determinant(system, "entropy")
            value = 0.5 * system.count * (1 + LOG_2_PI) - 0.5 * determinant
            return value, None if error is None else 0.5 * error, [(field, system, outcome)]

        return self._sum(each)

    def _log_prob(self, query: Query) -> Result:
        """The log-density of the values that are given, -inf where others were observed; the rest is integrated out."""
        self._about_fields(query, "log_prob")
        known, before = self.problem.known(query.answer).observed, self.problem.evidence.observed

        def each(field: Field) -> tuple[Tensor, Tensor | None, list[tuple[Field, Conditioned, Outcome]]]:
            clamped = field.given(known)
            free, error, outcomes = field.log_partition(field.system)
            whole = field.variable.name in query.answer and not clamped.has_free
            if whole:  # finite where both are
                outcomes[-1] = replace(outcomes[-1], answer=clamped.constant - free)
            seen = before.get(field.variable.name)
            if seen is not None:
                other = ((seen != known[field.variable.name]) & ~seen.isnan()).flatten(1).any(1)
                free = free.masked_fill(other, float("inf"))
            how = [(field, field.system, one) for one in outcomes]
            if whole:
                return clamped.constant - free, error, how
            value, own, outcomes = field.log_partition(clamped)
            how += [(field, clamped, one) for one in outcomes]
            return value - free, _together(error, own), how

        return self._sum(each)

    def _about_fields(self, query: Query, kind: str) -> None:
        for name in query.answer or {}:
            if name not in self.fields:
                raise QueryRefused(
                    f"`{name}` is read out of a field and has no distribution of its own, so `{kind}` is about "
                    f"{', '.join(self.fields)}; `marginals` gives its softmax, and `marginal_ce` trains on it"
                )

    # ---------------------------------------------------------------------------------------------------------- draws

    def _sample(self, query: Query) -> Result:
        batch = self.problem.env.batch
        generator = query.generator

        def normal(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(tuple(shape), generator=generator, dtype=batch.dtype, device=batch.device)

        modes, how = self._modes()
        found, outcomes = {}, []
        for field, system, outcome in how:
            methods = field.methods(system)
            choice = methods.choice("determinant") or methods.choice("solve")
            assert choice is not None
            solver = methods.solver(choice, attached=torch.is_grad_enabled())
            drawn = system.inside(solver.draws(query.count, normal))
            found[field.variable.name] = modes[field.variable.name] + field.from_cells(drawn)
            how_drawn = replace(solver.outcome, answer=drawn.transpose(0, 1))
            outcomes += [(field, system, outcome), (field, system, how_drawn)]
        scores = torch.stack(
            [self.problem.score({name: one[number] for name, one in found.items()}) for number in range(query.count)]
        )
        outcomes += [(*one[:2], Outcome(one[2].definite, answer=scores.t())) for one in how[:1]]
        labels = self._labels(found, self.readouts)
        return self._result(Assignment(labels, scores, self._names(), found), outcomes)

    def _conditionals(self, query: Query) -> Result:
        """The mean and the variance of each cell given all others: one product with the matrix."""
        self._about_fields(query, "conditionals")
        found, how = {}, []
        for name, field in self.fields.items():
            if query.answer is None or name not in query.answer:
                raise QueryRefused(f"`conditionals` need an answer for every field; `{name}` is missing")
            given = field.to_cells(query.answer[name])
            gaps = given.isnan() if field.form.present is None else given.isnan() & field.form.present.unsqueeze(1)
            if given.device.type == "cpu" and bool(gaps.any()):
                raise QueryRefused(
                    f"`conditionals` need a value for every cell of `{name}`, and some are NaN; "
                    "`log_prob` takes partial answers"
                )
            mean, variance = field_conditionals(field.linear, field.quadratic, self.problem.env, query.answer[name])
            seen = self.problem.evidence.observed.get(name)
            if seen is not None:  # what was observed is known, whatever the others are
                known = ~seen.isnan() & (variance != 0)  # where there is no cell, both are zero already
                mean, variance = torch.where(known, seen, mean), variance.masked_fill(known, 0)
            found[name] = mean, variance
            positive = (field.form.diagonal_of_all() > 0).flatten(1).all(1).expand(field.form.sizes.batch)
            how.append((field, field.system, Outcome(positive, answer=found[name][0])))
        return self._result(found, how)


_ANSWERS: Mapping[str, Callable[[FieldSession, Query], Result]] = {
    "mode": FieldSession._mode,
    "marginals": FieldSession._marginals,
    "map": FieldSession._map,
    "variance": FieldSession._variance,
    "log_partition": FieldSession._log_partition,
    "entropy": FieldSession._entropy,
    "log_prob": FieldSession._log_prob,
    "sample": FieldSession._sample,
    "conditionals": FieldSession._conditionals,
}


def _sound(x: Tensor, outcome: Outcome) -> Tensor:
    """Fields [B, M, N], NaN where the matrix of an example is not positive definite."""
    readable = is_host_readable(x) and is_host_readable(outcome.definite)
    if readable and (outcome.is_fine() or bool(outcome.definite.all())):
        return x
    return x.masked_fill(~outcome.definite[:, None, None], float("nan"))


def _together(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """[B]: the error of a sum or difference of two numbers; `None` where neither has one."""
    if one is None or other is None:
        return other if one is None else one
    return (one.square() + other.square()).sqrt()


__all__ = ["FieldSession"]

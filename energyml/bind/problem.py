"""A problem: the terms of a model, the tensors of one batch, and what is known about its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from energyml.bind.answers import Answers
from energyml.bind.batch import Batch
from energyml.bind.batch import wide as widest
from energyml.bind.bound import BoundTerm, Softened
from energyml.bind.snapshot import Named, Snapshot
from energyml.bind.steps import Steps, why_not_stepwise
from energyml.bind.tensors import Environment
from energyml.bind.terms import TableTerm
from energyml.bind.views import (
    LinearView,
    MaskedView,
    QuadraticView,
    StepwiseView,
    TableView,
    linear,
    masked,
    quadratic,
    stepwise,
    tables,
)
from energyml.diagnostics import EnergyError, QueryRefused, Source
from energyml.execution import NotRecorded, is_eager, is_functional, may_cache, refuse_single_call_tracers
from energyml.ir.graph import Graph
from energyml.result import ABSENT
from energyml.training_state import TrainingState

_OUTSIDE = TrainingState()


@dataclass(frozen=True)
class Evidence:
    """What is known about the answer.

    Attributes:
        allowed: by variable: [B, *dims, labels] which labels each cell may take; a variable that is missing is free.
        observed: by field: values [B, *axes], NaN where a cell is free.
        labels: by variable: labels [B, *dims], -1 where a cell is free, where `allowed` says no more than these.
    """

    allowed: Mapping[str, Tensor] = field(default_factory=dict)
    observed: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)

    def both(self, other: Evidence) -> Evidence:
        """What two pieces of evidence allow together."""
        if not self.allowed and not self.observed:
            return other
        merged = dict(self.allowed)
        labels = {name: one for name, one in self.labels.items() if name not in other.allowed}
        labels.update({name: one for name, one in other.labels.items() if name not in merged})
        for name, allowed in other.allowed.items():
            merged[name] = merged[name] & allowed if name in merged else allowed
        values = dict(self.observed)
        for name, observed in other.observed.items():
            values[name] = torch.where(observed.isnan(), values[name], observed) if name in values else observed
        return Evidence(merged, values, labels)

    @staticmethod
    def given(evidence: Mapping[str, Tensor] | None, answers: Answers, batch: Batch) -> Evidence:
        """What a caller says about outputs, latents and fields, checked; see `EnergyModel.infer`."""
        if not evidence:
            return Evidence()
        for name in evidence:
            variable = answers.graph.variables.get(name)
            if variable is None or variable.readout is not None:
                remedy = "evidence is about outputs, latents and fields"
                if variable is not None and variable.readout is not None:
                    remedy += f"; `{name}` is read out of `{variable.readout.field}`, so observe that"
                raise answers.fail("E0502", None, name=name, help=remedy)
        sets = {
            name: one
            for name, one in evidence.items()
            if name in answers.counts and isinstance(one, Tensor) and one.dtype == torch.bool
        }
        given = {name: one for name, one in evidence.items() if name not in sets} if sets else evidence
        found = answers.labels(given, batch)
        labels = {name: one for name, one in found.items() if name in answers.counts}
        known = Evidence.from_labels(labels, answers.counts)
        if not sets and len(labels) == len(found):
            return known
        allowed = {name: answers.allowed(name, one, batch) for name, one in sets.items()}
        fields = {name: one for name, one in found.items() if name not in labels}
        return Evidence(allowed, fields).both(known)

    @staticmethod
    def from_labels(labels: Mapping[str, Tensor], counts: Mapping[str, int]) -> Evidence:
        """Clamp cells to labels; -1 leaves a cell free."""
        return Evidence(_Clamped(labels, counts), labels=labels)


class _Clamped(Mapping[str, Tensor]):
    """Allowed labels [B, *dims, labels] from labels [B, *dims], made when somebody reads them.

    Args:
        labels: by variable; -1 leaves a cell free.
        counts: how many labels each variable has.
    """

    def __init__(self, labels: Mapping[str, Tensor], counts: Mapping[str, int]) -> None:
        self._labels, self._counts = labels, counts
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            given = self._labels[name]
            with torch.inference_mode(False):  # they may serve a later query, with gradients
                steps = torch.arange(self._counts[name], device=given.device)
                self._made[name] = (given.unsqueeze(-1) == steps) | (given < 0).unsqueeze(-1)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, name: object) -> bool:
        return name in self._labels


@dataclass
class Problem:
    """One batch of inference problems: the terms, their tensors, and what is known about the answer.

    Attributes:
        graph: the model.
        terms: its terms with tensors behind them.
        env: the batch.
        evidence: what is known about the answer.
        answers: checks labels that come from outside.
        start: by field: values [B, *axes] from which iterative methods may start.
        state: where training stands; its end outside of training.
        snapshot: notices that weights or inputs have changed; `None` under transforms and in compiled code.
    """

    graph: Graph
    terms: Sequence[BoundTerm]
    env: Environment
    evidence: Evidence
    answers: Answers = field(default=None)  # type: ignore[assignment]
    start: Mapping[str, Tensor] = field(default_factory=dict)
    state: TrainingState = field(default=None)  # type: ignore[assignment]
    snapshot: Snapshot | None = None

    def __post_init__(self) -> None:
        """Checks without a spec at hand still name the declarations."""
        if self.answers is None:
            self.answers = Answers(self.graph, Source("<spec>", ""))
        if self.state is None:  # a default of the class would be called for, which compiled code cannot
            self.state = _OUTSIDE

    def afresh(self) -> Problem:
        """The same batch and evidence for the parameters of now: what was computed from earlier ones is left behind."""
        if self.snapshot is not None:
            self.snapshot.insist_on_given()
        env = self.env.afresh()
        return Problem(self.graph, self.terms, env, self.evidence, self.answers, self.start, self.state).watched()

    def watched(self) -> Problem:
        """The problem itself, which now notices changes of its weights and of the tensors of its call."""
        if is_eager():
            if self.env.batch.device.type == "meta":  # what watches operations may want shapes alone
                raise self._without_numbers()
        else:
            refuse_single_call_tracers()
            if is_functional():
                return self
        self.snapshot = Snapshot(self.env.module, self._given())
        return self

    def _without_numbers(self) -> EnergyError:
        """The error for a model, or else for inputs, on the `meta` device."""
        if any(True for _ in self.env.module.parameters()):
            return EnergyError(
                "the model is on `meta`, where parameters have shapes and hold no numbers; give them memory with "
                "`model.to_empty(device='cpu')`, then numbers with `model.load_state_dict(...)`"
            )
        remedy = "pass tensors that hold numbers"
        return EnergyError(f"the inputs are on `meta`, where tensors have shapes and hold no numbers; {remedy}")

    def insist_unchanged(self) -> None:
        """Raise `PosteriorOutdated` where weights or inputs have changed since the problem was made."""
        if self.snapshot is None:
            return
        if not is_eager():
            refuse_single_call_tracers()
            if not may_cache():
                raise NotRecorded(
                    "this posterior was made before the program that is recorded now, and keeps tensors for later "
                    "calls; call `infer` inside of the program"
                )
            if is_functional():
                return
        self.snapshot.insist()

    def _given(self) -> list[Named]:
        """The tensors of the call, under names for messages."""
        batch, evidence = self.env.batch, self.evidence
        given = [(f"the input `{name}`", one) for name, one in batch.tensors.items()]
        given += [(f"the mask of `{name}`", one) for name, one in batch.masks.items()]
        for dims in (batch.along, batch.nested):
            given += [(f"the lengths of `{name}`", one.count) for name, one in dims.items() if one.count is not None]
        # Labels stand for the allowed labels that are made of them later.
        allowed = {name: evidence.allowed[name] for name in evidence.allowed if name not in evidence.labels}
        for values in (evidence.labels, allowed, evidence.observed):
            given += [(f"the evidence about `{name}`", one) for name, one in values.items()]
        return given + [(f"the start of `{name}`", one) for name, one in self.start.items()]

    def tables(self) -> list[TableView]:
        """The terms that have a table over the labels of their scope, in their order."""
        return tables(self.terms)

    def linear(self) -> Mapping[str, LinearView]:
        """The linear part of each field."""
        return linear(self.terms)

    def quadratic(self) -> Mapping[str, QuadraticView]:
        """The precision matrix of each field."""
        return quadratic(self.terms)

    def stepwise(self) -> list[StepwiseView]:
        """The step networks over sequences, in their order."""
        return stepwise(self.terms)

    def masked(self) -> list[MaskedView]:
        """The masked conditionals over sequences, in their order."""
        return masked(self.terms)

    def label_count(self, variable: str) -> int:
        """How many labels a variable's cells may take."""
        return self.answers.counts[variable]

    def label_names(self) -> dict[str, tuple[str, ...]]:
        """The label names of each discrete variable."""
        return {v.name: self.graph.label_sets[v.type.element].labels or () for v in self.graph.discrete}

    def ends(self) -> dict[str, int]:
        """For each variable over a free dim: the label that ends it."""
        ends = dict(term.end for term in self.terms if term.end is not None)
        return {
            name: end for name, end in ends.items()
            if any(self.graph.dims[dim].kind == "free" for dim in self.graph.variables[name].dims)
        }  # fmt: skip

    def known(self, answer: Mapping[str, Tensor]) -> Evidence:
        """The evidence together with a full or partial answer: labels [B, *dims] with -1, fields with NaN for free."""
        labels = {name: one for name, one in answer.items() if name in self.answers.counts}
        fields = {name: one for name, one in answer.items() if name not in labels}
        found = Evidence.from_labels(labels, self.answers.counts)
        return self.evidence.both(Evidence(found.allowed, fields, found.labels))

    def score(self, answer: Mapping[str, Tensor], copies: int = 1, *, wide: bool = False) -> Tensor:
        """[B * copies]: the total score of full answers, labels [B * copies, *dims] with -1 where there is no cell.

        Where a length is part of the answer, it ends with the end label; an answer without one has the score -inf.
        Scores are added up in float64 and the sum is rounded once, unless it may be `wide` for callers that go on
        adding and subtracting: partial sums may be far larger than their total.
        """
        env, ended = self.env, None
        scores = env.batch.dtype
        dtype = widest(env.batch.device) if scores is not widest(env.batch.device) else None
        if copies == 1:
            env, ended = self._with_lengths(answer)
            if ended is not None:
                answer = {name: self._in_length(name, labels, env.batch) for name, labels in answer.items()}
        total: Tensor | None = None
        for term in self.terms:
            one = term.score(env, answer, copies, dtype)
            total = one if total is None else total + one
        if total is None:
            return torch.zeros(env.batch.size * copies, device=env.batch.device, dtype=scores)
        total = total if dtype is None or wide else total.to(scores)
        return total if ended is None else total.masked_fill(~ended, float("-inf"))

    def parts_of_score(self, answer: Mapping[str, Tensor], copies: int = 1) -> Tensor:
        """[B, parts, copies]: what `score` adds up, in float64: one part a factor, or a term that has no table.

        Arguments as in `score`; lengths are known.
        """
        env, parts = self.env, []
        for term in self.terms:
            if isinstance(term, TableTerm):
                entries = term.entries(env, answer, copies)
                parts.append(entries.reshape(entries.shape[0], -1, copies).expand(env.batch.size, -1, -1))
            else:
                parts.append(term.score(env, answer, copies, widest(env.batch.device)).reshape(-1, 1, copies))
        if not parts:
            return torch.zeros(env.batch.size, 0, copies, device=env.batch.device, dtype=widest(env.batch.device))
        return torch.cat([one.to(widest(env.batch.device)) for one in parts], 1)

    def soft_score(self, answer: Mapping[str, Tensor], copies: int = 1, *, penalty: float | None = None) -> Tensor:
        """[B * copies]: the total score of relaxed answers; at one-hot vectors it equals `score`.

        Args:
            answer: by variable: probability vectors [B * copies, *dims, labels], zero vectors where there is no cell.
            copies: how many answers each example has; those of an example stand together.
            penalty: what the probability of forbidden joint labels costs; -inf as soon as there is any when `None`.
        """
        return self.softened(copies, penalty)(answer)

    def softened(self, copies: int = 1, penalty: float | None = None) -> Softened:
        """`soft_score` as a function of the answer alone, for iterations: what does not depend on it is made once."""
        for name in self.ends():
            if self.env.batch.along[self.graph.variables[name].dims[0]].count is None:
                raise QueryRefused(f"relaxed labels have no length of their own, and that of `{name}` is to be found")
        parts = [term.softened(self.env, copies, penalty) for term in self.terms]
        batch = self.env.batch

        def evaluate(answer: Mapping[str, Tensor]) -> Tensor:
            total = torch.zeros(batch.size * copies, device=batch.device, dtype=batch.dtype)
            for part in parts:
                total = total + part(answer)
            return total

        return evaluate

    def steps(self, variable: str | None = None) -> Steps:
        """STEP: the sequence scored from left to right by all terms; refuses models of more than one sequence."""
        reason = why_not_stepwise(self.graph, variable, self.terms)
        if reason is not None:
            raise QueryRefused(f"the model cannot be scored from left to right: {reason}")
        name = variable or self.graph.discrete[0].name
        return Steps(self.terms, self.env, self.graph, name, self.evidence.allowed.get(name))

    def _in_length(self, name: str, labels: Tensor, batch: Batch) -> Tensor:
        cells = batch.cells(name, self.graph.variables[name].dims)
        return labels if cells is None else labels.masked_fill(~cells, ABSENT)

    def _with_lengths(self, answer: Mapping[str, Tensor]) -> tuple[Environment, Tensor | None]:
        """The batch with the lengths that an answer's end labels give, and [B] whether they give one length."""
        env, ended = self.env, None
        lengths: dict[str, Tensor] = {}
        for name, end in self.ends().items():
            (dim,) = self.graph.variables[name].dims
            if env.batch.along[dim].count is not None:
                continue
            ends = answer[name] == end
            length = (ends.cumsum(1) == 0).sum(1) + 1
            agree = ends.any(1) if dim not in lengths else ends.any(1) & (length == lengths[dim])
            ended = agree if ended is None else ended & agree
            lengths.setdefault(dim, length.clamp(max=env.batch.along[dim].size))
        if ended is None:
            return env, None
        return Environment(env.module, env.batch.with_lengths(lengths), env.relaxed, env.gains), ended

"""The backend `relaxed`: gradient ascent on relaxed labels (Tu & Gimpel 2019, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from energyml.backend import Backend, Session, make_backend
from energyml.backends.relaxed.ascent import Ascended, Ascent, Method
from energyml.backends.relaxed.card import STARTING_QUERIES
from energyml.backends.relaxed.implicit import at_optimum
from energyml.backends.relaxed.rounding import Rounding, likeliest_labels
from energyml.backends.relaxed.space import Space, Vectors
from energyml.backends.relaxed.starts import answered_logits, perturbed, random_logits, unary_logits
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.bind.views import tables
from energyml.caching import ValueCache
from energyml.cards.card import Selection
from energyml.diagnostics import QueryRefused
from energyml.grounded.factors import Grounder
from energyml.ir.graph import Graph
from energyml.plan.planner import judge
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Measured, Result, Status


class RelaxedAscent(Backend):
    """Gradient ascent.  Cost of a step: the relaxed score of every copy of every example, and its gradient."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Sort the terms, and make the backend that gives the starting point."""
        self.method = Method.of(self.selection)
        own = tables(terms)
        self.multilinear = len(own) == len(terms)
        self.grounder = Grounder(graph, own) if own else None
        self.first: tuple[Backend, str] | None = None
        start = self.selection["start"]
        if isinstance(start, Selection):
            answers = judge(start, structure).answers
            kind = next(query for query in STARTING_QUERIES if query in answers)
            backend = make_backend(start, structure)
            backend.prepare(graph, terms, structure)
            self.first = backend, kind

    def own(self, model: nn.Module, owned: nn.ModuleDict) -> nn.Module | None:
        """The parameters of the backend that gives the starting point, such as an inference network."""
        return None if self.first is None else self.first[0].own(model, owned)

    def open(self, problem: Problem) -> RelaxedSession:
        """Nothing moves before a query asks."""
        return RelaxedSession(problem, self)


@dataclass(eq=False)
class Rounded:
    """The best labels of each example.

    Attributes:
        labels: by variable [B, *dims], latents too.
        score: [B] their score; -inf where they are forbidden.
        relaxed: [B] the score of the relaxed labels that they come from.
        ascended: the ascent behind them.
    """

    labels: dict[str, Tensor]
    score: Tensor
    relaxed: Tensor
    ascended: Ascended


@dataclass(eq=False)
class Decoded:
    """The best relaxed labels of each example: by variable [B, *dims, labels], and the ascent behind them."""

    p: dict[str, Tensor]
    ascended: Ascended


class RelaxedSession(Session):
    """One batch; the ascent is made once."""

    def __init__(self, problem: Problem, backend: RelaxedAscent) -> None:
        self.problem, self.backend, self.selection = problem, backend, backend.selection
        self.space = Space(problem, int(self.selection["restarts"]))
        self.once = ValueCache().once

    def ask(self, query: Query) -> Result:
        """Answer `map` or `soft_decode`."""
        if query.kind == "map":
            with torch.no_grad():
                found: Rounded = self._kept("rounded", query, lambda: self._rounded(query))
            return Result(self._assignment(found), status=self._status(found), statistics=_measures(found))
        if query.kind == "soft_decode":
            decoded: Decoded = self._kept("decoded", query, lambda: self._decoded(query))
            return Result(decoded.p, statistics=_measures(decoded))
        raise QueryRefused(f"`relaxed` does not answer `{query.kind}`")

    def _kept(self, name: str, query: Query, compute: Any) -> Any:
        """A value that is computed once; one with random numbers of its own is computed each time."""
        return compute() if query.generator is not None else self.once(name, compute)

    # ----------------------------------------------------------------------------------------------------------- ascent

    def start(self, query: Query) -> Vectors:
        """The logits [B * copies, *dims, labels] of the starting points."""

        def noise() -> Vectors:
            return random_logits(self.space, int(self.selection["seed"]), query.generator)

        with torch.no_grad():
            if self.backend.first is not None:
                return perturbed(answered_logits(self.problem, self.space, *self.backend.first), self.space, noise)
            if self.selection["start"] == "unary":
                return perturbed(unary_logits(self.problem, self.space), self.space, noise)
            return noise()

    def ascent(self, method: Method, tracked: bool) -> Ascent:
        """The ascent in this batch; `tracked` keeps its steps for gradients."""
        with torch.set_grad_enabled(tracked):
            score = self.problem.softened(self.space.copies, float(self.selection["penalty"]))
        return Ascent(self.space, score, method, tracked)

    def _quiet(self, query: Query) -> Ascended:
        """The ascent without gradients of its answer."""
        with torch.no_grad():
            found: Ascended = self._kept(
                "ascended", query, lambda: self.ascent(self.backend.method, False).run(self.start(query))
            )
        return found

    # ------------------------------------------------------------------------------------------------------ soft labels

    def _decoded(self, query: Query) -> Decoded:
        """The relaxed labels of the best copy; zero where there is no cell or no answer."""
        if not torch.is_grad_enabled():
            found = self._quiet(query)
            return Decoded(self._best(found.p), found)
        if self.selection["gradients"] == "unrolled":
            found = self.ascent(self.backend.method, True).run(self.start(query))
            return Decoded(self._best(found.p), found)
        found = self._quiet(query)
        ascent, method = self.ascent(self.backend.method, True), self.backend.method

        def gradient(logits: Vectors) -> Vectors:
            p = self.space.probabilities(logits)
            return self.space.tangent(p, ascent.slopes(p, method.weight(method.steps - 1))[1])

        return Decoded(self._best(self.space.probabilities(at_optimum(gradient, found.logits))), found)

    def _best(self, p: Vectors) -> dict[str, Tensor]:
        """Of the copies of each example, the relaxed labels with the best score."""
        space = self.space
        if space.copies > 1:
            with torch.no_grad():
                scores = self._relaxed_scores(p).reshape(space.examples, space.copies)
                best = scores.argmax(1) + torch.arange(space.examples, device=space.device) * space.copies
            p = {name: one.index_select(0, best) for name, one in p.items()}
        gone = space.impossible
        return {name: one.masked_fill(gone.reshape(-1, *([1] * (one.dim() - 1))), 0.0) for name, one in p.items()}

    def _relaxed_scores(self, p: Mapping[str, Tensor]) -> Tensor:
        """[B * copies]: relaxed scores, the probability of what is forbidden counted with its penalty."""
        return self.problem.soft_score(p, self.space.copies, penalty=float(self.selection["penalty"]))

    # --------------------------------------------------------------------------------------------------------- rounding

    def _rounded(self, query: Query) -> Rounded:
        """Round every copy and keep the best answer of each example."""
        found = self._quiet(query)
        return self.rounded(found.p, found)

    def rounded(self, p: Vectors, ascended: Ascended) -> Rounded:
        """The best of the rounded copies of relaxed labels [B * copies, *dims, labels]."""
        space, grounder = self.space, self.backend.grounder
        rounding = None if grounder is None else self.once("rounding", lambda: Rounding(self.problem, grounder))
        if rounding is not None and self.backend.multilinear and self.selection["round"] == "coordinate":
            each = [
                rounding.coordinate(self._copy(p, number), float(self.selection["penalty"]))
                for number in range(space.copies)
            ]
            labels = self._together(each)
        else:
            labels = likeliest_labels(p, space)
        score = self._score(labels)
        if rounding is not None and self._forbids(score):
            each = [rounding.repaired(self._copy(labels, number)) for number in range(space.copies)]
            mended = self._together(each)
            bad = score.isneginf()
            labels = {
                name: torch.where(bad.reshape(-1, *([1] * (one.dim() - 1))), mended[name], one)
                for name, one in labels.items()
            }
            score = self._score(labels)
        best = score.reshape(space.examples, space.copies).argmax(1)
        rows = best + torch.arange(space.examples, device=space.device) * space.copies
        impossible = space.impossible if rounding is None else space.impossible | rounding.impossible
        relaxed = self._relaxed_scores(p)
        return Rounded(
            {name: one.index_select(0, rows) for name, one in labels.items()},
            score.index_select(0, rows).masked_fill(impossible, float("-inf")),
            relaxed.index_select(0, rows),
            ascended,
        )

    def _score(self, labels: Mapping[str, Tensor]) -> Tensor:
        """[B * copies]: the scores of labels, -inf where the evidence rules them out."""
        score = self.problem.score(labels, self.space.copies)
        return score.masked_fill(~self.space.allows(labels), float("-inf"))

    def _forbids(self, score: Tensor) -> bool:
        """Whether a repair may be needed: on an accelerator nobody looks."""
        return bool(score.isneginf().any()) if self.space.device.type == "cpu" else True

    def _copy(self, values: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        return {name: one[number :: self.space.copies] for name, one in values.items()}

    def _together(self, each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Copies [B, ...] of all examples as [B * copies, ...]."""
        if len(each) == 1:
            return each[0]
        return {name: torch.stack([one[name] for one in each], 1).flatten(0, 1) for name in each[0]}

    def _assignment(self, found: Rounded) -> Assignment:
        gone = found.score.isneginf()
        labels = {
            v.name: found.labels[v.name].masked_fill(
                gone.reshape(-1, *([1] * (found.labels[v.name].dim() - 1))), ABSENT
            )
            for v in self.problem.graph.discrete
            if v.kind != "latent"
        }
        return Assignment(labels, found.score, self.problem.label_names())

    # ----------------------------------------------------------------------------------------------- status, statistics

    def _status(self, found: Rounded) -> Status:
        def check() -> tuple[bool, str] | None:
            count = int(found.score.isneginf().sum())
            if not count:
                return None
            return False, (
                f"`relaxed` found only forbidden answers for {count} of {len(found.score)} examples; raise `penalty`, "
                "`steps` or `restarts`, or ask a backend that follows constraints, such as `exact` or `bp`"
            )

        return Status(check)


def _measures(found: Rounded | Decoded) -> Mapping[str, Any]:
    """`steps` made on average, the share of answers that `converged`; the relaxed and the rounded score [B]."""
    steps, converged = found.ascended.steps, found.ascended.converged
    measures: dict[str, Callable[[], Any]] = {
        "steps": lambda: float(steps.mean()) if len(steps) else 0.0,
        "converged": lambda: float(converged.double().mean()) if len(steps) else 1.0,
    }
    if isinstance(found, Rounded):
        measures["relaxed_score"] = lambda: found.relaxed
        measures["score"] = lambda: found.score
    return Measured(measures)

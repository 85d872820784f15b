"""Draws from left to right: with replacement (ancestral) and without (stochastic beams)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.backends.beam.search import Trace
from energyml.backends.beam.session import StepBackend, StepSession, drawn, padded, unanswered
from energyml.bind.problem import Problem
from energyml.bind.steps import Steps
from energyml.queries import Query
from energyml.result import Result

_NINF = float("-inf")


@dataclass(frozen=True)
class Proposal:
    """The distribution of a step: a softmax of its scores, perhaps sharpened and cut.

    Attributes:
        temperature: divides the scores.
        top: how many of the best labels are kept; all when `None`.
        nucleus: the mass of the smallest set of best labels that is kept (Holtzman et al. 2020).
    """

    temperature: float = 1.0
    top: int | None = None
    nucleus: float = 1.0

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """[R, C]: normalised log-probabilities; all -inf where every label is ruled out."""
        scores = scores if self.temperature == 1 else scores / self.temperature
        scores = scores.clamp(max=torch.finfo(scores.dtype).max)  # a sum that leaves the type is the best there is
        if self.top is not None and self.top < scores.shape[-1]:
            least = scores.topk(self.top, -1).values[:, -1:]
            scores = scores.masked_fill(scores < least, _NINF)
        scores = _normalised(scores)
        if self.nucleus < 1:
            ordered, index = scores.sort(-1, descending=True)
            p = ordered.exp()
            beyond = p.cumsum(-1) - p >= self.nucleus  # the label that crosses the line is kept, and so the best one
            beyond[:, 0] = False
            scores = _normalised(scores.masked_fill(torch.zeros_like(beyond).scatter(-1, index, beyond), _NINF))
        return scores


def _normalised(scores: Tensor) -> Tensor:
    total = scores.logsumexp(-1, keepdim=True)
    return torch.where(total.isneginf(), scores, scores - total.masked_fill(total.isneginf(), 0))


class Ancestral(StepBackend):
    """Label after label, each drawn from the softmax of its scores after those before it."""

    def open(self, problem: Problem) -> AncestralSession:
        """Nothing is drawn before a query asks."""
        return AncestralSession(problem, self.selection)


class AncestralSession(StepSession):
    """Draws with replacement."""

    def _sample(self, query: Query) -> Result:
        """Draws, exact where each step is locally normalised and nothing is cut, sharpened or ruled out.

        `log_proposal` [count, B] is the log-probability of drawing each answer: score - log_proposal is its importance
        weight.
        """
        chosen = self.selection
        proposal = Proposal(float(chosen["temperature"]), chosen["top"], float(chosen["nucleus"]))
        steps = self._searched()
        labels, score, log_q = ancestral(steps, proposal, query.count, query.generator)
        gone = score.isneginf()
        statistics = {"log_proposal": log_q.masked_fill(gone, _NINF).movedim(1, 0), "without_answer": gone.sum()}
        value = drawn(self._assignment(steps, labels, self._scored(steps, labels, score)))
        return Result(value, status=unanswered(gone.all(1)), statistics=statistics)


@torch.no_grad()
def ancestral(
    steps: Steps, proposal: Proposal, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of each example: labels [B, count, T] by step, their scores [B, count] and the log-probability of drawing.

    A draw that no label can continue has the score -inf.  Cost: T steps of B * count rows.
    """
    batch = steps.batch
    state, previous = steps.start(count, apart=True), None
    total = torch.zeros(batch.size * count, device=batch.device, dtype=batch.dtype)
    log_q = torch.zeros_like(total)
    labels: list[Tensor] = []
    for t in range(steps.size):
        scores, state = steps.advance(state, previous, t)
        logs = proposal.log_probabilities(scores)
        # Scores that leave their type add up to NaN: such a draw has no answer.
        possible = ~(logs.isneginf().all(-1, keepdim=True) | logs.isnan().any(-1, keepdim=True))
        p = torch.where(possible, logs, 0).to(torch.float64).softmax(-1)
        label = torch.multinomial(p, 1, generator=generator) if p.shape[0] else torch.zeros_like(p[:, :1]).long()
        total = total + scores.gather(1, label).squeeze(1)
        log_q = log_q + logs.gather(1, label).squeeze(1)
        previous = label.squeeze(1)
        labels.append(previous)
        total = total.masked_fill(~possible.squeeze(1), _NINF)
    found = torch.stack(labels, -1) if labels else torch.zeros(batch.size * count, 0, dtype=torch.long)
    return (
        found.to(batch.device).reshape(batch.size, count, steps.size),
        total.reshape(batch.size, count),
        log_q.reshape(batch.size, count),
    )


class StochasticBeam(StepBackend):
    """Draws without replacement: a beam over perturbed log-probabilities (Kool et al. 2019, algorithm 1)."""

    def open(self, problem: Problem) -> StochasticBeamSession:
        """Nothing is drawn before a query asks."""
        return StochasticBeamSession(problem, self.selection)


class StochasticBeamSession(StepSession):
    """Distinct draws with the weights that make up for there being no replacement."""

    def _sample(self, query: Query) -> Result:
        """`count` distinct answers in the order of their perturbed log-probabilities; fewer where there are fewer.

        Statistics, each [count, B]: `log_proposal`, the log-probability of an answer under the steps' softmaxes;
        `log_inclusion`, the log-probability that it is among the draws, given the threshold (section 4.2 of the paper):
        the sum of exp(log_proposal - log_inclusion) f(y) is an unbiased estimate of E[f].
        """
        proposal = Proposal(float(self.selection["temperature"]))
        steps = self._searched()
        draws = without_replacement(steps, proposal, query.count, query.generator)
        gone = draws.score.isneginf()
        statistics = {
            "log_proposal": draws.log_proposal.masked_fill(gone, _NINF).movedim(1, 0),
            "log_inclusion": draws.log_inclusion.masked_fill(gone, _NINF).movedim(1, 0),
        }
        value = drawn(self._assignment(steps, draws.labels, self._scored(steps, draws.labels, draws.score)))
        return Result(value, statistics=statistics)


@dataclass(frozen=True)
class Draws:
    """Distinct answers of each example.

    Attributes:
        labels: [B, n, T] by step.
        score: [B, n], -inf where there are fewer.
        log_proposal: [B, n] the log-probability of each under the steps' softmaxes.
        log_inclusion: [B, n] the log-probability of its being drawn, given the threshold.
    """

    labels: Tensor
    score: Tensor
    log_proposal: Tensor
    log_inclusion: Tensor


@torch.no_grad()
def without_replacement(steps: Steps, proposal: Proposal, count: int, generator: torch.Generator | None) -> Draws:
    """Draw by a beam whose hypotheses carry the largest Gumbel-perturbed log-probability of their continuations.

    One hypothesis more than wanted is kept: the last one's perturbed log-probability is the threshold.  Cost: T steps
    of B * (count + 1) rows.
    """
    batch, width = steps.batch, count + 1
    if batch.size == 0:
        nothing = torch.zeros(0, count, device=batch.device, dtype=batch.dtype)
        return Draws(nothing.long().unsqueeze(-1).expand(-1, -1, steps.size), nothing, nothing, nothing)
    total = torch.zeros(batch.size, 1, device=batch.device, dtype=batch.dtype)
    log_p = total.to(torch.float64)  # noise must not drown in large log-probabilities
    # The root's own noise is free: the threshold, and with it the chances of being drawn, depends on it.
    perturbed = _gumbel(log_p.shape, log_p.device, generator)
    state, previous, trace = steps.start(), None, Trace()
    for t in range(steps.size):
        scores, state = steps.advance(state, previous, t)
        shape = (batch.size, -1, steps.count)
        children = log_p.unsqueeze(-1) + proposal.log_probabilities(scores).reshape(shape)
        noisy = _conditioned(children, perturbed, generator)
        perturbed, index = noisy.flatten(1).topk(min(width, noisy[0].numel()), -1)
        parent, label = index // steps.count, index % steps.count
        log_p = children.flatten(1).gather(1, index)
        total = (total.unsqueeze(-1) + scores.reshape(shape)).flatten(1).gather(1, index)
        total = total.masked_fill(perturbed.isneginf(), _NINF)
        state, previous = steps.select(state, parent), label.flatten()
        trace.add(label, parent)
    rows = torch.arange(total.shape[1], device=batch.device).expand(total.shape)
    labels = padded(trace.follow(rows), width, 0)
    log_p, total, perturbed = (padded(one, width, _NINF) for one in (log_p, total, perturbed))
    kept, threshold = log_p[:, :count], perturbed[:, count:]
    # log(1 - exp(-exp(log_p - threshold))); without a threshold every answer was drawn.
    above = torch.where(threshold.isneginf(), float("inf"), kept - threshold)
    log_inclusion = torch.log(-torch.expm1(-above.exp()))
    return Draws(labels[:, :count], total[:, :count], kept, log_inclusion)


def _gumbel(shape: torch.Size, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise in float64."""
    uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    tiny = torch.finfo(torch.float64).tiny
    return -torch.log((-torch.log(uniform.clamp(min=tiny))).clamp(min=tiny))


def _conditioned(children: Tensor, parent: Tensor, generator: torch.Generator | None) -> Tensor:
    """[B, n, C]: Gumbels at children's log-probabilities [B, n, C], given that their maximum is the parent's [B, n].

    In the form that neither overflows nor cancels (Kool et al. 2019, appendix B.3).
    """
    free = children + _gumbel(children.shape, children.device, generator)
    most, given = free.amax(-1, keepdim=True), parent.unsqueeze(-1)
    possible = ~(free.isneginf() | most.isneginf() | given.isneginf())
    free, most, given = (torch.where(possible, one, 0) for one in (free, most.expand_as(free), given.expand_as(free)))
    gap = free - most  # at most 0
    v = given - free + torch.log1p(-gap.exp())
    found = given - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
    return found.masked_fill(~possible, _NINF)

"""Proposals for single cells: what masked conditionals, tables and step networks say about a cell's labels.

Row t of a masked network never sees the label at t; a table speaks about a cell given the others; a step network scores
the next label after a prefix.  Their sum, as a softmax, is a distribution with full support that is cheap to get for
all cells at once.  It is the model's conditional only for tables: Metropolis-Hastings corrects the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from energyml.backends.mcmc.target import Labels, ScoreTarget
from energyml.bind.conditionals import label_conditionals
from energyml.bind.views import MaskedView


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What one look at the answers gives.

    Attributes:
        score: [B, C]: the target's score.
        proposals: [B, C, cells, labels] by variable: unnormalised log-probabilities; auxiliary cells have all alike.
    """

    score: Tensor
    proposals: dict[str, Tensor]


def evaluate(target: ScoreTarget, labels: Labels, hidden: Labels | None = None) -> Evaluated:
    """Scores and proposals of answers [B, C, cells].  Cost: one pass of each masked or step network for both.

    Args:
        target: what is sampled.
        labels: the answers.
        hidden: by variable: bool [B, C, cells], which cells masked networks do not see; then only the proposals of
            these cells mean anything, and the score does not.
    """
    copies = next(iter(labels.values())).shape[1]
    answer = {name: one.flatten(0, 1) for name, one in target.outward(labels).items()}
    proposals = {name: target.permitted(name).expand(-1, copies, -1, -1).clone() for name in labels}
    problem, env = target.problem, target.problem.env
    masked = problem.masked()
    alone = len(masked) == len(problem.terms)
    score = torch.zeros(target.size, copies, device=target.device, dtype=target.dtype)
    for term in masked:
        name = term.body.variable
        if hidden is None:
            scores = term.masked_scores(env, answer[name], copies)
        else:
            scores = term.hidden_scores(env, answer[name], hidden[name].reshape(answer[name].shape), copies)
        proposals[name] += scores.reshape(proposals[name].shape)
        if alone:
            score = score + _masked_total(term, target, answer[name], scores, copies)
    for one in problem.stepwise():
        name = one.body.variable
        proposals[name] += one.step_scores(env, answer[name], copies).reshape(proposals[name].shape)
    if not target.free:  # tables at cells that may not exist could rule out labels that are possible
        _add_tables(target, answer, copies, proposals)
    score = target.ruled(labels, score) if alone else target.score(labels)
    return Evaluated(score, {name: _auxiliary(target, labels, name, one) for name, one in proposals.items()})


def _auxiliary(target: ScoreTarget, labels: Labels, name: str, scores: Tensor) -> Tensor:
    """Auxiliary cells are proposed uniformly; cells that do not exist keep their only label."""
    inside = target.present(labels)[name]
    if inside is None or not target.free:
        return scores
    return torch.where((inside | ~target.existing(name)).unsqueeze(-1), scores, 0)


def _add_tables(target: ScoreTarget, answer: Labels, copies: int, proposals: dict[str, Tensor]) -> None:
    tables = target.problem.tables()
    problem = target.repeated(copies) if tables else target.problem
    for variable in problem.graph.discrete:
        name = variable.name
        if any(name in term.term.variables for term in tables):
            count = target.counts[name]
            found = label_conditionals(tables, problem.env, variable, count, answer)
            gone = found.isneginf().all(-1, keepdim=True)
            found = torch.where(gone, 0, found)
            proposals[name] += found.reshape(proposals[name].shape)


def _masked_total(term: MaskedView, target: ScoreTarget, labels: Tensor, scores: Tensor, copies: int) -> Tensor:
    """[B, C]: the energy's own sum, from the same pass."""
    if term.body.energy == "local":
        scores = F.log_softmax(scores, -1)
    held = scores.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    total = torch.where(labels >= 0, held, 0).sum(1).reshape(target.size, copies)
    return term.scaled(target.problem.env, total)


def narrowed(scores: Tensor, temperature: float, nucleus: float, mixture: float) -> Tensor:
    """[..., labels]: the log-probabilities that labels are proposed with.

    Args:
        scores: unnormalised log-probabilities.
        temperature: divides them.
        nucleus: the smallest set of most likely labels whose mass reaches this is kept; the others get -inf.
        mixture: the share of proposals that come from the distribution before the nucleus was cut out.
    """
    wide = F.log_softmax(scores / temperature, -1)
    if nucleus >= 1:
        return wide
    ordered, order = wide.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    kept = torch.zeros_like(wide, dtype=torch.bool).scatter(-1, order, before < nucleus)
    narrow = F.log_softmax(wide.masked_fill(~kept, float("-inf")), -1)
    if mixture <= 0:
        return narrow
    share = torch.tensor(mixture, dtype=wide.dtype, device=wide.device)
    return torch.logaddexp(narrow + torch.log1p(-share), wide + share.log())


__all__ = ["Evaluated", "evaluate", "narrowed"]

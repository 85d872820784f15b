"""What is asked of a batch of first-order chains, answered by recursions over their cells.

All of them do O(B C²) work for each cell, and are safe where scores are -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from energyml.backends.exact.partition import beginnings, gold_steps, log_likelihood, log_partition, marginals
from energyml.backends.exact.potentials import Potentials
from energyml.backends.exact.viterbi import viterbi
from energyml.bind.batch import wide
from energyml.execution import is_host_readable, under_transform, without_autograd
from energyml.grounded.logspace import difference, entropy_terms, softmax
from energyml.result import ABSENT


def chain_log_partition(potentials: Potentials) -> Tensor:
    """[B]: the log-partition of each chain; -inf where every answer is forbidden, 0 for a chain without cells.

    O(B T C²).  Differentiable any number of times, also under `torch.func` and `torch.compile`.
    """
    return log_partition(potentials)


def log_partition_of(unary: Tensor, pair: Tensor, lengths: Tensor | None) -> Tensor:
    """The same of unaries [B, T, C], pair scores [B or 1, T-1 or 1, C, C] and lengths: the twin of native code."""
    return log_partition(Potentials(unary, pair, lengths))


def chain_marginals(potentials: Potentials, pairs: bool) -> tuple[Tensor, Tensor | None]:
    """The marginals of cells [B, T, C] and, when asked for, of steps [B, T-1, C, C], without gradients.  O(B T C²).

    Zero where there is no cell, and where every answer is forbidden.
    """
    return marginals(potentials.scores, potentials.steps, potentials.exists, pairs)


def chain_expected(unary: Tensor, pair: Tensor, scores: Tensor, steps: Tensor) -> Tensor:
    """[B]: the expected score of answers, by scores other than those that the answers are drawn from.

    Differentiable.  What has probability 0 counts nothing, whatever its score; the expectation is -inf, with zero
    gradients, where an answer that the scores forbid has positive probability.  O(B T C²).

    Args:
        unary: [B, T, C] marginals of cells.
        pair: [B, T-1, C, C] marginals of steps.
        scores: [B or 1, T or 1, C] the scores of cells.
        steps: [B or 1, T-1 or 1, C, C] the scores of steps.
    """
    if steps.shape[1] == 1:
        pair = pair.sum(1, keepdim=True)
    cells, impossible = _products(unary, scores)
    joint, forbidden = _products(pair, steps)
    return (cells + joint).masked_fill(impossible | forbidden, float("-inf"))


def _products(p: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[B]: the sum of probabilities times scores, and whether one that is positive meets -inf."""
    forbidden = scores.isneginf()
    finite = torch.where(forbidden | ((p == 0) & ~scores.isfinite()), 0, scores)
    return (p * finite).flatten(1).sum(1), ((p > 0) & forbidden).flatten(1).any(1)


def chain_entropy(unary: Tensor, pair: Tensor) -> Tensor:
    """[B]: the entropy from the marginals of cells [B, T, C] and pairs [B, T-1, C, C].

    H(y) = H(y₀) + Σ H(y₊₁ | y): no scores enter, so that large ones do not cancel.
    """
    first = entropy_terms(unary[:, :1]).sum((1, 2))
    return first + entropy_terms(pair).sum((1, 2, 3)) - entropy_terms(pair.sum(-1)).sum((1, 2))


def chain_score(potentials: Potentials, labels: Tensor) -> Tensor:
    """[B, k]: the scores of answers [B, k, T]; labels where there is no cell do not matter.  O(B k T)."""
    scores, steps, exists = potentials.scores, potentials.steps, potentials.exists
    here = labels.clamp(min=0)
    cells = scores.gather(2, here.transpose(1, 2)).transpose(1, 2)
    # The place of each pair in the tables as they are, shared or not: their gradient is no larger than they are.
    place = gold_steps(here, steps.shape)
    pairs = steps.reshape(-1).index_select(0, place.flatten()).view(place.shape)
    if exists is not None:
        cells = torch.where(exists.unsqueeze(1), cells, 0)
        pairs = torch.where(exists[:, 1:].unsqueeze(1), pairs, 0)
    return cells.sum(-1) + pairs.sum(-1)


def chain_likelihood(potentials: Potentials, labels: Tensor) -> Tensor | None:
    """[B]: the log-probability of labels [B, T] of all cells that exist, -inf where they are forbidden; O(B T C²).

    Differentiable as the log-partition is.  `None` where a cell has no label between 0 and C - 1, or where finding that
    out would stall a device or cannot be recorded.
    """
    scores, exists = potentials.scores, potentials.exists
    if not is_host_readable(labels) or under_transform():
        return None
    if exists is not None:
        labels = labels * exists
    if labels.numel():
        low, high = torch.aminmax(labels)
        if low.item() < 0 or high.item() >= scores.shape[2]:
            return None
    if 0 in scores.shape or scores.shape[1] == 1:
        return difference(chain_score(potentials, labels.unsqueeze(1)).squeeze(1), chain_log_partition(potentials))
    return log_likelihood(scores, potentials.steps, exists, labels.long())


def chain_best(potentials: Potentials, count: int) -> tuple[Tensor, Tensor]:
    """The k best answers of each chain, best first: labels [B, k, T] (-1 for none) and scores [B, k] (-inf for none).

    Viterbi with k hypotheses for each label: O(B T C² k).  Scores are differentiable, and added up in float32 at least.
    """
    single = potentials.single()
    if single is not None:
        labels, scores = chain_best(single, count)
        return labels, scores.to(potentials.dtype)
    if count > 1:
        with torch.no_grad():
            labels, scores = _decode(potentials, count)
        return chain_answers(potentials, labels, scores)
    # Others, as they remember what is made of them, which autograd would refuse.
    given = Potentials(potentials.scores, potentials.steps, potentials.count)
    if under_transform():
        given = Potentials(potentials.scores.detach(), potentials.steps.detach(), potentials.count)
    with without_autograd():
        best, score = viterbi(given)
    return chain_answers(potentials, best.unsqueeze(1), score.unsqueeze(1).clone())


def chain_answers(potentials: Potentials, labels: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Decoded labels [B, k, T] and scores [B, k] as answers: -1 where there is no cell or no answer, with gradients."""
    missing = scores.isneginf()
    if potentials.tracked or under_transform():
        path = chain_score(potentials, labels).masked_fill(missing, 0)
        # the values stay sorted, the gradients are those of the paths
        scores = scores.detach() + (path - path.detach())
    if potentials.count is None:
        return labels.masked_fill(missing.unsqueeze(-1), ABSENT), scores
    known = potentials.count.unsqueeze(1).masked_fill(missing, 0)  # [B, k]: how many cells have a label
    absent = torch.arange(labels.shape[2], device=labels.device) >= known.unsqueeze(-1)
    return labels.masked_fill(absent, ABSENT), scores


def _decode(potentials: Potentials, count: int) -> tuple[Tensor, Tensor]:
    """Labels [B, k, T] of the best answers and their scores [B, k]; -inf for what is no answer."""
    unary, pair, exists = potentials.unary, potentials.pair, potentials.exists
    batch, size, labels = unary.shape
    idle = torch.where(torch.arange(labels, device=unary.device) == 0, 0.0, float("-inf")).to(unary.dtype)
    # [B, slots, C]: the scores of the best beginnings that end in each label.  A chain without cells has one answer.
    ahead = idle.expand(batch, 1, labels)
    if size:
        first = unary[:, :1]
        ahead = first if exists is None else torch.where(exists[:, 0].reshape(-1, 1, 1), first, ahead)
    back: list[Tensor] = []
    for t in range(1, size):
        slots = ahead.shape[1]
        onward = (ahead.unsqueeze(3) + pair[:, t - 1].unsqueeze(1)).flatten(1, 2) + unary[:, t].unsqueeze(1)
        best = onward.topk(min(count, slots * labels), dim=1)
        ahead, origin = _carried(ahead, best.values, best.indices, None if exists is None else exists[:, t])
        back.append(origin)
    last = ahead.flatten(1).topk(min(count, ahead.shape[1] * labels), dim=1)
    place, missing = last.indices, count - last.values.shape[1]
    found: list[Tensor] = []  # from the last cell to the first: [B, k]
    for t in range(size - 1, -1, -1):
        found.append(place % labels)
        if t:
            place = back[t - 1].flatten(1).gather(1, place)
    decoded = torch.stack(found[::-1], 2) if size else place.new_zeros(batch, place.shape[1], 0)
    scores = torch.nn.functional.pad(last.values, (0, missing), value=float("-inf"))
    return torch.nn.functional.pad(decoded, (0, 0, 0, missing)), scores


def _carried(before: Tensor, values: Tensor, origin: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where a chain has ended, its beginnings stay as they are."""
    if exists is None:
        return values, origin
    slots, labels = values.shape[1], values.shape[2]
    # A slot that held nothing before points at the first: its score is -inf, so that no answer goes through it.
    same = torch.arange(slots * labels, device=values.device).reshape(1, slots, labels)
    same = torch.where(same < before.shape[1] * labels, same, 0)
    if before.shape[1] < slots:
        before = torch.nn.functional.pad(before, (0, 0, 0, slots - before.shape[1]), value=float("-inf"))
    here = exists.reshape(-1, 1, 1)
    return torch.where(here, values, before), torch.where(here, origin, same)


def chain_max_marginals(potentials: Potentials) -> Tensor:
    """[B, T, C]: the best score with each cell fixed to each label: Viterbi from both sides, in float32 at least."""
    single = potentials.single()
    if single is not None:
        return chain_max_marginals(single).to(potentials.dtype)
    unary, pair, exists = potentials.unary, potentials.pair, potentials.exists
    size = unary.shape[1]
    if size == 0:
        return unary
    ahead, behind = [unary[:, 0]], [torch.zeros_like(unary[:, 0])]
    for t in range(1, size):
        ahead.append((ahead[-1].unsqueeze(2) + pair[:, t - 1]).amax(1) + unary[:, t])
    for t in range(size - 1, 0, -1):
        step = (pair[:, t - 1] + (unary[:, t] + behind[-1]).unsqueeze(1)).amax(2)
        behind.append(step if exists is None else torch.where(exists[:, t : t + 1], step, 0))
    return torch.stack(ahead, 1) + torch.stack(behind[::-1], 1)


@torch.no_grad()
def chain_draws(potentials: Potentials, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Exact draws: labels [B, count, T], and [B] whether there is any answer.

    Forward filtering, backward sampling: O(B T C²), and O(T C) more for each draw.
    """
    pair, exists = potentials.pair, potentials.exists
    batch, size, labels = potentials.scores.shape
    drawn = torch.zeros(batch, count, size, dtype=torch.long, device=pair.device)
    ahead, total = beginnings(potentials.scores, potentials.steps, exists)
    possible = ~total.isneginf()
    if batch == 0 or count == 0:
        return drawn, possible
    meant = possible.unsqueeze(1).expand(batch, size)
    meant = meant if exists is None else meant & exists
    for t in range(size - 1, -1, -1):
        logits = ahead[:, t].unsqueeze(1).expand(batch, count, labels)
        if t + 1 < size:
            columns = pair[:, t].transpose(1, 2)
            onward = columns.gather(1, drawn[:, :, t + 1].unsqueeze(2).expand(batch, count, labels))
            logits = logits + (onward if exists is None else torch.where(exists[:, t + 1].reshape(-1, 1, 1), onward, 0))
        # Where nothing is meant to be drawn, all labels weigh the same: weights must not all be zero.
        weights = torch.where(meant[:, t].reshape(-1, 1, 1), softmax(logits.to(wide(pair.device)), -1), 1)
        drawn[:, :, t] = torch.multinomial(weights.flatten(0, 1), 1, generator=generator).reshape(batch, count)
    return drawn, possible

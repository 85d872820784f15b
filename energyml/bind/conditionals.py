"""The distribution of each cell given all others of an answer, from the terms alone: no backend is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from energyml.bind.batch import Batch, wide
from energyml.bind.bound import BoundTerm
from energyml.bind.tables import TableTerm
from energyml.bind.tensors import Environment
from energyml.bind.views import LinearView, QuadraticView, TermView
from energyml.bind.whole import MaskedTerm
from energyml.diagnostics import EnergyError
from energyml.model.declared import Variable

# Positions that are scored at once, over all examples and trials: networks hold all of their activations.
TRIALS = 1 << 15


def label_conditionals(
    terms: Sequence[TermView], env: Environment, variable: Variable, count: int, answer: Mapping[str, Tensor]
) -> Tensor:
    """[B, *dims, labels]: log p(cell | all other cells); -inf where there is no cell.  Added up in double precision.

    Args:
        terms: all terms of the model.
        env: the batch.
        variable: whose cells are looked at.
        count: how many labels they may take.
        answer: labels [B, *dims] by variable, for every cell; -1 where there is none.

    Cost: a lookup in each table for each label; one score for each label of each cell where a term has no table.
    """
    own = [term for term in terms if variable.name in term.term.variables]
    labels = answer[variable.name]
    scores = torch.zeros(*labels.shape, count, device=env.batch.device, dtype=wide(env.batch.device))
    for term in own:
        if isinstance(term, TableTerm):
            scores = scores + _from_table(term, env, variable, answer, count, scores.dtype)
        else:
            scores = scores + _by_trial(term, env, variable, answer, count)
    return _normalised(scores, labels).to(env.batch.dtype)


def _from_table(
    term: TableTerm,
    env: Environment,
    variable: Variable,
    answer: Mapping[str, Tensor],
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """[B, *dims, labels]: for each cell the sum of its factors with each of its labels, the others as they are."""
    batch = env.batch
    table, valid = term.table(env), term.valid(batch)
    flat = table.flatten(1 + term.rank)
    sizes = table.shape[1 + term.rank :]
    every = torch.arange(count, device=batch.device)
    places = [term.cells(batch, number) for number in range(len(term.term.scope))]
    held = [
        term.at_cells(batch, number, answer[ref.variable]).clamp(min=0) for number, ref in enumerate(term.term.scope)
    ]
    dims = answer[variable.name].shape[1:]
    total = torch.zeros(batch.size, max(1, dims.numel()) * count, device=batch.device, dtype=dtype)
    for number, ref in enumerate(term.term.scope):
        if ref.variable != variable.name:
            continue
        twins = [_same(places[number], places[other]) if one.variable == ref.variable else None
                 for other, one in enumerate(term.term.scope)]  # fmt: skip
        joint: Tensor | None = None
        for size, label, twin in zip(sizes, held, twins, strict=True):
            here = label.unsqueeze(-1) if twin is None else torch.where(twin.unsqueeze(-1), every, label.unsqueeze(-1))
            joint = here if joint is None else joint * size + here
        assert joint is not None
        lead = torch.broadcast_shapes(flat.shape[:-1], joint.shape[:-1], (batch.size, *([1] * term.rank)))
        value = flat.expand(*lead, -1).gather(-1, joint.expand(*lead, count))
        counted = valid
        for twin in twins[:number]:  # a factor that holds a cell twice counts once for it
            if twin is not None:
                counted = ~twin if counted is None else counted & ~twin
        if counted is not None:
            value = torch.where(counted.unsqueeze(-1), value, 0)
        at = torch.zeros(lead, dtype=torch.long, device=batch.device)
        for place, size in zip(places[number], dims, strict=True):
            at = at * size + place
        index = (at.unsqueeze(-1) * count + every).reshape(batch.size, -1)
        total = total.scatter_add(
            1, index.clamp(max=max(0, total.shape[1] - 1)), value.reshape(batch.size, -1).to(dtype)
        )
    return total.reshape(batch.size, *dims, count) if dims.numel() else total.new_zeros(batch.size, *dims, count)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """[B or 1, *domain]: whether two cells of one variable are the same."""
    if not one:
        return torch.ones((), dtype=torch.bool)
    found = one[0] == other[0]
    for a, b in zip(one[1:], other[1:], strict=True):
        found = found & (a == b)
    return found


def _by_trial(term: TermView, env: Environment, variable: Variable, answer: Mapping[str, Tensor], count: int) -> Tensor:
    """[B, *dims, labels]: the term's score with each label at each cell.

    Cost: a score for each label of each cell, `TRIALS` positions at a time.  Where gradients are wanted, the passes
    after the first are computed again on the way back, so that memory holds the activations of two passes.
    """
    labels = answer[variable.name]
    rows, cells = labels.shape[0], labels[0].numel() if labels.shape[0] else 0
    if not rows or not cells:
        return torch.zeros(*labels.shape, count, device=labels.device, dtype=env.batch.dtype)
    every = torch.arange(cells * count, device=labels.device)
    at_once = max(1, TRIALS // (rows * cells))

    def scored(pairs: Tensor) -> Tensor:
        """[B, n]: with one label at one cell, for n pairs `cell * count + label`."""
        number = pairs.shape[0]
        full = {name: one.repeat_interleave(number, 0) for name, one in answer.items()}
        flat = labels.reshape(rows, 1, cells).expand(-1, number, -1)
        here = (torch.arange(cells, device=labels.device) == (pairs // count).unsqueeze(1)) & (flat >= 0)
        trial = torch.where(here, (pairs % count).unsqueeze(1), flat)
        full[variable.name] = trial.reshape(rows * number, *labels.shape[1:])
        return term.score(env, full, number).reshape(rows, number)

    # The first pass is a plain one: it fills in what the batch remembers, which later passes then find both times.
    parts = [scored(every[:at_once])]
    for first in range(at_once, every.shape[0], at_once):
        pairs = every[first : first + at_once]
        again = torch.is_grad_enabled() and parts[0].requires_grad
        parts.append(checkpoint(scored, pairs, use_reentrant=False) if again else scored(pairs))
    return torch.cat(parts, 1).reshape(*labels.shape, count)


def masked_conditionals(
    terms: Sequence[BoundTerm],
    env: Environment,
    variable: Variable,
    count: int,
    answer: Mapping[str, Tensor],
    hidden: Tensor | None = None,
) -> Tensor:
    """[B, *dims, labels]: log p(cell | all other cells) as masked networks have it; -inf where there is no cell.

    The softmax of the scores that masked networks give a cell, with what tables say about it given the others.  These
    are the free conditionals of Goyal 2021, section 6.2.1: those of no joint distribution in general, and not those of
    `raw` and `local` scores, whose other positions change with the cell too (`label_conditionals`).

    Args:
        terms: all terms of the model: masked networks and tables.
        env: the batch.
        variable: whose cells are looked at.
        count: how many labels they may take.
        answer: labels [B, *dims] by variable, for every cell; -1 where there is none.
        hidden: bool [B, *dims]: cells that masked networks do not see at all; then only the rows of these mean
            anything, and tables go on reading the labels there.

    Cost: one pass of each masked network over all positions, and a lookup in each table for each label.
    """
    labels = answer[variable.name]
    scores = torch.zeros(*labels.shape, count, device=env.batch.device, dtype=env.batch.dtype)
    for term in terms:
        if variable.name not in term.term.variables:
            continue
        if isinstance(term, MaskedTerm):
            found = term.masked_scores(env, labels) if hidden is None else term.hidden_scores(env, labels, hidden)
            scores = scores + term.scaled(env, found)
        elif isinstance(term, TableTerm):
            scores = scores + _from_table(term, env, variable, answer, count, scores.dtype)
        else:
            raise EnergyError(f"the term `{term.term.name}` ({term.term.kind}) has no masked conditionals")
    return _normalised(scores, labels)


def _normalised(scores: Tensor, labels: Tensor) -> Tensor:
    """[B, *dims, labels]: log-probabilities; -inf where there is no cell, and where no label is possible."""
    possible = ((labels >= 0).unsqueeze(-1) & ~scores.isneginf()).any(-1, keepdim=True)
    total = torch.where(possible, scores, 0).logsumexp(-1, keepdim=True)
    return torch.where(possible & ~scores.isneginf(), scores - total, float("-inf"))


def field_conditionals(
    linear: LinearView, quadratic: QuadraticView, env: Environment, values: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean and the variance [B, *axes] of each cell given all others: one product with the precision matrix.

    Both are zero where there is no position.
    """
    batch: Batch = env.batch
    form = quadratic.form(env)
    s = quadratic.layout.to_cells(values, batch).reshape(form.sizes)
    own = form.diagonal_of_all().expand(form.sizes)
    mean = s + (linear.linear(env).reshape(form.sizes) - form.multiply(s)) / own
    variance = own.reciprocal()
    if form.present is not None:
        mean, variance = (torch.where(form.present.unsqueeze(1), one, 0) for one in (mean, variance))
    sizes = quadratic.axis_sizes(batch)
    return quadratic.layout.from_cells(mean, sizes), quadratic.layout.from_cells(variance, sizes)


__all__ = ["field_conditionals", "label_conditionals", "masked_conditionals"]

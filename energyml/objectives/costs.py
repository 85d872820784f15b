"""Decomposable costs of mistakes, for the objectives with a margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from energyml.bind.problem import Problem
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError, did_you_mean
from energyml.objectives.losses import labelled_cells


@dataclass(frozen=True)
class Costs:
    """What a gold answer says about every other answer.

    Attributes:
        each: by variable [B, *dims, labels]: what a label costs at a cell; 0 for the gold label, and for all labels of
            a cell whose gold label is unknown.
        wrong: by variable [B, *dims, labels]: which labels differ from a known one.
    """

    each: dict[str, Tensor]
    wrong: dict[str, Tensor]


def costs_of(problem: Problem, answer: Mapping[str, Tensor], selection: Selection) -> Costs:
    """The costs of an objective's option `cost`; normalised Hamming when it is left out.

    Costs that a card describes are shares, divided by the number of labelled cells of an example, unless its option
    `normalize` is false.  Tensors [B, *dims, labels] by variable, as Python gives them, are taken as they are; a
    variable without one costs nothing.

    Args:
        problem: the batch.
        answer: gold labels [B, *dims] by variable, -1 where unknown.
        selection: the objective.
    """
    names, chosen = problem.label_names(), selection["cost"]
    for name in answer:
        if name not in names:
            raise EnergyError(
                f"`{selection.name}` needs labels, and `{name}` is no variable with labels that are inferred"
            )
    wrong = {name: _wrong(labels, len(names[name])) for name, labels in answer.items()}
    if isinstance(chosen, Mapping):
        given = problem.answers.costs(chosen, problem.env.batch)
        return Costs({name: torch.where(wrong[name], one, 0) for name, one in given.items() if name in wrong}, wrong)
    check_cost(chosen, {label for name in answer for label in names[name]})
    share = 1 / labelled_cells(answer).clamp(min=1).to(problem.env.batch.dtype)
    if chosen is not None and not chosen["normalize"]:
        share = torch.ones_like(share)
    each = {}
    for name, labels in answer.items():
        scale = share.reshape(-1, *([1] * labels.dim()))
        each[name] = wrong[name] * (scale * _mistakes(chosen, names[name], labels, share))
    return Costs(each, wrong)


def _wrong(labels: Tensor, count: int) -> Tensor:
    """[B, *dims, labels]: which labels differ from a known one."""
    steps = torch.arange(count, device=labels.device)
    return (labels.unsqueeze(-1) != steps) & (labels >= 0).unsqueeze(-1)


def _mistakes(chosen: Selection | None, names: tuple[str, ...], gold: Tensor, like: Tensor) -> Tensor:
    """[labels] or [B, *dims, labels]: the cost of predicting each label wrongly, 1 unless the selection says otherwise.

    Args:
        chosen: the cost's selection.
        names: the labels' names.
        gold: labels [B, *dims].
        like: a tensor of the wanted type and device.
    """
    if chosen is not None and chosen.name == "confusion":
        known = {name: number for number, name in enumerate(names)}
        table = torch.full((len(names), len(names)), float(chosen["otherwise"]), dtype=like.dtype)
        for one, predicted, value in _pairs(chosen):
            if one in known and predicted in known:
                table[known[one], known[predicted]] = value
        return table.to(like.device)[gold.clamp(min=0)]
    weights = (chosen["weights"] if chosen is not None else None) or {}
    return torch.tensor([weights.get(name, 1.0) for name in names], device=like.device, dtype=like.dtype)


def _pairs(chosen: Selection) -> Iterator[tuple[str, str, float]]:
    """(gold, predicted, cost) of a table by label pairs."""
    for gold, row in chosen["costs"].items():
        for predicted, value in row.items():
            yield gold, predicted, value


def check_cost(chosen: Selection | Mapping[str, Tensor] | None, labels: set[str]) -> None:
    """Refuse a cost for a label that no labelled variable has; tensors name none."""
    if not isinstance(chosen, Selection):
        return
    if chosen.name == "confusion":
        named = [label for gold, predicted, _ in _pairs(chosen) for label in (gold, predicted)]
    else:
        named = list(chosen["weights"] or {})
    for label in named:
        if label not in labels:
            guess = did_you_mean(label, sorted(labels))
            hint = f"; did you mean `{guess}`?" if guess else ""
            raise EnergyError(f"the cost weighs `{label}`, which is no label of the outputs{hint}")

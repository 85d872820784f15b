"""Oracle tuning of gradient ascent, as an evaluation mode (Tu & Gimpel 2019, section 5).

The number of steps and the step size are chosen for each example so that its answer agrees best with the *gold* labels.
That is an upper limit on what tuning could give, for comparisons: on new data nobody knows the gold labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from energyml.backends.relaxed.backend import RelaxedAscent
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.objectives.losses import labelled_cells, per_example
from energyml.queries import Query
from energyml.result import Assignment

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# The paper's grids.
LEARNING_RATES = (1e4, 5e3, 1e3, 500.0, 100.0, 50.0, 10.0, 5.0, 1.0)
STEPS = (5, 10, 20, 30, 40, 50, 100, 500, 1000)

# From predicted and gold labels [B, *dims] by variable to a number for each example, the larger the better.
Metric: TypeAlias = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class OracleTuned:
    """The answers of oracle tuning: chosen by the gold labels, and so no prediction.

    Attributes:
        answer: the chosen answers and their scores.
        metric: [B] what they were chosen by.
        relaxed_score: [B] the scores of the relaxed labels behind them.
        steps: [B] the number of steps of each.
        lr: [B] the step size of each.
    """

    answer: Assignment
    metric: Tensor
    relaxed_score: Tensor
    steps: Tensor
    lr: Tensor

    def __repr__(self) -> str:
        mean = float(self.metric.mean()) if len(self.metric) else float("nan")
        return f"OracleTuned({len(self.metric)} examples, tuned on their gold labels; metric {mean:.4f})"


def share_right(labels: Mapping[str, Tensor], gold: Mapping[str, Tensor]) -> Tensor:
    """[B]: the share of the labelled cells whose label is right."""
    right = torch.stack([per_example(((labels[name] == one) & (one >= 0)).long()) for name, one in gold.items()]).sum(0)
    return right.double() / labelled_cells(gold).clamp(min=1)


@torch.no_grad()
def tuned(
    model: EnergyModel,
    *,
    using: str | Selection = "relaxed",
    learning_rates: Sequence[float] = LEARNING_RATES,
    steps: Sequence[int] = STEPS,
    metric: Metric = share_right,
    lengths: Any = None,
    mask: Any = None,
    **tensors: Tensor,
) -> OracleTuned:
    """For each example the answer of the number of steps and the step size that serve it best, by its gold labels.

    Args:
        model: the bound model.
        using: a choice of `relaxed`; its own `steps` and `lr` do not count.
        learning_rates: the step sizes that are tried.
        steps: the numbers of steps that are tried.
        metric: what is maximised for each example.
        lengths: as in `model.infer`.
        mask: as in `model.infer`.
        **tensors: inputs, and gold labels by variable.

    Cost: an ascent of the largest number of steps for each step size, and a rounding for each pair.  Of equally good
    pairs, the first step size and the fewest steps count.
    """
    gold = {name: one for name, one in tensors.items() if name in model.graph.variables}
    if not gold:
        raise EnergyError("oracle tuning needs gold labels: pass each output by name, as in `y=...`")
    selection = model.plan(using).verdict.selection
    if selection.name != "relaxed":
        raise EnergyError(f"oracle tuning is for `relaxed`, and `{selection.name}` was asked for")
    backend = RelaxedAscent(selection)
    backend.prepare(model.graph, model.terms, model.structure)
    inputs: dict[str, Any] = {name: one for name, one in tensors.items() if name not in gold}
    problem = model.problem(lengths=lengths, mask=mask, **inputs)
    gold = problem.answers.labels(gold, problem.env.batch)
    session = backend.open(problem)
    start = session.start(Query("map"))
    best: OracleTuned | None = None
    for lr in learning_rates:
        method = replace(backend.method, lr=lr, steps=max(steps))
        found = session.ascent(method, False).run(start, steps)
        for count in sorted(steps):
            rounded = session.rounded(found.snapshots[count], found)
            value = metric(rounded.labels, gold)
            labels = {v.name: rounded.labels[v.name] for v in problem.graph.discrete if v.kind != "latent"}
            answer = Assignment(labels, rounded.score, problem.label_names())
            made = OracleTuned(
                answer, value, rounded.relaxed, torch.full_like(value, count), torch.full_like(value, lr)
            )
            best = made if best is None else _better(best, made)
    if best is None:
        raise EnergyError("oracle tuning needs at least one step size and one number of steps")
    return best


def _better(one: OracleTuned, other: OracleTuned) -> OracleTuned:
    """For each example the one with the larger metric."""
    wins = other.metric > one.metric

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(wins.reshape(-1, *([1] * (a.dim() - 1))), b, a)

    labels = {name: pick(a, other.answer.labels[name]) for name, a in one.answer.labels.items()}
    return OracleTuned(
        Assignment(labels, pick(one.answer.score, other.answer.score), one.answer.names),
        pick(one.metric, other.metric),
        pick(one.relaxed_score, other.relaxed_score),
        pick(one.steps, other.steps),
        pick(one.lr, other.lr),
    )

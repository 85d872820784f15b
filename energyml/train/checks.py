"""What is looked at before a run begins: mistakes of any stage, and what is allowed but seldom meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from energyml.data.load import Data
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled
from energyml.objectives.costs import check_cost
from energyml.objectives.trained_runs import trained_run
from energyml.plan.planner import asked, objective_refusal
from energyml.train.balance import make_balance
from energyml.train.loss import as_arguments
from energyml.train.stages import Stage

if TYPE_CHECKING:
    from energyml.cards.card import Selection
    from energyml.energy_model import EnergyModel


def check_stages(
    stages: Sequence[Stage], infer: Selection | None, model: EnergyModel, data: Data, metrics: Sequence[str]
) -> None:
    """Refuse what a later stage would stumble over, before the first epoch is spent: `check` sees the spec alone.

    Args:
        stages: in their order.
        infer: the backend of the run, where one was named.
        model: the bound model.
        data: of the run.
        metrics: those that were asked for beside the stop rules'.
    """
    assert data.train is not None
    first = data.train.batch([0])
    elements = {variable.type.element for variable in model.graph.discrete}
    labels = {label for element in elements for label in model.graph.label_sets[element].labels or ()}
    for stage in stages:
        verdict = model.plan(stage["infer"] or infer, asked(stage.objective)).verdict
        if verdict.refusal is not None:
            raise EnergyError(f"`{verdict.selection.name}` cannot serve this model: {verdict.refusal}")
        refusal = objective_refusal(stage.objective, verdict, model.structure)
        if refusal is not None:
            raise EnergyError(f"stage `{stage.title}` cannot train this model: {refusal}")
        make_balance(stage["balance"], model.graph)
        check_cost(stage["cost"], labels)
        for metric in (*metrics, *stop_metrics([stage.objective])):
            for output in first.gold:
                data.train.metric(metric, output)
        for option in ("teacher", "run"):
            if stage[option] is not None:
                problem = model.problem(lengths=first.lengths or None, **as_arguments(first.inputs))
                trained_run(str(stage[option]), problem, f"the {option} of `{stage.objective.name}`")


def stop_metrics(stages: Sequence[Selection]) -> list[str]:
    """The metrics that stop rules look at; the loss is none."""
    named = [str(stage["stop"]["metric"]) for stage in stages if stage["stop"] is not None]
    return [name for name in dict.fromkeys(named) if name != "loss"]


def doubts(compiled: Compiled, stages: Sequence[Stage], data: Data, infer: str) -> list[str]:
    """What is allowed and seldom meant.

    Args:
        compiled: the spec.
        stages: in their order.
        data: of the run.
        infer: the backend that will predict.
    """
    found = []
    decoder, last = compiled.model.choices.decode, stages[-1]
    if decoder is not None and decoder.name == "marginal_argmax" and last.objective.name == "ssvm":
        found.append(
            f"`decode {decoder}` reads probabilities, which `ssvm` does not train: without `decode` the best answer is "
            "taken"
        )
    if last["infer"] is not None and str(last["infer"]) != infer:
        found.append(
            f"stage `{last.title}` trains and picks its best weights by `{last['infer']}`; `eval` and `predict` are by "
            f"`{infer}` unless `--infer` says otherwise"
        )
    found += [
        f"stage `{stage.title}` leaves terms out, and so has no use for its `balance`"
        for stage in stages
        if stage.without and stage["balance"] is not None and stage["balance"].name != "none"
    ]
    if data.validation is None or not len(data.validation):
        judged = stop_metrics([stage.objective for stage in stages])
        if judged:
            found.append(f"there is no validation data: stop rules look at the training loss instead of {judged[0]}")
    return found


__all__ = ["check_stages", "doubts", "stop_metrics"]

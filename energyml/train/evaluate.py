"""Predictions of a model, and how good they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from energyml.cards import registry
from energyml.cards.card import Selection
from energyml.data.batches import Batches
from energyml.data.dataset import Batch, Dataset
from energyml.diagnostics import EnergyError
from energyml.plan.planner import asked
from energyml.posterior import Posterior

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# Prediction follows the objective: what was trained by marginals is read off marginals.
_BY_MARGINALS = ("marginal_ce", "pseudo_likelihood")


def decoder_for(model: EnergyModel, objective: str | None = None, using: str | Selection | None = None) -> Selection:
    """The spec's own decoder, else the one that follows the objective, else one that the backend can serve.

    Args:
        model: whose answers are decoded.
        objective: what it was trained by; the spec's last stage when left out.
        using: the backend, as in `model.infer`: a sampler has marginals and draws, but knows no best answer.
    """
    chosen = model.compiled.model.choices.decode
    if chosen is not None:
        return chosen
    stages = model.compiled.model.choices.train
    last = objective or (stages[-1].name if stages else "nll")
    first = "mode" if model.structure.has_field else "marginal_argmax" if last in _BY_MARGINALS else "map"
    answers = model.plan(using).verdict.answers
    able = [one for one in map(_decoder, (first, "marginal_argmax", "sample")) if set(asked(one)) <= answers.keys()]
    return able[0] if able else _decoder(first)


def _decoder(name: str) -> Selection:
    card = registry.find("decoder", name)
    assert card is not None
    return Selection(card)


def decoded(posterior: Posterior, decoder: Selection) -> Mapping[str, Tensor]:
    """The labels [B, *dims] of each output; -1 where there is no cell."""
    match decoder.name:
        case "map" | "mode":
            return posterior.map().labels
        case "n_best":
            return {name: one[:, 0] for name, one in posterior.n_best(int(decoder["count"])).labels.items()}
        case "sample":
            return {name: one[0] for name, one in posterior.sample(int(decoder["count"])).labels.items()}
        case "marginal_argmax":
            found = {}
            for name, p in posterior.marginals.items():
                labels = p.argmax(-1)
                found[name] = labels.masked_fill(p.sum(-1) == 0, -1)
            return found
    raise EnergyError(f"no decoder `{decoder.name}`")


def default_metrics(model: EnergyModel, named: Iterable[str] = ()) -> list[str]:
    """The metrics that are worth a look: those that stop rules name, and accuracy.

    A model without inputs predicts the same for every example: its draws have no accuracy.
    """
    wanted = [name for name in named if name != "loss"]
    if not model.graph.inputs:
        return [*dict.fromkeys(wanted)]
    if model.structure.has_field and "jaccard" not in wanted:
        wanted.append("jaccard")
    return [*dict.fromkeys([*wanted, "accuracy"])]


def evaluate(
    model: EnergyModel,
    dataset: Dataset,
    metrics: Iterable[str],
    *,
    using: str | Selection | None = None,
    decoder: Selection | None = None,
    size: int = 64,
    rank: int = 0,
    world: int = 1,
) -> dict[str, float]:
    """The metrics of a data set, as fractions; in evaluation mode, without gradients.

    With several processes each looks at its share, and all get the same values.
    """
    metrics = list(metrics)
    if not metrics:
        return {}
    chosen = decoder or decoder_for(model, using=using)
    outputs = list(dataset.batch([0]).gold) if len(dataset) else []
    tallies = {(name, output): dataset.metric(name, output) for name in metrics for output in outputs}
    for batch, labels in predictions(model, dataset, chosen, using=using, size=size, rank=rank, world=world):
        for (_, output), metric in tallies.items():
            metric.update(labels[output].cpu(), batch.gold[output])
    found: dict[str, float] = {}
    for (name, output), metric in tallies.items():
        if world > 1:
            metric.all_reduce()
        found[name if len(outputs) == 1 else f"{name}.{output}"] = metric.value()
    return found


def predictions(
    model: EnergyModel,
    dataset: Dataset,
    decoder: Selection,
    *,
    using: str | Selection | None = None,
    size: int = 64,
    rank: int = 0,
    world: int = 1,
) -> Iterable[tuple[Batch, Mapping[str, Tensor]]]:
    """Each batch of a data set with the labels that a decoder gives it."""
    dataset.insist_on_labels(model.graph)
    reference = next(model.parameters(), None)
    device = reference.device if reference is not None else torch.device("cpu")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in Batches(dataset, size, shuffle=False, rank=rank, world=world):
                moved = batch.to(device)
                given: dict[str, Any] = dict(moved.inputs)
                posterior = model.infer(using=using, lengths=moved.lengths or None, **given)
                yield batch, decoded(posterior, decoder)
    finally:
        model.train(was_training)


__all__ = ["decoded", "decoder_for", "default_metrics", "evaluate", "predictions"]

"""What `energyml sample` does: take a spec or a run, draw, and write the draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, bind, read_choice
from energyml.energy_model import EnergyModel
from energyml.posterior import Posterior
from energyml.queries import View
from energyml.run import _lengths, _read, _read_labels, _stand_in_labels, random_inputs
from energyml.sampling.trace import Progress, Sampled, Trace


@dataclass(frozen=True)
class Request:
    """What `energyml sample` was asked.

    Attributes:
        count: draws of each example.
        chains: how many chains draw them.
        burn_in: sweeps that are thrown away; the sampler's own when `None`.
        infer: the sampler; the spec's own where it is one, else one that suits the model.
        inputs: a JSON file of tensors by declared name; random ones when `None`.
        labels: a JSON file with the labels of sets that come from data.
        sizes: the sizes of dims for random inputs.
        batch: how many random examples.
        seed: of weights, random inputs and draws.
    """

    count: int
    chains: int = 4
    burn_in: int | None = None
    infer: str | None = None
    inputs: Path | None = None
    labels: Path | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Draws, and how they were made.

    Attributes:
        posterior: who drew.
        trace: what the chains left; `None` where draws are independent.
        labels: label names by variable as nested lists, one entry for each draw of each example.
        lines: one JSON object for each draw.
        summary: a few lines for people.
    """

    posterior: Posterior
    trace: Trace | None
    lines: Iterator[str]
    summary: str


def model_of(compiled: Compiled, request: Request) -> EnergyModel:
    """A spec with fresh weights."""
    labels = {**_stand_in_labels(compiled), **(_read_labels(request.labels) if request.labels else {})}
    return bind(compiled, labels=labels, seed=request.seed)


def chosen(model: EnergyModel, request: Request) -> Selection:
    """The sampler with its options: the one that was named, the spec's own, or one that suits the model.

    Masked scores are sampled by `metropolis`, tables by `gibbs` in colours, other labels by `gibbs`; fields are drawn
    by whoever solves them.
    """
    own = model.compiled.model.choices.infer
    if request.infer is not None:
        found = read_choice("backend", request.infer, model.compiled.model)
    elif own is not None and own.card.option("sweeps") is not None:
        found = own
    elif model.structure.has_field:
        found = model.plan(None, ("sample",)).verdict.selection
    elif "masked" in model.structure.families and View.PROPOSE in model.structure.views:
        found = read_choice("backend", "metropolis", model.compiled.model)
    elif View.TABLE in model.structure.views:
        found = read_choice("backend", "gibbs(block: colour)", model.compiled.model)
    else:
        found = read_choice("backend", "gibbs", model.compiled.model)
    told: dict[str, Any] = {"chains": request.chains, "sweeps": -(-request.count // request.chains)}
    told["draws"] = told["sweeps"]
    if request.burn_in is not None:
        told["burn_in"] = request.burn_in
    known = {name: value for name, value in told.items() if found.card.option(name) is not None}
    return Selection(found.card, {**found.options, **known})


def draw(model: EnergyModel, request: Request, progress: Callable[[Progress], None] | None = None) -> Drawn:
    """Draw from the model.  Cost: the sweeps; nothing is written here."""
    if request.inputs is not None:
        tensors, lengths = _read(request.inputs, model), None
    else:
        tensors = random_inputs(model, request.sizes, request.batch, request.seed)
        lengths = None if tensors else _lengths(model, request.sizes, request.batch)
    selection = chosen(model, request)
    torch.manual_seed(request.seed)
    with torch.no_grad():
        posterior = model.infer(using=selection, lengths=lengths, **tensors)  # type: ignore[arg-type]
        if "sample" not in posterior.answers:
            raise EnergyError(f"`{posterior.backend}` does not sample; `energyml explain` lists who does")
        session = posterior._session
        if isinstance(session, Sampled):
            session.progress = progress  # type: ignore[attr-defined]
            trace = session.trace()
            return Drawn(posterior, trace, _trace_lines(trace, request.count), trace.summary())
        generator = torch.Generator(posterior.problem.env.batch.device).manual_seed(request.seed)
        result = posterior.ask("sample", count=request.count, generator=generator)
    result.status.insist()
    return Drawn(posterior, None, _plain_lines(result.value), _independent(posterior, result.value.score))


def _independent(posterior: Posterior, score: Tensor) -> str:
    quality = posterior.answers["sample"].value
    lines = [
        f"sampler           {posterior.selection}",
        f"draws             {score.shape[0]} independent draws for {score.shape[1]} "
        f"example{'s' if score.shape[1] != 1 else ''} ({quality})",
    ]
    if score.numel() and bool(score.isfinite().all()):
        lines.append(f"energy            mean {-float(score.mean()):.4g}")
    return "\n".join(lines)


def _trace_lines(trace: Trace, count: int) -> Iterator[str]:
    """The first `count` draws of each example, sweep after sweep, chain after chain."""
    sweeps, chains, examples = trace.score.shape
    for number in range(min(count, sweeps * chains)):
        sweep, chain = divmod(number, chains)
        for example in range(examples):
            found: dict[str, Any] = {"example": example, "chain": chain, "sweep": sweep}
            for name, labels in trace.labels.items():
                if name not in trace.latent:
                    found[name] = _named(labels[sweep, chain, example].tolist(), trace.names[name])
            for name, values in trace.fields.items():
                found[name] = values[sweep, chain, example].tolist()
            energy = float(trace.energy[sweep, chain, example])
            yield json.dumps({**found, "energy": energy if energy < float("inf") else None}, ensure_ascii=False)


def _plain_lines(drawn: Any) -> Iterator[str]:
    for number in range(drawn.score.shape[0]):
        for example in range(drawn.score.shape[1]):
            found: dict[str, Any] = {"example": example, "draw": number}
            for name, labels in drawn.labels.items():
                found[name] = _named(labels[number, example].tolist(), drawn.names[name])
            for name, values in drawn.fields.items():
                found[name] = values[number, example].tolist()
            yield json.dumps({**found, "energy": -float(drawn.score[number, example])}, ensure_ascii=False)


def _named(values: Any, names: tuple[str, ...]) -> Any:
    """Labels by name; cells that do not exist are left out of the last axis."""
    if isinstance(values, list):
        return [one for one in (_named(value, names) for value in values) if one is not None]
    return names[values] if values >= 0 else None


__all__ = ["Drawn", "Request", "chosen", "draw", "model_of"]

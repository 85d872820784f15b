"""What `energyml sample` does: take a spec or a run, draw, and write the draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, read_choice
from energyml.energy_model import EnergyModel
from energyml.inference.trace import Progress, Sampled, Trace
from energyml.loading import bind
from energyml.posterior import Posterior
from energyml.queries import View
from energyml.run import _lengths, _read, _read_labels, _stand_in_labels, random_inputs
from energyml.sampling.chains import read_chains, write_chains
from energyml.sampling.evidence import Known, read_evidence


@dataclass(frozen=True)
class Request:
    """What `energyml sample` was asked.

    Attributes:
        count: draws of each example.
        chains: how many chains draw them.
        burn_in: sweeps that are thrown away; the sampler's own when `None`.
        infer: the sampler; the spec's own where it is one, else one that suits the model.
        inputs: a JSON file of tensors by declared name; random ones when `None`.
        evidence: a JSON file of cells that are known, by variable; none when `None`.
        labels: a JSON file with the labels of sets that come from data.
        sizes: the sizes of dims for random inputs.
        batch: how many random examples.
        seed: of weights, random inputs and draws.
        state: a file of where chains stand: they go on from there where it exists, and it is written at the end.
    """

    count: int
    chains: int = 4
    burn_in: int | None = None
    infer: str | None = None
    inputs: Path | None = None
    evidence: Path | None = None
    labels: Path | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1
    seed: int = 0
    state: Path | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Draws, and how they were made.

    Attributes:
        posterior: who drew.
        trace: what the chains left; `None` where draws are independent.
        lines: one JSON object for each draw.
        summary: a few lines for people.
        stopped: whether there are fewer draws than were asked for.
    """

    posterior: Posterior
    trace: Trace | None
    lines: Iterator[str]
    summary: str
    stopped: bool = False


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


def draw(
    model: EnergyModel,
    request: Request,
    progress: Callable[[Progress], None] | None = None,
    stopping: Callable[[], AbstractContextManager[Callable[[], bool]]] | None = None,
) -> Drawn:
    """Draw from the model.  Cost: the sweeps; nothing but `state` is written here.

    Args:
        model: what is sampled.
        request: how.
        progress: called after each sweep.
        stopping: opened while chains run that can stop after any sweep; once what it gives says yes, the draws so far
            are all.
    """
    known = Known() if request.evidence is None else read_evidence(request.evidence, model)
    lengths: Mapping[str, Tensor] | None = known.lengths or None
    if request.inputs is not None:
        tensors = _read(request.inputs, model)
    else:
        batch = request.batch if known.count is None else known.count
        sizes = {**request.sizes, **known.sizes}
        tensors = random_inputs(model, sizes, batch, request.seed)
        if not tensors:
            lengths = {**(_lengths(model, sizes, batch) or {}), **known.lengths} or None
    selection = chosen(model, request)
    torch.manual_seed(request.seed)
    with torch.no_grad():
        posterior = model.infer(using=selection, lengths=lengths, evidence=known.values or None, **tensors)  # type: ignore[arg-type]
        if "sample" not in posterior.answers:
            raise EnergyError(f"`{posterior.backend}` does not sample; `energyml explain` lists who does")
        session: Any = posterior._session
        goes_on = hasattr(session, "ended")
        if request.state is not None and not goes_on:
            raise EnergyError(f"`{posterior.backend}` has no chains that could go on; leave `--state` out")
        if isinstance(posterior._session, Sampled):
            session.progress = progress
            if request.state is not None and request.state.exists():
                session.go_on_from(read_chains(request.state, selection.name))
            if goes_on and stopping is not None:
                with stopping() as session.stopping:
                    trace = session.trace()
            else:
                trace = session.trace()
            if request.state is not None:
                write_chains(request.state, session.ended.tensors(), selection.name)
            stopped = goes_on and trace.score.shape[0] < int(selection["sweeps"])
            return Drawn(posterior, trace, _trace_lines(trace, request.count), trace.summary(), stopped)
        generator = torch.Generator(posterior.problem.env.batch.device).manual_seed(request.seed)
        result = posterior.ask("sample", count=request.count, generator=generator)
    result.status.insist()
    return Drawn(posterior, None, _plain_lines(result.value), _independent(posterior, result.value.score))


def untrained(model: EnergyModel, seed: int) -> list[str]:
    """What is to be said about the weights of a model that was made from a spec alone.

    Pretrained networks bring theirs, and parameters may start from a value that the spec names.
    """
    by_chance: list[str] = []
    own_class: list[str] = []
    for name, net in model.graph.nets.items():
        module = model._modules.get(name)
        if net.selection.name == "transformers" or module is None or not any(True for _ in module.parameters()):
            continue
        (own_class if net.selection.name == "python" else by_chance).append(name)
    given = ("constant", "zeros")
    params = model.graph.params.items()
    by_chance += [name for name, one in params if one.initial is None or one.initial.name not in given]
    every = len(model.graph.nets) + len(model.graph.params)
    notes = []
    if by_chance:
        which = "the weights" if len(by_chance) == every else f"the weights of {_listed(by_chance)}"
        notes.append(f"{which} are random (seed {seed}): a run has trained ones")
    if own_class:
        notes.append(f"the weights of {_listed(own_class)} are those that its Python class begins with")
    return notes


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{one}`" for one in names)


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


__all__ = ["Drawn", "Request", "chosen", "draw", "model_of", "untrained"]

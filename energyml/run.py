"""What `energyml infer` does: bind a spec, make or read a batch, and ask several backends the same questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, SpecFileError, read_choices
from energyml.energy_model import EnergyModel
from energyml.first_answer import first_that_answers
from energyml.loading import bind
from energyml.model.declared import Input
from energyml.model.types import REAL, Axis, EdgeType
from energyml.queries import QUERIES
from energyml.result import Assignment, Failed, Result

DEFAULT_SIZE = 4
STAND_IN_LABELS = 4


@dataclass(frozen=True)
class Request:
    """What `energyml infer` was asked.

    Attributes:
        backends: one choice or several; the spec's own when empty.
        queries: the queries to ask of each.
        inputs: a JSON file of tensors by declared name; random ones when `None`.
        labels: a JSON file with the labels of sets that come from data; made-up ones when `None`.
        sizes: the sizes of dims for random inputs.
        batch: how many random examples.
        seed: seed of weights, random inputs and draws.
    """

    backends: str | None = None
    queries: tuple[str, ...] = ("log_partition", "map")
    inputs: Path | None = None
    labels: Path | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    batch: int = 2
    seed: int = 0


def answer_queries(
    compiled: Compiled, request: Request, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Ask each backend each query; returns plain data: backend -> query -> value and quality.

    Args:
        compiled: the spec.
        request: what is asked.
        tell: takes a line about each choice that `auto` made.
    """
    for query in request.queries:
        if query not in QUERIES:
            raise EnergyError(f"unknown query `{query}`; known: {', '.join(QUERIES)}")
    labels = {**_stand_in_labels(compiled), **(_read_labels(request.labels) if request.labels else {})}
    model = bind(compiled, labels=labels, seed=request.seed)
    if request.inputs is not None:
        tensors, lengths = _read(request.inputs, model), None
    else:
        tensors = random_inputs(model, request.sizes, request.batch, request.seed)
        lengths = None if tensors else _lengths(model, request.sizes, request.batch)
    chosen = read_choices("backend", request.backends, compiled.model) if request.backends else [None]

    def ask(selection: Selection | None) -> tuple[str, dict[str, Any]]:
        posterior = model.infer(using=selection, lengths=lengths, **tensors)  # type: ignore[arg-type]
        return posterior.backend, {
            query: _plain(posterior.ask(query, generator=torch.Generator().manual_seed(request.seed)))
            for query in request.queries
        }

    found: dict[str, Any] = {}
    with torch.no_grad():
        for selection in chosen:
            (backend, answers), why = first_that_answers(model, selection, request.queries, ask)
            found[str(selection or backend)] = answers
            if why is not None:
                tell(why)
    return found


def _read_labels(path: Path) -> dict[str, list[str]]:
    """Labels by set from a JSON file."""
    data = _read_json(path)
    for name, labels in data.items():
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise EnergyError(f"{path}: `{name}` must be a list of strings")
    return data


def _stand_in_labels(compiled: Compiled) -> dict[str, list[str]]:
    """A few made-up labels for each set that comes from data, with the labels that the spec names."""
    found: dict[str, list[str]] = {}
    for name, labels in compiled.graph.label_sets.items():
        if labels.labels is None and labels.source == "data":
            special = [str(value) for key, value in labels.options.items() if key in ("unknown", "end", "pad")]
            found[name] = special + [f"{name.lower()}{number}" for number in range(STAND_IN_LABELS)]
    return found


def _size(model: EnergyModel, axis: Axis, sizes: Mapping[str, int]) -> int:
    extent = axis.extent
    if extent.kind == "number":
        return extent.offset
    if extent.kind == "labels":
        return len(model.graph.label_sets[extent.name].labels or ())
    dim = model.graph.dims[extent.name]
    size = dim.size if dim.kind == "fixed" and dim.size else sizes.get(extent.name, DEFAULT_SIZE)
    return max(0, size + extent.offset)


def random_inputs(model: EnergyModel, sizes: Mapping[str, int], batch: int, seed: int) -> dict[str, Tensor]:
    """Gaussian reals, uniform labels, and random trees for edge lists, of the given sizes (4 where none is given)."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(model, given, sizes, batch, generator) for name, given in model.graph.inputs.items()}


def _random(
    model: EnergyModel, given: Input, sizes: Mapping[str, int], batch: int, generator: torch.Generator
) -> Tensor:
    if isinstance(given.type, EdgeType):
        nodes = sizes.get(given.type.ends[0], DEFAULT_SIZE)
        edges = min(sizes.get(given.type.over, max(0, nodes - 1)), max(0, nodes - 1))
        child = torch.arange(1, edges + 1).expand(batch, edges)
        parent = (torch.rand(batch, edges, generator=generator) * child).long()
        return torch.stack([parent, child], -1)
    shape = [batch, *(_size(model, axis, _edge_sizes(model, sizes)) for axis in given.type.axes)]
    if given.type.element == REAL:
        return torch.randn(shape, generator=generator)
    return torch.randint(len(model.graph.label_sets[given.type.element].labels or ()), shape, generator=generator)


def _edge_sizes(model: EnergyModel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes with each edge dim set to what the random tree has."""
    found = dict(sizes)
    for given in model.graph.inputs.values():
        if isinstance(given.type, EdgeType):
            nodes = sizes.get(given.type.ends[0], DEFAULT_SIZE)
            found[given.type.over] = min(sizes.get(given.type.over, max(0, nodes - 1)), max(0, nodes - 1))
    return found


def _lengths(model: EnergyModel, sizes: Mapping[str, int], batch: int) -> dict[str, Tensor] | None:
    """Lengths for a model without inputs."""
    dims = [name for name, dim in model.graph.dims.items() if dim.kind == "observed"]
    return {name: torch.full((batch,), sizes.get(name, DEFAULT_SIZE)) for name in dims} or None


def _read(path: Path, model: EnergyModel) -> dict[str, Tensor]:
    """Tensors by declared name from a JSON file; labels may be given by name."""
    return {name: _tensor(name, values, model, path) for name, values in _read_json(path).items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SpecFileError(f"{path}: {(problem.strerror or str(problem)).lower()}") from problem
    except (ValueError, RecursionError) as problem:
        raise EnergyError(f"{path}: not JSON that can be read: {problem}") from problem
    if not isinstance(data, dict):
        raise EnergyError(f"{path}: expected an object with declared names as keys")
    return data


def _tensor(name: str, values: Any, model: EnergyModel, path: Path) -> Tensor:
    declared = model.graph.inputs.get(name)
    element = declared.type.element if declared is not None and not isinstance(declared.type, EdgeType) else REAL
    if element != REAL:
        known = {label: i for i, label in enumerate(model.graph.label_sets[element].labels or ())}
        values = _numbered(values, known, f"{path}: `{name}`", element)
    try:
        tensor = torch.tensor(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise EnergyError(f"{path}: `{name}` is not a rectangular list of numbers or labels") from problem
    for value, found in {"NaN": torch.isnan, "inf": torch.isposinf}.items():
        if tensor.is_floating_point() and bool(found(tensor).any()):
            raise EnergyError(f"{path}: `{name}` holds {value}, with which no answer has a score; correct the file")
    integral = declared is not None and (isinstance(declared.type, EdgeType) or element != REAL)
    return tensor.long() if integral else tensor.float()


def _numbered(values: Any, known: Mapping[str, int], where: str, labels: str) -> Any:
    if isinstance(values, list):
        return [_numbered(value, known, where, labels) for value in values]
    if isinstance(values, str):
        if values not in known:
            raise EnergyError(f"{where} holds '{values}', which is no label of `{labels}`")
        return known[values]
    return values


def _plain(result: Result) -> dict[str, Any]:
    """An answer as plain data; one that is useless raises, and says why."""
    value = result.value
    if isinstance(value, Assignment):
        shown: Any = {"labels": {name: value.decode(name) for name in value.labels}, "score": _numbers(value.score)}
        if value.fields:
            shown["fields"] = {name: _numbers(one) for name, one in value.fields.items()}
    elif isinstance(value, Mapping):
        shown = {name: _numbers(one) for name, one in value.items()}
    else:
        shown = _numbers(value)
    found = {"value": shown, "quality": result.quality.value}
    if "error" in result.statistics:
        found["error"] = _numbers(result.statistics["error"])
    if not result.status.ok:
        if result.status.is_useless:
            raise Failed(result.status.message)
        found["warning"] = result.status.message
    return found


def _numbers(tensor: Tensor) -> Any:
    return tensor.tolist()


def show_answers(answers: Mapping[str, Any]) -> str:
    """The answers as text, one block a backend."""
    lines: list[str] = []
    for backend, found in answers.items():
        lines.append(backend)
        for query, answer in found.items():
            lines.append(f"  {query} ({answer['quality']})")
            lines += [f"    {line}" for line in _shown(answer["value"])]
            if "error" in answer:
                lines += [f"    standard error: {line}" for line in _shown(answer["error"])]
            if "warning" in answer:
                lines.append(f"    warning: {answer['warning']}")
    return "\n".join(lines)


def _shown(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}: {line}" for name, part in value.items() for line in _shown(part)]
    return [json.dumps(_rounded(value))]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value

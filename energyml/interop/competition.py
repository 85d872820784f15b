"""What `energyml uai` does: one task of the UAI competitions, and its answer in their format.

https://uaicompetition.github.io/uci-2022/results-format/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled
from energyml.first_answer import first_that_answers
from energyml.interop.imported import ImportedModel
from energyml.interop.libdai import read_fg
from energyml.interop.uai import read_evid, read_uai
from energyml.ir.ground import Instance
from energyml.plan.structure import recognise
from energyml.posterior import Posterior
from energyml.queries import Quality
from energyml.result import Assignment, Result

NO_ANSWER = "every answer has the weight 0, so there is no best one, and none has a probability"
_REMARKS = {
    Quality.LOWER: "a lower bound",
    Quality.UPPER: "an upper bound",
    Quality.ESTIMATE: "an estimate",
    Quality.READOUT: "a read-out",
}

# A line for each sample, none where nothing is possible.
Lines = Sequence[str | None]


@dataclass(frozen=True)
class Solution:
    """The answer to a task.

    Attributes:
        text: the text of a solution: the task, and a line for each sample of evidence; with several samples the second
            line says how many there are.
        remarks: what is to be known about it beside: who answered, and whether it is a bound or an estimate.
    """

    text: str
    remarks: tuple[str, ...]


def solve(file: str, evid: str | None, task: str, using: str | None) -> Solution:
    """Read a model and its evidence, and answer.

    Args:
        file: a `.uai` file, or a libDAI factor graph if its name ends in `.fg`.
        evid: a file of evidence, in either dialect.
        task: one of `TASKS`.
        using: the backend that answers; the planner's choice when `None`.

    Raises:
        Failed: an answer that is not exact shows no answer of positive weight, or is useless otherwise.
    """
    model = read_model(file)
    evidence = None if evid is None else read_evid(evid, model)
    query, written = TASKS[task]

    def ask(backend: Selection | None) -> tuple[Posterior, Result]:
        posterior = model.infer(using=backend, evidence=evidence)
        return posterior, posterior.ask(query)

    with torch.no_grad():
        (posterior, result), chosen = first_that_answers(model, using, (query,), ask)
    result.status.insist()
    lines = written(model, result.value)
    nothing = [number for number, line in enumerate(lines, 1) if line is None]
    if nothing:
        which = f"sample {nothing[0]} of {len(lines)}: " if len(lines) > 1 else ""
        raise EnergyError(f"{file}: {NO_ANSWER}" if evid is None else f"{evid}: {which}under this evidence {NO_ANSWER}")
    samples = [str(len(lines))] if len(lines) > 1 else []
    remarks = [chosen] if chosen is not None else []
    if result.quality in _REMARKS:
        better = ": a better answer may exist" if query == "map" else ""
        remarks.append(f"{task} by `{posterior.backend}` is {_REMARKS[result.quality]}, not exact{better}")
    return Solution("\n".join((task, *samples, *(str(line) for line in lines))), tuple(remarks))


def read_model(file: str) -> ImportedModel:
    """The model of a file: a libDAI factor graph if its name ends in `.fg`, else a UAI model."""
    return read_fg(file) if Path(file).suffix.lower() == ".fg" else read_uai(file)


def compiled_model(file: str) -> Compiled:
    """The spec of a model file, with the structure of the file's own graph."""
    model = read_model(file)
    edges = {name: [tuple(row) for row in scopes[0].tolist()] for name, scopes in model.fixed.items()}
    compiled: Compiled = model.compiled
    return replace(compiled, structure=recognise(compiled.graph, Instance({}, edges=edges)))


def _partition(_: ImportedModel, log_partition: Tensor) -> Lines:
    """log10 of the sum of all weights."""
    return [f"{value / math.log(10):.12g}" for value in log_partition.tolist()]


def _marginals(model: ImportedModel, marginals: Mapping[str, Tensor]) -> Lines:
    """How many variables there are; for each, how many values it has and their probabilities."""
    probabilities = [one.tolist() for one in model.probabilities(marginals)]
    return [
        " ".join([str(len(model.cells)), *(_listed(one[example]) for one in probabilities)])
        if sum(probabilities[0][example]) > 0  # all are 0 where nothing is possible
        else None
        for example in range(len(probabilities[0]))
    ]


def _listed(values: list[float]) -> str:
    return " ".join([str(len(values)), *(f"{value:.12g}" for value in values)])


def _best(model: ImportedModel, best: Assignment) -> Lines:
    """How many variables there are, and the value of each in the best answer."""
    impossible = best.score.isneginf().tolist()
    rows = model.values(best).tolist()
    return [None if no else " ".join(map(str, (len(row), *row))) for row, no in zip(rows, impossible, strict=True)]


# What each task asks, and how the answer is written.
TASKS: dict[str, tuple[str, Callable[[ImportedModel, Any], Lines]]] = {
    "PR": ("log_partition", _partition),
    "MAR": ("marginals", _marginals),
    "MAP": ("map", _best),
    "MPE": ("map", _best),
}

"""What `energyml uai` does: one task of the UAI competitions, and its answer in their format.

https://uaicompetition.github.io/uci-2022/results-format/
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from energyml.diagnostics import EnergyError
from energyml.interop.imported import ImportedModel
from energyml.interop.libdai import read_fg
from energyml.interop.uai import read_evid, read_uai
from energyml.posterior import Posterior

NO_ANSWER = "every answer has the weight 0, so there is no best one, and none has a probability"

# A line for each sample, none where nothing is possible.
Lines = Sequence[str | None]


def solve(file: str, evid: str | None, task: str, using: str | None) -> str:
    """Read a model and its evidence, and answer.

    Args:
        file: a `.uai` file, or a libDAI factor graph if its name ends in `.fg`.
        evid: a file of evidence, in either dialect.
        task: one of `TASKS`.
        using: the backend that answers; the planner's choice when `None`.

    Returns:
        The text of a solution: the task, and a line for each sample of evidence; with several samples the second line
        says how many there are.
    """
    model = read_fg(file) if Path(file).suffix.lower() == ".fg" else read_uai(file)
    evidence = None if evid is None else read_evid(evid, model)
    with torch.no_grad():
        posterior = model.infer(using=using, evidence=evidence)
        lines = TASKS[task](model, posterior)
    nothing = [number for number, line in enumerate(lines, 1) if line is None]
    if nothing:
        which = f"sample {nothing[0]} of {len(lines)}: " if len(lines) > 1 else ""
        raise EnergyError(f"{file}: {NO_ANSWER}" if evid is None else f"{evid}: {which}under this evidence {NO_ANSWER}")
    samples = [str(len(lines))] if len(lines) > 1 else []
    return "\n".join((task, *samples, *(str(line) for line in lines)))


def _partition(_: ImportedModel, posterior: Posterior) -> Lines:
    """log10 of the sum of all weights."""
    return [f"{value / math.log(10):.12g}" for value in posterior.log_partition.tolist()]


def _marginals(model: ImportedModel, posterior: Posterior) -> Lines:
    """How many variables there are; for each, how many values it has and their probabilities."""
    probabilities = [one.tolist() for one in model.probabilities(posterior.marginals)]
    return [
        " ".join([str(len(model.cells)), *(_listed(one[example]) for one in probabilities)])
        if sum(probabilities[0][example]) > 0  # all are 0 where nothing is possible
        else None
        for example in range(len(probabilities[0]))
    ]


def _listed(values: list[float]) -> str:
    return " ".join([str(len(values)), *(f"{value:.12g}" for value in values)])


def _best(model: ImportedModel, posterior: Posterior) -> Lines:
    """How many variables there are, and the value of each in the best answer."""
    best = posterior.map()
    impossible = best.score.isneginf().tolist()
    rows = model.values(best).tolist()
    return [None if no else " ".join(map(str, (len(row), *row))) for row, no in zip(rows, impossible, strict=True)]


TASKS: dict[str, Callable[[ImportedModel, Posterior], Lines]] = {
    "PR": _partition,
    "MAR": _marginals,
    "MAP": _best,
    "MPE": _best,
}

"""energyml as its users call it, through a compiled spec, and its solvers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gaussian.cases import Case
from energyml.backends.gaussian.iterative import Settings
from energyml.backends.gaussian.methods import Methods, Policy

FORWARD, BACKWARD = "forward", "forward + backward"
TASKS = (FORWARD, BACKWARD)
BUDGET = 4 * 2.0**30  # bytes that a direct method may take


@dataclass(frozen=True)
class Prepared:
    """A contestant at its task.

    Attributes:
        run: what is timed; its answer is the solution [B, M, N], without gradients.
        iterations: those of each solve, where there are any.
        note: which of the contestant's ways is used.
    """

    run: Callable[[], Tensor]
    iterations: Callable[[], list[int]] | None = None
    note: str = ""


def through_spec(case: Case, task: str, backend: str) -> Prepared:
    """`model.infer(...).mode`: checking, binding, bounding the couplings, planning and solving, all timed."""
    model = case.model(backend)
    inputs = {name: one.clone().requires_grad_(task == BACKWARD) for name, one in case.inputs.items()}
    upstream = case.upstream

    def forward() -> Tensor:
        with torch.no_grad():
            return model.infer(**inputs).mode["s"]

    def both() -> Tensor:
        for one in inputs.values():
            one.grad = None
        found = model.infer(**inputs).mode["s"]
        found.backward(upstream)
        return found.detach()

    def iterations() -> list[int]:
        taken = model.infer(**inputs).ask("mode").statistics.get("iterations")
        return [] if taken is None else taken.tolist()

    return Prepared(both if task == BACKWARD else forward, iterations)


def bare(case: Case, task: str, policy: Policy) -> Prepared:
    """The solver that the planner chooses, on the matrix that peers are given too; gradients in all its tensors."""
    needed = task == BACKWARD
    form = case.form.with_tensors([one.clone().requires_grad_(needed) for one in case.form.tensors()])
    rhs = case.rhs.clone().requires_grad_(needed)
    back = case.back

    def run() -> Tensor:
        for one in (rhs, *form.tensors()):
            one.grad = None
        with torch.set_grad_enabled(needed):
            found, _ = Methods("s", form, policy).solution(rhs)
            if needed:
                found.backward(back)
        return found.detach()

    return Prepared(run)


def direct() -> Policy:
    """What `exact` wants."""
    return Policy(iterative=False, budget=BUDGET, settings=Settings())


def iterative(**settings: object) -> Policy:
    """What `cg` wants."""
    return Policy(iterative=True, budget=0.0, settings=replace(Settings(), **settings))  # type: ignore[arg-type]

"""The no-U-turn sampler for fields, by Pyro.

Source: Hoffman & Gelman 2014.  Gaussian fields have exact draws (`exact`, `cg`), so that this is for checking them, and
for fields whose draws are wanted from the score alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from energyml.backend import Backend, Session
from energyml.bind.problem import Problem
from energyml.bind.terms import BoundTerm
from energyml.caching import ValueCache
from energyml.diagnostics import EnergyError, QueryRefused
from energyml.inference.trace import Progress, Trace
from energyml.ir.graph import Graph
from energyml.model.declared import Variable
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result, Status


class Nuts(Backend):
    """Pyro's NUTS on minus the score."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Whether Pyro is there."""
        try:
            self.mcmc = import_module("pyro.infer.mcmc")
        except ImportError as problem:
            raise EnergyError("`nuts` needs Pyro: pip install 'energyml[sampling]'") from problem

    def open(self, problem: Problem) -> Session:
        """Nothing is drawn before a query asks."""
        return NutsSession(problem, self)


class NutsSession(Session):
    """One batch: all examples move together, chain after chain."""

    def __init__(self, problem: Problem, backend: Nuts) -> None:
        self.problem, self.selection, self.mcmc = problem, backend.selection, backend.mcmc
        self._cache = ValueCache()
        self.once = self._cache.once
        self.progress: Callable[[Progress], None] | None = None
        self.readouts = [v for v in problem.graph.variables.values() if v.readout is not None]

    def drawn(self) -> dict[tuple[str, bool], Any]:
        """The trace, where the chains have run."""
        return self._cache.all()

    def keep_drawn(self, drawn: Mapping[tuple[str, bool], Any]) -> None:
        """Answer with the trace of another session."""
        self._cache.take(drawn)

    def ask(self, query: Query) -> Result:
        """Draws, or variances of draws."""
        trace = self.trace()

        def check() -> tuple[bool, str] | None:
            found = trace.trouble()
            return None if found is None else (found[0], f"`nuts`: {found[1]}".replace("`sweeps`", "`draws`"))

        if query.kind == "variance":
            value: object = {name: one.flatten(0, 1).var(0) for name, one in trace.fields.items()}
        elif query.kind == "sample":
            value = self._sample(trace, query.count)
        else:
            raise QueryRefused(f"`nuts` does not answer `{query.kind}`")
        return Result(value, status=Status(check), statistics={"acceptance": float(trace.acceptance.mean())})

    def trace(self) -> Trace:
        """All draws of all chains."""
        made: Trace = self.once("trace", self._run)
        return made

    # --------------------------------------------------------------------------------------------------------- running

    def _observed(self, name: str) -> tuple[Tensor, Tensor]:
        """[B, *axes] twice: which cells move, and the values of those that do not."""
        problem, batch = self.problem, self.problem.env.batch
        declared = problem.graph.variables[name]
        zeros = torch.zeros(batch.size, *self._sizes(declared), device=batch.device, dtype=batch.dtype)
        known = problem.evidence.observed.get(name)
        moves = torch.ones_like(zeros, dtype=torch.bool) if known is None else known.isnan()
        cells = batch.cells(name, declared.dims)
        if cells is not None:
            dims = [axis.extent.kind == "dim" for axis in declared.type.axes]
            sizes = zip(self._sizes(declared), dims, strict=True)
            moves = moves & cells.reshape(batch.size, *(size if is_dim else 1 for size, is_dim in sizes))
        return moves, zeros if known is None else torch.where(known.isnan(), 0, known)

    def _sizes(self, declared: Variable) -> list[int]:
        batch, sets = self.problem.env.batch, self.problem.graph.label_sets
        return [
            batch.size_of(axis.extent.name) if axis.extent.kind == "dim"
            else len(sets[axis.extent.name].labels or ()) if axis.extent.kind == "labels"
            else axis.extent.offset
            for axis in declared.type.axes
        ]  # fmt: skip

    def _run(self) -> Trace:
        fields = {v.name: self._observed(v.name) for v in self.problem.graph.fields}
        draws, warmup, chains = (int(self.selection[name]) for name in ("draws", "warmup", "chains"))

        def placed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: known.masked_scatter(moves, values[name]) for name, (moves, known) in fields.items()}

        def potential(values: Mapping[str, Tensor]) -> Tensor:
            return -self.problem.score(placed(values)).sum()

        found: dict[str, list[Tensor]] = {name: [] for name in fields}
        rates: list[float] = []

        def watch(kernel: Any, values: object, stage: str, number: int) -> None:
            if stage == "Sample" and number == draws - 1:  # the kernel forgets its counts when the run ends
                rates.append(float(kernel.diagnostics()["acceptance rate"]))

        for _ in range(chains):
            start = {name: torch.randn(int(moves.sum()), dtype=known.dtype) for name, (moves, known) in fields.items()}
            kernel = self.mcmc.NUTS(potential_fn=potential)
            sampler = self.mcmc.MCMC(
                kernel, draws, warmup_steps=warmup, initial_params=start, disable_progbar=True, hook_fn=watch
            )
            with torch.enable_grad():  # the sampler follows gradients, whatever its caller wants of them
                sampler.run()
            kept = sampler.get_samples()
            for name, (moves, known) in fields.items():
                each = [known.masked_scatter(moves, one) for one in kept[name]]
                found[name].append(torch.stack(each).detach())
        values = {name: torch.stack(one, 1) for name, one in found.items()}
        with torch.no_grad():
            score = torch.stack([
                torch.stack([self.problem.score({n: v[s, c] for n, v in values.items()}) for c in range(chains)])
                for s in range(draws)
            ])  # fmt: skip
        size = self.problem.env.batch.size
        shares = torch.tensor(rates).unsqueeze(1).expand(chains, size)
        return Trace(
            labels={},
            score=score,
            counts={},
            names={},
            dims={v.name: tuple(axis.extent.name or "axis" for axis in v.type.axes) for v in self.problem.graph.fields},
            acceptance=shares,
            novel=shares,
            burn_in=warmup,
            fields=values,
            sampler=str(self.selection),
        )

    # --------------------------------------------------------------------------------------------------------- answers

    def _sample(self, trace: Trace, count: int) -> Assignment:
        draws, chains = trace.score.shape[:2]
        if count > draws * chains:
            raise QueryRefused(f"`nuts` keeps {draws * chains} draws, and {count} are asked for; raise `draws`")
        pick = ((torch.arange(count) + 0.5) * (draws * chains / count)).long()
        fields = {name: one.flatten(0, 1)[pick] for name, one in trace.fields.items()}
        labels = {v.name: self._read(v, fields) for v in self.readouts}
        names = {v.name: self.problem.graph.label_sets[v.type.element].labels or () for v in self.readouts}
        return Assignment(labels, trace.score.flatten(0, 1)[pick], names, fields)

    def _read(self, variable: Variable, fields: Mapping[str, Tensor]) -> Tensor:
        """[count, B, *dims]: the labels with the largest values."""
        assert variable.readout is not None
        field = self.problem.graph.variables[variable.readout.field]
        over = next(i for i, axis in enumerate(field.type.axes) if axis.extent.name == variable.readout.over)
        values = fields[field.name]
        labels = values.movedim(values.dim() - len(field.type.axes) + over, -1).argmax(-1)
        cells = self.problem.env.batch.cells(field.name, field.dims)
        return labels if cells is None else labels.masked_fill(~cells, ABSENT)


__all__ = ["Nuts"]

"""The bound model: a torch module whose parameters have the spec's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from energyml import cards
from energyml.backend import Backend, Evidence, Problem
from energyml.bind.batch import Batch, BatchMaker, LengthsLike, MaskLike
from energyml.bind.binder import NetBuilder, bind_labels, initial_value, used_inputs
from energyml.bind.tensors import Compiler, Environment
from energyml.bind.terms import bind_term
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError
from energyml.plan.planner import Plan, Verdict, plan
from energyml.plan.structure import Structure, recognise
from energyml.posterior import Posterior
from energyml.result import ABSENT

if TYPE_CHECKING:
    from energyml.driver import Compiled


class BackendRefused(EnergyError):
    """A backend that cannot serve a model, with the reason and the nearest alternative."""


class EnergyModel(nn.Module):
    """A spec with weights.

    Networks and parameters are registered under the names that the spec gives them, so `state_dict` reads like the spec.
    Inputs are tensors with a leading batch axis; see `infer`.
    """

    def __init__(
        self,
        compiled: Compiled,
        *,
        labels: Mapping[str, Sequence[str]] | None = None,
        seed: int | None = None,
    ) -> None:
        """Bind a compiled spec; `labels` fills label sets that come from data."""
        super().__init__()
        self.compiled = compiled
        self.graph = bind_labels(compiled.graph, compiled.source, labels)
        self.structure: Structure = recognise(self.graph)
        self.gains: dict[str, float] = {}
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            takes_masks = self._build()
        compiler = Compiler(self.graph, compiled.source, takes_masks)
        self.terms = tuple(bind_term(term, self.graph, compiler) for term in self.graph.terms)
        self._maker = BatchMaker(self.graph, compiled.source, used_inputs(self.graph))
        self._ready: dict[str, tuple[Backend, Verdict]] = {}

    def _build(self) -> dict[str, bool]:
        """Networks and parameters under the spec's names; the spec's words never clash with methods in `_modules`."""
        builder = NetBuilder(self.graph, self.compiled.source)
        takes_masks: dict[str, bool] = {}
        for net in self.graph.nets.values():
            built = builder.build(net)
            if built is not None:
                self._modules[net.name], takes_masks[net.name] = built
        for param in self.graph.params.values():
            self._parameters[param.name] = nn.Parameter(initial_value(param, builder, None))
        return takes_masks

    # ----------------------------------------------------------------------------------------------------------- plans

    def plan(self, using: str | Selection | None = None, queries: Sequence[str] = ()) -> Plan:
        """The backend that would answer, and why."""
        return plan(self.structure, self._selection(using), queries)

    def _selection(self, using: str | Selection | None) -> Selection | None:
        if using is None:
            return self.compiled.model.choices.infer
        if isinstance(using, Selection):
            return using
        from energyml.driver import read_choice

        return read_choice("backend", using, self.compiled.model)

    def _backend(self, using: str | Selection | None) -> tuple[Backend, Verdict]:
        key = using if isinstance(using, str) else str(using)
        ready = self._ready.get(key)
        if ready is None:
            made = self.plan(using)
            refusal = made.verdict.refusal
            if refusal is not None:
                raise BackendRefused(f"`{made.verdict.selection.name}` cannot serve this model: {refusal}")
            backend = cast("Backend", cards.implementation(made.verdict.selection.card)(made.verdict.selection))
            backend.prepare(self.graph, self.terms, self.structure)
            ready = self._ready[key] = (backend, made.verdict)
        return ready

    # --------------------------------------------------------------------------------------------------------- queries

    def infer(
        self,
        *,
        using: str | Selection | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        evidence: Mapping[str, Tensor] | None = None,
        **inputs: Tensor,
    ) -> Posterior:
        """The posterior over the outputs given the inputs.

        Args:
            using: a backend in the spec's own words, as in `"mean_field(steps: 20)"`; the spec's choice when left out.
            lengths: how many positions exist in each example: [B], or by dim.
            mask: which positions carry a cell: bool [B, *dims], or by variable; gaps are allowed.
            evidence: by variable: labels [B, *dims] with -1 for "any", or allowed labels as bool [B, *dims, labels].
            **inputs: the declared inputs, [B, *axes].

        Cost: checks and sizes only; a query on the result does the work.
        """
        backend, verdict = self._backend(using)
        batch = self._maker.make(inputs, lengths, mask, self._reference())
        problem = Problem(self.graph, self.terms, Environment(self, batch, gains=self.gains), self._evidence(evidence, batch))
        return Posterior(backend.open(problem), verdict, problem)

    forward = infer

    def score(
        self, *, lengths: LengthsLike | None = None, mask: MaskLike | None = None, **tensors: Tensor
    ) -> Tensor:
        """[B]: the score of full answers; inputs and variables by name.  energy = -score."""
        answer, inputs = self._split(tensors)
        missing = [v.name for v in self.graph.variables.values() if v.readout is None and v.name not in answer]
        if missing:
            raise self._maker.fail("E0501", self.graph.variables[missing[0]].span, name=missing[0], help="`score` needs a label for every cell")
        batch = self._maker.make(inputs, lengths, mask, self._reference())
        self._check_answer(answer, batch, full=True)
        return self._problem(batch).score(answer)

    def loss(
        self,
        *,
        objective: str | Selection | None = None,
        using: str | Selection | None = None,
        reduction: str | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        **tensors: Tensor,
    ) -> Tensor:
        """The training loss, always minimised.

        Args:
            objective: as in the spec's `train`, for example `"nll"`; the spec's first stage when left out.
            using: the backend that answers the objective's queries.
            reduction: `"sequence"` (mean over examples), `"cell"` (mean over cells), `"sum"`, or `"none"` for [B];
                the objective's own (`sequence`, or `cell` for `marginal_ce`) when left out.
            lengths: as in `infer`.
            mask: as in `infer`.
            **tensors: inputs, and gold labels by variable; -1 marks an unknown label.
        """
        from energyml.objectives.losses import reduce_losses

        chosen = self._objective(objective)
        answer, inputs = self._split(tensors)
        own = using if using is not None else chosen["infer"]
        posterior = self.infer(using=own, lengths=lengths, mask=mask, **inputs)
        answer = self._existing(answer, posterior.problem.env.batch)
        losses: Tensor = cards.implementation(chosen.card)(posterior, answer, chosen)
        cells = torch.stack([(labels >= 0).reshape(labels.shape[0], -1).sum(1) for labels in answer.values()]).sum(0)
        return reduce_losses(losses, cells, reduction or chosen["reduction"], chosen.name)

    def _existing(self, answer: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Gold labels, checked, with -1 where there is no cell."""
        if not answer:
            raise EnergyError("`loss` needs gold labels: pass each output by name, as in `y=...`")
        self._check_answer(answer, batch, full=False)
        found = {}
        for name, labels in answer.items():
            dims = self.graph.variables[name].dims
            found[name] = torch.where(batch.cells_exist(dims, name), labels, ABSENT) if dims else labels
        return found

    def _objective(self, objective: str | Selection | None) -> Selection:
        if isinstance(objective, Selection):
            return objective
        if objective is None:
            stages = self.compiled.model.choices.train
            if not stages:
                raise EnergyError("the spec has no `train` line, so `loss` needs `objective=`, for example objective='nll'")
            return stages[0]
        from energyml.driver import read_choice

        return read_choice("objective", objective, self.compiled.model)

    # ------------------------------------------------------------------------------------------------------- arguments

    def _reference(self) -> Tensor | None:
        return next(iter(self.parameters()), None)

    def _problem(self, batch: Batch) -> Problem:
        return Problem(self.graph, self.terms, Environment(self, batch, gains=self.gains), Evidence())

    def _split(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        answer = {name: one for name, one in tensors.items() if name in self.graph.variables}
        return answer, {name: one for name, one in tensors.items() if name not in answer}

    def _evidence(self, evidence: Mapping[str, Tensor] | None, batch: Batch) -> Evidence:
        if not evidence:
            return Evidence()
        counts = {v.name: len(self.graph.label_sets[v.type.element].labels or ()) for v in self.graph.discrete}
        for name in evidence:
            if name not in counts:
                raise self._maker.fail("E0502", None, name=name, help="evidence is about outputs and latents")
        labels = {name: one for name, one in evidence.items() if one.dtype != torch.bool}
        self._check_answer(labels, batch, full=False)
        allowed = {name: one.to(batch.device) for name, one in evidence.items() if one.dtype == torch.bool}
        for name, one in allowed.items():
            wanted = (*batch.cells_exist(self.graph.variables[name].dims, name).shape, counts[name])
            if tuple(one.shape) != wanted:
                declared = self.graph.variables[name]
                raise self._maker.fail("E0503", declared.span, name=name, shape=list(one.shape), type=declared.type,
                                       problem=f"allowed labels are bool {list(wanted)}")  # fmt: skip
        return Evidence(allowed).both(Evidence.from_labels(labels, counts))

    def _check_answer(self, answer: Mapping[str, Tensor], batch: Batch, full: bool) -> None:
        """Gold labels fit their declarations; on the host also that each label exists."""
        for name, labels in answer.items():
            declared = self.graph.variables[name]
            if declared.kind == "field":
                continue
            sizes = [batch.along[d].size if d in batch.along else batch.exists[d].shape[-1] for d in declared.dims]
            if list(labels.shape) != [batch.size, *sizes]:
                raise self._maker.fail("E0503", declared.span, name=name, shape=list(labels.shape), type=declared.type,
                                       problem=f"expected {[batch.size, *sizes]}")  # fmt: skip
            if labels.is_floating_point():
                raise self._maker.fail("E0504", declared.span, name=name, found="real numbers", type=declared.type)
            self._check_labels(name, labels, batch, full)

    def _check_labels(self, name: str, labels: Tensor, batch: Batch, full: bool) -> None:
        declared = self.graph.variables[name]
        count = len(self.graph.label_sets[declared.type.element].labels or ())
        if labels.device.type != "cpu":
            return
        exists = batch.cells_exist(declared.dims, name) if declared.dims else torch.ones_like(labels, dtype=torch.bool)
        free_length = any(self.graph.dims[d].kind == "free" for d in declared.dims)
        low = 0 if full and not free_length else -1
        bad = exists & ((labels < low) | (labels >= count))
        if bool(bad.any()):
            spot = bad.nonzero()[0]
            raise self._maker.fail("E0505", declared.span, name=name, value=int(labels[tuple(spot)]), example=int(spot[0]),
                                   labels=declared.type.element, count=count)  # fmt: skip

    # ------------------------------------------------------------------------------------------------------------ show

    def __repr__(self) -> str:
        variables = "\n".join(f"  {v.kind} {v.name} : {v.type}" for v in self.graph.variables.values())
        terms = "\n".join(f"  {term.name}: {term.kind}" for term in self.graph.terms)
        count = sum(p.numel() for p in self.parameters())
        structure = "; ".join(self.structure.describe())
        return f"EnergyModel({self.compiled.source.name}, {count:,} parameters)\n{variables}\n{terms}\n  structure: {structure}"

    def _repr_svg_(self) -> str:
        from energyml.ir.draw import lifted_svg

        return lifted_svg(self.graph)

    def explain(self, sizes: Mapping[str, int] | None = None) -> str:
        """The plan in words: structure, cost, and a verdict on every backend."""
        from energyml.explain import explain_plan

        return explain_plan(self.compiled, sizes or {})


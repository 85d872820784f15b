"""The bound model: a torch module whose parameters have the spec's names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

from energyml.backend import Backend
from energyml.bind.answers import Answers
from energyml.bind.batch import Batch
from energyml.bind.binder import NetBuilder, bind_labels, initial_value, used_inputs
from energyml.bind.gains import Gain
from energyml.bind.maker import BatchMaker, LengthsLike, MaskLike
from energyml.bind.problem import Evidence, Problem
from energyml.bind.tensors import Compiler, Environment
from energyml.bind.terms import bind_term
from energyml.bind.weights import KEY, WeightNames
from energyml.cards.card import Selection
from energyml.choices import BackendRefused as BackendRefused
from energyml.choices import Choices
from energyml.diagnostics import EnergyError, Source
from energyml.execution import call_or_explain, is_functional, refuse_single_call_tracers
from energyml.plan.planner import Plan, Verdict
from energyml.plan.structure import Structure, recognise
from energyml.posterior import Posterior
from energyml.training_state import TrainingState

if TYPE_CHECKING:
    from energyml.driver import Compiled
    from energyml.objectives.losses import ExampleLosses


# What a model has from its spec: made again from the text, and shared between copies.
_FROM_SPEC = frozenset({"compiled", "graph", "structure", "terms", "_maker", "_answers", "_choices", "_names"})


class EnergyModel(nn.Module):
    """A spec with weights.

    Networks and parameters are registered under the names that the spec gives them, so `state_dict` reads like the
    spec. Inputs are tensors with a leading batch axis; see `infer`.
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
        self.gains: dict[str, Gain] = {}
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self._takes_masks = self._build()
        self._modules["infer"] = nn.ModuleDict()
        self._bind_terms()

    def _bind_terms(self) -> None:
        """What is made from the spec and the label sets alone: it is rebuilt, not stored, when a model is pickled."""
        source = self.compiled.source
        compiler = Compiler(self.graph, source, self._takes_masks)
        self.terms = tuple(bind_term(term, self.graph, compiler) for term in self.graph.terms)
        self._maker = BatchMaker(self.graph, source, used_inputs(self.graph))
        self._answers = Answers(self.graph, source)
        self._names = WeightNames(self.graph, source)
        self._choices = Choices(self.compiled, self.graph, self.terms, self.structure)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, networks and gains as they are; the spec as its text, the label sets as lists."""
        state = {key: value for key, value in self.__dict__.items() if key not in _FROM_SPEC}
        labels = {name: one.labels for name, one in self.graph.label_sets.items()}
        return {**state, "_spec": (self.compiled.source.name, self.compiled.source.text, labels)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile the text again and take the stored networks and parameters."""
        from energyml.driver import compile_source

        name, text, labels = state.pop("_spec")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.compiled = compile_source(Source(name, text))
        self.graph = bind_labels(self.compiled.graph, self.compiled.source, labels)
        self.structure = recognise(self.graph)
        self._bind_terms()

    def __deepcopy__(self, memo: dict[int, Any]) -> EnergyModel:
        """A copy with its own parameters and state; what comes from the spec is immutable and shared."""
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        shared = {key: value for key, value in self.__dict__.items() if key in _FROM_SPEC}
        own = {key: value for key, value in self.__dict__.items() if key not in _FROM_SPEC}
        made.__dict__.update({**shared, **copy.deepcopy(own, memo), "_choices": self._choices.afresh()})
        return made

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

    # --------------------------------------------------------------------------------------------------- fixed inputs

    def fix(self, **inputs: Tensor | None) -> Self:
        """Give inputs a value that holds for every example, so that calls need not pass them; returns the model.

        A call that passes the input all the same uses its own. Fixed inputs are buffers under their declared names:
        they move with the model, and `state_dict`, pickles and copies keep them. The size of a batch then comes from
        the other arguments of a call, and is 1 where none of them tells it.

        Args:
            **inputs: the declared inputs, [1, *axes]; `None` gives an input back to the caller.
        """
        reference = self._reference()
        placed = {
            # What is no tensor is refused by the check.
            name: one.detach().to(reference.device if reference is not None else one.device, copy=True)
            if isinstance(one, Tensor)
            else one
            for name, one in inputs.items()
        }
        kept = {**self._buffers, **placed}
        known = {name: one for name, one in kept.items() if one is not None or name not in self.graph.inputs}
        self._maker.check_fixed(cast("dict[str, Tensor]", known))
        for name, one in placed.items():
            if one is None:
                self._buffers.pop(name, None)
            else:
                self._buffers[name] = one
        return self

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """The inputs [1, *axes] that hold for every example; see `fix`."""
        return {name: one for name, one in self._buffers.items() if one is not None}

    # ----------------------------------------------------------------------------------------------------------- plans

    def plan(self, using: str | Selection | None = None, queries: Sequence[str] = ()) -> Plan:
        """The backend that would answer, and why."""
        return self._choices.plan(using, queries)

    def selected(self, using: str | Selection | None = None) -> Selection | None:
        """The choice of a backend with its options: the caller's, else the spec's, else `None`."""
        return self._choices.selection(using)

    def prepared(self, using: str | Selection | None = None) -> tuple[Backend, Verdict]:
        """The backend that answers, ready for this model, and what the planner says about it; it is made once."""
        return self._choices.backend(using)

    # ------------------------------------------------------------------------------------------ what backends own

    @property
    def owned(self) -> nn.ModuleDict:
        """What backends own, by their choice; `infer.` in `state_dict`."""
        return cast("nn.ModuleDict", self._modules["infer"])

    def inference_module(self, using: str | Selection | None = None) -> nn.Module | None:
        """The parameters that a backend owns, such as an inference network; `None` for a backend that owns none.

        They are made when they are not there, and then belong to the model: it moves, stores and copies them.

        Args:
            using: the backend, as in `infer`.
        """
        known, reference = set(self.owned), self._reference()
        made = self.prepared(using)[0].own(self, self.owned)
        for name in self.owned.keys() - known:
            new = self.owned[name].train(self.training)
            if reference is not None:
                new.to(device=reference.device, dtype=reference.dtype)
        return made

    def get_extra_state(self) -> Tensor:
        """The names of the labels, dims and roles that the weights run along: JSON as uint8 [n]."""
        return self._names.state()

    def set_extra_state(self, state: object) -> None:
        """Nothing is left to do: names were compared before the weights were read."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights whose labels have the names of this model's.

        Parameters whose labels or axes stand in another order are put in order by name. Networks cannot be, and are
        refused then, as are weights for other labels, and with `strict` those that carry no names (`_extra_state`).
        """
        if strict:
            self._names.check_given(state_dict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        *rest: Any,
    ) -> None:
        """Put weights in order by name, and make what backends own before its weights are read: its name says how."""
        self._names.fit(state_dict, prefix)
        lead = f"{prefix}infer."
        for choice in dict.fromkeys(key[len(lead) :].partition(".")[0] for key in state_dict if key.startswith(lead)):
            if choice not in self.owned:
                self.inference_module(choice)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        if f"{prefix}{KEY}" in missing and not self._names.unchecked(state_dict, prefix):
            missing.remove(f"{prefix}{KEY}")

    # --------------------------------------------------------------------------------------------------------- queries

    def infer(
        self,
        *,
        using: str | Selection | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        evidence: Mapping[str, Tensor] | None = None,
        start: Mapping[str, Tensor] | None = None,
        **inputs: Tensor,
    ) -> Posterior:
        """The posterior over the outputs given the inputs.

        Args:
            using: a backend in the spec's own words, as in `"mean_field(steps: 20)"`; the spec's choice when left out.
            lengths: how many positions exist in each example: [B], or by dim ([B, T] for a dim nested in T).
            mask: which positions carry a cell: bool [B, *dims], or by variable; gaps are allowed.  Without lengths, the
                positions behind the last cell are padding.
            evidence: by variable: labels [B, *dims] with -1 for "any", or allowed labels as bool [B, *dims, labels]; by
                field: observed values [B, *axes] with NaN for cells that are not observed.
            start: by field: values [B, *axes] from which an iterative backend starts, such as an earlier `mode`.
            **inputs: the declared inputs, [B, *axes]; real ones are converted to the parameters' floating-point type.

        Cost: checks and sizes only; a query on the result does the work.
        """
        _by_name(evidence, "evidence")
        _by_name(start, "start")
        return self._posterior(using, inputs, lengths, mask, evidence, evidence, start)

    forward = infer

    def problem(
        self,
        *,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        evidence: Mapping[str, Tensor] | None = None,
        **inputs: Tensor,
    ) -> Problem:
        """One batch as a backend gets it: checked tensors, bound terms, evidence; arguments as in `infer`."""
        _by_name(evidence, "evidence")
        return self.problem_of(*self._made(evidence, evidence, inputs, lengths, mask))

    def _posterior(
        self,
        using: str | Selection | None,
        inputs: Mapping[str, Tensor],
        lengths: LengthsLike | None,
        mask: MaskLike | None,
        evidence: Mapping[str, Tensor] | None,
        answer: Mapping[str, Tensor] | None,
        start: Mapping[str, Tensor] | None = None,
        state: TrainingState | None = None,
    ) -> Posterior:
        """As `infer`; the shapes of an answer may tell sizes."""
        functional = is_functional()
        if functional:
            refuse_single_call_tracers()
        batch, known = self._made(evidence, answer, inputs, lengths, mask)
        # Evidence may leave few of an example's many answers, which its sizes do not tell.
        fitting = not functional and not known.allowed
        backend, verdict = self._choices.fitting(using, batch) if fitting else self._choices.backend(using, functional)
        problem = self.problem_of(batch, known, self._answers.labels(start, batch) if start else {})
        if state is not None:
            problem.state = state
        opened = (
            call_or_explain(f"a batch of `{verdict.selection.name}`", backend.open, problem)
            if functional
            else backend.open(problem)
        )
        return Posterior(opened, verdict, problem, backend)

    def _made(
        self,
        evidence: Mapping[str, Tensor] | None,
        answer: Mapping[str, Tensor] | None,
        inputs: Mapping[str, Tensor],
        lengths: LengthsLike | None,
        mask: MaskLike | None,
    ) -> tuple[Batch, Evidence]:
        """The batch of a call, whose sizes an answer may tell, and its evidence."""
        batch = self._maker.make(inputs, lengths, mask, self._reference(), answer, self._buffers)
        return batch, Evidence.given(evidence, self._answers, batch)

    def to_pyro(self, **arguments: Any) -> Any:
        """p(y | x) as a Pyro distribution, for use inside a larger Pyro program; arguments as in `infer`.

        `sample`, `log_prob`, and `enumerate_support` where it is small; see `energyml.interop.pyro`.
        """
        return self.infer(**arguments).to_pyro()

    def score(self, *, lengths: LengthsLike | None = None, mask: MaskLike | None = None, **tensors: Tensor) -> Tensor:
        """[B]: the score of full answers; inputs and variables by name.  energy = -score."""
        answer, inputs = self._complete(tensors, "`score` needs a label or a value for every cell")
        batch = self._maker.make(inputs, lengths, mask, self._reference(), answer, self._buffers)
        return self.problem_of(batch, Evidence()).score(self._answers.labels(answer, batch, full=True))

    def soft_score(
        self,
        *,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        penalty: float | None = None,
        **tensors: Tensor,
    ) -> Tensor:
        """[B]: the score of relaxed answers; at one-hot vectors it equals `score`.

        Args:
            lengths: as in `infer`.
            mask: as in `infer`.
            penalty: what the probability of forbidden joint labels costs; -inf as soon as there is any when left out.
            **tensors: inputs, and for every variable probability vectors [B, *dims, labels] (values for a field); what
                stands where there is no cell does not count.
        """
        answer, inputs = self._complete(tensors, "`soft_score` needs a vector for every cell")
        batch = self._maker.make(inputs, lengths, mask, self._reference(), answer, self._buffers)
        found = self._answers.vectors(answer, batch)
        return self.problem_of(batch, Evidence()).soft_score(found, penalty=penalty)

    def loss(
        self,
        *,
        objective: str | Selection | None = None,
        using: str | Selection | None = None,
        reduction: str | None = None,
        cost: Mapping[str, Tensor] | None = None,
        training_state: TrainingState | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        **tensors: Tensor,
    ) -> Tensor:
        """The training loss, always minimised.

        Args:
            objective: as in the spec's `train`, for example `"nll"`; the spec's first stage when left out.
            using: the backend that answers the objective's queries.
            reduction: `"example"` (mean over examples), `"cell"` (mean over cells), `"sum"`, or `"none"` for [B];
                the objective's own (`example`, or `cell` for `marginal_ce`) when left out.
            cost: by variable [B, *dims, labels]: what each label costs at each cell, in place of the option `cost` of
                `ssvm` and `softmax_margin`; taken as it is, but for the gold label, which costs nothing.
            training_state: where training stands, for schedules and objectives that change on their way.
            lengths: as in `infer`.
            mask: as in `infer`.
            **tensors: inputs, and gold labels by variable; -1 marks an unknown label.  `nll` also takes allowed labels,
                bool [B, *dims, labels]: the loss is -log of the probability that every cell has one of those.
        """
        found = self.example_losses(
            objective=objective, using=using, cost=cost, training_state=training_state, lengths=lengths, mask=mask,
            **tensors,
        )  # fmt: skip
        return found.reduced(reduction)

    def example_losses(
        self,
        *,
        objective: str | Selection | None = None,
        using: str | Selection | None = None,
        cost: Mapping[str, Tensor] | None = None,
        training_state: TrainingState | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        **tensors: Tensor,
    ) -> ExampleLosses:
        """The loss of each example before any reduction, with the batch that it was computed on; see `loss`."""
        from energyml.objectives.losses import ExampleLosses, labelled_cells, with_cost
        from energyml.objectives.nll import nll_within

        if isinstance(cost, Tensor):  # a declared input or output of that name
            cost, tensors = None, {**tensors, "cost": cost}
        chosen = with_cost(self._choices.objective(objective), cost)
        answer, inputs = self._split(tensors)
        if not answer:
            raise EnergyError("`loss` needs gold labels: pass each output by name, as in `y=...`")
        own = using if using is not None else chosen["infer"]
        posterior = self._posterior(own, inputs, lengths, mask, None, answer, state=training_state)
        problem = posterior.problem
        if any(isinstance(one, Tensor) and one.dtype == torch.bool for one in answer.values()):
            backend, verdict = self.prepared(own)
            within = replace(problem, evidence=Evidence.given(answer, self._answers, problem.env.batch))
            losses, cells = nll_within(posterior, Posterior(backend.open(within), verdict, within), chosen)
            return ExampleLosses(losses, chosen, problem, lambda: cells)
        batch = problem.env.batch
        answer = self._answers.labels(answer, batch)
        batch.checked.update(answer)
        losses = call_or_explain(f"the loss `{chosen.name}`", self._choices.loss(chosen), posterior, answer, chosen)
        return ExampleLosses(losses, chosen, problem, lambda: labelled_cells(answer))

    def losses_under(
        self,
        gains: Sequence[Mapping[str, Gain]],
        *,
        objective: str | Selection | None = None,
        using: str | Selection | None = None,
        lengths: LengthsLike | None = None,
        mask: MaskLike | None = None,
        **tensors: Tensor,
    ) -> list[Tensor]:
        """[B] for each choice of gains: the losses of each example; networks run once for all of them.

        Arguments as in `loss`; gains replace those of the model for the terms that they name.
        """
        chosen = self._choices.objective(objective)
        answer, inputs = self._split(tensors)
        own = using if using is not None else chosen["infer"]
        backend, verdict = self.prepared(own)
        batch = self._maker.make(inputs, lengths, mask, self._reference(), answer, self._buffers)
        answer = self._answers.labels(answer, batch)
        plain = self.problem_of(batch, Evidence())
        found = []
        for one in gains:
            problem = replace(plain, env=plain.env.with_gains({**self.gains, **one}))
            posterior = Posterior(backend.open(problem), verdict, problem)
            found.append(self._choices.loss(chosen)(posterior, answer, chosen))
        return found

    # ------------------------------------------------------------------------------------------------------- arguments

    def _reference(self) -> Tensor | None:
        for parameter in self._parameters.values():  # much faster than walking the networks, where there is one
            return parameter
        networks = (one for name, one in self._modules.items() if one is not None and name != "infer")
        return next((parameter for one in networks for parameter in one.parameters()), None)

    def problem_of(
        self, batch: Batch, evidence: Evidence, start: Mapping[str, Tensor] = MappingProxyType({})
    ) -> Problem:
        """The problem of a batch that was checked, and of what is known about its answer."""
        env = Environment(self, batch, gains=dict(self.gains))
        return Problem(self.graph, self.terms, env, evidence, self._answers, start).watched()

    def _split(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        answer = {name: one for name, one in tensors.items() if name in self.graph.variables}
        return answer, {name: one for name, one in tensors.items() if name not in answer}

    def _complete(self, tensors: Mapping[str, Tensor], needs: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Answer and inputs, where the answer must name every variable of the score."""
        answer, inputs = self._split(tensors)
        for variable in self.graph.variables.values():
            if variable.readout is None and variable.name not in answer:
                raise self._maker.fail("E0501", variable.span, name=variable.name, help=needs)
        return answer, inputs

    # ------------------------------------------------------------------------------------------------------------ show

    def __repr__(self) -> str:
        variables = "\n".join(f"  {v.kind} {v.name} : {v.type}" for v in self.graph.variables.values())
        terms = "\n".join(f"  {term.name}: {term.kind}" for term in self.graph.terms)
        count = sum(p.numel() for p in self.parameters())
        structure = "; ".join(self.structure.describe())
        head = f"EnergyModel({self.compiled.source.name}, {count:,} parameters)"
        return "\n".join((head, variables, terms, f"  structure: {structure}"))

    def _repr_svg_(self) -> str:
        from energyml.ir.draw import lifted_svg

        return lifted_svg(self.graph)

    def explain(self, sizes: Mapping[str, int] | None = None) -> str:
        """The plan in words: structure, cost, and a verdict on every backend."""
        from energyml.explain import explain_plan

        return explain_plan(self.compiled, sizes or {})


def _by_name(given: object, argument: str) -> None:
    """Refuse a bare tensor where one is expected for each variable."""
    if given is not None and not isinstance(given, Mapping):
        found = type(given).__name__
        raise EnergyError(f"`{argument}` is given by variable, as in `{argument}={{'y': tensor}}`, found {found}")

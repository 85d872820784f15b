"""Inference networks as a backend: one pass of a network answers, a few steps for each input improve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from energyml.backend import Backend, Session
from energyml.backends.infnet.network import InferenceNetwork, architecture_of, make_network
from energyml.backends.infnet.reading import positions_of
from energyml.backends.infnet.tailoring import Tailored, Tailoring
from energyml.bind.problem import Problem
from energyml.bind.tensors import full
from energyml.bind.terms import BoundTerm
from energyml.caching import ValueCache
from energyml.cards.card import Selection
from energyml.diagnostics import EnergyError, QueryRefused
from energyml.ir.graph import Graph
from energyml.plan.structure import Structure
from energyml.queries import Query
from energyml.result import ABSENT, Assignment, Result, Status

# The options that say what the parameters are; the others may differ between two uses of the same network.
DEFINING = ("architecture", "net", "plus", "seed")


class NotFitted(QueryRefused, EnergyError):
    """An inference network that nobody has trained, with the remedy."""


def name_of(selection: Selection) -> str:
    """The choice that describes a network and nothing else: equal for all choices that mean the same network."""
    given: dict[str, Any] = {}
    chosen = architecture_of(selection)
    known = chosen.card.defaults()
    chosen = Selection(chosen.card, {key: value for key, value in chosen.options.items() if value != known[key]})
    for key in DEFINING:
        value = chosen if key == "architecture" and selection["net"] is None else selection[key]
        if value is not None and value != selection.card.defaults()[key]:
            given[key] = value
    if str(given.get("architecture")) == "blstm":
        del given["architecture"]
    return str(Selection(selection.card, given))


class InferenceNetworks(Backend):
    """The backend `infnet`.  Its network belongs to the model, under the name that `name_of` gives."""

    def prepare(self, graph: Graph, terms: Sequence[BoundTerm], structure: Structure) -> None:
        """Nothing but the graph: the network is made when it is fitted or loaded."""
        self.graph, self.name = graph, name_of(self.selection)

    def own(self, model: nn.Module, owned: nn.ModuleDict) -> nn.Module:
        """The network, made from the option `seed` when the model has none of this description."""
        if self.name not in owned:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(self.selection["seed"]))
                owned[self.name] = make_network(self.selection, self.graph, model)
        return owned[self.name]

    def open(self, problem: Problem) -> Session:
        """One batch."""
        return InferenceSession(problem, self.selection, self.name)


class InferenceSession(Session):
    """One batch.

    Args:
        problem: the batch.
        selection: the choice of the backend.
        name: of the network among those of the model.
    """

    def __init__(self, problem: Problem, selection: Selection, name: str) -> None:
        self.problem, self.selection, self.name = problem, selection, name
        self.once = ValueCache().once

    @cached_property
    def network(self) -> InferenceNetwork:
        """The network, or a refusal that says how to fit one.

        A choice that says nothing about the network means the only one that the model has.
        """
        owned = self.problem.env.module._modules.get("infer")
        known = dict(owned.items()) if isinstance(owned, nn.ModuleDict) else {}
        found = {name: one for name, one in known.items() if isinstance(one, InferenceNetwork)}
        if self.name in found:
            return found[self.name]
        if len(found) == 1 and not any(key in self.selection.options for key in DEFINING):
            return next(iter(found.values()))
        others = f" (fitted: {', '.join(f'`{name}`' for name in found)})" if found else ""
        raise NotFitted(
            f"`{self.name}` has not been fitted to this model{others}; add a stage to `train`: "
            f"`then infnet_loss {{ infer: {self.name} }}`, or in Python train "
            f"`model.inference_module('{self.name}')` on `model.loss(objective='infnet_loss', ...)`"
        )

    # --------------------------------------------------------------------------------------------------------- queries

    def ask(self, query: Query) -> Result:
        """`map`: the likeliest label of each cell; `soft_decode`: its probabilities, before rounding."""
        logits = self.logits
        relaxed = self.relaxed(logits)
        if query.kind == "soft_decode":
            return Result(relaxed, statistics={"logits": logits, **self._tailoring_statistics()})
        answer, forbidden = self._rounded()
        statistics = {
            "relaxed_score": self.soft_score(relaxed).detach(),
            "score": answer.score,
            **self._tailoring_statistics(),
        }
        status = Status(lambda: _not_finite(logits, self.name) or _forbidden(forbidden, self.name))
        return Result(answer, status=status, statistics=statistics)

    def _tailoring_statistics(self) -> dict[str, Any]:
        if not self.selection["tailor"]:
            return {}
        found = self._tailored
        return {
            "steps": int(self.selection["tailor"]),
            "score_before": found.began,
            "score_after": found.ended,
            "one_by_one": self._tailoring.looped,
        }

    # ---------------------------------------------------------------------------------------------------------- scores

    @property
    def logits(self) -> dict[str, Tensor]:
        """By variable: [B, *dims, labels], -inf where evidence rules a label out."""
        if self.selection["tailor"]:
            return self._evident(self._tailored.scores)
        return self._untailored

    @property
    def _untailored(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.once(
            "untailored", lambda: self._evident(self.network(self._tensors, self._masks))
        )
        return found

    @property
    def _tailored(self) -> Tailored:
        options = self.selection
        found: Tailored = self.once(
            "tailored",
            lambda: self._tailoring.run(
                self._judged(), int(options["tailor"]), float(options["lr"]), float(options["momentum"])
            ),
        )
        return found

    @cached_property
    def _tailoring(self) -> Tailoring:
        return Tailoring(self.network, self._tensors, self._masks)

    def _judged(self) -> Any:
        with torch.enable_grad():
            score = self.problem.softened(penalty=float(self.selection["penalty"]))
        return lambda scores: score(self.relaxed(self._evident(scores)))

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """The inputs that a network may read, one row an example, in the floating-point type of its weights."""
        batch = self.problem.env.batch
        dtype = next((one.dtype for one in self.network.parameters()), batch.dtype)
        found = {name: full(one, batch.size) for name, one in batch.tensors.items()}
        for dim in {dim for variable in self.problem.graph.discrete for dim in variable.dims[:1]}:
            found[positions_of(dim)] = torch.ones(
                batch.size, batch.size_of(dim), device=batch.device, dtype=batch.dtype
            )
        return {name: one.to(dtype) if one.is_floating_point() else one for name, one in found.items()}

    @property
    def _masks(self) -> dict[str, Tensor]:
        batch = self.problem.env.batch
        return {dim: full(one, batch.size) for dim, one in batch.exists.items()}

    def _evident(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scores of the labels that evidence allows; a cell that may take none keeps all of them."""
        dtype = self.problem.env.batch.dtype
        found = {name: one.to(dtype) for name, one in scores.items()}
        for name, allowed in self.problem.evidence.allowed.items():
            some = allowed.any(-1, keepdim=True)
            found[name] = found[name].masked_fill(~allowed & some, float("-inf"))
        return found

    @cached_property
    def _impossible(self) -> Tensor | None:
        """[B]: the examples in which evidence leaves a cell no label; `None` without evidence."""
        found: Tensor | None = None
        for name, allowed in self.problem.evidence.allowed.items():
            none = self._present(name, ~allowed.any(-1), False).flatten(1).any(1)
            found = none if found is None else found | none
        return found

    def relaxed(self, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By variable: probability vectors [B, *dims, labels]; zero where there is no cell, or no answer."""
        found = {name: self._present(name, one.softmax(-1), 0.0) for name, one in logits.items()}
        if self._impossible is None:
            return found
        gone = self._impossible
        return {name: one.masked_fill(gone.reshape(-1, *([1] * (one.dim() - 1))), 0.0) for name, one in found.items()}

    def _present(self, name: str, values: Tensor, fill: float) -> Tensor:
        cells = self.problem.env.batch.cells(name, self.problem.graph.variables[name].dims)
        if cells is None:
            return values
        return values.masked_fill(~cells.reshape(*cells.shape, *([1] * (values.dim() - cells.dim()))), fill)

    def soft_score(self, relaxed: Mapping[str, Tensor]) -> Tensor:
        """[B]: the relaxed score; forbidden labels cost the penalty."""
        return self.problem.soft_score(relaxed, penalty=float(self.selection["penalty"]))

    # --------------------------------------------------------------------------------------------------------- answers

    def _rounded(self) -> tuple[Assignment, Tensor]:
        """The likeliest labels with their true score, and [B] whether they break a constraint.

        Of tailored and plain answers the better one: rounding may undo what tailoring gained.
        """
        labels, score = self._scored(self.logits)
        if self.selection["tailor"]:
            plain, before = self._scored(self._untailored)
            worse = score < before
            labels = {
                name: torch.where(worse.reshape(-1, *([1] * (one.dim() - 1))), plain[name], one)
                for name, one in labels.items()
            }
            score = torch.where(worse, before, score)
        forbidden = score.isneginf()
        latent = {v.name for v in self.problem.graph.discrete if v.kind == "latent"}
        shown = {
            name: one.masked_fill(forbidden.reshape(-1, *([1] * (one.dim() - 1))), ABSENT)
            for name, one in labels.items()
            if name not in latent
        }
        return Assignment(shown, score, self.problem.label_names()), forbidden

    def _scored(self, logits: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        # Also of scores that are no numbers the label is one that evidence allows; the status tells of them.
        ranked = self._evident({name: torch.nan_to_num(one) for name, one in logits.items()})
        labels = {name: self._present(name, one.argmax(-1), ABSENT) for name, one in ranked.items()}
        score = self.problem.score(labels)
        return labels, score if self._impossible is None else score.masked_fill(self._impossible, float("-inf"))


def _not_finite(logits: Mapping[str, Tensor], name: str) -> tuple[bool, str] | None:
    if not any(
        bool((one.isnan() | one.isposinf() | one.isneginf().all(-1, keepdim=True)).any()) for one in logits.values()
    ):
        return None
    return True, (
        f"the network of `{name}` gives scores that are no numbers: likely (a) inputs that are too large for their "
        "floating-point type, such as -1e30 in place of -inf, (b) NaN in its weights; look at both"
    )


def _forbidden(forbidden: Tensor, name: str) -> tuple[bool, str] | None:
    count = int(forbidden.sum())
    if not count:
        return None
    return False, (
        f"`{name}` found a forbidden answer for {count} of {forbidden.numel()} examples; raise `penalty` and fit it "
        f"again, or search on from its labels: `relaxed(start: {name})`"
    )


__all__ = ["InferenceNetworks", "InferenceSession", "NotFitted", "name_of"]

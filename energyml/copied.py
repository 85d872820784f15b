"""Copies of posteriors: what pickles, `copy.deepcopy` and other processes get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from energyml.bind.batch import Batch
from energyml.bind.problem import Evidence, Problem
from energyml.diagnostics import EnergyError
from energyml.training_state import TrainingState


@dataclass(frozen=True)
class Call:
    """A model and the arguments of one call, without what was made of them.

    Attributes:
        model: the bound `EnergyModel`, with its weights.
        using: the backend in the spec's words.
        batch: the checked inputs, detached from what they were computed by.
        evidence: what is known about the answer.
        start: where iterations start, by field.
        gains: factors by term.
        state: where training stood.
    """

    model: Any
    using: str
    batch: Batch
    evidence: Evidence
    start: Mapping[str, Tensor]
    gains: Mapping[str, Any]
    state: TrainingState

    @staticmethod
    def of(problem: Problem, using: str) -> Call:
        """That of a posterior; refused where networks may have drawn numbers, as dropout does in training mode."""
        module, batch, evidence = problem.env.module, problem.env.batch, problem.evidence
        if not hasattr(module, "problem_of") or problem.env.relaxed:
            raise EnergyError("a posterior can be copied where `model.infer` returned it; this one was made otherwise")
        if module.training and any(map(_draws, module.modules())):
            raise EnergyError(
                "this posterior cannot be copied: its networks draw numbers in training mode (dropout), and a copy "
                "would draw others; call `model.eval()`, and infer again"
            )
        return Call(
            module,
            using,
            replace(batch, tensors=_detached(batch.tensors), fixed=dict(batch.fixed)),
            replace(evidence, observed=_detached(evidence.observed)),
            _detached(problem.start),
            dict(problem.env.gains),
            problem.state,
        )

    def problem(self) -> Problem:
        """The problem, made again about the model as it is now."""
        made: Problem = self.model.problem_of(self.batch, self.evidence, self.start)
        made.env.gains, made.state = self.gains, self.state
        return made


def kept_values(values: Mapping[tuple[str, bool], Any]) -> dict[tuple[str, bool], Any]:
    """Values by query without their graphs: those that had one serve where no gradients are wanted."""
    found: dict[tuple[str, bool], Any] = {}
    for (kind, tracked), value in values.items():
        tensors = [one for one in tree_leaves(value) if isinstance(one, Tensor)]
        graph = any(one.requires_grad for one in tensors)
        found[kind, tracked and not graph] = tree_map_only(Tensor, Tensor.detach, value)
    return found


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that a copy can have: leaves as they are, others without their graphs."""
    return {name: one if one.is_leaf else one.detach() for name, one in tensors.items()}


def _draws(module: nn.Module) -> bool:
    """Whether a network of torch's own draws numbers in training mode."""
    share = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(share, float) and share > 0.0


__all__ = ["Call", "kept_values"]
